"""Events on SQLite: appended by the lease holder, read by job or as the tenant's feed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from interlock.domain.progress import EventAppend
from interlock.storage.sql_files import load
from interlock.storage.sqlite.connection import Connection

_SQL: Final = load("interlock.storage.sqlite", "progress.sql")


def write(connection: Connection, tenant: str, results: Sequence[EventAppend]) -> list[tuple[int, ...]]:
    """Append events to leased jobs and return their numbers; a repeated event keeps its number."""
    event_ids = json.dumps([(t.id, e.id) for t in results for e in t.events])
    numbers = {
        row[:2]: row[2] for row in connection.rows(_SQL["known_events"], {"tenant": tenant, "events": event_ids})
    }
    job_ids = json.dumps(sorted({t.id for t in results}))
    found = connection.rows(_SQL["last_events"], {"tenant": tenant, "ids": job_ids})
    last: dict[str, int] = {id: seq for id, seq, _ in found}
    began: dict[str, int] = {id: at for id, _, at in found}
    now = connection.now
    rows = []
    for t in results:
        for e in t.events:
            if (t.id, e.id) not in numbers:
                last[t.id] += 1
                numbers[t.id, e.id] = last[t.id]
                at = now if e.at is None else min(max(e.at, began[t.id]), now)
                rows.append((t.id, last[t.id], e.id, e.level, e.message, e.payload, t.fence, at, now, e.sanitized))
    if rows:
        ((commit_seq, epoch),) = connection.rows(_SQL["next_commit_seq"], {"tenant": tenant})
        connection.db.executemany(_SQL["insert_event"], [(tenant, epoch, commit_seq, *row) for row in rows])
    return [tuple(numbers[t.id, e.id] for e in t.events) for t in results]
