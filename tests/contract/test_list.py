"""Lists: newest first, in pages, filtered, and without what is large."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.job import Filter
from interlock.domain.lifecycle import Status
from tests.contract.builders import NEVER, Desk, cancel, complete, fail, heartbeat, new_job, save
from tests.contract.connections import Door, job_in


async def found(remote: Desk, **fields: Any) -> list[str]:
    return [job.id for job in await remote.store.find(remote.tenant, Filter(**fields))]


async def test_a_list_is_newest_first(remote: Desk) -> None:
    ids = await remote.add_all([new_job(priority=p) for p in (3, 1, 2)])
    assert await found(remote) == ids[::-1]


async def test_a_list_is_read_in_pages_without_gap_or_repeat(remote: Desk) -> None:
    ids = await remote.add_all([new_job() for _ in range(11)])
    pages: list[list[str]] = []
    before = None
    while page := await remote.store.find(remote.tenant, Filter(limit=4, before_seq=before)):
        pages.append([job.id for job in page])
        before = page[-1].seq
        await remote.add()  # what arrives meanwhile is newer and disturbs no page
    assert [len(page) for page in pages] == [4, 4, 3]
    assert [id for page in pages for id in page] == ids[::-1]


async def test_a_list_leaves_out_payload_result_checkpoint_and_error(remote: Desk) -> None:
    job = await remote.running(payload='{"big":1}', headers='{"h":"1"}', tags=("t",), max_attempts=1)
    await remote.checkpoint(save(job, 3, '"progress"'))
    await remote.do(fail(job))
    done = await remote.running(type="other", payload='{"big":2}')
    await remote.do(complete(done, result='"large"', result_summary="short", usage='{"tokens":1}'))
    for listed in await remote.store.find(remote.tenant, Filter()):
        whole = await remote.job(listed.id)
        assert listed == whole._replace(payload=None, result=None, checkpoint=None, error=None)
        assert whole.payload is not None


@pytest.mark.parametrize("status", Status)
async def test_a_list_can_be_narrowed_to_a_status(remote: Desk, adapter: Door, status: Status) -> None:
    jobs = {other: await job_in(remote, adapter, other, type=other) for other in Status}
    assert await found(remote, statuses=(status,)) == [jobs[status].id]
    assert await found(remote, statuses=tuple(Status)) == [job.id for job in list(jobs.values())[::-1]]


async def test_a_list_can_be_narrowed_to_a_type(remote: Desk) -> None:
    a, b = await remote.add(type="a"), await remote.add(type="b")
    assert await found(remote, type="a") == [a]
    assert await found(remote, type="b") == [b]
    assert await found(remote, type="c") == []


async def test_a_list_can_be_narrowed_to_what_a_worker_holds(remote: Desk) -> None:
    held = await remote.running(worker="w1", type="a")
    await remote.running(worker="w2", type="b")
    done = await remote.running(worker="w1", type="c")
    await remote.do(complete(done))
    assert await found(remote, worker="w1") == [held.id]


async def test_a_list_can_be_narrowed_to_the_children_of_a_job(remote: Desk, rival: Desk) -> None:
    parent = await remote.add()
    children = [await remote.add(parent_id=parent) for _ in range(2)]
    assert await found(remote, parent_id=parent) == children[::-1]
    assert await found(remote, parent_id=NEVER) == []
    assert await found(rival, parent_id=parent) == []


async def test_several_tags_mean_all_of_them(remote: Desk) -> None:
    both = await remote.add(tags=("red", "big"))
    red = await remote.add(tags=("red",))
    await remote.add()
    assert await found(remote, tags=("red",)) == [red, both]
    assert await found(remote, tags=("big", "red")) == [both]
    assert await found(remote, tags=("Red",)) == []


async def test_odd_tags_are_found_exactly(remote: Desk) -> None:
    odd = ('"', "\\", "{a,b}", "NULL", "a b", "🐢", "%", "[]", "é")
    id = await remote.add(tags=odd)
    assert tuple((await remote.job(id)).tags) == odd
    for tag in odd:
        assert await found(remote, tags=(tag,)) == [id]


async def test_a_list_can_be_narrowed_to_a_time_of_creation(remote: Desk) -> None:
    ids = []
    for _ in range(4):
        ids.append(await remote.add())
        remote.clock.advance(10)
    start = (await remote.job(ids[0])).created_at
    assert await found(remote, created_after=start + 10_000_000) == ids[:0:-1]
    assert await found(remote, created_before=start + 20_000_000) == ids[1::-1]
    assert await found(remote, created_after=start + 10_000_000, created_before=start + 10_000_001) == [ids[1]]


async def test_filters_are_combined(remote: Desk) -> None:
    wanted = await remote.add(type="a", tags=("x",))
    await remote.add(type="a")
    await remote.add(type="b", tags=("x",))
    ended = await remote.add(type="a", tags=("x",))
    await remote.do(cancel(ended))
    assert await found(remote, type="a", tags=("x",), statuses=(Status.QUEUED, Status.RETRY)) == [wanted]


async def test_a_list_shows_only_its_tenant(remote: Desk, rival: Desk) -> None:
    mine, theirs = await remote.add(), await rival.add()
    assert await found(remote) == [mine]
    assert await found(rival) == [theirs]


async def test_get_answers_each_id_at_its_place(remote: Desk, rival: Desk) -> None:
    a, b, theirs = await remote.add(), await remote.add(), await rival.add()
    answers = await remote.store.get(remote.tenant, [b, NEVER, a, theirs, b])
    assert [job and job.id for job in answers] == [b, None, a, None, b]


async def test_a_list_can_be_narrowed_to_an_agent(remote: Desk) -> None:
    mine = [await remote.add(agent_kind="planner", agent_id="7") for _ in range(3)]
    await remote.add(agent_kind="planner", agent_id="8")
    await remote.add()
    assert await found(remote, agent=("planner", "7")) == mine[::-1]
    assert await found(remote, agent=("planner", "7"), limit=2) == mine[:0:-1]
    assert await found(remote, agent=("planner", "9")) == []


async def test_a_list_can_be_narrowed_to_running_jobs_that_nobody_has_heard_of(remote: Desk, rival: Desk) -> None:
    silent = await remote.running(type="silent", lease_seconds=600)
    alive = await remote.running(type="alive", lease_seconds=600)
    await rival.running(lease_seconds=600)
    await remote.add(type="waiting")
    remote.clock.advance(60)
    await remote.heartbeat(heartbeat(alive, lease_seconds=600))
    remote.clock.advance(30)
    assert await found(remote, stale_seconds=30.0) == [alive.id, silent.id]
    assert await found(remote, stale_seconds=30.1) == [silent.id]
    assert await found(remote, stale_seconds=90.0, worker="w1") == [silent.id]
    assert await found(remote, stale_seconds=90.0, worker="w2") == []
    await remote.do(complete(silent))
    assert await found(remote, stale_seconds=90.0) == []


@pytest.mark.parametrize(
    "statuses",
    [
        (Status.DEAD_LETTER, Status.CANCELLED),
        (Status.QUEUED, Status.RETRY),
        (Status.RUNNING, Status.FAILED),
        (Status.SUCCEEDED, Status.WAITING_FOR_APPROVAL),
    ],
)
async def test_every_way_to_a_list_gives_the_same_pages(
    remote: Desk, adapter: Door, statuses: tuple[Status, ...]
) -> None:
    """Lists are read from several places; what they show never depends on which."""
    for n in range(3):
        for status in Status:
            odd = {"agent_kind": "planner", "agent_id": "1", "tags": ("odd",)} if n % 2 else {}
            await job_in(remote, adapter, status, type=f"{status}-{n}", **odd)
    everything = await remote.store.find(remote.tenant, Filter(limit=100))
    for narrowed in ({}, {"tags": ("odd",)}, {"agent": ("planner", "1")}):
        for chosen in (statuses, statuses[:1], statuses[1:]):
            wanted = [
                job.id for job in everything if job.status in chosen and (not narrowed or "odd" in job.tags)
            ]  # fmt: skip
            seen: list[str] = []
            before = None
            while page := await remote.store.find(
                remote.tenant,
                Filter(statuses=chosen, before_seq=before, limit=2, **narrowed),
            ):
                seen += [job.id for job in page]
                before = page[-1].seq
            assert seen == wanted
