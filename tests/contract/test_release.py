"""Release: a worker returns a job now, for later, or until its children are terminal; it uses no attempt."""

from __future__ import annotations

import json

import pytest

from interlock.domain.decide import Command
from interlock.domain.job import MAX_RELEASES, Receipt
from interlock.domain.lifecycle import Location, Status, Verb
from interlock.errors import Invalid
from tests.contract.builders import FIXED, NEVER, TenantQueue, cancel, cancel_ack, complete, fail, release, save
from tests.contract.concurrency import BOT, ids_of, limit
from tests.contract.connections import SqlConnection, move


async def test_a_released_job_can_be_claimed_immediately_with_the_same_attempt(queue: TenantQueue) -> None:
    job = await queue.running()
    queue.clock.advance(1)
    receipt = await queue.do(release(job, reason="shutdown"))
    assert receipt == Receipt(job.id, 1, Status.QUEUED, 1, 3, queue.clock.now, None)
    now, rows = await queue.trace(job.id)
    assert (now.status, now.attempt, now.releases, now.worker) == (Status.QUEUED, 1, 1, None)
    assert (rows[-1].verb, rows[-1].actor, rows[-1].reason) == (Verb.RELEASE, "worker:w1", "shutdown")
    again = await queue.again(job)
    assert (again.attempt, again.fence, again.started_at) == (1, 2, job.started_at)


async def test_a_release_keeps_the_checkpoint(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.checkpoint(save(job, 3, '{"at":9}'))
    await queue.do(release(job))
    again = await queue.again(job)
    assert (again.checkpoint_seq, again.checkpoint) == (3, '{"at":9}')


async def test_a_release_may_name_a_delay_or_a_time(queue: TenantQueue) -> None:
    first, second, third = [await queue.running(type=type) for type in "abc"]
    assert (await queue.do(release(first, delay_seconds=2.5))).run_at == queue.after(2.5)
    assert (await queue.do(release(second, run_at=queue.after(40)))).run_at == queue.after(40)
    assert (await queue.do(release(third, run_at=queue.after(-40)))).run_at == queue.clock.now
    assert await queue.claimed(limit=10) == [third.id]
    queue.clock.advance(40)
    assert await queue.claimed(limit=10) == [first.id, second.id]


async def test_a_release_with_a_cancel_pending_ends_as_cancelled(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.do(cancel(job.id))
    assert (await queue.do(release(job))).status is Status.CANCELLED
    assert await queue.claim(limit=10) == []


async def test_a_job_waits_until_its_last_child_is_terminal(queue: TenantQueue) -> None:
    parent = await queue.running(type="parent")
    children = [await queue.add(type="child", parent_id=parent.id, max_attempts=1) for _ in range(4)]
    receipt = await queue.do(release(parent, children=tuple(children)))
    assert receipt.status is Status.QUEUED
    waiting = await queue.job(parent.id)
    assert sorted(waiting.awaiting) == sorted(children)
    assert waiting.location(queue.clock.now) is Location.BLOCKED
    one, two, three, four = await queue.claim(types=frozenset({"child"}), limit=4)
    # However a child ends, it has ended.
    for left, order in ((3, complete(one)), (2, fail(two)), (1, fail(three, retryable=False))):
        await queue.do(order)
        assert len((await queue.job(parent.id)).awaiting) == left
        assert await queue.claim(types=frozenset({"parent"})) == []
    await queue.do(cancel(four.id, force=True))
    again = await queue.again(parent)
    assert tuple(again.awaiting) == ()
    await queue.verify()


async def test_a_retrying_child_is_not_terminal(queue: TenantQueue) -> None:
    parent = await queue.running(type="parent")
    child = await queue.add(type="child", parent_id=parent.id)
    await queue.do(release(parent, children=(child,)))
    (lease,) = await queue.claim(types=frozenset({"child"}))
    await queue.do(fail(lease, retry_after_seconds=1.0))
    assert await queue.claim(types=frozenset({"parent"})) == []
    assert list((await queue.job(parent.id)).awaiting) == [child]


async def test_terminal_children_are_not_waited_for(queue: TenantQueue) -> None:
    parent = await queue.running(type="parent")
    ended = await queue.running(type="child", parent_id=parent.id)
    await queue.do(complete(ended))
    await queue.do(release(parent, children=(ended.id,)))
    assert tuple((await queue.job(parent.id)).awaiting) == ()
    await queue.again(parent)


async def test_a_child_named_twice_is_waited_for_once(queue: TenantQueue) -> None:
    parent = await queue.running(type="parent")
    child = await queue.running(type="child", parent_id=parent.id)
    await queue.do(release(parent, children=(child.id, child.id)))
    assert list((await queue.job(parent.id)).awaiting) == [child.id]
    await queue.do(complete(child))
    await queue.again(parent)


async def test_a_parent_released_together_with_the_end_of_its_child_is_not_blocked(queue: TenantQueue) -> None:
    for child_first in (True, False):
        parent = await queue.running(type="parent")
        child = await queue.running(type="child", parent_id=parent.id)
        orders: list[Command] = [cancel(child.id, force=True), release(parent, children=(child.id,))]
        await queue.store.carry_out(queue.tenant, orders if child_first else orders[::-1])
        await queue.do(complete(await queue.again(parent)))


@pytest.mark.parametrize("end", ["force", "fail", "cancel", "ack"])
async def test_a_parent_released_together_with_the_end_of_its_child_waits_once(queue: TenantQueue, end: str) -> None:
    """Calls that are made at the same time share a batch, so this happens to those who never meant it."""
    await limit(queue, 2)
    parent = await queue.running(type="parent", **BOT)
    child = (
        await queue.job(await queue.add(type="child", parent_id=parent.id))
        if end == "cancel"
        else await queue.running(type="child", parent_id=parent.id)
    )
    if end == "ack":
        await queue.do(cancel(child.id))
    ends: dict[str, Command] = {
        "force": cancel(child.id, force=True),
        "cancel": cancel(child.id),
        "fail": fail(child, retryable=False),
        "ack": cancel_ack(child),
    }
    await queue.store.carry_out(queue.tenant, [release(parent, children=(child.id,)), ends[end]])
    others = await ids_of(queue, 2)
    (stats,) = [counts for counts in await queue.store.registry.stats(queue.tenant) if counts.type == "parent"]
    assert (stats.ready, stats.in_progress) == (1, 0)
    running = await queue.claim(limit=10)
    assert {job.id for job in running} == {parent.id, others[0]}
    for job in running:
        await queue.do(complete(job))
    assert await queue.claimed(limit=10) == others[1:]


async def test_two_parents_may_wait_at_the_same_time(queue: TenantQueue) -> None:
    parents = [await queue.running(type=type) for type in ("p1", "p2")]
    children = [await queue.running(type=f"c{i}", parent_id=parent.id) for i, parent in enumerate(parents)]
    for parent, child in zip(parents, children, strict=True):
        await queue.do(release(parent, children=(child.id,)))
    answers = await queue.store.carry_out(queue.tenant, [complete(child) for child in children])
    assert all(isinstance(answer, Receipt) for answer in answers)
    assert await queue.claimed(limit=10) == [parent.id for parent in parents]


async def test_a_job_waits_for_its_children_and_its_due_time(queue: TenantQueue) -> None:
    parent = await queue.running(type="parent")
    child = await queue.running(type="child", parent_id=parent.id)
    await queue.do(release(parent, children=(child.id,), run_at=queue.after(30)))
    await queue.do(complete(child))
    assert await queue.claim() == []
    queue.clock.advance(30)
    await queue.again(parent)


@pytest.mark.parametrize("stranger", ["unknown", "foreign", "not a child", "itself"])
async def test_only_children_can_be_waited_for(queue: TenantQueue, rival: TenantQueue, stranger: str) -> None:
    parent = await queue.running(type="parent")
    child = await queue.add(parent_id=parent.id)
    id = {
        "unknown": NEVER,
        "foreign": await rival.add(),
        "not a child": await queue.add(),
        "itself": parent.id,
    }[stranger]
    before = await queue.trace(parent.id)
    error = await queue.refused(release(parent, children=(child, id)))
    assert isinstance(error, Invalid)
    assert error.pointer == "/children"
    assert await queue.trace(parent.id) == before
    await queue.do(complete(parent))
    await queue.verify()


async def test_a_rejected_release_waits_for_no_child(queue: TenantQueue) -> None:
    parent = await queue.running(type="parent")
    child = await queue.running(type="child", parent_id=parent.id)
    await queue.refused(release(parent, children=(child.id, NEVER)))
    await queue.do(release(parent))
    await queue.again(parent)


async def test_a_waiting_parent_can_be_cancelled_and_its_children_continue(queue: TenantQueue) -> None:
    parent = await queue.running(type="parent")
    child = await queue.running(type="child", parent_id=parent.id)
    await queue.do(release(parent, children=(child.id,)))
    await queue.do(cancel(parent.id))
    await queue.do(complete(child))
    assert await queue.claim(limit=10) == []
    assert tuple((await queue.job(parent.id)).awaiting) == ()
    await queue.verify()


async def test_beyond_a_thousand_releases_a_release_counts_as_a_failure(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.job(await queue.add(max_attempts=2, backoff=FIXED))
    await move(sql, job, Status.QUEUED, queue.clock.now, releases=MAX_RELEASES - 1)
    (lease,) = await queue.claim()
    last = await queue.do(release(lease))
    assert (last.status, last.attempt) == (Status.QUEUED, 1)
    assert (await queue.job(job.id)).releases == MAX_RELEASES

    (lease,) = await queue.claim()
    counted = await queue.do(release(lease, reason="quota"))
    assert (counted.status, counted.attempt, counted.run_at) == (Status.RETRY, 2, queue.after(10))
    now = await queue.job(job.id)
    assert json.loads(now.error or "")["kind"] == "too_many_releases"
    assert await queue.do(release(lease)) == counted

    queue.clock.advance(3600)
    (lease,) = await queue.claim()
    assert (await queue.do(release(lease))).status is Status.DEAD_LETTER
    await queue.verify()
