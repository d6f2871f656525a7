"""Steps and events on PostgreSQL, each written only under the current fence. A heartbeat may also carry events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from interlock.domain.job import Rejected
from interlock.domain.progress import EventAppend, Report, Step, StepRow
from interlock.storage.batch_split import split_by_job
from interlock.storage.postgres.connection import Conn, call
from interlock.storage.postgres.history import why_lease_lost

T = TypeVar("T")
G = TypeVar("G", Step, Report)


async def save_steps(connection: Conn, tenant: str, steps: Sequence[Step]) -> list[StepRow | Rejected]:
    """Save each new step, and return the stored ones."""
    columns = zip(
        *((s.id, s.fence, s.worker, s.name, s.occurrence, s.result, s.function, s.sanitized) for s in steps),
        strict=True,
    )
    answers: dict[int, StepRow] = {}
    for row in await connection.fetch(call("save_steps", 9), tenant, *columns):
        position, *kept = row.values()
        if row["result"] is None:
            kept[StepRow._fields.index("result")] = steps[position - 1].result
        answers[position - 1] = StepRow(*kept)
    return await _refuse_others(connection, tenant, steps, answers)


async def add_events(connection: Conn, tenant: str, reports: Sequence[Report]) -> list[tuple[int, ...] | Rejected]:
    """Append the events of each report whose worker still holds the job."""
    numbers = await append_events(connection, tenant, reports)
    answers = {i: answer for i, answer in enumerate(numbers) if answer is not None}
    return await _refuse_others(connection, tenant, reports, answers)


async def append_events(connection: Conn, tenant: str, results: Sequence[EventAppend]) -> list[tuple[int, ...] | None]:
    """Append and number events; an existing event keeps its number. None for a job without a matching lease."""
    rows = [
        (t.id, t.fence, t.worker, e.id, str(e.level), e.message, e.payload, e.sanitized, e.at)
        for t in results
        for e in t.events
    ]
    if not rows:
        return [() for _ in results]
    kept = await connection.fetch(call("add_events", 10), tenant, *zip(*rows, strict=True))
    numbers: dict[int, int] = dict(map(tuple, kept))
    answers: list[tuple[int, ...] | None] = []
    position = 1
    for t in results:
        positions = range(position, position := position + len(t.events))
        answers.append(tuple(numbers[p] for p in positions) if positions.start in numbers or not positions else None)
    return answers


async def _refuse_others(
    connection: Conn, tenant: str, items: Sequence[G], answers: dict[int, T]
) -> list[T | Rejected]:
    """Return all results in order, with an error for each missing one."""
    left = [i for i in range(len(items)) if i not in answers]
    refused: dict[int, Rejected] = {}
    for batch in split_by_job([items[i] for i in left]):
        lost = {left[k]: items[left[k]] for k in batch}
        faults = await why_lease_lost(connection, tenant, [(x.id, x.fence, x.worker) for x in lost.values()])
        refused |= {i: faults[x.id] for i, x in lost.items()}
    return [answers[i] if i in answers else refused[i] for i in range(len(items))]
