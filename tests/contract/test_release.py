"""Release: a job handed back on purpose, now, later, or when its children have ended; it spends no attempt."""

from __future__ import annotations

import json

import pytest

from interlock.domain.decide import Order
from interlock.domain.job import MAX_RELEASES, Receipt
from interlock.domain.lifecycle import Location, Status, Verb
from interlock.errors import Invalid
from tests.contract.builders import FIXED, NEVER, Desk, cancel, cancel_ack, complete, fail, release, save
from tests.contract.concurrency import BOT, ids_of, limit
from tests.contract.connections import Door, move


async def test_a_released_job_can_be_claimed_at_once_with_the_same_attempt(desk: Desk) -> None:
    job = await desk.running()
    desk.clock.advance(1)
    receipt = await desk.do(release(job, reason="shutdown"))
    assert receipt == Receipt(job.id, 1, Status.QUEUED, 1, 3, desk.clock.now, None)
    now, rows = await desk.trace(job.id)
    assert (now.status, now.attempt, now.releases, now.worker) == (Status.QUEUED, 1, 1, None)
    assert (rows[-1].verb, rows[-1].actor, rows[-1].reason) == (Verb.RELEASE, "worker:w1", "shutdown")
    again = await desk.again(job)
    assert (again.attempt, again.fence, again.started_at) == (1, 2, job.started_at)


async def test_a_release_keeps_the_checkpoint(desk: Desk) -> None:
    job = await desk.running()
    await desk.checkpoint(save(job, 3, '{"at":9}'))
    await desk.do(release(job))
    again = await desk.again(job)
    assert (again.checkpoint_seq, again.checkpoint) == (3, '{"at":9}')


async def test_a_release_may_name_a_delay_or_a_time(desk: Desk) -> None:
    first, second, third = [await desk.running(type=type) for type in "abc"]
    assert (await desk.do(release(first, delay_seconds=2.5))).run_at == desk.after(2.5)
    assert (await desk.do(release(second, run_at=desk.after(40)))).run_at == desk.after(40)
    assert (await desk.do(release(third, run_at=desk.after(-40)))).run_at == desk.clock.now
    assert await desk.claimed(limit=10) == [third.id]
    desk.clock.advance(40)
    assert await desk.claimed(limit=10) == [first.id, second.id]


async def test_a_release_with_a_cancel_pending_ends_as_cancelled(desk: Desk) -> None:
    job = await desk.running()
    await desk.do(cancel(job.id))
    assert (await desk.do(release(job))).status is Status.CANCELLED
    assert await desk.claim(limit=10) == []


async def test_a_job_waits_until_the_last_of_its_children_has_ended(desk: Desk) -> None:
    parent = await desk.running(type="parent")
    children = [await desk.add(type="child", parent_id=parent.id, max_attempts=1) for _ in range(4)]
    receipt = await desk.do(release(parent, children=tuple(children)))
    assert receipt.status is Status.QUEUED
    waiting = await desk.job(parent.id)
    assert sorted(waiting.awaiting) == sorted(children)
    assert waiting.location(desk.clock.now) is Location.BLOCKED
    one, two, three, four = await desk.claim(types=frozenset({"child"}), limit=4)
    # However a child ends, it has ended.
    for left, order in ((3, complete(one)), (2, fail(two)), (1, fail(three, retryable=False))):
        await desk.do(order)
        assert len((await desk.job(parent.id)).awaiting) == left
        assert await desk.claim(types=frozenset({"parent"})) == []
    await desk.do(cancel(four.id, force=True))
    again = await desk.again(parent)
    assert tuple(again.awaiting) == ()
    await desk.verify()


async def test_a_child_that_is_only_tried_again_has_not_ended(desk: Desk) -> None:
    parent = await desk.running(type="parent")
    child = await desk.add(type="child", parent_id=parent.id)
    await desk.do(release(parent, children=(child,)))
    (grant,) = await desk.claim(types=frozenset({"child"}))
    await desk.do(fail(grant, retry_after_seconds=1.0))
    assert await desk.claim(types=frozenset({"parent"})) == []
    assert list((await desk.job(parent.id)).awaiting) == [child]


async def test_children_that_have_ended_already_are_not_waited_for(desk: Desk) -> None:
    parent = await desk.running(type="parent")
    ended = await desk.running(type="child", parent_id=parent.id)
    await desk.do(complete(ended))
    await desk.do(release(parent, children=(ended.id,)))
    assert tuple((await desk.job(parent.id)).awaiting) == ()
    await desk.again(parent)


async def test_a_child_named_twice_is_waited_for_once(desk: Desk) -> None:
    parent = await desk.running(type="parent")
    child = await desk.running(type="child", parent_id=parent.id)
    await desk.do(release(parent, children=(child.id, child.id)))
    assert list((await desk.job(parent.id)).awaiting) == [child.id]
    await desk.do(complete(child))
    await desk.again(parent)


async def test_a_parent_released_together_with_the_end_of_its_child_is_not_stranded(desk: Desk) -> None:
    for child_first in (True, False):
        parent = await desk.running(type="parent")
        child = await desk.running(type="child", parent_id=parent.id)
        orders: list[Order] = [cancel(child.id, force=True), release(parent, children=(child.id,))]
        await desk.store.carry_out(desk.tenant, orders if child_first else orders[::-1])
        await desk.do(complete(await desk.again(parent)))


@pytest.mark.parametrize("end", ["force", "fail", "cancel", "ack"])
async def test_a_parent_released_together_with_the_end_of_its_child_waits_once(desk: Desk, end: str) -> None:
    """Calls that are made at the same time share a batch, so this happens to those who never meant it."""
    await limit(desk, 2)
    parent = await desk.running(type="parent", **BOT)
    child = (
        await desk.job(await desk.add(type="child", parent_id=parent.id))
        if end == "cancel"
        else await desk.running(type="child", parent_id=parent.id)
    )
    if end == "ack":
        await desk.do(cancel(child.id))
    ends: dict[str, Order] = {
        "force": cancel(child.id, force=True),
        "cancel": cancel(child.id),
        "fail": fail(child, retryable=False),
        "ack": cancel_ack(child),
    }
    await desk.store.carry_out(desk.tenant, [release(parent, children=(child.id,)), ends[end]])
    others = await ids_of(desk, 2)
    (stats,) = [queue for queue in await desk.store.stats(desk.tenant) if queue.type == "parent"]
    assert (stats.ready, stats.in_progress) == (1, 0)
    running = await desk.claim(limit=10)
    assert {job.id for job in running} == {parent.id, others[0]}
    for job in running:
        await desk.do(complete(job))
    assert await desk.claimed(limit=10) == others[1:]


async def test_two_parents_may_wait_at_the_same_time(desk: Desk) -> None:
    parents = [await desk.running(type=type) for type in ("p1", "p2")]
    children = [await desk.running(type=f"c{i}", parent_id=parent.id) for i, parent in enumerate(parents)]
    for parent, child in zip(parents, children, strict=True):
        await desk.do(release(parent, children=(child.id,)))
    answers = await desk.store.carry_out(desk.tenant, [complete(child) for child in children])
    assert all(isinstance(answer, Receipt) for answer in answers)
    assert await desk.claimed(limit=10) == [parent.id for parent in parents]


async def test_a_job_waits_for_its_children_and_its_time(desk: Desk) -> None:
    parent = await desk.running(type="parent")
    child = await desk.running(type="child", parent_id=parent.id)
    await desk.do(release(parent, children=(child.id,), run_at=desk.after(30)))
    await desk.do(complete(child))
    assert await desk.claim() == []
    desk.clock.advance(30)
    await desk.again(parent)


@pytest.mark.parametrize("stranger", ["unknown", "foreign", "not a child", "itself"])
async def test_only_children_can_be_waited_for(desk: Desk, rival: Desk, stranger: str) -> None:
    parent = await desk.running(type="parent")
    child = await desk.add(parent_id=parent.id)
    id = {
        "unknown": NEVER,
        "foreign": await rival.add(),
        "not a child": await desk.add(),
        "itself": parent.id,
    }[stranger]
    before = await desk.trace(parent.id)
    error = await desk.refused(release(parent, children=(child, id)))
    assert isinstance(error, Invalid)
    assert error.pointer == "/children"
    assert await desk.trace(parent.id) == before
    await desk.do(complete(parent))
    await desk.verify()


async def test_a_refused_release_waits_for_nobody(desk: Desk) -> None:
    parent = await desk.running(type="parent")
    child = await desk.running(type="child", parent_id=parent.id)
    await desk.refused(release(parent, children=(child.id, NEVER)))
    await desk.do(release(parent))
    await desk.again(parent)


async def test_a_waiting_parent_can_be_cancelled_and_its_children_end_in_peace(desk: Desk) -> None:
    parent = await desk.running(type="parent")
    child = await desk.running(type="child", parent_id=parent.id)
    await desk.do(release(parent, children=(child.id,)))
    await desk.do(cancel(parent.id))
    await desk.do(complete(child))
    assert await desk.claim(limit=10) == []
    assert tuple((await desk.job(parent.id)).awaiting) == ()
    await desk.verify()


async def test_beyond_a_thousand_releases_a_release_counts_as_a_failure(desk: Desk, door: Door) -> None:
    job = await desk.job(await desk.add(max_attempts=2, backoff=FIXED))
    await move(door, job, Status.QUEUED, desk.clock.now, releases=MAX_RELEASES - 1)
    (grant,) = await desk.claim()
    last = await desk.do(release(grant))
    assert (last.status, last.attempt) == (Status.QUEUED, 1)
    assert (await desk.job(job.id)).releases == MAX_RELEASES

    (grant,) = await desk.claim()
    counted = await desk.do(release(grant, reason="quota"))
    assert (counted.status, counted.attempt, counted.run_at) == (Status.RETRY, 2, desk.after(10))
    now = await desk.job(job.id)
    assert json.loads(now.error or "")["kind"] == "too_many_releases"
    assert await desk.do(release(grant)) == counted

    desk.clock.advance(3600)
    (grant,) = await desk.claim()
    assert (await desk.do(release(grant))).status is Status.DEAD_LETTER
    await desk.verify()
