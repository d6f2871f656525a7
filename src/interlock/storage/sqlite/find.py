"""Lists on SQLite: newest first, read from wherever the fewest rows have to be looked at."""

from __future__ import annotations

import json
from typing import Any, Final

from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.retry import SECOND
from interlock.storage.sqlite.claim import to_job
from interlock.storage.sqlite.connection import Connection
from interlock.storage.statements import load

_SQL: Final = load("interlock.storage.sqlite", "find.sql")
_FITS: Final = _SQL.pop("fits").split("\n", 1)[1]
_FIND: Final = {name: text.replace("{fits}", _FITS) for name, text in _SQL.items()}
_SETBACKS: Final = TERMINAL - {Status.SUCCEEDED}
_BEYOND_ALL: Final = 1 << 62


def find(connection: Connection, tenant: str, filter: Filter) -> list[Job]:
    """The newest jobs that fit."""
    f = filter
    stale = None if f.stale_seconds is None else connection.read_clock() - round(f.stale_seconds * SECOND)
    facts: dict[str, Any] = f._asdict() | {
        "tenant": tenant,
        "agent_kind": f.agent and f.agent[0],
        "agent_id": f.agent and f.agent[1],
        "stale_before": stale,
        "statuses": json.dumps(f.statuses) if f.statuses else None,
        "tags": json.dumps(f.tags),
        "before_seq": f.before_seq if f.before_seq is not None else _BEYOND_ALL,
    }
    where = _where(f)
    if where != "setbacks":
        return [to_job(row) for row in connection.rows(_FIND[where], facts)]
    each = [connection.rows(_FIND[where], facts | {"status": status}) for status in sorted({*f.statuses})]
    return sorted((to_job(row) for rows in each for row in rows), key=lambda job: -job.seq)[: f.limit]


def _where(f: Filter) -> str:
    """The statement that has the fewest jobs to look at."""
    if f.worker is not None or f.stale_seconds is not None or {*f.statuses} == {Status.RUNNING}:
        return "held"
    if f.parent_id is not None:
        return "of_parent"
    if {*f.statuses} == {Status.WAITING_FOR_APPROVAL}:
        return "waiting"
    if f.agent is not None:
        return "of_agent"
    return "setbacks" if f.statuses and {*f.statuses} <= _SETBACKS else "newest"
