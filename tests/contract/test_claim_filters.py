"""Who may be given a job: every clause of the rule for claims, one by one."""

from __future__ import annotations

import pytest

from interlock.domain.job import Receipt
from interlock.domain.policy import Names
from tests.contract.builders import OPERATOR, TenantQueue, cancel, complete, fail, new_job, release

MANY = 100
NONE = frozenset[str]()


async def test_a_claim_sees_only_its_tenant(queue: TenantQueue, rival: TenantQueue) -> None:
    theirs = await rival.add(priority=1000)
    mine = await queue.add()
    assert await queue.claimed(limit=MANY) == [mine]
    assert await rival.claimed(limit=MANY) == [theirs]


async def test_a_claim_leases_only_the_types_it_names(queue: TenantQueue) -> None:
    a, b = await queue.add(type="a"), await queue.add(type="b")
    assert await queue.claimed(types=frozenset({"b", "c"}), limit=MANY) == [b]
    assert await queue.claimed(types=frozenset({"A"}), limit=MANY) == []
    assert await queue.claimed(types=NONE, limit=MANY) == []
    assert await queue.claimed(types=None, limit=MANY) == [a]


async def test_a_paused_type_is_not_leased_until_it_is_resumed(queue: TenantQueue, rival: TenantQueue) -> None:
    a, b = await queue.add(type="a"), await queue.add(type="b")
    theirs = await rival.add(type="a")
    await queue.store.registry.pause(queue.tenant, "a", actor=OPERATOR, reason="deploy")
    assert await queue.claimed(limit=MANY) == [b]
    assert await queue.claimed(types=frozenset({"a"}), limit=MANY) == []
    assert await rival.claimed(limit=MANY) == [theirs]
    await queue.store.registry.pause(queue.tenant, "a", actor=None, reason=None)
    assert await queue.claimed(limit=MANY) == [a]


async def test_a_pause_leaves_running_jobs_to_their_workers(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.store.registry.pause(queue.tenant, "work", actor=OPERATOR, reason=None)
    assert isinstance(await queue.do(complete(job)), Receipt)


async def test_a_type_can_be_paused_before_it_has_jobs_and_twice(queue: TenantQueue) -> None:
    for _ in range(2):
        await queue.store.registry.pause(queue.tenant, "work", actor=OPERATOR, reason="early")
    await queue.add()
    assert await queue.claimed() == []


async def test_a_job_is_leased_only_to_workers_with_all_capabilities_it_requires(queue: TenantQueue) -> None:
    both = await queue.add(requires=("gpu", "net"))
    assert await queue.claimed(capabilities=NONE) == []
    assert await queue.claimed(capabilities=frozenset({"gpu"})) == []
    assert await queue.claimed(capabilities=frozenset({"gpu", "NET"})) == []
    assert await queue.claimed(capabilities=frozenset({"net", "gpu", "disk"})) == [both]


async def test_a_job_that_requires_nothing_is_leased_to_any_worker(queue: TenantQueue) -> None:
    ids = [await queue.add() for _ in range(2)]
    assert await queue.claimed(capabilities=NONE) == ids[:1]
    assert await queue.claimed(capabilities=frozenset({"gpu"})) == ids[1:]


async def test_a_job_is_leased_only_to_workers_allowed_in_its_repository(queue: TenantQueue) -> None:
    job = await queue.add(repository="org/repo")
    free = await queue.add()
    assert await queue.claimed(repositories=NONE, limit=MANY) == []
    for near_miss in ("org/repo-evil", "org/re", "ORG/repo", "org", "*"):
        assert await queue.claimed(repositories=frozenset({near_miss}), limit=MANY) == []
    assert await queue.claimed(repositories=frozenset({"org/other", "org/repo"}), limit=MANY) == [job]
    assert await queue.claimed(limit=MANY) == [free]


@pytest.mark.parametrize("keys", [NONE, frozenset({"h1"}), None])
async def test_a_job_without_a_repository_is_not_leased_to_workers_bound_to_some(
    queue: TenantQueue, keys: Names | None
) -> None:
    plain, bound = await queue.add(), await queue.add(affinity_key="h1")
    await queue.add(repository="org/x")  # so that the routes of all three stand beside each other
    for allowed in (NONE, frozenset({"org/y"})):
        assert await queue.claimed(repositories=allowed, affinity_keys=keys, limit=MANY) == []
    assert await queue.claimed(affinity_keys=None, limit=2) == [plain, bound]


async def test_a_worker_allowed_everywhere_gets_jobs_of_every_repository(queue: TenantQueue) -> None:
    ids = [await queue.add(repository=repository) for repository in ("org/a", None, "org/b")]
    assert await queue.claimed(repositories=None, limit=MANY) == ids


async def test_an_affinity_key_must_be_named_by_the_claim(queue: TenantQueue) -> None:
    bound, free = await queue.add(affinity_key="h1"), await queue.add()
    assert await queue.claimed(affinity_keys=NONE, limit=MANY) == [free]
    assert await queue.claimed(affinity_keys=frozenset({"h2", "H1"}), limit=MANY) == []
    assert await queue.claimed(affinity_keys=frozenset({"h2", "h1"}), limit=MANY) == [bound]


async def test_a_claim_with_any_affinity_gets_jobs_with_and_without_a_key(queue: TenantQueue) -> None:
    ids = [await queue.add(affinity_key=key) for key in ("h1", None, "h2")]
    assert await queue.claimed(affinity_keys=None, limit=MANY) == ids


async def test_any_affinity_does_not_open_other_repositories(queue: TenantQueue) -> None:
    """Both filters are open, one of them, or none: each combination has its own path through the indexes."""
    everywhere = await queue.add(affinity_key="h1", repository="org/a")
    assert await queue.claimed(affinity_keys=None, repositories=frozenset({"org/b"})) == []
    assert await queue.claimed(affinity_keys=frozenset({"h2"}), repositories=None) == []
    assert await queue.claimed(affinity_keys=None, repositories=None) == [everywhere]


async def test_a_job_past_its_deadline_is_not_leased(queue: TenantQueue) -> None:
    id = await queue.add(deadline=queue.after(10))
    queue.clock.advance(10)
    assert await queue.claimed(limit=MANY) == []
    assert (await queue.job(id)).attempt == 1


async def test_a_job_due_exactly_now_and_with_a_deadline_ahead_is_leased(queue: TenantQueue) -> None:
    id = await queue.add(deadline=queue.clock.now + 1)
    assert await queue.claimed() == [id]


async def test_a_job_waits_until_its_children_are_terminal(queue: TenantQueue) -> None:
    parent = await queue.running(type="parent")
    child = await queue.add(parent_id=parent.id, type="child")
    await queue.do(release(parent, children=(child,)))
    only_parent = frozenset({"parent"})
    assert await queue.claimed(types=only_parent) == []
    (lease,) = await queue.claim(types=frozenset({"child"}))
    assert await queue.claimed(types=only_parent) == []
    await queue.do(complete(lease))
    assert await queue.claimed(types=only_parent) == [parent.id]


async def test_a_cancelled_job_is_never_leased(queue: TenantQueue) -> None:
    """G22."""
    queued = await queue.add()
    retrying = await queue.running(type="other")
    await queue.do(fail(retrying, retry_after_seconds=1.0))
    await queue.do(cancel(queued))
    await queue.do(cancel(retrying.id))
    queue.clock.advance(3600)
    assert await queue.claimed(limit=MANY) == []


async def test_ineligible_jobs_do_not_hide_those_behind_them(queue: TenantQueue) -> None:
    await queue.add_all([new_job(priority=9, requires=("gpu",)) for _ in range(250)])
    await queue.add_all([new_job(priority=9, repository="org/x") for _ in range(250)])
    await queue.add_all([new_job(priority=9, deadline=queue.after(1)) for _ in range(250)])
    mine = await queue.add(repository="org/y")
    queue.clock.advance(1)
    assert await queue.claimed(repositories=frozenset({"org/y"}), limit=10) == [mine]
