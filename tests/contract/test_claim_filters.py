"""Who may be given a job: every clause of the rule for claims, one by one."""

from __future__ import annotations

import pytest

from interlock.domain.job import Receipt
from interlock.domain.policy import Names
from tests.contract.builders import OPERATOR, Desk, cancel, complete, fail, new_job, release

MANY = 100
NOBODY = frozenset[str]()


async def test_a_claim_sees_only_its_tenant(remote: Desk, rival: Desk) -> None:
    theirs = await rival.add(priority=1000)
    mine = await remote.add()
    assert await remote.claimed(limit=MANY) == [mine]
    assert await rival.claimed(limit=MANY) == [theirs]


async def test_a_claim_takes_only_the_types_it_names(remote: Desk) -> None:
    a, b = await remote.add(type="a"), await remote.add(type="b")
    assert await remote.claimed(types=frozenset({"b", "c"}), limit=MANY) == [b]
    assert await remote.claimed(types=frozenset({"A"}), limit=MANY) == []
    assert await remote.claimed(types=NOBODY, limit=MANY) == []
    assert await remote.claimed(types=None, limit=MANY) == [a]


async def test_a_paused_type_is_not_handed_out_until_it_is_resumed(remote: Desk, rival: Desk) -> None:
    a, b = await remote.add(type="a"), await remote.add(type="b")
    theirs = await rival.add(type="a")
    await remote.store.pause(remote.tenant, "a", actor=OPERATOR, reason="deploy")
    assert await remote.claimed(limit=MANY) == [b]
    assert await remote.claimed(types=frozenset({"a"}), limit=MANY) == []
    assert await rival.claimed(limit=MANY) == [theirs]
    await remote.store.pause(remote.tenant, "a", actor=None, reason=None)
    assert await remote.claimed(limit=MANY) == [a]


async def test_a_pause_leaves_running_jobs_to_their_workers(remote: Desk) -> None:
    job = await remote.running()
    await remote.store.pause(remote.tenant, "work", actor=OPERATOR, reason=None)
    assert isinstance(await remote.do(complete(job)), Receipt)


async def test_a_type_can_be_paused_before_it_has_jobs_and_twice(remote: Desk) -> None:
    for _ in range(2):
        await remote.store.pause(remote.tenant, "work", actor=OPERATOR, reason="early")
    await remote.add()
    assert await remote.claimed() == []


async def test_a_job_goes_only_to_workers_with_all_it_requires(remote: Desk) -> None:
    both = await remote.add(requires=("gpu", "net"))
    assert await remote.claimed(capabilities=NOBODY) == []
    assert await remote.claimed(capabilities=frozenset({"gpu"})) == []
    assert await remote.claimed(capabilities=frozenset({"gpu", "NET"})) == []
    assert await remote.claimed(capabilities=frozenset({"net", "gpu", "disk"})) == [both]


async def test_a_job_that_requires_nothing_goes_to_anybody(remote: Desk) -> None:
    ids = [await remote.add() for _ in range(2)]
    assert await remote.claimed(capabilities=NOBODY) == ids[:1]
    assert await remote.claimed(capabilities=frozenset({"gpu"})) == ids[1:]


async def test_a_job_goes_only_to_workers_allowed_in_its_repository(remote: Desk) -> None:
    job = await remote.add(repository="org/repo")
    free = await remote.add()
    assert await remote.claimed(repositories=NOBODY, limit=MANY) == []
    for near_miss in ("org/repo-evil", "org/re", "ORG/repo", "org", "*"):
        assert await remote.claimed(repositories=frozenset({near_miss}), limit=MANY) == []
    assert await remote.claimed(repositories=frozenset({"org/other", "org/repo"}), limit=MANY) == [job]
    assert await remote.claimed(limit=MANY) == [free]


@pytest.mark.parametrize("keys", [NOBODY, frozenset({"h1"}), None])
async def test_a_job_without_a_repository_is_not_for_workers_bound_to_some(remote: Desk, keys: Names | None) -> None:
    plain, bound = await remote.add(), await remote.add(affinity_key="h1")
    await remote.add(repository="org/x")  # so that the routes of all three stand beside each other
    for allowed in (NOBODY, frozenset({"org/y"})):
        assert await remote.claimed(repositories=allowed, affinity_keys=keys, limit=MANY) == []
    assert await remote.claimed(affinity_keys=None, limit=2) == [plain, bound]


async def test_a_worker_allowed_everywhere_gets_jobs_of_every_repository(remote: Desk) -> None:
    ids = [await remote.add(repository=repository) for repository in ("org/a", None, "org/b")]
    assert await remote.claimed(repositories=None, limit=MANY) == ids


async def test_an_affinity_key_must_be_named_by_the_claimer(remote: Desk) -> None:
    bound, free = await remote.add(affinity_key="h1"), await remote.add()
    assert await remote.claimed(affinity_keys=NOBODY, limit=MANY) == [free]
    assert await remote.claimed(affinity_keys=frozenset({"h2", "H1"}), limit=MANY) == []
    assert await remote.claimed(affinity_keys=frozenset({"h2", "h1"}), limit=MANY) == [bound]


async def test_a_claimer_of_any_affinity_gets_bound_and_free_jobs(remote: Desk) -> None:
    ids = [await remote.add(affinity_key=key) for key in ("h1", None, "h2")]
    assert await remote.claimed(affinity_keys=None, limit=MANY) == ids


async def test_any_affinity_does_not_open_other_repositories(remote: Desk) -> None:
    """Both filters are open, one of them, or none: each combination has its own path through the indexes."""
    everywhere = await remote.add(affinity_key="h1", repository="org/a")
    assert await remote.claimed(affinity_keys=None, repositories=frozenset({"org/b"})) == []
    assert await remote.claimed(affinity_keys=frozenset({"h2"}), repositories=None) == []
    assert await remote.claimed(affinity_keys=None, repositories=None) == [everywhere]


async def test_a_job_past_its_deadline_is_not_handed_out(remote: Desk) -> None:
    id = await remote.add(deadline=remote.after(10))
    remote.clock.advance(10)
    assert await remote.claimed(limit=MANY) == []
    assert (await remote.job(id)).attempt == 1


async def test_a_job_due_exactly_now_and_with_a_deadline_ahead_is_handed_out(remote: Desk) -> None:
    id = await remote.add(deadline=remote.clock.now + 1)
    assert await remote.claimed() == [id]


async def test_a_job_waits_for_its_children_to_end(remote: Desk) -> None:
    parent = await remote.running(type="parent")
    child = await remote.add(parent_id=parent.id, type="child")
    await remote.do(release(parent, children=(child,)))
    only_parent = frozenset({"parent"})
    assert await remote.claimed(types=only_parent) == []
    (lease,) = await remote.claim(types=frozenset({"child"}))
    assert await remote.claimed(types=only_parent) == []
    await remote.do(complete(lease))
    assert await remote.claimed(types=only_parent) == [parent.id]


async def test_a_cancelled_job_is_never_granted(remote: Desk) -> None:
    """G22."""
    queued = await remote.add()
    retrying = await remote.running(type="other")
    await remote.do(fail(retrying, retry_after_seconds=1.0))
    await remote.do(cancel(queued))
    await remote.do(cancel(retrying.id))
    remote.clock.advance(3600)
    assert await remote.claimed(limit=MANY) == []


async def test_jobs_nobody_may_have_do_not_hide_those_behind_them(remote: Desk) -> None:
    await remote.add_all([new_job(priority=9, requires=("gpu",)) for _ in range(250)])
    await remote.add_all([new_job(priority=9, repository="org/x") for _ in range(250)])
    await remote.add_all([new_job(priority=9, deadline=remote.after(1)) for _ in range(250)])
    mine = await remote.add(repository="org/y")
    remote.clock.advance(1)
    assert await remote.claimed(repositories=frozenset({"org/y"}), limit=10) == [mine]
