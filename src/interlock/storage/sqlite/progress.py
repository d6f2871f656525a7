"""Steps and events on SQLite, each written only under the current fence. A heartbeat may also carry events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from interlock.domain.job import Rejected
from interlock.domain.lifecycle import Status
from interlock.domain.progress import EventAppend, Report, Step, StepRow
from interlock.errors import Error, NotFound
from interlock.storage.dialect import reader
from interlock.storage.sql_files import load
from interlock.storage.sqlite import history
from interlock.storage.sqlite.connection import Connection

_SQL: Final = load("interlock.storage.sqlite", "progress.sql")


def save_steps(connection: Connection, tenant: str, steps: Sequence[Step]) -> list[StepRow | Rejected]:
    """Save each new step and return the stored one: the first save wins."""
    leased = _leases(connection, tenant, steps)
    named = json.dumps([(s.id, s.name, s.occurrence) for s in steps])
    rows = map(_step, connection.rows(_SQL["known_steps"], {"tenant": tenant, "steps": named}))
    known = {(row.job_id, row.name, row.occurrence): row for row in rows}
    ids = json.dumps(sorted({s.id for s in steps}))
    last: dict[str, int] = dict(connection.rows(_SQL["last_steps"], {"tenant": tenant, "ids": ids}))
    answers: list[StepRow | Rejected] = []
    new = []
    for s in steps:
        if (fault := _fault(connection, tenant, s, leased.get(s.id))) is not None:
            answers.append(Rejected(fault))
            continue
        key = (s.id, s.name, s.occurrence)
        if key not in known:
            last[s.id] += 1
            known[key] = StepRow(
                s.id, last[s.id], s.name, s.occurrence, s.result, s.function, s.fence, connection.now, s.sanitized
            )
            new.append((tenant, *known[key]))
        answers.append(known[key])
    connection.db.executemany(_SQL["insert_step"], new)
    return answers


def add_events(connection: Connection, tenant: str, reports: Sequence[Report]) -> list[tuple[int, ...] | Rejected]:
    """Append the events of each report whose worker still holds the lease."""
    leased = _leases(connection, tenant, reports)
    faults = [_fault(connection, tenant, report, leased.get(report.id)) for report in reports]
    good = [report for report, fault in zip(reports, faults, strict=True) if fault is None]
    numbers = iter(append_events(connection, tenant, good))
    return [next(numbers) if fault is None else Rejected(fault) for fault in faults]


def append_events(connection: Connection, tenant: str, results: Sequence[EventAppend]) -> list[tuple[int, ...]]:
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


class _LeaseRef(Protocol):
    """An item that names the lease it was sent under."""

    @property
    def id(self) -> str: ...
    @property
    def fence(self) -> int: ...
    @property
    def worker(self) -> str: ...


def _leases(connection: Connection, tenant: str, items: Iterable[_LeaseRef]) -> dict[str, tuple[str, int, str | None]]:
    ids = json.dumps(sorted({item.id for item in items}))
    return {row[0]: row[1:] for row in connection.rows(_SQL["leases"], {"tenant": tenant, "ids": ids})}


def _fault(
    connection: Connection, tenant: str, item: _LeaseRef, leased: tuple[str, int, str | None] | None
) -> Error | None:
    if leased is None:
        return NotFound(item.id)
    if leased == (Status.RUNNING, item.fence, item.worker):
        return None
    return history.why_lease_lost(connection, tenant, item.id, item.fence, item.worker)


_step: Final = reader(StepRow)
