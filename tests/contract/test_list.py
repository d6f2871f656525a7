"""Lists: newest first, in pages, filtered, and without what is large."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.job import Filter
from interlock.domain.lifecycle import Status
from tests.contract.builders import NEVER, TenantQueue, cancel, complete, fail, heartbeat, new_job, save
from tests.contract.connections import SqlConnection, job_in


async def found(queue: TenantQueue, **fields: Any) -> list[str]:
    return [job.id for job in await queue.store.find(queue.tenant, Filter(**fields))]


async def test_a_list_is_newest_first(queue: TenantQueue) -> None:
    ids = await queue.add_all([new_job(priority=p) for p in (3, 1, 2)])
    assert await found(queue) == ids[::-1]


async def test_a_list_is_read_in_pages_without_a_gap_or_a_duplicate(queue: TenantQueue) -> None:
    ids = await queue.add_all([new_job() for _ in range(11)])
    pages: list[list[str]] = []
    before = None
    while page := await queue.store.find(queue.tenant, Filter(limit=4, before_seq=before)):
        pages.append([job.id for job in page])
        before = page[-1].seq
        await queue.add()  # what arrives meanwhile is newer and disturbs no page
    assert [len(page) for page in pages] == [4, 4, 3]
    assert [id for page in pages for id in page] == ids[::-1]


async def test_a_list_omits_payload_result_checkpoint_and_error(queue: TenantQueue) -> None:
    job = await queue.running(payload='{"big":1}', headers='{"h":"1"}', tags=("t",), max_attempts=1)
    await queue.checkpoint(save(job, 3, '"progress"'))
    await queue.do(fail(job))
    done = await queue.running(type="other", payload='{"big":2}')
    await queue.do(complete(done, result='"large"', result_summary="short", usage='{"tokens":1}'))
    for listed in await queue.store.find(queue.tenant, Filter()):
        whole = await queue.job(listed.id)
        assert listed == whole._replace(payload=None, result=None, checkpoint=None, error=None)
        assert whole.payload is not None


@pytest.mark.parametrize("status", Status)
async def test_a_list_can_be_filtered_by_status(queue: TenantQueue, sql: SqlConnection, status: Status) -> None:
    jobs = {other: await job_in(queue, sql, other, type=other) for other in Status}
    assert await found(queue, statuses=(status,)) == [jobs[status].id]
    assert await found(queue, statuses=tuple(Status)) == [job.id for job in list(jobs.values())[::-1]]


async def test_a_list_can_be_filtered_by_type(queue: TenantQueue) -> None:
    a, b = await queue.add(type="a"), await queue.add(type="b")
    assert await found(queue, type="a") == [a]
    assert await found(queue, type="b") == [b]
    assert await found(queue, type="c") == []


async def test_a_list_can_be_filtered_by_lease_holder(queue: TenantQueue) -> None:
    held = await queue.running(worker="w1", type="a")
    await queue.running(worker="w2", type="b")
    done = await queue.running(worker="w1", type="c")
    await queue.do(complete(done))
    assert await found(queue, worker="w1") == [held.id]


async def test_a_list_can_be_filtered_by_parent(queue: TenantQueue, rival: TenantQueue) -> None:
    parent = await queue.add()
    children = [await queue.add(parent_id=parent) for _ in range(2)]
    assert await found(queue, parent_id=parent) == children[::-1]
    assert await found(queue, parent_id=NEVER) == []
    assert await found(rival, parent_id=parent) == []


async def test_several_tags_mean_all_of_them(queue: TenantQueue) -> None:
    both = await queue.add(tags=("red", "big"))
    red = await queue.add(tags=("red",))
    await queue.add()
    assert await found(queue, tags=("red",)) == [red, both]
    assert await found(queue, tags=("big", "red")) == [both]
    assert await found(queue, tags=("Red",)) == []


async def test_unusual_tags_are_matched_exactly(queue: TenantQueue) -> None:
    odd = ('"', "\\", "{a,b}", "NULL", "a b", "🐢", "%", "[]", "é")
    id = await queue.add(tags=odd)
    assert tuple((await queue.job(id)).tags) == odd
    for tag in odd:
        assert await found(queue, tags=(tag,)) == [id]


async def test_a_list_can_be_filtered_by_creation_time(queue: TenantQueue) -> None:
    ids = []
    for _ in range(4):
        ids.append(await queue.add())
        queue.clock.advance(10)
    start = (await queue.job(ids[0])).created_at
    assert await found(queue, created_after=start + 10_000_000) == ids[:0:-1]
    assert await found(queue, created_before=start + 20_000_000) == ids[1::-1]
    assert await found(queue, created_after=start + 10_000_000, created_before=start + 10_000_001) == [ids[1]]


async def test_filters_are_combined(queue: TenantQueue) -> None:
    wanted = await queue.add(type="a", tags=("x",))
    await queue.add(type="a")
    await queue.add(type="b", tags=("x",))
    ended = await queue.add(type="a", tags=("x",))
    await queue.do(cancel(ended))
    assert await found(queue, type="a", tags=("x",), statuses=(Status.QUEUED, Status.RETRY)) == [wanted]


async def test_a_list_shows_only_its_tenant(queue: TenantQueue, rival: TenantQueue) -> None:
    mine, theirs = await queue.add(), await rival.add()
    assert await found(queue) == [mine]
    assert await found(rival) == [theirs]


async def test_get_returns_each_job_at_the_index_of_its_id(queue: TenantQueue, rival: TenantQueue) -> None:
    a, b, theirs = await queue.add(), await queue.add(), await rival.add()
    answers = await queue.store.get(queue.tenant, [b, NEVER, a, theirs, b])
    assert [job and job.id for job in answers] == [b, None, a, None, b]


async def test_a_list_can_be_filtered_by_agent(queue: TenantQueue) -> None:
    mine = [await queue.add(agent_kind="planner", agent_id="7") for _ in range(3)]
    await queue.add(agent_kind="planner", agent_id="8")
    await queue.add()
    assert await found(queue, agent=("planner", "7")) == mine[::-1]
    assert await found(queue, agent=("planner", "7"), limit=2) == mine[:0:-1]
    assert await found(queue, agent=("planner", "9")) == []


async def test_a_list_can_be_filtered_to_running_jobs_without_a_recent_heartbeat(
    queue: TenantQueue, rival: TenantQueue
) -> None:
    silent = await queue.running(type="silent", lease_seconds=600)
    alive = await queue.running(type="alive", lease_seconds=600)
    await rival.running(lease_seconds=600)
    await queue.add(type="waiting")
    queue.clock.advance(60)
    await queue.heartbeat(heartbeat(alive, lease_seconds=600))
    queue.clock.advance(30)
    assert await found(queue, stale_seconds=30.0) == [alive.id, silent.id]
    assert await found(queue, stale_seconds=30.1) == [silent.id]
    assert await found(queue, stale_seconds=90.0, worker="w1") == [silent.id]
    assert await found(queue, stale_seconds=90.0, worker="w2") == []
    await queue.do(complete(silent))
    assert await found(queue, stale_seconds=90.0) == []


@pytest.mark.parametrize(
    "statuses",
    [
        (Status.DEAD_LETTER, Status.CANCELLED),
        (Status.QUEUED, Status.RETRY),
        (Status.RUNNING, Status.FAILED),
        (Status.SUCCEEDED, Status.WAITING_FOR_APPROVAL),
    ],
)
async def test_every_query_plan_of_a_list_gives_the_same_pages(
    queue: TenantQueue, sql: SqlConnection, statuses: tuple[Status, ...]
) -> None:
    """Lists are read from several places; what they show never depends on which."""
    for n in range(3):
        for status in Status:
            odd = {"agent_kind": "planner", "agent_id": "1", "tags": ("odd",)} if n % 2 else {}
            await job_in(queue, sql, status, type=f"{status}-{n}", **odd)
    everything = await queue.store.find(queue.tenant, Filter(limit=100))
    for narrowed in ({}, {"tags": ("odd",)}, {"agent": ("planner", "1")}):
        for chosen in (statuses, statuses[:1], statuses[1:]):
            wanted = [
                job.id for job in everything if job.status in chosen and (not narrowed or "odd" in job.tags)
            ]  # fmt: skip
            seen: list[str] = []
            before = None
            while page := await queue.store.find(
                queue.tenant,
                Filter(statuses=chosen, before_seq=before, limit=2, **narrowed),
            ):
                seen += [job.id for job in page]
                before = page[-1].seq
            assert seen == wanted
