"""Trees of jobs: how they are walked, and a cascade that leaves nobody running unasked."""

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
from tests.contract.builders import NEVER, Desk, cancel_ack, complete, fail, new_job


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


async def tree(remote: Desk, depth: int, width: int, **fields: Any) -> tuple[str, list[str]]:
    """The id of a root, and of all jobs under it."""
    root = await remote.add(**fields)
    level, below = [root], []
    for _ in range(depth):
        level = [await remote.add(parent_id=parent, **fields) for parent in level for _ in range(width)]
        below += level
    return root, below


async def statuses(remote: Desk, ids: Sequence[str]) -> set[Status]:
    return {(await remote.job(id)).status for id in ids}


async def refuses_children(remote: Desk, parent: str) -> None:
    (answer,) = await remote.store.enqueue(remote.tenant, [new_job(parent_id=parent)])
    assert isinstance(answer, Rejected)
    assert isinstance(answer.error, ParentNotActive)


async def test_children_are_read_by_parent_and_arrival_in_pages(remote: Desk) -> None:
    parents = sorted([await remote.add() for _ in range(3)])
    for _ in range(3):
        for parent in parents:
            await remote.add(parent_id=parent)
    whole = await remote.store.children_after(remote.tenant, parents, None, limit=100)
    assert [child.parent_id for child in whole] == [parent for parent in parents for _ in range(3)]
    assert whole == sorted(whole, key=lambda child: (child.parent_id, child.seq))
    seen: list[Child] = []
    after = None
    while page := await remote.store.children_after(remote.tenant, parents, after, limit=2):
        seen += page
        after = (page[-1].parent_id, page[-1].seq)
    assert seen == whole


async def test_children_tell_whether_they_still_have_to_be_stopped(remote: Desk, rival: Desk) -> None:
    parent = await remote.add()
    asked = await remote.running(type="a", parent_id=parent)
    await Operations(remote.store, LIMITS).cancel_tree(local(remote.tenant), asked.id)
    ended = await remote.running(type="b", parent_id=parent)
    await remote.do(complete(ended))
    waiting = await remote.add(parent_id=parent)
    found = await remote.store.children_after(remote.tenant, [parent], None, limit=10)
    assert {child.id: (child.live, child.asked_to_stop) for child in found} == {
        asked.id: (True, True), ended.id: (False, False), waiting: (True, False),
    }  # fmt: skip
    assert await rival.store.children_after(rival.tenant, [parent], None, limit=10) == []


async def test_a_cascade_reaches_every_level(remote: Desk, who: Principal, operator: Operations) -> None:
    root, below = await tree(remote, depth=3, width=3)
    beside, _ = await tree(remote, depth=1, width=1)
    reported = await operator.cancel_tree(who, root, reason="enough")
    assert (reported.receipt.status, reported.descendants) == (Status.CANCELLED, len(below))
    assert await statuses(remote, [root, *below]) == {Status.CANCELLED}
    assert (await remote.job(below[-1])).cancel_reason == "enough"
    assert await statuses(remote, [beside]) == {Status.QUEUED}
    await remote.verify()


async def test_running_jobs_are_asked_and_forced_ones_end(remote: Desk, who: Principal, operator: Operations) -> None:
    root = await remote.running(type="root")
    child = await remote.running(type="child", parent_id=root.id)
    await operator.cancel_tree(who, root.id)
    for job in (root, child):
        now = await remote.job(job.id)
        assert (now.status, now.cancel_requested_at) == (Status.RUNNING, remote.clock.now)
    assert (await remote.do(cancel_ack(child))).status is Status.CANCELLED
    other = await remote.running(type="other", parent_id=(await remote.running(type="above")).id)
    reported = await operator.cancel_tree(who, str(other.parent_id), force=True)
    assert (reported.receipt.status, reported.descendants) == (Status.CANCELLED, 1)
    assert (await remote.job(other.id)).status is Status.CANCELLED


async def test_what_lives_under_an_ended_job_is_reached_too(remote: Desk, who: Principal, operator: Operations) -> None:
    root = await remote.add()
    middle = await remote.running(type="middle", parent_id=root)
    leaf = await remote.add(parent_id=middle.id)
    await remote.do(complete(middle))
    assert (await operator.cancel_tree(who, root)).descendants == 1
    assert await statuses(remote, [leaf]) == {Status.CANCELLED}
    assert await statuses(remote, [middle.id]) == {Status.SUCCEEDED}


async def test_a_cascade_from_an_ended_job_stops_what_is_left_under_it(
    remote: Desk, who: Principal, operator: Operations
) -> None:
    root = await remote.running(type="root")
    leaf = await remote.add(parent_id=root.id)
    receipt = await remote.do(complete(root))
    reported = await operator.cancel_tree(who, root.id)
    assert (reported.receipt, reported.descendants) == (receipt, 1)
    assert await statuses(remote, [leaf]) == {Status.CANCELLED}
    with pytest.raises(AlreadyFinished):
        await operator.cancel_tree(who, root.id)


async def test_an_unknown_root_is_not_found(remote: Desk, rival: Desk, who: Principal, operator: Operations) -> None:
    theirs = await rival.add()
    for id in (NEVER, theirs):
        with pytest.raises(NotFound):
            await operator.cancel_tree(who, id)
    assert await statuses(rival, [theirs]) == {Status.QUEUED}


async def test_a_cascade_again_changes_nothing(remote: Desk, who: Principal, operator: Operations) -> None:
    """G12."""
    root, below = await tree(remote, depth=2, width=2)
    first = await operator.cancel_tree(who, root)
    before = [await remote.trace(id) for id in (root, *below)]
    remote.clock.advance(1)
    again = await operator.cancel_tree(who, root)
    assert (again.receipt, again.descendants) == (first.receipt, 0)
    assert [await remote.trace(id) for id in (root, *below)] == before


@pytest.mark.parametrize("after", range(1, 6))
async def test_a_cascade_that_was_cut_short_is_finished_by_the_next(
    remote: Desk, who: Principal, small_steps: None, after: int
) -> None:
    root, below = await tree(remote, depth=2, width=3)

    class Dying:
        """The store, until it has carried out so many batches."""

        left = after

        def __getattr__(self, name: str) -> Any:
            return getattr(remote.store, name)

        async def carry_out(self, tenant: str, orders: Any) -> Any:
            if not self.left:
                raise Unavailable("gone")
            self.left -= 1
            return await remote.store.carry_out(tenant, orders)

    dying: Any = Dying()
    with pytest.raises(Unavailable):
        await Operations(dying, LIMITS).cancel_tree(who, root)
    assert Status.QUEUED in await statuses(remote, below)
    await refuses_children(remote, root)
    await Operations(remote.store, LIMITS).cancel_tree(who, root)
    assert await statuses(remote, [root, *below]) == {Status.CANCELLED}


async def test_no_child_is_born_under_any_job_of_a_cancelled_tree(
    remote: Desk, who: Principal, operator: Operations
) -> None:
    held: list[Job] = []
    parent = None
    for n in range(3):
        held.append(await remote.running(type=f"t{n}", parent_id=parent, max_attempts=1))
        parent = held[-1].id
    await remote.do(fail(held[2]))
    await operator.cancel_tree(who, held[0].id)
    for job in held:
        await refuses_children(remote, job.id)
    assert {(await remote.job(job.id)).status in TERMINAL for job in held} == {True, False}
