"""Totals of usage: every finished job counts once, by type, agent, day and tree."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from interlock.domain.job import Job
from interlock.domain.operations import PruneCommand
from interlock.domain.progress import Step
from interlock.domain.timestamps import EPOCH
from interlock.domain.usage import USAGE, kept_by
from interlock.domain.usage_totals import By
from interlock.engine.usage_totals import UsageTotals
from interlock.errors import Invalid
from tests.contract.builders import OPERATOR, TenantQueue, complete, fail, new_id, release

DAY = 24 * 3600


async def totals(queue: TenantQueue, by: By, **range: object) -> list[tuple[object, int, dict[str, float]]]:
    found = await UsageTotals(queue.store).page(queue.tenant, by, **range)  # type: ignore[arg-type]
    return [(getattr(one, by), one.jobs, one.usage) for one in found]


async def keep(queue: TenantQueue, job: Job, used: object, n: int, *, repeated: bool = False, of: str = "") -> None:
    whose, text = kept_by(of or job.id, is_repeated=repeated), json.dumps(used)
    await queue.store.save_steps(queue.tenant, [Step(job.id, job.fence, str(job.worker), USAGE, n, text, whose)])


async def done(queue: TenantQueue, usage: str | None, **fields: object) -> Job:
    job = await queue.running(**fields)  # type: ignore[arg-type]
    await queue.do(complete(job, usage=usage))
    return job


async def test_usage_is_summed_by_type_and_agent(queue: TenantQueue) -> None:
    await done(queue, '{"usd": 0.5, "tokens": 900}')
    await done(queue, '{"usd": 1}', agent_kind="bot", agent_id="b")
    await done(queue, '{"usd": 2}', agent_kind="bot", agent_id="a")
    await done(queue, '{"requests": 1}', type="other")
    await done(queue, None)
    await queue.running()
    assert await totals(queue, By.TYPE) == [
        ("other", 1, {"requests": 1.0}), ("work", 3, {"tokens": 900.0, "usd": 3.5}),
    ]  # fmt: skip
    assert await totals(queue, By.AGENT) == [
        (None, 2, {"requests": 1.0, "tokens": 900.0, "usd": 0.5}),
        (("bot", "a"), 1, {"usd": 2.0}), (("bot", "b"), 1, {"usd": 1.0}),
    ]  # fmt: skip


async def test_runs_of_a_job_count_once_however_it_ends(queue: TenantQueue) -> None:
    job = await queue.running(max_attempts=2)
    await keep(queue, job, {"usd": 1}, 1)
    await keep(queue, job, {"tokens": 5}, 2, repeated=True)
    await queue.do(release(job))
    job = await queue.again(job)
    await keep(queue, job, {"usd": 2}, 3)
    await keep(queue, job, {"tokens": 8}, 4, repeated=True)
    await keep(queue, job, {"usd": 100}, 5, of=await queue.add(run_at=queue.after(60)))  # copied by a redrive
    await keep(queue, job, ["junk"], 6)
    await keep(queue, job, {"usd": "1", "": 1, "cost": -1, "huge": 10**400}, 7)
    assert await totals(queue, By.TYPE) == []  # it has not finished
    await queue.do(fail(job, retryable=False))
    assert await totals(queue, By.TYPE) == [("work", 1, {"tokens": 8.0, "usd": 3.0})]


async def test_the_total_of_a_result_replaces_what_its_runs_kept(queue: TenantQueue) -> None:
    job = await queue.running()
    await keep(queue, job, {"usd": 1}, 1)
    await queue.do(release(job))
    job = await queue.again(job)
    await queue.do(complete(job, usage='{"usd": 4}'))
    assert await totals(queue, By.TYPE) == [("work", 1, {"usd": 4.0})]
    job = await queue.running(type="silent")
    await keep(queue, job, {"usd": 1}, 1)
    await queue.do(release(job))
    await queue.do(complete(await queue.again(job)))
    assert ("silent", 1, {"usd": 1.0}) in await totals(queue, By.TYPE)


async def test_usage_counts_on_the_day_a_job_finished(queue: TenantQueue) -> None:
    midnight = queue.clock.now // (DAY * 1_000_000) * DAY * 1_000_000
    queue.clock.advance((midnight - queue.clock.now) / 1_000_000 + DAY - 1)
    first = await queue.running(lease_seconds=60)
    await done(queue, '{"usd": 1}', type="early")
    queue.clock.advance(1)
    at = EPOCH + timedelta(microseconds=queue.clock.now)
    await queue.do(complete(first, usage='{"usd": 2}'))
    days = [str((at - timedelta(seconds=1)).date()), str(at.date())]
    assert await totals(queue, By.DAY) == [
        (days[0], 1, {"usd": 1.0}), (days[1], 1, {"usd": 2.0}),
    ]  # fmt: skip
    assert await totals(queue, By.DAY, since=at) == [(days[1], 1, {"usd": 2.0})]
    assert await totals(queue, By.DAY, until=at) == [(days[0], 1, {"usd": 1.0})]
    queue.clock.advance(30 * DAY)
    assert await totals(queue, By.DAY) == [(days[1], 1, {"usd": 2.0})]  # the default is 30 days
    assert await totals(queue, By.DAY, since=at + timedelta(seconds=1)) == []


@pytest.mark.parametrize("range", [(367, 0), (0, 0), (1, 2)])
async def test_a_range_is_bounded(queue: TenantQueue, range: tuple[int, int]) -> None:
    now = EPOCH + timedelta(microseconds=queue.clock.now)
    since, until = (now - timedelta(days=days) for days in range)
    with pytest.raises(Invalid):
        await totals(queue, By.TYPE, since=since, until=until)
    assert await totals(queue, By.TYPE, since=now - timedelta(days=366)) == []
    with pytest.raises(Invalid):
        await UsageTotals(queue.store).page(queue.tenant, "color")


async def test_a_tree_is_its_root_and_all_descendants(queue: TenantQueue) -> None:
    root = await queue.running()
    silent = await queue.running(parent_id=root.id)
    await done(queue, '{"usd": 4}', parent_id=silent.id)
    assert await totals(queue, By.TREE) == [(root.id, 1, {"usd": 4.0})]
    await done(queue, '{"usd": 2}', parent_id=root.id)
    await queue.do(complete(silent))
    await queue.do(complete(root, usage='{"usd": 1}'))
    other = await done(queue, '{"usd": 8}')
    assert await totals(queue, By.TREE) == sorted([(root.id, 3, {"usd": 7.0}), (other.id, 1, {"usd": 8.0})])


async def test_totals_are_pages_by_key(queue: TenantQueue) -> None:
    for type in ("b", "a", "c"):
        await done(queue, '{"usd": 1}', type=type)
    usage = UsageTotals(queue.store)
    first = await usage.page(queue.tenant, limit=2)
    rest = await usage.page(queue.tenant, limit=2, after=first[-1].key)
    assert [[one.type for one in page] for page in (first, rest)] == [["a", "b"], ["c"]]


async def test_a_sum_is_at_most_the_largest_number(queue: TenantQueue) -> None:
    for _ in range(2):
        await done(queue, '{"usd": 9e307, "tokens": 9223372036854775807, "\\u0061": 1E+2}')
    ((_, _, used),) = await totals(queue, By.TYPE)
    assert used == {"a": 200.0, "tokens": 2.0**64, "usd": 1.7976931348623157e308}


async def test_pruned_jobs_no_longer_count(queue: TenantQueue) -> None:
    await done(queue, '{"usd": 1}')
    queue.clock.advance(60)
    await queue.store.prune(queue.tenant, PruneCommand(new_id(), OPERATOR, queue.clock.now, 0, 100))
    assert await totals(queue, By.TYPE) == []
