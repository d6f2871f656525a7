"""An enqueue with a key may be repeated: the same body finds the same job, another body is refused."""

from __future__ import annotations

import asyncio

from interlock.domain.job import Enqueued, NewJob, Rejected
from interlock.domain.operations import PruneCommand
from interlock.errors import IdempotencyKeyReuse, Invalid, ParentNotActive
from tests.contract.builders import NEVER, OPERATOR, TenantQueue, complete, new_id, new_job

BODY, OTHER_BODY = bytes(32), bytes(31) + b"\1"


async def test_the_same_key_and_body_return_the_first_job_as_replayed(queue: TenantQueue) -> None:
    first, again = (new_job(idempotency_key="k", body_sha256=BODY) for _ in range(2))
    (reported,) = await queue.store.enqueue(queue.tenant, [first])
    (replay,) = await queue.store.enqueue(queue.tenant, [again])
    assert isinstance(reported, Enqueued)
    assert reported == Enqueued(first.id, reported.seq, False, queue.clock.now)
    assert replay == Enqueued(first.id, reported.seq, True)
    assert await queue.store.get(queue.tenant, [again.id]) == [None]
    assert len(await queue.history(first.id)) == 1
    assert await queue.claimed(limit=10) == [first.id]


async def test_the_same_key_with_another_body_is_rejected_and_names_the_job(queue: TenantQueue) -> None:
    first = await queue.add(idempotency_key="k", body_sha256=BODY)
    before = await queue.trace(first)
    (answer,) = await queue.store.enqueue(queue.tenant, [new_job(idempotency_key="k", body_sha256=OTHER_BODY)])
    assert isinstance(answer, Rejected)
    assert isinstance(answer.error, IdempotencyKeyReuse)
    assert (answer.error.key, answer.error.job_id) == ("k", first)
    assert await queue.trace(first) == before


async def test_a_key_belongs_to_its_tenant(queue: TenantQueue, rival: TenantQueue) -> None:
    mine = await queue.add(idempotency_key="k", body_sha256=BODY)
    theirs = await rival.add(idempotency_key="k", body_sha256=OTHER_BODY)
    assert mine != theirs
    assert (await rival.job(theirs)).idempotency_key == "k"


async def test_a_key_lives_as_long_as_its_job(queue: TenantQueue) -> None:
    job = await queue.running(idempotency_key="k", body_sha256=BODY)
    await queue.do(complete(job))
    queue.clock.advance(400 * 86_400)
    (replay,) = await queue.store.enqueue(queue.tenant, [new_job(idempotency_key="k", body_sha256=BODY)])
    assert replay == Enqueued(job.id, job.seq, True)


async def test_keys_differ_by_every_character(queue: TenantQueue) -> None:
    keys = ["k", "K", "k ", "\uff4b", "é", "e\u0301", "🔑", '"', "\\", "{k}", "k,k", "NULL", "%", "k" * 200]
    jobs = [new_job(idempotency_key=key, body_sha256=BODY) for key in keys]
    assert await queue.add_all(jobs) == [job.id for job in jobs]
    replays = await queue.store.enqueue(queue.tenant, [job._replace(id=new_job().id) for job in jobs])
    assert [(a.id, a.replayed) for a in replays if isinstance(a, Enqueued)] == [(job.id, True) for job in jobs]


async def test_inside_one_batch_the_first_use_of_a_key_wins_and_the_rest_are_replays(queue: TenantQueue) -> None:
    jobs = [new_job(idempotency_key=key, body_sha256=BODY) for key in "zaza"]
    answers = await queue.store.enqueue(queue.tenant, jobs)
    assert [(a.id, a.replayed) for a in answers if isinstance(a, Enqueued)] == [
        (jobs[0].id, False),
        (jobs[1].id, False),
        (jobs[0].id, True),
        (jobs[1].id, True),
    ]
    assert await queue.claimed(limit=10) == [jobs[0].id, jobs[1].id]


async def test_inside_one_batch_a_key_with_another_body_is_rejected(queue: TenantQueue) -> None:
    first = new_job(idempotency_key="k", body_sha256=BODY)
    other = new_job(idempotency_key="k", body_sha256=OTHER_BODY)
    reported, refused = await queue.store.enqueue(queue.tenant, [first, other])
    assert isinstance(reported, Enqueued)
    assert isinstance(refused, Rejected)
    assert isinstance(refused.error, IdempotencyKeyReuse)
    assert refused.error.job_id == first.id


async def test_a_replay_succeeds_even_if_the_parent_is_terminal_now(queue: TenantQueue) -> None:
    parent = await queue.running(type="parent")
    child = new_job(parent_id=parent.id, idempotency_key="k", body_sha256=BODY)
    await queue.add_all([child])
    await queue.do(complete(parent))
    (replay,) = await queue.store.enqueue(queue.tenant, [child._replace(id=new_job().id)])
    assert isinstance(replay, Enqueued)
    assert (replay.id, replay.replayed) == (child.id, True)


async def test_an_atomic_batch_with_one_rejection_adds_nothing_and_names_the_items(queue: TenantQueue) -> None:
    taken = await queue.add(idempotency_key="taken", body_sha256=BODY)
    ended = await queue.running(type="parent")
    await queue.do(complete(ended))
    jobs = [
        new_job(),
        new_job(idempotency_key="taken", body_sha256=OTHER_BODY),
        new_job(idempotency_key="taken", body_sha256=BODY),
        new_job(idempotency_key="new", body_sha256=BODY),
        new_job(parent_id=ended.id),
        new_job(parent_id=NEVER),
        new_job(type="never-seen-before"),
    ]
    answers = await queue.store.enqueue(queue.tenant, jobs, whole=True)
    refusals = {i: type(a.error) for i, a in enumerate(answers) if isinstance(a, Rejected)}
    assert len(answers) == len(jobs)
    assert refusals == {1: IdempotencyKeyReuse, 4: ParentNotActive, 5: Invalid}
    assert await queue.store.get(queue.tenant, [job.id for job in jobs]) == [None] * len(jobs)
    assert await queue.claimed(limit=10) == [taken]
    # The key of a job that was not added is free.
    (reported,) = await queue.store.enqueue(queue.tenant, [jobs[3]])
    assert isinstance(reported, Enqueued)
    assert not reported.replayed


async def test_an_atomic_batch_of_new_jobs_and_replays_is_added(queue: TenantQueue) -> None:
    old = await queue.add(idempotency_key="k", body_sha256=BODY)
    fresh = new_job()
    answers = await queue.store.enqueue(
        queue.tenant, [new_job(idempotency_key="k", body_sha256=BODY), fresh], whole=True
    )
    assert [(a.id, a.replayed) for a in answers if isinstance(a, Enqueued)] == [(old, True), (fresh.id, False)]


async def test_a_rejected_atomic_batch_can_be_sent_again(queue: TenantQueue) -> None:
    parent = new_job()
    batch = [new_job(idempotency_key="k", body_sha256=BODY), new_job(parent_id=parent.id)]
    assert isinstance((await queue.store.enqueue(queue.tenant, batch, whole=True))[1], Rejected)
    await queue.add_all([parent])
    answers = await queue.store.enqueue(queue.tenant, batch, whole=True)
    assert [(a.id, a.replayed) for a in answers if isinstance(a, Enqueued)] == [(job.id, False) for job in batch]
    assert await queue.claimed(limit=10) == [parent.id, batch[0].id, batch[1].id]


DAY = 86_400.0


def for_a_day(body: bytes = BODY, key: str = "k") -> NewJob:
    return new_job(idempotency_key=key, body_sha256=body, key_lifetime_seconds=DAY)


async def enqueued(queue: TenantQueue, *jobs: NewJob) -> list[tuple[str, bool]]:
    answers = await queue.store.enqueue(queue.tenant, jobs)
    assert all(isinstance(answer, Enqueued) for answer in answers), answers
    return [(answer.id, answer.replayed) for answer in answers if isinstance(answer, Enqueued)]


async def test_a_key_with_a_lifetime_is_free_exactly_when_it_is_over(queue: TenantQueue) -> None:
    first, second = for_a_day(), for_a_day(OTHER_BODY)
    assert await enqueued(queue, first) == [(first.id, False)]
    queue.clock.advance(DAY - 0.000001)
    assert await enqueued(queue, for_a_day()) == [(first.id, True)]
    (refused,) = await queue.store.enqueue(queue.tenant, [for_a_day(OTHER_BODY)])
    assert isinstance(refused, Rejected)
    assert isinstance(refused.error, IdempotencyKeyReuse)
    assert refused.error.job_id == first.id
    queue.clock.advance(0.000001)
    assert await enqueued(queue, second) == [(second.id, False)]
    assert await enqueued(queue, for_a_day(OTHER_BODY)) == [(second.id, True)]
    assert [(await queue.job(id)).idempotency_key for id in (first.id, second.id)] == ["k", "k"]
    queue.clock.advance(DAY)
    third = for_a_day()
    assert await enqueued(queue, third, for_a_day()) == [(third.id, False), (third.id, True)]
    await queue.verify()


async def test_a_deleted_job_does_not_free_the_key_of_its_successor(queue: TenantQueue) -> None:
    (old,) = await queue.add_all([for_a_day()])
    (job,) = await queue.claim()
    await queue.do(complete(job))
    queue.clock.advance(DAY)
    (new,) = await queue.add_all([for_a_day()])
    await queue.store.prune(queue.tenant, PruneCommand(new_id(), OPERATOR, queue.clock.now - 1, 0, 100))
    assert await queue.store.get(queue.tenant, [old]) == [None]
    assert await enqueued(queue, for_a_day()) == [(new, True)]
    queue.clock.advance(DAY)
    third = for_a_day()
    assert await enqueued(queue, third) == [(third.id, False)]


async def test_a_key_with_a_lifetime_and_one_without_are_two_keys(queue: TenantQueue) -> None:
    lasting, ending = new_job(idempotency_key="k", body_sha256=BODY), for_a_day(OTHER_BODY)
    assert await enqueued(queue, ending, lasting) == [(ending.id, False), (lasting.id, False)]
    queue.clock.advance(DAY)
    again = new_job(idempotency_key="k", body_sha256=BODY)
    assert await enqueued(queue, again, for_a_day(OTHER_BODY)) != [(lasting.id, True), (ending.id, True)]
    assert await enqueued(queue, again) == [(lasting.id, True)]


async def test_of_enqueues_that_race_for_a_key_that_is_over_one_is_added(queue: TenantQueue) -> None:
    await queue.add_all([for_a_day()])
    queue.clock.advance(DAY)
    jobs = [for_a_day() for _ in range(16)]
    answers = await asyncio.gather(*(enqueued(queue, job) for job in jobs))
    assert len({id for ((id, _),) in answers}) == 1
    assert sum(not replayed for ((_, replayed),) in answers) == 1
