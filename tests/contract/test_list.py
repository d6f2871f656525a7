"""Lists: newest first, in pages, filtered, and without what is large."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.job import Filter
from interlock.domain.lifecycle import Status
from tests.contract.builders import NEVER, Desk, beat, cancel, complete, fail, new_job, save
from tests.contract.connections import Door, job_in


async def found(desk: Desk, **fields: Any) -> list[str]:
    return [job.id for job in await desk.store.find(desk.tenant, Filter(**fields))]


async def test_a_list_is_newest_first(desk: Desk) -> None:
    ids = await desk.add_all([new_job(priority=p) for p in (3, 1, 2)])
    assert await found(desk) == ids[::-1]


async def test_a_list_is_read_in_pages_without_gap_or_repeat(desk: Desk) -> None:
    ids = await desk.add_all([new_job() for _ in range(11)])
    pages: list[list[str]] = []
    before = None
    while page := await desk.store.find(desk.tenant, Filter(limit=4, before_seq=before)):
        pages.append([job.id for job in page])
        before = page[-1].seq
        await desk.add()  # what arrives meanwhile is newer and disturbs no page
    assert [len(page) for page in pages] == [4, 4, 3]
    assert [id for page in pages for id in page] == ids[::-1]


async def test_a_list_leaves_out_payload_result_checkpoint_and_error(desk: Desk) -> None:
    job = await desk.running(payload='{"big":1}', headers='{"h":"1"}', tags=("t",), max_attempts=1)
    await desk.checkpoint(save(job, 3, '"progress"'))
    await desk.do(fail(job))
    done = await desk.running(type="other", payload='{"big":2}')
    await desk.do(complete(done, result='"large"', result_summary="short", usage='{"tokens":1}'))
    for listed in await desk.store.find(desk.tenant, Filter()):
        whole = await desk.job(listed.id)
        assert listed == whole._replace(payload=None, result=None, checkpoint=None, error=None)
        assert whole.payload is not None


@pytest.mark.parametrize("status", Status)
async def test_a_list_can_be_narrowed_to_a_status(desk: Desk, door: Door, status: Status) -> None:
    jobs = {other: await job_in(desk, door, other, type=other) for other in Status}
    assert await found(desk, statuses=(status,)) == [jobs[status].id]
    assert await found(desk, statuses=tuple(Status)) == [job.id for job in list(jobs.values())[::-1]]


async def test_a_list_can_be_narrowed_to_a_type(desk: Desk) -> None:
    a, b = await desk.add(type="a"), await desk.add(type="b")
    assert await found(desk, type="a") == [a]
    assert await found(desk, type="b") == [b]
    assert await found(desk, type="c") == []


async def test_a_list_can_be_narrowed_to_what_a_worker_holds(desk: Desk) -> None:
    held = await desk.running(worker="w1", type="a")
    await desk.running(worker="w2", type="b")
    done = await desk.running(worker="w1", type="c")
    await desk.do(complete(done))
    assert await found(desk, worker="w1") == [held.id]


async def test_a_list_can_be_narrowed_to_the_children_of_a_job(desk: Desk, rival: Desk) -> None:
    parent = await desk.add()
    children = [await desk.add(parent_id=parent) for _ in range(2)]
    assert await found(desk, parent_id=parent) == children[::-1]
    assert await found(desk, parent_id=NEVER) == []
    assert await found(rival, parent_id=parent) == []


async def test_several_tags_mean_all_of_them(desk: Desk) -> None:
    both = await desk.add(tags=("red", "big"))
    red = await desk.add(tags=("red",))
    await desk.add()
    assert await found(desk, tags=("red",)) == [red, both]
    assert await found(desk, tags=("big", "red")) == [both]
    assert await found(desk, tags=("Red",)) == []


async def test_odd_tags_are_found_exactly(desk: Desk) -> None:
    odd = ('"', "\\", "{a,b}", "NULL", "a b", "🐢", "%", "[]", "é")
    id = await desk.add(tags=odd)
    assert tuple((await desk.job(id)).tags) == odd
    for tag in odd:
        assert await found(desk, tags=(tag,)) == [id]


async def test_a_list_can_be_narrowed_to_a_time_of_creation(desk: Desk) -> None:
    ids = []
    for _ in range(4):
        ids.append(await desk.add())
        desk.clock.advance(10)
    start = (await desk.job(ids[0])).created_at
    assert await found(desk, created_after=start + 10_000_000) == ids[:0:-1]
    assert await found(desk, created_before=start + 20_000_000) == ids[1::-1]
    assert await found(desk, created_after=start + 10_000_000, created_before=start + 10_000_001) == [ids[1]]


async def test_filters_are_combined(desk: Desk) -> None:
    wanted = await desk.add(type="a", tags=("x",))
    await desk.add(type="a")
    await desk.add(type="b", tags=("x",))
    ended = await desk.add(type="a", tags=("x",))
    await desk.do(cancel(ended))
    assert await found(desk, type="a", tags=("x",), statuses=(Status.QUEUED, Status.RETRY)) == [wanted]


async def test_a_list_shows_only_its_tenant(desk: Desk, rival: Desk) -> None:
    mine, theirs = await desk.add(), await rival.add()
    assert await found(desk) == [mine]
    assert await found(rival) == [theirs]


async def test_get_answers_each_id_at_its_place(desk: Desk, rival: Desk) -> None:
    a, b, theirs = await desk.add(), await desk.add(), await rival.add()
    answers = await desk.store.get(desk.tenant, [b, NEVER, a, theirs, b])
    assert [job and job.id for job in answers] == [b, None, a, None, b]


async def test_a_list_can_be_narrowed_to_an_agent(desk: Desk) -> None:
    mine = [await desk.add(agent_kind="planner", agent_id="7") for _ in range(3)]
    await desk.add(agent_kind="planner", agent_id="8")
    await desk.add()
    assert await found(desk, agent=("planner", "7")) == mine[::-1]
    assert await found(desk, agent=("planner", "7"), limit=2) == mine[:0:-1]
    assert await found(desk, agent=("planner", "9")) == []


async def test_a_list_can_be_narrowed_to_running_jobs_that_nobody_has_heard_of(desk: Desk, rival: Desk) -> None:
    silent = await desk.running(type="silent", lease_seconds=600)
    alive = await desk.running(type="alive", lease_seconds=600)
    await rival.running(lease_seconds=600)
    await desk.add(type="waiting")
    desk.clock.advance(60)
    await desk.heartbeat(beat(alive, lease_seconds=600))
    desk.clock.advance(30)
    assert await found(desk, stale_seconds=30.0) == [alive.id, silent.id]
    assert await found(desk, stale_seconds=30.1) == [silent.id]
    assert await found(desk, stale_seconds=90.0, worker="w1") == [silent.id]
    assert await found(desk, stale_seconds=90.0, worker="w2") == []
    await desk.do(complete(silent))
    assert await found(desk, stale_seconds=90.0) == []


@pytest.mark.parametrize(
    "statuses",
    [
        (Status.DEAD_LETTER, Status.CANCELLED),
        (Status.QUEUED, Status.RETRY),
        (Status.RUNNING, Status.FAILED),
        (Status.SUCCEEDED, Status.WAITING_FOR_APPROVAL),
    ],
)
async def test_every_way_to_a_list_gives_the_same_pages(desk: Desk, door: Door, statuses: tuple[Status, ...]) -> None:
    """Lists are read from several places; what they show never depends on which."""
    for n in range(3):
        for status in Status:
            odd = {"agent_kind": "planner", "agent_id": "1", "tags": ("odd",)} if n % 2 else {}
            await job_in(desk, door, status, type=f"{status}-{n}", **odd)
    everything = await desk.store.find(desk.tenant, Filter(limit=100))
    for narrowed in ({}, {"tags": ("odd",)}, {"agent": ("planner", "1")}):
        for chosen in (statuses, statuses[:1], statuses[1:]):
            wanted = [
                job.id for job in everything if job.status in chosen and (not narrowed or "odd" in job.tags)
            ]  # fmt: skip
            seen: list[str] = []
            before = None
            while page := await desk.store.find(
                desk.tenant,
                Filter(statuses=chosen, before_seq=before, limit=2, **narrowed),
            ):
                seen += [job.id for job in page]
                before = page[-1].seq
            assert seen == wanted
