"""Events on PostgreSQL: appended by the lease holder, read by job or as a feed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interlock.domain.progress import SMALLEST_ID, EventAppend, EventRow, FeedEvent, FeedPosition, Level
from interlock.storage.postgres.connection import Conn, call


async def write(connection: Conn, tenant: str, results: Sequence[EventAppend]) -> list[tuple[int, ...] | None]:
    """Append and number events; an existing event keeps its number. None for a job without a matching lease."""
    rows = [(t.id, t.fence, t.worker, e.id, str(e.level), *e[2:]) for t in results for e in t.events]
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


async def of_job(
    connection: Conn, tenant: str, job_id: str, after: int, since: int | None, limit: int
) -> list[EventRow]:
    """Return the events of one job after a number and later than a time, oldest first."""
    return [_row(*row) for row in await connection.fetch(call("events", 5), tenant, job_id, after, since, limit)]


async def feed(connection: Conn, tenant: str, after: FeedPosition, limit: int) -> list[FeedEvent]:
    """Return the committed events of all jobs after a feed position."""
    rows = await connection.fetch(call("feed", 6), tenant, *after, limit)
    return [FeedEvent(FeedPosition(*row[:4]), _row(*row[2:])) for row in map(tuple, rows)]


async def feed_end(connection: Conn) -> FeedPosition:
    """Return the feed position before all future events."""
    ((epoch, commit_seq),) = await connection.fetch(call("feed_end", 0))
    return FeedPosition(epoch, commit_seq, SMALLEST_ID, 0)


def _row(job_id: str, seq: int, id: str, level: str, *rest: Any) -> EventRow:
    return EventRow(job_id, seq, id, Level(level), *rest)
