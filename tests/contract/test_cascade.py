"""Trees of jobs: how they are walked, and a cascade that reaches every running job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from interlock.domain.job import Job, Rejected
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.operations import Child
from interlock.domain.principal import Principal, local
from interlock.engine import operations
from interlock.engine.operations import Operations
from interlock.errors import AlreadyFinished, NotFound, ParentNotActive, Unavailable
from interlock.storage.contract import Store
from interlock.wire import LIMITS
from tests.contract.builders import NEVER, TenantQueue, cancel_ack, complete, fail, new_job


@pytest.fixture
def who(tenant: str) -> Principal:
    return local(tenant)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few jobs are many."""
    monkeypatch.setattr(operations, "FAMILY_BATCH_SIZE", 2)


@pytest.fixture
def operator(store: Store, small_steps: None) -> Operations:
    return Operations(store, LIMITS)


async def tree(queue: TenantQueue, depth: int, width: int, **fields: Any) -> tuple[str, list[str]]:
    """The id of a root, and of all jobs under it."""
    root = await queue.add(**fields)
    level, below = [root], []
    for _ in range(depth):
        level = [await queue.add(parent_id=parent, **fields) for parent in level for _ in range(width)]
        below += level
    return root, below


async def statuses(queue: TenantQueue, ids: Sequence[str]) -> set[Status]:
    return {(await queue.job(id)).status for id in ids}


async def rejects_children(queue: TenantQueue, parent: str) -> None:
    (answer,) = await queue.store.enqueue(queue.tenant, [new_job(parent_id=parent)])
    assert isinstance(answer, Rejected)
    assert isinstance(answer.error, ParentNotActive)


async def test_children_are_read_by_parent_and_arrival_in_pages(queue: TenantQueue) -> None:
    parents = sorted([await queue.add() for _ in range(3)])
    for _ in range(3):
        for parent in parents:
            await queue.add(parent_id=parent)
    whole = await queue.store.children_after(queue.tenant, parents, None, limit=100)
    assert [child.parent_id for child in whole] == [parent for parent in parents for _ in range(3)]
    assert whole == sorted(whole, key=lambda child: (child.parent_id, child.seq))
    seen: list[Child] = []
    after = None
    while page := await queue.store.children_after(queue.tenant, parents, after, limit=2):
        seen += page
        after = (page[-1].parent_id, page[-1].seq)
    assert seen == whole


async def test_children_include_whether_they_are_cancellable(queue: TenantQueue, rival: TenantQueue) -> None:
    parent = await queue.add()
    asked = await queue.running(type="a", parent_id=parent)
    await Operations(queue.store, LIMITS).cancel_tree(local(queue.tenant), asked.id)
    ended = await queue.running(type="b", parent_id=parent)
    await queue.do(complete(ended))
    waiting = await queue.add(parent_id=parent)
    found = await queue.store.children_after(queue.tenant, [parent], None, limit=10)
    assert {child.id: (child.live, child.asked_to_stop) for child in found} == {
        asked.id: (True, True), ended.id: (False, False), waiting: (True, False),
    }  # fmt: skip
    assert await rival.store.children_after(rival.tenant, [parent], None, limit=10) == []


async def test_a_cascade_reaches_every_level(queue: TenantQueue, who: Principal, operator: Operations) -> None:
    root, below = await tree(queue, depth=3, width=3)
    beside, _ = await tree(queue, depth=1, width=1)
    reported = await operator.cancel_tree(who, root, reason="enough")
    assert (reported.receipt.status, reported.descendants) == (Status.CANCELLED, len(below))
    assert await statuses(queue, [root, *below]) == {Status.CANCELLED}
    assert (await queue.job(below[-1])).cancel_reason == "enough"
    assert await statuses(queue, [beside]) == {Status.QUEUED}
    await queue.verify()


async def test_running_jobs_get_a_cancel_request_and_forced_ones_end(
    queue: TenantQueue, who: Principal, operator: Operations
) -> None:
    root = await queue.running(type="root")
    child = await queue.running(type="child", parent_id=root.id)
    await operator.cancel_tree(who, root.id)
    for job in (root, child):
        now = await queue.job(job.id)
        assert (now.status, now.cancel_requested_at) == (Status.RUNNING, queue.clock.now)
    assert (await queue.do(cancel_ack(child))).status is Status.CANCELLED
    other = await queue.running(type="other", parent_id=(await queue.running(type="above")).id)
    reported = await operator.cancel_tree(who, str(other.parent_id), force=True)
    assert (reported.receipt.status, reported.descendants) == (Status.CANCELLED, 1)
    assert (await queue.job(other.id)).status is Status.CANCELLED


async def test_a_cascade_reaches_jobs_below_a_terminal_job(
    queue: TenantQueue, who: Principal, operator: Operations
) -> None:
    root = await queue.add()
    middle = await queue.running(type="middle", parent_id=root)
    leaf = await queue.add(parent_id=middle.id)
    await queue.do(complete(middle))
    assert (await operator.cancel_tree(who, root)).descendants == 1
    assert await statuses(queue, [leaf]) == {Status.CANCELLED}
    assert await statuses(queue, [middle.id]) == {Status.SUCCEEDED}


async def test_a_cascade_from_a_terminal_job_cancels_its_descendants(
    queue: TenantQueue, who: Principal, operator: Operations
) -> None:
    root = await queue.running(type="root")
    leaf = await queue.add(parent_id=root.id)
    receipt = await queue.do(complete(root))
    reported = await operator.cancel_tree(who, root.id)
    assert (reported.receipt, reported.descendants) == (receipt, 1)
    assert await statuses(queue, [leaf]) == {Status.CANCELLED}
    with pytest.raises(AlreadyFinished):
        await operator.cancel_tree(who, root.id)


async def test_an_unknown_root_is_not_found(
    queue: TenantQueue, rival: TenantQueue, who: Principal, operator: Operations
) -> None:
    theirs = await rival.add()
    for id in (NEVER, theirs):
        with pytest.raises(NotFound):
            await operator.cancel_tree(who, id)
    assert await statuses(rival, [theirs]) == {Status.QUEUED}


async def test_a_cascade_again_changes_nothing(queue: TenantQueue, who: Principal, operator: Operations) -> None:
    """G12."""
    root, below = await tree(queue, depth=2, width=2)
    first = await operator.cancel_tree(who, root)
    before = [await queue.trace(id) for id in (root, *below)]
    queue.clock.advance(1)
    again = await operator.cancel_tree(who, root)
    assert (again.receipt, again.descendants) == (first.receipt, 0)
    assert [await queue.trace(id) for id in (root, *below)] == before


@pytest.mark.parametrize("after", range(1, 6))
async def test_an_interrupted_cascade_is_finished_by_the_next(
    queue: TenantQueue, who: Principal, small_steps: None, after: int
) -> None:
    root, below = await tree(queue, depth=2, width=3)

    class Dying:
        """The store, until it has run this many batches."""

        left = after

        def __getattr__(self, name: str) -> Any:
            return getattr(queue.store, name)

        async def carry_out(self, tenant: str, orders: Any) -> Any:
            if not self.left:
                raise Unavailable("gone")
            self.left -= 1
            return await queue.store.carry_out(tenant, orders)

    dying: Any = Dying()
    with pytest.raises(Unavailable):
        await Operations(dying, LIMITS).cancel_tree(who, root)
    assert Status.QUEUED in await statuses(queue, below)
    await rejects_children(queue, root)
    await Operations(queue.store, LIMITS).cancel_tree(who, root)
    assert await statuses(queue, [root, *below]) == {Status.CANCELLED}


async def test_no_child_is_created_under_any_job_of_a_cancelled_tree(
    queue: TenantQueue, who: Principal, operator: Operations
) -> None:
    held: list[Job] = []
    parent = None
    for n in range(3):
        held.append(await queue.running(type=f"t{n}", parent_id=parent, max_attempts=1))
        parent = held[-1].id
    await queue.do(fail(held[2]))
    await operator.cancel_tree(who, held[0].id)
    for job in held:
        await rejects_children(queue, job.id)
    assert {(await queue.job(job.id)).status in TERMINAL for job in held} == {True, False}
