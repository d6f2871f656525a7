"""What a run uses is charged while it runs, and settled once, however it ends."""

from __future__ import annotations

import json

import pytest

from interlock.domain.budget import PREFIX, OnExceed, Period
from interlock.domain.job import Job
from interlock.domain.limits import Limit, check
from interlock.domain.progress import Step
from interlock.domain.usage import USAGE, kept_by
from interlock.storage.contract import Terms
from tests.contract.builders import OPERATOR, TenantQueue, complete, expire, fail, heartbeat, new_job, release, revoke

NAME = f"{PREFIX}team"


async def setup(queue: TenantQueue, n: int = 2, *, estimate: float = 0.0, on_exceed: OnExceed = OnExceed.PAUSE) -> None:
    budget = Limit(NAME, units={"usd": 10.0}, budget=Period(on_exceed=on_exceed))
    await queue.store.limits.set(queue.tenant, check(budget), actor=OPERATOR)
    terms = Terms((await queue.store.registry.read(queue.tenant)).version)
    named = json.dumps([{"name": NAME, "key": None, "cost": {"usd": estimate}}])
    await queue.store.enqueue(queue.tenant, [new_job(limits=named) for _ in range(n)], terms=terms)


async def left(queue: TenantQueue) -> float:
    found = await queue.store.limits.get(queue.tenant, NAME)
    assert found is not None
    return found.state.available["usd"]


def usd(amount: float) -> str:
    return json.dumps({"usd": amount})


async def is_exceeded(queue: TenantQueue, job: Job, used: float | None = None) -> bool:
    beat = heartbeat(job, usage=None if used is None else usd(used))
    (reply,) = await queue.store.heartbeat(queue.tenant, [beat])
    return reply.budget_exceeded  # type: ignore[union-attr]


async def report(queue: TenantQueue, job: Job, used: float, n: int, *, repeated: bool = False) -> None:
    whose = kept_by(job.id, is_repeated=repeated)
    await queue.store.save_steps(queue.tenant, [Step(job.id, job.fence, str(job.worker), USAGE, n, usd(used), whose)])


async def test_usage_counts_while_a_job_runs_and_stops_all_jobs_of_a_spent_budget(queue: TenantQueue) -> None:
    await setup(queue, 3, estimate=1.0)
    first, second = await queue.claim(limit=2)
    assert await left(queue) == 8.0
    assert not await is_exceeded(queue, first, 0.5)
    assert await left(queue) == 8.0  # within the estimate
    assert not await is_exceeded(queue, first, 6.0)
    assert not await is_exceeded(queue, first, 6.0)  # reported again
    assert await left(queue) == 3.0
    assert not await is_exceeded(queue, second)
    assert await is_exceeded(queue, second, 9.0)
    assert await left(queue) == -5.0
    assert await is_exceeded(queue, first)
    await queue.do(complete(first, usage=usd(7.0)))
    await queue.do(complete(second, usage=usd(2.0)))
    assert await left(queue) == 1.0
    assert len(await queue.claim()) == 1


async def test_an_estimate_that_is_not_used_up_lets_a_job_continue(queue: TenantQueue) -> None:
    await setup(queue, 2, estimate=5.0)
    first, second = await queue.claim(limit=2)
    assert await left(queue) == 0.0
    assert not await is_exceeded(queue, first, 4.0)
    assert not await is_exceeded(queue, second)
    assert await is_exceeded(queue, first, 5.0)


async def test_with_warn_no_running_job_is_told_to_stop(queue: TenantQueue) -> None:
    await setup(queue, on_exceed=OnExceed.WARN)
    (job,) = await queue.claim()
    assert not await is_exceeded(queue, job, 50.0)
    assert await left(queue) == -40.0


@pytest.mark.parametrize("end", [release, fail])
async def test_reported_usage_replaces_the_estimate_at_every_end(queue: TenantQueue, end: object) -> None:
    await setup(queue, 1, estimate=5.0)
    (job,) = await queue.claim()
    await report(queue, job, 2.0, 1)
    await queue.do(end(job))  # type: ignore[operator]
    assert await left(queue) == 8.0
    queue.clock.now = queue.after(3600)
    (job,) = await queue.claim()
    assert await left(queue) == 3.0
    await queue.do(complete(job, usage=usd(3.0)))  # of both runs
    assert await left(queue) == 7.0


async def test_usage_of_a_heartbeat_counts_if_the_end_reports_none(queue: TenantQueue) -> None:
    await setup(queue, 1, estimate=1.0)
    (job,) = await queue.claim()
    await is_exceeded(queue, job, 3.0)
    await queue.do(release(job))
    assert await left(queue) == 7.0


async def test_usage_that_a_later_run_reports_again_counts_once(queue: TenantQueue) -> None:
    await setup(queue, 1)
    (job,) = await queue.claim()
    await report(queue, job, 2.0, 1, repeated=True)
    await queue.do(release(job))
    assert await left(queue) == 8.0
    (job,) = await queue.claim()
    assert not await is_exceeded(queue, job, 2.0)
    assert await left(queue) == 8.0
    await report(queue, job, 5.0, 2, repeated=True)
    await queue.do(release(job))
    assert await left(queue) == 5.0
    (job,) = await queue.claim()
    await queue.do(complete(job, usage=usd(6.0)))
    assert await left(queue) == 4.0


@pytest.mark.parametrize("end", ["expire", "revoke"])
async def test_a_lost_run_keeps_its_estimate_or_what_it_has_reported(queue: TenantQueue, end: str) -> None:
    await setup(queue, 2, estimate=2.0)
    first, second = await queue.claim(limit=2)
    await is_exceeded(queue, second, 3.0)
    if end == "expire":
        queue.clock.now = queue.after(7200)
        await queue.do(expire(first.id))
        await queue.do(expire(second.id))
    else:
        await queue.do(revoke(first.id))
        await queue.do(revoke(second.id))
    assert await left(queue) == 5.0


async def test_a_usage_step_with_odd_content_changes_nothing(queue: TenantQueue) -> None:
    await setup(queue, 1, estimate=2.0)
    (job,) = await queue.claim()
    for n, text in enumerate(('"a"', '{"usd": 1e999}', '{"usd": -1, "": true}', "[1]", "1e200000"), 1):
        step = Step(job.id, job.fence, str(job.worker), USAGE, n, text, kept_by(job.id, is_repeated=False))
        await queue.store.save_steps(queue.tenant, [step])
    await queue.do(release(job))
    assert await left(queue) == 8.0
