"""A claim with a name may be repeated after an unknown outcome: it gets what it was granted and still runs."""

from __future__ import annotations

from tests.contract.builders import Desk, beat, complete, expire, fail, new_job, release


async def test_the_same_worker_and_claim_id_get_the_same_jobs(desk: Desk) -> None:
    await desk.add_all([new_job(priority=p) for p in (0, 2, 1, 0)])
    first = await desk.claim(claim_id="c1", limit=3)
    again = await desk.claim(claim_id="c1", limit=3)
    assert len(first) == 3
    assert again == first


async def test_a_repeated_claim_changes_nothing(desk: Desk) -> None:
    await desk.add_all([new_job() for _ in range(3)])
    (job,) = await desk.claim(claim_id="c1")
    before = await desk.trace(job.id)
    desk.clock.advance(5)
    await desk.claim(claim_id="c1", limit=3, lease_seconds=600.0)
    assert await desk.trace(job.id) == before
    assert len(await desk.claim(limit=9)) == 2


async def test_a_repeated_claim_gets_only_what_still_runs_under_it(desk: Desk) -> None:
    await desk.add_all([new_job() for _ in range(4)])
    done, failed, released, kept = await desk.claim(claim_id="c1", limit=4)
    await desk.do(complete(done))
    await desk.do(fail(failed, retry_after_seconds=0.1))
    await desk.do(release(released))
    assert await desk.claimed(claim_id="c1", limit=4) == [kept.id]


async def test_a_repeated_claim_tells_of_the_job_as_it_is_now(desk: Desk) -> None:
    await desk.add()
    (job,) = await desk.claim(claim_id="c1")
    desk.clock.advance(10)
    await desk.heartbeat(beat(job))
    (again,) = await desk.claim(claim_id="c1")
    assert again == await desk.job(job.id)
    assert (again.heartbeat_at, again.lease_expires_at) == (desk.clock.now, desk.after(60))


async def test_when_nothing_granted_runs_any_more_the_claim_is_a_fresh_one(desk: Desk) -> None:
    await desk.add_all([new_job() for _ in range(2)])
    (first,) = await desk.claim(claim_id="c1")
    await desk.do(complete(first))
    (second,) = await desk.claim(claim_id="c1")
    assert second.id != first.id
    assert await desk.claim(claim_id="c1") == [second]


async def test_a_claim_that_got_nothing_is_a_fresh_one_when_repeated(desk: Desk) -> None:
    assert await desk.claim(claim_id="c1") == []
    id = await desk.add()
    assert await desk.claimed(claim_id="c1") == [id]


async def test_another_worker_with_the_same_claim_id_gets_its_own_jobs(desk: Desk) -> None:
    ids = [await desk.add() for _ in range(2)]
    assert await desk.claimed(worker="w1", claim_id="c1") == ids[:1]
    assert await desk.claimed(worker="w2", claim_id="c1") == ids[1:]
    assert await desk.claimed(worker="w1", claim_id="c1") == ids[:1]
    assert await desk.claimed(worker="w2", claim_id="c1") == ids[1:]


async def test_another_tenant_with_the_same_worker_and_claim_id_gets_its_own_jobs(desk: Desk, rival: Desk) -> None:
    mine, theirs = await desk.add(), await rival.add()
    for _ in range(2):
        assert await desk.claimed(claim_id="c1") == [mine]
        assert await rival.claimed(claim_id="c1") == [theirs]


async def test_a_job_granted_anew_is_not_part_of_the_old_claim(desk: Desk) -> None:
    """The same worker holds it again, but under another fence."""
    job = await desk.running()
    await desk.do(release(job))
    (named,) = await desk.claim(claim_id="c1")
    await desk.do(release(named))
    (later,) = await desk.claim()
    assert later.id == named.id
    assert await desk.claim(claim_id="c1") == []


async def test_a_job_whose_lease_ended_is_granted_anew_by_the_repeated_claim(desk: Desk) -> None:
    await desk.add()
    (first,) = await desk.claim(claim_id="c1", lease_seconds=10.0)
    desk.clock.advance(10)
    await desk.do(expire(first.id))
    (second,) = await desk.claim(claim_id="c1")
    assert (second.id, second.fence, second.attempt) == (first.id, 2, 2)


async def test_old_claims_are_forgotten_once_nothing_runs_under_them(desk: Desk, rival: Desk) -> None:
    desk.clock.advance(3600)
    await desk.store.forget_claims(60.0, 10_000)  # what other tests have left in this database
    await desk.add_all([new_job() for _ in range(2)])
    (ended,) = await desk.claim(claim_id="ended")
    (kept,) = await desk.claim(claim_id="kept", lease_seconds=3600.0)
    await rival.add()
    (theirs,) = await rival.claim(claim_id="ended")
    await desk.do(complete(ended))
    await rival.do(complete(theirs))
    assert await desk.store.forget_claims(60.0, 1000) == 0
    desk.clock.advance(61)
    assert await desk.store.forget_claims(60.0, 1000) == 2
    assert await desk.store.forget_claims(60.0, 1000) == 0
    assert await desk.claimed(claim_id="kept") == [kept.id]
