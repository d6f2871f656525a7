"""A claim with a name may be repeated after an unknown outcome: it gets what it was granted and still runs."""

from __future__ import annotations

from tests.contract.builders import TenantQueue, complete, expire, fail, heartbeat, new_job, release


async def test_the_same_worker_and_claim_id_get_the_same_jobs(queue: TenantQueue) -> None:
    await queue.add_all([new_job(priority=p) for p in (0, 2, 1, 0)])
    first = await queue.claim(claim_id="c1", limit=3)
    again = await queue.claim(claim_id="c1", limit=3)
    assert len(first) == 3
    assert again == first


async def test_a_repeated_claim_changes_nothing(queue: TenantQueue) -> None:
    await queue.add_all([new_job() for _ in range(3)])
    (job,) = await queue.claim(claim_id="c1")
    before = await queue.trace(job.id)
    queue.clock.advance(5)
    await queue.claim(claim_id="c1", limit=3, lease_seconds=600.0)
    assert await queue.trace(job.id) == before
    assert len(await queue.claim(limit=9)) == 2


async def test_a_repeated_claim_gets_only_jobs_it_still_leases(queue: TenantQueue) -> None:
    await queue.add_all([new_job() for _ in range(4)])
    done, failed, released, kept = await queue.claim(claim_id="c1", limit=4)
    await queue.do(complete(done))
    await queue.do(fail(failed, retry_after_seconds=0.1))
    await queue.do(release(released))
    assert await queue.claimed(claim_id="c1", limit=4) == [kept.id]


async def test_a_repeated_claim_returns_the_current_job(queue: TenantQueue) -> None:
    await queue.add()
    (job,) = await queue.claim(claim_id="c1")
    queue.clock.advance(10)
    await queue.heartbeat(heartbeat(job))
    (again,) = await queue.claim(claim_id="c1")
    assert again == await queue.job(job.id)
    assert (again.heartbeat_at, again.lease_expires_at) == (queue.clock.now, queue.after(60))


async def test_a_claim_whose_jobs_all_finished_is_a_new_claim(queue: TenantQueue) -> None:
    await queue.add_all([new_job() for _ in range(2)])
    (first,) = await queue.claim(claim_id="c1")
    await queue.do(complete(first))
    (second,) = await queue.claim(claim_id="c1")
    assert second.id != first.id
    assert await queue.claim(claim_id="c1") == [second]


async def test_an_empty_claim_is_a_new_claim_when_repeated(queue: TenantQueue) -> None:
    assert await queue.claim(claim_id="c1") == []
    id = await queue.add()
    assert await queue.claimed(claim_id="c1") == [id]


async def test_another_worker_with_the_same_claim_id_gets_its_own_jobs(queue: TenantQueue) -> None:
    ids = [await queue.add() for _ in range(2)]
    assert await queue.claimed(worker="w1", claim_id="c1") == ids[:1]
    assert await queue.claimed(worker="w2", claim_id="c1") == ids[1:]
    assert await queue.claimed(worker="w1", claim_id="c1") == ids[:1]
    assert await queue.claimed(worker="w2", claim_id="c1") == ids[1:]


async def test_another_tenant_with_the_same_worker_and_claim_id_gets_its_own_jobs(
    queue: TenantQueue, rival: TenantQueue
) -> None:
    mine, theirs = await queue.add(), await rival.add()
    for _ in range(2):
        assert await queue.claimed(claim_id="c1") == [mine]
        assert await rival.claimed(claim_id="c1") == [theirs]


async def test_a_job_leased_again_is_not_part_of_the_old_claim(queue: TenantQueue) -> None:
    """The same worker holds it again, but under another fence."""
    job = await queue.running()
    await queue.do(release(job))
    (named,) = await queue.claim(claim_id="c1")
    await queue.do(release(named))
    (later,) = await queue.claim()
    assert later.id == named.id
    assert await queue.claim(claim_id="c1") == []


async def test_a_job_whose_lease_ended_is_leased_again_by_the_repeated_claim(queue: TenantQueue) -> None:
    await queue.add()
    (first,) = await queue.claim(claim_id="c1", lease_seconds=10.0)
    queue.clock.advance(10)
    await queue.do(expire(first.id))
    (second,) = await queue.claim(claim_id="c1")
    assert (second.id, second.fence, second.attempt) == (first.id, 2, 2)


async def test_old_claims_are_deleted_once_no_job_runs_under_them(queue: TenantQueue, rival: TenantQueue) -> None:
    queue.clock.advance(3600)
    await queue.store.forget_claims(60.0, 10_000)  # what other tests have left in this database
    await queue.add_all([new_job() for _ in range(2)])
    (ended,) = await queue.claim(claim_id="ended")
    (kept,) = await queue.claim(claim_id="kept", lease_seconds=3600.0)
    await rival.add()
    (theirs,) = await rival.claim(claim_id="ended")
    await queue.do(complete(ended))
    await rival.do(complete(theirs))
    assert await queue.store.forget_claims(60.0, 1000) == 0
    queue.clock.advance(61)
    assert await queue.store.forget_claims(60.0, 1000) == 2
    assert await queue.store.forget_claims(60.0, 1000) == 0
    assert await queue.claimed(claim_id="kept") == [kept.id]
