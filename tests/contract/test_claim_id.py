"""A claim with a name may be repeated after an unknown outcome: it gets what it was granted and still runs."""

from __future__ import annotations

from tests.contract.builders import Desk, complete, expire, fail, heartbeat, new_job, release


async def test_the_same_worker_and_claim_id_get_the_same_jobs(remote: Desk) -> None:
    await remote.add_all([new_job(priority=p) for p in (0, 2, 1, 0)])
    first = await remote.claim(claim_id="c1", limit=3)
    again = await remote.claim(claim_id="c1", limit=3)
    assert len(first) == 3
    assert again == first


async def test_a_repeated_claim_changes_nothing(remote: Desk) -> None:
    await remote.add_all([new_job() for _ in range(3)])
    (job,) = await remote.claim(claim_id="c1")
    before = await remote.trace(job.id)
    remote.clock.advance(5)
    await remote.claim(claim_id="c1", limit=3, lease_seconds=600.0)
    assert await remote.trace(job.id) == before
    assert len(await remote.claim(limit=9)) == 2


async def test_a_repeated_claim_gets_only_what_still_runs_under_it(remote: Desk) -> None:
    await remote.add_all([new_job() for _ in range(4)])
    done, failed, released, kept = await remote.claim(claim_id="c1", limit=4)
    await remote.do(complete(done))
    await remote.do(fail(failed, retry_after_seconds=0.1))
    await remote.do(release(released))
    assert await remote.claimed(claim_id="c1", limit=4) == [kept.id]


async def test_a_repeated_claim_tells_of_the_job_as_it_is_now(remote: Desk) -> None:
    await remote.add()
    (job,) = await remote.claim(claim_id="c1")
    remote.clock.advance(10)
    await remote.heartbeat(heartbeat(job))
    (again,) = await remote.claim(claim_id="c1")
    assert again == await remote.job(job.id)
    assert (again.heartbeat_at, again.lease_expires_at) == (remote.clock.now, remote.after(60))


async def test_when_nothing_granted_runs_any_more_the_claim_is_a_fresh_one(remote: Desk) -> None:
    await remote.add_all([new_job() for _ in range(2)])
    (first,) = await remote.claim(claim_id="c1")
    await remote.do(complete(first))
    (second,) = await remote.claim(claim_id="c1")
    assert second.id != first.id
    assert await remote.claim(claim_id="c1") == [second]


async def test_a_claim_that_got_nothing_is_a_fresh_one_when_repeated(remote: Desk) -> None:
    assert await remote.claim(claim_id="c1") == []
    id = await remote.add()
    assert await remote.claimed(claim_id="c1") == [id]


async def test_another_worker_with_the_same_claim_id_gets_its_own_jobs(remote: Desk) -> None:
    ids = [await remote.add() for _ in range(2)]
    assert await remote.claimed(worker="w1", claim_id="c1") == ids[:1]
    assert await remote.claimed(worker="w2", claim_id="c1") == ids[1:]
    assert await remote.claimed(worker="w1", claim_id="c1") == ids[:1]
    assert await remote.claimed(worker="w2", claim_id="c1") == ids[1:]


async def test_another_tenant_with_the_same_worker_and_claim_id_gets_its_own_jobs(remote: Desk, rival: Desk) -> None:
    mine, theirs = await remote.add(), await rival.add()
    for _ in range(2):
        assert await remote.claimed(claim_id="c1") == [mine]
        assert await rival.claimed(claim_id="c1") == [theirs]


async def test_a_job_granted_anew_is_not_part_of_the_old_claim(remote: Desk) -> None:
    """The same worker holds it again, but under another fence."""
    job = await remote.running()
    await remote.do(release(job))
    (named,) = await remote.claim(claim_id="c1")
    await remote.do(release(named))
    (later,) = await remote.claim()
    assert later.id == named.id
    assert await remote.claim(claim_id="c1") == []


async def test_a_job_whose_lease_ended_is_granted_anew_by_the_repeated_claim(remote: Desk) -> None:
    await remote.add()
    (first,) = await remote.claim(claim_id="c1", lease_seconds=10.0)
    remote.clock.advance(10)
    await remote.do(expire(first.id))
    (second,) = await remote.claim(claim_id="c1")
    assert (second.id, second.fence, second.attempt) == (first.id, 2, 2)


async def test_old_claims_are_forgotten_once_nothing_runs_under_them(remote: Desk, rival: Desk) -> None:
    remote.clock.advance(3600)
    await remote.store.forget_claims(60.0, 10_000)  # what other tests have left in this database
    await remote.add_all([new_job() for _ in range(2)])
    (ended,) = await remote.claim(claim_id="ended")
    (kept,) = await remote.claim(claim_id="kept", lease_seconds=3600.0)
    await rival.add()
    (theirs,) = await rival.claim(claim_id="ended")
    await remote.do(complete(ended))
    await rival.do(complete(theirs))
    assert await remote.store.forget_claims(60.0, 1000) == 0
    remote.clock.advance(61)
    assert await remote.store.forget_claims(60.0, 1000) == 2
    assert await remote.store.forget_claims(60.0, 1000) == 0
    assert await remote.claimed(claim_id="kept") == [kept.id]
