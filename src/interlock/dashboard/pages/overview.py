"""The overview: what needs attention, queues and workers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from weakref import WeakKeyDictionary

from interlock.dashboard import plots
from interlock.dashboard.http import PageRequest, PageResponse, Pages, View, show
from interlock.dashboard.queue_metrics import AgeSamples, age_series, minute_series, plotted_minutes
from interlock.dashboard.render import short
from interlock.domain.approval import ApprovalFilter, ApprovalStatus
from interlock.domain.attention import MAX_COUNTED, Need
from interlock.domain.budget import BudgetState
from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import Status
from interlock.domain.registry import RATE_MINUTES, Minute, QueueStats
from interlock.domain.worker_presence import LATELY_SECONDS
from interlock.errors import NotFound

pages = Pages()

PREVIEW_SIZE: Final = 5
MAX_WORKERS: Final = 20
MAX_QUEUES: Final = 20
MAX_BUDGETS: Final = 200  # that are looked at for spent units
STALE_SECONDS: Final = 300.0
PRESENT_SECONDS: Final = 300.0  # how long a worker that neither polls nor runs a job stays on the overview
_ages: WeakKeyDictionary[object, AgeSamples] = WeakKeyDictionary()


@pages.get("/")
async def overview(request: PageRequest) -> View | PageResponse:
    """Show what needs attention, then throughput, queues and workers."""
    client = request.client
    pending = ApprovalFilter(status=ApprovalStatus.OPEN, limit=PREVIEW_SIZE, urgent=True)
    queues, minutes, approvals, stale, workers = await asyncio.gather(
        client.queues.list(limit=None),
        client.overview.minutes(),
        client.approvals.list(pending),
        client.jobs.list(Filter(statuses=(Status.RUNNING,), stale_seconds=STALE_SECONDS, limit=PREVIEW_SIZE)),
        client.workers.list(limit=MAX_WORKERS, within_seconds=PRESENT_SECONDS),
    )
    failures, unclaimed = await asyncio.gather(
        client.overview.needing_attention(need=Need.FAILURE, limit=PREVIEW_SIZE),
        client.overview.needing_attention(need=Need.NO_WORKER, limit=PREVIEW_SIZE),
    )
    budgets = await client.budgets.list(limit=MAX_BUDGETS)
    span = plotted_minutes(minutes, request.now)
    busy = await known_jobs(request, [id for worker in workers for id in worker.job_ids[:3]])
    return show(
        "overview.html",
        approvals=approvals,
        failures=failures,
        failure_count=await _counted(request, Need.FAILURE, failures),
        unclaimed=unclaimed,
        unclaimed_count=await _counted(request, Need.NO_WORKER, unclaimed),
        max_counted=MAX_COUNTED,
        stale=stale,
        mismatched=await client.overview.mismatched(limit=PREVIEW_SIZE),
        stalled=await client.overview.stalled_agents(limit=PREVIEW_SIZE),
        held=await client.overview.held_limits(limit=PREVIEW_SIZE),
        spent=await _spent(request, budgets),
        stale_seconds=STALE_SECONDS,
        offline_seconds=LATELY_SECONDS,
        totals=_totals(queues),
        oldest=min((queue.oldest_ready_at for queue in queues if queue.oldest_ready_at), default=None),
        minutes=span,
        rate_minutes=RATE_MINUTES,
        plots=plots.queue_plots(minute_series(minutes, request.now, span)),
        queues=with_plots(request, sorted(queues, key=_activity, reverse=True)[:MAX_QUEUES], minutes),
        queue_count=len(queues),
        workers=workers,
        busy=busy,
        unreachable=sorted(await client.overview.unreachable()),
    )


def with_plots(
    request: PageRequest, queues: Sequence[QueueStats], minutes: Sequence[Minute]
) -> list[tuple[QueueStats, list[plots.BarPart], plots.QueuePlots]]:
    """Return each queue with its bar and plots."""
    ages = _ages.setdefault(request.client.engine, AgeSamples())
    ages.record(request.tenant, queues, request.now)
    span = plotted_minutes(minutes, request.now)
    by_type: dict[str, list[Minute]] = defaultdict(list)
    for row in minutes:
        by_type[row.type].append(row)
    rows = []
    for queue in queues:
        series = minute_series(by_type[queue.type], request.now, span)
        age = age_series(queue, ages.of(request.tenant, queue.type), series.waiting, request.now)
        rows.append((queue, plots.bar(queue), plots.queue_plots(series, age)))
    return rows


class SpentBudget(NamedTuple):
    """A budget that refuses jobs: of the tenant, or of the tree of a job."""

    name: str
    path: str
    budget: BudgetState
    units: Sequence[str]  # those of which nothing is left; all if too little is left for a due job


async def _spent(request: PageRequest, budgets: Sequence[BudgetState]) -> list[SpentBudget]:
    """Return the first budgets that are spent or have too little left for a due job, then those of trees."""
    overview, found = request.client.overview, list[SpentBudget]()
    for one in budgets:
        empty = [unit for unit, left in one.available.items() if left <= 0]
        if empty or (one.waiting and not one.running and await overview.refuses(one.name)):
            found.append(SpentBudget(one.name, f"/budgets/{quote(one.name, safe='')}", one, empty or list(one.amount)))
        if len(found) == PREVIEW_SIZE:
            return found
    trees = await overview.spent_trees(limit=PREVIEW_SIZE - len(found))
    roots = await known_jobs(request, [root for root, _ in trees])
    for root, state in trees:
        name = f"tree of {roots[root].type if root in roots else 'a deleted job'} {short(root)}"
        empty = [unit for unit, left in state.available.items() if left <= 0]
        found.append(SpentBudget(name, f"/jobs/{root}", state, empty or list(state.amount)))
    return found


async def _counted(request: PageRequest, need: Need, listed: Sequence[Job]) -> int:
    """Return the number of jobs with this need, up to the maximum; a short list is its own count."""
    if len(listed) < PREVIEW_SIZE:
        return len(listed)
    return await request.client.overview.count_attention(need=need)


def _activity(queue: QueueStats) -> tuple[int, float]:
    """Sort key: queues with unfinished jobs first, then the busiest."""
    unfinished = queue.in_progress + queue.ready + queue.delayed + queue.blocked + queue.waiting_for_approval
    return unfinished, queue.enqueued_per_minute + queue.succeeded_per_minute + queue.failed_per_minute


async def known_jobs(request: PageRequest, ids: Sequence[str]) -> dict[str, Job]:
    """Return jobs by id; none if one of them was deleted meanwhile, since the next refresh corrects it."""
    try:
        return {job.id: job for job in await request.client.jobs.some(ids)} if ids else {}
    except NotFound:
        return {}


def _totals(queues: Sequence[QueueStats]) -> dict[str, Any]:
    """Return the summed counts and rates of all queues."""
    names = [
        *plots.LOCATIONS,
        "succeeded",
        "failed",
        "succeeded_per_minute",
        "failed_per_minute",
        "enqueued_per_minute",
        "started_per_minute",
    ]
    return {name: sum(getattr(queue, name) for queue in queues) for name in names}
