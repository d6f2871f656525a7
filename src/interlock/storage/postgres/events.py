"""Events on PostgreSQL: appended by the lease holder, read by job or as a feed."""

from __future__ import annotations

from collections.abc import Sequence

from interlock.domain.progress import EventAppend
from interlock.storage.postgres.connection import Conn, call


async def write(connection: Conn, tenant: str, results: Sequence[EventAppend]) -> list[tuple[int, ...] | None]:
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
