"""An enqueue with a key may be repeated: the same body finds the same job, another body is refused."""

from __future__ import annotations

from interlock.domain.job import Enqueued, Rejected
from interlock.errors import IdempotencyKeyReuse, Invalid, ParentNotActive
from tests.contract.builders import NEVER, Desk, complete, new_job

BODY, OTHER_BODY = bytes(32), bytes(31) + b"\1"


async def test_the_same_key_and_body_answer_the_first_job_as_a_replay(remote: Desk) -> None:
    first, again = (new_job(idempotency_key="k", body_sha256=BODY) for _ in range(2))
    (reported,) = await remote.store.enqueue(remote.tenant, [first])
    (replay,) = await remote.store.enqueue(remote.tenant, [again])
    assert isinstance(reported, Enqueued)
    assert reported == Enqueued(first.id, reported.seq, False, remote.clock.now)
    assert replay == Enqueued(first.id, reported.seq, True)
    assert await remote.store.get(remote.tenant, [again.id]) == [None]
    assert len(await remote.history(first.id)) == 1
    assert await remote.claimed(limit=10) == [first.id]


async def test_the_same_key_with_another_body_is_refused_and_names_the_job(remote: Desk) -> None:
    first = await remote.add(idempotency_key="k", body_sha256=BODY)
    before = await remote.trace(first)
    (answer,) = await remote.store.enqueue(remote.tenant, [new_job(idempotency_key="k", body_sha256=OTHER_BODY)])
    assert isinstance(answer, Rejected)
    assert isinstance(answer.error, IdempotencyKeyReuse)
    assert (answer.error.key, answer.error.job_id) == ("k", first)
    assert await remote.trace(first) == before


async def test_a_key_belongs_to_its_tenant(remote: Desk, rival: Desk) -> None:
    mine = await remote.add(idempotency_key="k", body_sha256=BODY)
    theirs = await rival.add(idempotency_key="k", body_sha256=OTHER_BODY)
    assert mine != theirs
    assert (await rival.job(theirs)).idempotency_key == "k"


async def test_a_key_lives_as_long_as_its_job(remote: Desk) -> None:
    job = await remote.running(idempotency_key="k", body_sha256=BODY)
    await remote.do(complete(job))
    remote.clock.advance(400 * 86_400)
    (replay,) = await remote.store.enqueue(remote.tenant, [new_job(idempotency_key="k", body_sha256=BODY)])
    assert replay == Enqueued(job.id, job.seq, True)


async def test_keys_differ_by_every_character(remote: Desk) -> None:
    keys = ["k", "K", "k ", "\uff4b", "é", "e\u0301", "🔑", '"', "\\", "{k}", "k,k", "NULL", "%", "k" * 200]
    jobs = [new_job(idempotency_key=key, body_sha256=BODY) for key in keys]
    assert await remote.add_all(jobs) == [job.id for job in jobs]
    replays = await remote.store.enqueue(remote.tenant, [job._replace(id=new_job().id) for job in jobs])
    assert [(a.id, a.replayed) for a in replays if isinstance(a, Enqueued)] == [(job.id, True) for job in jobs]


async def test_inside_one_batch_the_first_of_a_key_wins_and_the_rest_are_replays(remote: Desk) -> None:
    jobs = [new_job(idempotency_key=key, body_sha256=BODY) for key in "zaza"]
    answers = await remote.store.enqueue(remote.tenant, jobs)
    assert [(a.id, a.replayed) for a in answers if isinstance(a, Enqueued)] == [
        (jobs[0].id, False),
        (jobs[1].id, False),
        (jobs[0].id, True),
        (jobs[1].id, True),
    ]
    assert await remote.claimed(limit=10) == [jobs[0].id, jobs[1].id]


async def test_inside_one_batch_a_key_with_another_body_is_refused(remote: Desk) -> None:
    first = new_job(idempotency_key="k", body_sha256=BODY)
    other = new_job(idempotency_key="k", body_sha256=OTHER_BODY)
    reported, refused = await remote.store.enqueue(remote.tenant, [first, other])
    assert isinstance(reported, Enqueued)
    assert isinstance(refused, Rejected)
    assert isinstance(refused.error, IdempotencyKeyReuse)
    assert refused.error.job_id == first.id


async def test_a_replay_is_answered_even_if_the_parent_has_ended_since(remote: Desk) -> None:
    parent = await remote.running(type="parent")
    child = new_job(parent_id=parent.id, idempotency_key="k", body_sha256=BODY)
    await remote.add_all([child])
    await remote.do(complete(parent))
    (replay,) = await remote.store.enqueue(remote.tenant, [child._replace(id=new_job().id)])
    assert isinstance(replay, Enqueued)
    assert (replay.id, replay.replayed) == (child.id, True)


async def test_a_whole_batch_with_one_refusal_adds_nothing_and_names_the_items(remote: Desk) -> None:
    taken = await remote.add(idempotency_key="taken", body_sha256=BODY)
    ended = await remote.running(type="parent")
    await remote.do(complete(ended))
    jobs = [
        new_job(),
        new_job(idempotency_key="taken", body_sha256=OTHER_BODY),
        new_job(idempotency_key="taken", body_sha256=BODY),
        new_job(idempotency_key="new", body_sha256=BODY),
        new_job(parent_id=ended.id),
        new_job(parent_id=NEVER),
        new_job(type="never-seen-before"),
    ]
    answers = await remote.store.enqueue(remote.tenant, jobs, whole=True)
    refusals = {i: type(a.error) for i, a in enumerate(answers) if isinstance(a, Rejected)}
    assert len(answers) == len(jobs)
    assert refusals == {1: IdempotencyKeyReuse, 4: ParentNotActive, 5: Invalid}
    assert await remote.store.get(remote.tenant, [job.id for job in jobs]) == [None] * len(jobs)
    assert await remote.claimed(limit=10) == [taken]
    # The key of a job that was not added is free.
    (reported,) = await remote.store.enqueue(remote.tenant, [jobs[3]])
    assert isinstance(reported, Enqueued)
    assert not reported.replayed


async def test_a_whole_batch_of_new_jobs_and_replays_is_added(remote: Desk) -> None:
    old = await remote.add(idempotency_key="k", body_sha256=BODY)
    fresh = new_job()
    answers = await remote.store.enqueue(
        remote.tenant, [new_job(idempotency_key="k", body_sha256=BODY), fresh], whole=True
    )
    assert [(a.id, a.replayed) for a in answers if isinstance(a, Enqueued)] == [(old, True), (fresh.id, False)]


async def test_a_batch_that_was_refused_as_a_whole_can_be_sent_again(remote: Desk) -> None:
    parent = new_job()
    batch = [new_job(idempotency_key="k", body_sha256=BODY), new_job(parent_id=parent.id)]
    assert isinstance((await remote.store.enqueue(remote.tenant, batch, whole=True))[1], Rejected)
    await remote.add_all([parent])
    answers = await remote.store.enqueue(remote.tenant, batch, whole=True)
    assert [(a.id, a.replayed) for a in answers if isinstance(a, Enqueued)] == [(job.id, False) for job in batch]
    assert await remote.claimed(limit=10) == [parent.id, batch[0].id, batch[1].id]
