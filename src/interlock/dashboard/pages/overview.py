"""The overview: what needs a human, then how the queues are, then who works."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from interlock.dashboard import plots
from interlock.dashboard.samples import Samples
from interlock.dashboard.web import Ask, Pages, Reply, View, show
from interlock.domain.approval import GateFilter, GateStatus
from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import Status
from interlock.domain.registry import QueueStats
from interlock.engine.engine import Engine
from interlock.errors import NotFound

pages = Pages()

FEW: Final = 5
MOST_WORKERS: Final = 20
STALE_SECONDS: Final = 300.0
_watched: WeakKeyDictionary[Engine, Samples] = WeakKeyDictionary()


@pages.get("/")
async def overview(ask: Ask) -> View | Reply:
    """Show what goes on."""
    reads, tenant = ask.engine.reads, ask.tenant
    queues, gates, dead, stale, workers = await asyncio.gather(
        reads.queues(tenant),
        ask.engine.gates.list(tenant, GateFilter(status=GateStatus.OPEN, limit=FEW)),
        reads.jobs(tenant, Filter(statuses=(Status.DEAD_LETTER,), limit=FEW)),
        reads.jobs(tenant, Filter(statuses=(Status.RUNNING,), stale_seconds=STALE_SECONDS, limit=FEW)),
        ask.engine.workers.seen(tenant, limit=MOST_WORKERS),
    )
    samples = samples_of(ask, queues)
    busy = await known_jobs(ask, [id for worker in workers for id in worker.job_ids[:3]])
    return show(
        "overview.html",
        gates=gates,
        dead=dead,
        stale=stale,
        stale_seconds=STALE_SECONDS,
        totals=_totals(queues),
        oldest=min((queue.oldest_ready_at for queue in queues if queue.oldest_ready_at), default=None),
        flow=plots.flow(samples.all(tenant)),
        queues=[(queue, plots.bar(queue), plots.flow(samples.of(tenant, queue.type))) for queue in queues],
        workers=workers,
        busy=busy,
        unreachable=sorted(await reads.unreachable()),
    )


def samples_of(ask: Ask, queues: Sequence[QueueStats]) -> Samples:
    """The plots' memory of this engine, with the present in it."""
    samples = _watched.setdefault(ask.engine, Samples())
    samples.add(ask.tenant, queues, ask.now)
    return samples


async def known_jobs(ask: Ask, ids: Sequence[str]) -> dict[str, Job]:
    """Jobs by id; where one was deleted this very moment, none: the next look shows the others."""
    try:
        return {job.id: job for job in await ask.engine.reads.some(ask.tenant, ids)} if ids else {}
    except NotFound:
        return {}


def _totals(queues: Sequence[QueueStats]) -> dict[str, Any]:
    """The counts and rates of all queues together."""
    names = [*plots.PARTS, "succeeded", "failed", "succeeded_per_minute", "failed_per_minute", "enqueued_per_minute"]
    return {name: sum(getattr(queue, name) for queue in queues) for name in names}
