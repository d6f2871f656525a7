"""The overview: what needs a human, then how the queues are, then who works."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from interlock.dashboard import plots
from interlock.dashboard.ages import Ages, known
from interlock.dashboard.hour import hour, how_many
from interlock.dashboard.web import Ask, Pages, Reply, View, show
from interlock.domain.approval import GateFilter, GateStatus
from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import Status
from interlock.domain.presence import LATELY_SECONDS
from interlock.domain.registry import Minute, QueueStats
from interlock.engine.engine import Engine
from interlock.errors import NotFound

pages = Pages()

FEW: Final = 5
MOST_WORKERS: Final = 20
STALE_SECONDS: Final = 300.0
_seen: WeakKeyDictionary[Engine, Ages] = WeakKeyDictionary()


@pages.get("/")
async def overview(ask: Ask) -> View | Reply:
    """Show what goes on."""
    reads, tenant = ask.engine.reads, ask.tenant
    queues, minutes, gates, dead, stale, workers = await asyncio.gather(
        reads.queues(tenant),
        reads.minutes(tenant),
        ask.engine.gates.list(tenant, GateFilter(status=GateStatus.OPEN, limit=FEW, urgent=True)),
        reads.jobs(tenant, Filter(statuses=(Status.DEAD_LETTER,), limit=FEW)),
        reads.jobs(tenant, Filter(statuses=(Status.RUNNING,), stale_seconds=STALE_SECONDS, limit=FEW)),
        ask.engine.workers.seen(tenant, limit=MOST_WORKERS),
    )
    span = how_many(minutes, ask.now)
    busy = await known_jobs(ask, [id for worker in workers for id in worker.job_ids[:3]])
    return show(
        "overview.html",
        gates=gates,
        dead=dead,
        stale=stale,
        stalled=await ask.engine.registry.stalled_agents(tenant, limit=FEW),
        stale_seconds=STALE_SECONDS,
        away_seconds=LATELY_SECONDS,
        totals=_totals(queues),
        oldest=min((queue.oldest_ready_at for queue in queues if queue.oldest_ready_at), default=None),
        minutes=span,
        flow=plots.flow(hour(minutes, ask.now, span)),
        queues=drawn(ask, queues, minutes),
        workers=workers,
        busy=busy,
        unreachable=sorted(await reads.unreachable()),
    )


def drawn(
    ask: Ask, queues: Sequence[QueueStats], minutes: Sequence[Minute]
) -> list[tuple[QueueStats, list[plots.Part], plots.Flow]]:
    """Each queue with where its jobs are and how they moved."""
    ages = _seen.setdefault(ask.engine, Ages())
    ages.note(ask.tenant, queues, ask.now)
    span = how_many(minutes, ask.now)
    by_type: dict[str, list[Minute]] = defaultdict(list)
    for row in minutes:
        by_type[row.type].append(row)
    rows = []
    for queue in queues:
        moved = hour(by_type[queue.type], ask.now, span)
        old = known(queue, ages.of(ask.tenant, queue.type), moved.waiting, ask.now)
        rows.append((queue, plots.bar(queue), plots.flow(moved, old)))
    return rows


async def known_jobs(ask: Ask, ids: Sequence[str]) -> dict[str, Job]:
    """Jobs by id; where one was deleted this very moment, none: the next look shows the others."""
    try:
        return {job.id: job for job in await ask.engine.reads.some(ask.tenant, ids)} if ids else {}
    except NotFound:
        return {}


def _totals(queues: Sequence[QueueStats]) -> dict[str, Any]:
    """The counts and rates of all queues together."""
    names = [
        *plots.PARTS,
        "succeeded",
        "failed",
        "succeeded_per_minute",
        "failed_per_minute",
        "enqueued_per_minute",
        "started_per_minute",
    ]
    return {name: sum(getattr(queue, name) for queue in queues) for name in names}
