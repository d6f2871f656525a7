"""Release: a job handed back on purpose, now, later, or when its children have ended; it spends no attempt."""

from __future__ import annotations

import json

import pytest

from interlock.domain.decide import Command
from interlock.domain.job import MAX_RELEASES, Receipt
from interlock.domain.lifecycle import Location, Status, Verb
from interlock.errors import Invalid
from tests.contract.builders import FIXED, NEVER, Desk, cancel, cancel_ack, complete, fail, release, save
from tests.contract.concurrency import BOT, ids_of, limit
from tests.contract.connections import Door, move


async def test_a_released_job_can_be_claimed_at_once_with_the_same_attempt(remote: Desk) -> None:
    job = await remote.running()
    remote.clock.advance(1)
    receipt = await remote.do(release(job, reason="shutdown"))
    assert receipt == Receipt(job.id, 1, Status.QUEUED, 1, 3, remote.clock.now, None)
    now, rows = await remote.trace(job.id)
    assert (now.status, now.attempt, now.releases, now.worker) == (Status.QUEUED, 1, 1, None)
    assert (rows[-1].verb, rows[-1].actor, rows[-1].reason) == (Verb.RELEASE, "worker:w1", "shutdown")
    again = await remote.again(job)
    assert (again.attempt, again.fence, again.started_at) == (1, 2, job.started_at)


async def test_a_release_keeps_the_checkpoint(remote: Desk) -> None:
    job = await remote.running()
    await remote.checkpoint(save(job, 3, '{"at":9}'))
    await remote.do(release(job))
    again = await remote.again(job)
    assert (again.checkpoint_seq, again.checkpoint) == (3, '{"at":9}')


async def test_a_release_may_name_a_delay_or_a_time(remote: Desk) -> None:
    first, second, third = [await remote.running(type=type) for type in "abc"]
    assert (await remote.do(release(first, delay_seconds=2.5))).run_at == remote.after(2.5)
    assert (await remote.do(release(second, run_at=remote.after(40)))).run_at == remote.after(40)
    assert (await remote.do(release(third, run_at=remote.after(-40)))).run_at == remote.clock.now
    assert await remote.claimed(limit=10) == [third.id]
    remote.clock.advance(40)
    assert await remote.claimed(limit=10) == [first.id, second.id]


async def test_a_release_with_a_cancel_pending_ends_as_cancelled(remote: Desk) -> None:
    job = await remote.running()
    await remote.do(cancel(job.id))
    assert (await remote.do(release(job))).status is Status.CANCELLED
    assert await remote.claim(limit=10) == []


async def test_a_job_waits_until_the_last_of_its_children_has_ended(remote: Desk) -> None:
    parent = await remote.running(type="parent")
    children = [await remote.add(type="child", parent_id=parent.id, max_attempts=1) for _ in range(4)]
    receipt = await remote.do(release(parent, children=tuple(children)))
    assert receipt.status is Status.QUEUED
    waiting = await remote.job(parent.id)
    assert sorted(waiting.awaiting) == sorted(children)
    assert waiting.location(remote.clock.now) is Location.BLOCKED
    one, two, three, four = await remote.claim(types=frozenset({"child"}), limit=4)
    # However a child ends, it has ended.
    for left, order in ((3, complete(one)), (2, fail(two)), (1, fail(three, retryable=False))):
        await remote.do(order)
        assert len((await remote.job(parent.id)).awaiting) == left
        assert await remote.claim(types=frozenset({"parent"})) == []
    await remote.do(cancel(four.id, force=True))
    again = await remote.again(parent)
    assert tuple(again.awaiting) == ()
    await remote.verify()


async def test_a_child_that_is_only_tried_again_has_not_ended(remote: Desk) -> None:
    parent = await remote.running(type="parent")
    child = await remote.add(type="child", parent_id=parent.id)
    await remote.do(release(parent, children=(child,)))
    (lease,) = await remote.claim(types=frozenset({"child"}))
    await remote.do(fail(lease, retry_after_seconds=1.0))
    assert await remote.claim(types=frozenset({"parent"})) == []
    assert list((await remote.job(parent.id)).awaiting) == [child]


async def test_children_that_have_ended_already_are_not_waited_for(remote: Desk) -> None:
    parent = await remote.running(type="parent")
    ended = await remote.running(type="child", parent_id=parent.id)
    await remote.do(complete(ended))
    await remote.do(release(parent, children=(ended.id,)))
    assert tuple((await remote.job(parent.id)).awaiting) == ()
    await remote.again(parent)


async def test_a_child_named_twice_is_waited_for_once(remote: Desk) -> None:
    parent = await remote.running(type="parent")
    child = await remote.running(type="child", parent_id=parent.id)
    await remote.do(release(parent, children=(child.id, child.id)))
    assert list((await remote.job(parent.id)).awaiting) == [child.id]
    await remote.do(complete(child))
    await remote.again(parent)


async def test_a_parent_released_together_with_the_end_of_its_child_is_not_stranded(remote: Desk) -> None:
    for child_first in (True, False):
        parent = await remote.running(type="parent")
        child = await remote.running(type="child", parent_id=parent.id)
        orders: list[Command] = [cancel(child.id, force=True), release(parent, children=(child.id,))]
        await remote.store.carry_out(remote.tenant, orders if child_first else orders[::-1])
        await remote.do(complete(await remote.again(parent)))


@pytest.mark.parametrize("end", ["force", "fail", "cancel", "ack"])
async def test_a_parent_released_together_with_the_end_of_its_child_waits_once(remote: Desk, end: str) -> None:
    """Calls that are made at the same time share a batch, so this happens to those who never meant it."""
    await limit(remote, 2)
    parent = await remote.running(type="parent", **BOT)
    child = (
        await remote.job(await remote.add(type="child", parent_id=parent.id))
        if end == "cancel"
        else await remote.running(type="child", parent_id=parent.id)
    )
    if end == "ack":
        await remote.do(cancel(child.id))
    ends: dict[str, Command] = {
        "force": cancel(child.id, force=True),
        "cancel": cancel(child.id),
        "fail": fail(child, retryable=False),
        "ack": cancel_ack(child),
    }
    await remote.store.carry_out(remote.tenant, [release(parent, children=(child.id,)), ends[end]])
    others = await ids_of(remote, 2)
    (stats,) = [queue for queue in await remote.store.stats(remote.tenant) if queue.type == "parent"]
    assert (stats.ready, stats.in_progress) == (1, 0)
    running = await remote.claim(limit=10)
    assert {job.id for job in running} == {parent.id, others[0]}
    for job in running:
        await remote.do(complete(job))
    assert await remote.claimed(limit=10) == others[1:]


async def test_two_parents_may_wait_at_the_same_time(remote: Desk) -> None:
    parents = [await remote.running(type=type) for type in ("p1", "p2")]
    children = [await remote.running(type=f"c{i}", parent_id=parent.id) for i, parent in enumerate(parents)]
    for parent, child in zip(parents, children, strict=True):
        await remote.do(release(parent, children=(child.id,)))
    answers = await remote.store.carry_out(remote.tenant, [complete(child) for child in children])
    assert all(isinstance(answer, Receipt) for answer in answers)
    assert await remote.claimed(limit=10) == [parent.id for parent in parents]


async def test_a_job_waits_for_its_children_and_its_time(remote: Desk) -> None:
    parent = await remote.running(type="parent")
    child = await remote.running(type="child", parent_id=parent.id)
    await remote.do(release(parent, children=(child.id,), run_at=remote.after(30)))
    await remote.do(complete(child))
    assert await remote.claim() == []
    remote.clock.advance(30)
    await remote.again(parent)


@pytest.mark.parametrize("stranger", ["unknown", "foreign", "not a child", "itself"])
async def test_only_children_can_be_waited_for(remote: Desk, rival: Desk, stranger: str) -> None:
    parent = await remote.running(type="parent")
    child = await remote.add(parent_id=parent.id)
    id = {
        "unknown": NEVER,
        "foreign": await rival.add(),
        "not a child": await remote.add(),
        "itself": parent.id,
    }[stranger]
    before = await remote.trace(parent.id)
    error = await remote.refused(release(parent, children=(child, id)))
    assert isinstance(error, Invalid)
    assert error.pointer == "/children"
    assert await remote.trace(parent.id) == before
    await remote.do(complete(parent))
    await remote.verify()


async def test_a_refused_release_waits_for_nobody(remote: Desk) -> None:
    parent = await remote.running(type="parent")
    child = await remote.running(type="child", parent_id=parent.id)
    await remote.refused(release(parent, children=(child.id, NEVER)))
    await remote.do(release(parent))
    await remote.again(parent)


async def test_a_waiting_parent_can_be_cancelled_and_its_children_end_in_peace(remote: Desk) -> None:
    parent = await remote.running(type="parent")
    child = await remote.running(type="child", parent_id=parent.id)
    await remote.do(release(parent, children=(child.id,)))
    await remote.do(cancel(parent.id))
    await remote.do(complete(child))
    assert await remote.claim(limit=10) == []
    assert tuple((await remote.job(parent.id)).awaiting) == ()
    await remote.verify()


async def test_beyond_a_thousand_releases_a_release_counts_as_a_failure(remote: Desk, adapter: Door) -> None:
    job = await remote.job(await remote.add(max_attempts=2, backoff=FIXED))
    await move(adapter, job, Status.QUEUED, remote.clock.now, releases=MAX_RELEASES - 1)
    (lease,) = await remote.claim()
    last = await remote.do(release(lease))
    assert (last.status, last.attempt) == (Status.QUEUED, 1)
    assert (await remote.job(job.id)).releases == MAX_RELEASES

    (lease,) = await remote.claim()
    counted = await remote.do(release(lease, reason="quota"))
    assert (counted.status, counted.attempt, counted.run_at) == (Status.RETRY, 2, remote.after(10))
    now = await remote.job(job.id)
    assert json.loads(now.error or "")["kind"] == "too_many_releases"
    assert await remote.do(release(lease)) == counted

    remote.clock.advance(3600)
    (lease,) = await remote.claim()
    assert (await remote.do(release(lease))).status is Status.DEAD_LETTER
    await remote.verify()
