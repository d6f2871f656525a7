"""Steps and events on SQLite, each written only under the current fence."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from interlock.domain.decide import result_of_repeat
from interlock.domain.job import Rejected
from interlock.domain.lifecycle import Status
from interlock.domain.progress import Report, Step, StepRow
from interlock.errors import Error, NotFound
from interlock.storage.dialect import reader
from interlock.storage.sql_files import load
from interlock.storage.sqlite import events, history
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
    numbers = iter(events.write(connection, tenant, good))
    return [next(numbers) if fault is None else Rejected(fault) for fault in faults]


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
    ended = history.lease_end(connection, tenant, item.id, item.fence)
    answer = result_of_repeat(ended, None, item.id, item.fence, item.worker)
    assert isinstance(answer, Error)
    return answer


_step: Final = reader(StepRow)
