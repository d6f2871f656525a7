"""Who may be given a job: every clause of the rule for claims, one by one."""

from __future__ import annotations

import pytest

from interlock.domain.job import Receipt
from interlock.domain.policy import Names
from tests.contract.builders import OPERATOR, Desk, cancel, complete, fail, new_job, release

MANY = 100
NOBODY = frozenset[str]()


async def test_a_claim_sees_only_its_tenant(desk: Desk, rival: Desk) -> None:
    theirs = await rival.add(priority=1000)
    mine = await desk.add()
    assert await desk.claimed(limit=MANY) == [mine]
    assert await rival.claimed(limit=MANY) == [theirs]


async def test_a_claim_takes_only_the_types_it_names(desk: Desk) -> None:
    a, b = await desk.add(type="a"), await desk.add(type="b")
    assert await desk.claimed(types=frozenset({"b", "c"}), limit=MANY) == [b]
    assert await desk.claimed(types=frozenset({"A"}), limit=MANY) == []
    assert await desk.claimed(types=NOBODY, limit=MANY) == []
    assert await desk.claimed(types=None, limit=MANY) == [a]


async def test_a_paused_type_is_not_handed_out_until_it_is_resumed(desk: Desk, rival: Desk) -> None:
    a, b = await desk.add(type="a"), await desk.add(type="b")
    theirs = await rival.add(type="a")
    await desk.store.pause(desk.tenant, "a", actor=OPERATOR, reason="deploy")
    assert await desk.claimed(limit=MANY) == [b]
    assert await desk.claimed(types=frozenset({"a"}), limit=MANY) == []
    assert await rival.claimed(limit=MANY) == [theirs]
    await desk.store.pause(desk.tenant, "a", actor=None, reason=None)
    assert await desk.claimed(limit=MANY) == [a]


async def test_a_pause_leaves_running_jobs_to_their_workers(desk: Desk) -> None:
    job = await desk.running()
    await desk.store.pause(desk.tenant, "work", actor=OPERATOR, reason=None)
    assert isinstance(await desk.do(complete(job)), Receipt)


async def test_a_type_can_be_paused_before_it_has_jobs_and_twice(desk: Desk) -> None:
    for _ in range(2):
        await desk.store.pause(desk.tenant, "work", actor=OPERATOR, reason="early")
    await desk.add()
    assert await desk.claimed() == []


async def test_a_job_goes_only_to_workers_with_all_it_requires(desk: Desk) -> None:
    both = await desk.add(requires=("gpu", "net"))
    assert await desk.claimed(capabilities=NOBODY) == []
    assert await desk.claimed(capabilities=frozenset({"gpu"})) == []
    assert await desk.claimed(capabilities=frozenset({"gpu", "NET"})) == []
    assert await desk.claimed(capabilities=frozenset({"net", "gpu", "disk"})) == [both]


async def test_a_job_that_requires_nothing_goes_to_anybody(desk: Desk) -> None:
    ids = [await desk.add() for _ in range(2)]
    assert await desk.claimed(capabilities=NOBODY) == ids[:1]
    assert await desk.claimed(capabilities=frozenset({"gpu"})) == ids[1:]


async def test_a_job_goes_only_to_workers_allowed_in_its_repository(desk: Desk) -> None:
    job = await desk.add(repository="org/repo")
    free = await desk.add()
    assert await desk.claimed(repositories=NOBODY, limit=MANY) == []
    for near_miss in ("org/repo-evil", "org/re", "ORG/repo", "org", "*"):
        assert await desk.claimed(repositories=frozenset({near_miss}), limit=MANY) == []
    assert await desk.claimed(repositories=frozenset({"org/other", "org/repo"}), limit=MANY) == [job]
    assert await desk.claimed(limit=MANY) == [free]


@pytest.mark.parametrize("keys", [NOBODY, frozenset({"h1"}), None])
async def test_a_job_without_a_repository_is_not_for_workers_bound_to_some(desk: Desk, keys: Names | None) -> None:
    plain, bound = await desk.add(), await desk.add(affinity_key="h1")
    await desk.add(repository="org/x")  # so that the routes of all three stand beside each other
    for allowed in (NOBODY, frozenset({"org/y"})):
        assert await desk.claimed(repositories=allowed, affinity_keys=keys, limit=MANY) == []
    assert await desk.claimed(affinity_keys=None, limit=2) == [plain, bound]


async def test_a_worker_allowed_everywhere_gets_jobs_of_every_repository(desk: Desk) -> None:
    ids = [await desk.add(repository=repository) for repository in ("org/a", None, "org/b")]
    assert await desk.claimed(repositories=None, limit=MANY) == ids


async def test_an_affinity_key_must_be_named_by_the_claimer(desk: Desk) -> None:
    bound, free = await desk.add(affinity_key="h1"), await desk.add()
    assert await desk.claimed(affinity_keys=NOBODY, limit=MANY) == [free]
    assert await desk.claimed(affinity_keys=frozenset({"h2", "H1"}), limit=MANY) == []
    assert await desk.claimed(affinity_keys=frozenset({"h2", "h1"}), limit=MANY) == [bound]


async def test_a_claimer_of_any_affinity_gets_bound_and_free_jobs(desk: Desk) -> None:
    ids = [await desk.add(affinity_key=key) for key in ("h1", None, "h2")]
    assert await desk.claimed(affinity_keys=None, limit=MANY) == ids


async def test_any_affinity_does_not_open_other_repositories(desk: Desk) -> None:
    """Both filters are open, one of them, or none: each combination has its own path through the indexes."""
    everywhere = await desk.add(affinity_key="h1", repository="org/a")
    assert await desk.claimed(affinity_keys=None, repositories=frozenset({"org/b"})) == []
    assert await desk.claimed(affinity_keys=frozenset({"h2"}), repositories=None) == []
    assert await desk.claimed(affinity_keys=None, repositories=None) == [everywhere]


async def test_a_job_past_its_deadline_is_not_handed_out(desk: Desk) -> None:
    id = await desk.add(deadline=desk.after(10))
    desk.clock.advance(10)
    assert await desk.claimed(limit=MANY) == []
    assert (await desk.job(id)).attempt == 1


async def test_a_job_due_exactly_now_and_with_a_deadline_ahead_is_handed_out(desk: Desk) -> None:
    id = await desk.add(deadline=desk.clock.now + 1)
    assert await desk.claimed() == [id]


async def test_a_job_waits_for_its_children_to_end(desk: Desk) -> None:
    parent = await desk.running(type="parent")
    child = await desk.add(parent_id=parent.id, type="child")
    await desk.do(release(parent, children=(child,)))
    only_parent = frozenset({"parent"})
    assert await desk.claimed(types=only_parent) == []
    (grant,) = await desk.claim(types=frozenset({"child"}))
    assert await desk.claimed(types=only_parent) == []
    await desk.do(complete(grant))
    assert await desk.claimed(types=only_parent) == [parent.id]


async def test_a_cancelled_job_is_never_granted(desk: Desk) -> None:
    """G22."""
    queued = await desk.add()
    retrying = await desk.running(type="other")
    await desk.do(fail(retrying, retry_after_seconds=1.0))
    await desk.do(cancel(queued))
    await desk.do(cancel(retrying.id))
    desk.clock.advance(3600)
    assert await desk.claimed(limit=MANY) == []


async def test_jobs_nobody_may_have_do_not_hide_those_behind_them(desk: Desk) -> None:
    await desk.add_all([new_job(priority=9, requires=("gpu",)) for _ in range(250)])
    await desk.add_all([new_job(priority=9, repository="org/x") for _ in range(250)])
    await desk.add_all([new_job(priority=9, deadline=desk.after(1)) for _ in range(250)])
    mine = await desk.add(repository="org/y")
    desk.clock.advance(1)
    assert await desk.claimed(repositories=frozenset({"org/y"}), limit=10) == [mine]
