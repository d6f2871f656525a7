"""Budgets of trees: amounts that a job and its descendants may use together."""

from __future__ import annotations

import json

import pytest

from interlock.domain.budget import TREE
from interlock.domain.explain import ReasonCode, explain
from interlock.domain.job import Enqueued, Job, NewJob
from interlock.domain.job_tree import trees_of
from interlock.domain.limits import Limit, check, flow_of
from interlock.domain.operations import PruneCommand, Redrive
from interlock.errors import Invalid
from interlock.storage.contract import Terms
from tests.contract.builders import OPERATOR, TenantQueue, complete, fail, new_id, new_job


async def add(queue: TenantQueue, *jobs: NewJob) -> list[Job]:
    terms = Terms((await queue.store.registry.read(queue.tenant)).version)
    made = await queue.store.enqueue(queue.tenant, jobs, terms=terms)
    found = await queue.store.get(queue.tenant, [one.id for one in made if isinstance(one, Enqueued)])
    return [job for job in found if job is not None]


async def root(queue: TenantQueue, usd: float = 10.0, **fields: object) -> Job:
    (job,) = await add(queue, new_job(budget=json.dumps({"usd": usd}), **fields))
    return job


async def left(queue: TenantQueue, of: Job) -> float:
    found = await queue.store.limits.get(queue.tenant, TREE + of.id)
    assert found is not None
    return found.state.available["usd"]


def cost(usd: float) -> str:
    return json.dumps({"usd": usd})


async def test_trees_whose_budget_refuses_a_job_are_listed_until_they_are_raised(queue: TenantQueue) -> None:
    limits = queue.store.limits
    for _ in range(3):
        await root(queue)
    tops = await queue.claim(limit=3)
    for top in tops:
        await add(queue, new_job(parent_id=top.id))
    for top in tops[:2]:
        await queue.do(complete(top, usage=cost(20.0)))
    assert await limits.spent_trees(queue.tenant, 10) == []
    assert [job.parent_id for job in await queue.claim(limit=10)] == [tops[2].id]
    assert await limits.spent_trees(queue.tenant, 10) == sorted(TREE + top.id for top in tops[:2])
    assert len(await limits.spent_trees(queue.tenant, 1)) == 1
    assert await limits.spent_trees("another", 10) == []
    await limits.raise_budget(queue.tenant, TREE + tops[0].id, {"usd": 20.0}, actor=OPERATOR)
    assert await limits.spent_trees(queue.tenant, 10) == [TREE + tops[1].id]


async def test_a_tree_shares_its_budget_and_waits_when_it_is_spent(queue: TenantQueue) -> None:
    top = await root(queue)
    assert top.budget == '{"usd": 10.0}'
    (held,) = await queue.claim()
    children = await add(queue, *(new_job(parent_id=top.id) for _ in range(3)))
    (first,) = await queue.claim()
    (grandchild,) = await add(queue, new_job(parent_id=first.id))
    (other,) = await add(queue, new_job())
    assert {one["name"] for job in (*children, grandchild) for one in trees_of(job.limits)} == {TREE + top.id}
    await queue.do(complete(first, usage=cost(12.0)))
    assert await left(queue, top) == -2.0
    assert [job.id for job in await queue.claim(limit=10)] == [other.id]
    snapshot = await queue.store.workers.job_snapshot(queue.tenant, grandchild.id)
    assert snapshot is not None
    found = explain(snapshot)
    assert found.clause is ReasonCode.BUDGET_SPENT
    assert {**found.reason.details, "root_id": top.id, "unit": "usd", "available": -2.0} == found.reason.details
    await queue.store.limits.raise_budget(queue.tenant, TREE + top.id, {"usd": 5.0}, actor=OPERATOR)
    assert {job.id for job in await queue.claim(limit=10)} == {children[1].id, children[2].id, grandchild.id}
    await queue.do(complete(held, usage=cost(1.0)))
    assert await left(queue, top) == 2.0


async def test_the_estimate_is_the_cost_in_the_limits_of_the_job(queue: TenantQueue) -> None:
    await queue.store.limits.set(queue.tenant, check(Limit("zone", units={"usd": 50.0})), actor=OPERATOR)
    named = json.dumps([{"name": "zone", "key": None, "cost": {"usd": 4.0}}])
    top = await root(queue, limits=named)
    await queue.claim()
    assert await left(queue, top) == 6.0
    await add(queue, *(new_job(parent_id=top.id, limits=named) for _ in range(2)))
    assert len(await queue.claim(limit=10)) == 1


async def test_a_child_with_a_budget_has_both(queue: TenantQueue) -> None:
    top = await root(queue)
    await queue.claim()
    (child,) = await add(queue, new_job(parent_id=top.id, budget=cost(1.0)))
    assert [one["name"] for one in trees_of(child.limits)] == [TREE + top.id, TREE + child.id]
    (held,) = await queue.claim()
    await add(queue, new_job(parent_id=child.id))
    await queue.do(complete(held, usage=cost(3.0)))
    assert (await left(queue, top), await left(queue, child)) == (7.0, -2.0)
    assert await queue.claim() == []


async def test_a_fifth_level_of_budgets_is_rejected(queue: TenantQueue) -> None:
    parent = await root(queue)
    for _ in range(3):
        (parent,) = await add(queue, new_job(parent_id=parent.id, budget=cost(1.0)))
    terms = Terms((await queue.store.registry.read(queue.tenant)).version)
    job = new_job(parent_id=parent.id, budget=cost(1.0))
    (answer,) = await queue.store.enqueue(queue.tenant, [job], terms=terms)
    with pytest.raises(Invalid, match="at most 4 trees"):
        raise answer.error  # type: ignore[union-attr]


async def test_a_redriven_root_has_a_budget_of_its_own_and_a_redriven_child_stays_in_the_tree(
    queue: TenantQueue,
) -> None:
    top = await root(queue)
    (held,) = await queue.claim()
    (child,) = await add(queue, new_job(parent_id=top.id))
    (run,) = await queue.claim()
    await queue.do(fail(run, retryable=False))
    (again_first,) = await queue.store.redrive(queue.tenant, [Redrive(child.id, new_id(), OPERATOR)])
    await queue.do(fail(held, retryable=False))
    orders = [Redrive(job.id, new_id(), OPERATOR) for job in (top, child)]
    made = [*await queue.store.redrive(queue.tenant, orders), again_first]
    again, alone, again_child = await queue.store.get(queue.tenant, [one.id for one in made])  # type: ignore[union-attr]
    assert again is not None
    assert again_child is not None
    assert alone is not None
    assert (alone.parent_id, again_child.parent_id) == (None, top.id)
    assert [one["name"] for one in trees_of(again.limits)] == [TREE + again.id]
    for job in (again_child, alone):
        assert [one["name"] for one in trees_of(job.limits)] == [TREE + top.id]
    assert await left(queue, again) == 10.0


async def test_a_budget_is_deleted_with_its_root_once_no_descendant_is_unfinished(queue: TenantQueue) -> None:
    top = await root(queue)
    (held,) = await queue.claim()
    await add(queue, new_job(parent_id=top.id))
    await queue.do(complete(held))
    queue.clock.now = queue.after(10)
    order = PruneCommand(new_id(), OPERATOR, queue.clock.now, after_seq=0, step=100)
    await queue.store.prune(queue.tenant, order)
    assert await queue.store.limits.get(queue.tenant, TREE + top.id) is not None
    (child,) = await queue.claim()
    await queue.do(complete(child))
    queue.clock.now = queue.after(10)
    await queue.store.prune(queue.tenant, order._replace(id=new_id(), cutoff=queue.clock.now))
    assert await queue.store.limits.get(queue.tenant, TREE + top.id) is None
    await add(queue, new_job())
    assert len(await queue.claim()) == 1


async def test_many_trees_share_one_eligibility_key_and_a_spent_one_delays_no_other(queue: TenantQueue) -> None:
    """A claim reads the eligibility keys of its worker: one for each tree would slow down all claims."""
    spent = await root(queue, 1.0)
    (held,) = await queue.claim()
    children = await add(queue, *(new_job(parent_id=spent.id) for _ in range(30)))
    await queue.do(complete(held, usage=cost(2.0)))
    tops = [await root(queue) for _ in range(20)]
    flows = {flow_of(job.limits) for job in (spent, *children, *tops)}
    assert flows == {'[["tree:"]]'}
    found = await queue.store.limits.get(queue.tenant, TREE + spent.id)
    assert found is not None
    assert found.state.waiting == 30
    assert [job.id for job in await queue.claim(limit=100)] == [job.id for job in tops]
    await queue.store.limits.raise_budget(queue.tenant, TREE + spent.id, {"usd": 5.0}, actor=OPERATOR)
    leased: list[Job] = []
    while some := await queue.claim(limit=100):
        leased += some
    assert {job.id for job in leased} == {job.id for job in children}
