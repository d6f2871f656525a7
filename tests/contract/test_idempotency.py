"""An enqueue with a key may be repeated: the same body finds the same job, another body is refused."""

from __future__ import annotations

from interlock.domain.job import Enqueued, Refused
from interlock.errors import IdempotencyKeyReuse, Invalid, ParentEnded
from tests.contract.builders import NEVER, Desk, complete, new_job

BODY, OTHER_BODY = bytes(32), bytes(31) + b"\1"


async def test_the_same_key_and_body_answer_the_first_job_as_a_replay(desk: Desk) -> None:
    first, again = (new_job(idempotency_key="k", body_sha256=BODY) for _ in range(2))
    (told,) = await desk.store.enqueue(desk.tenant, [first])
    (replay,) = await desk.store.enqueue(desk.tenant, [again])
    assert isinstance(told, Enqueued)
    assert told == Enqueued(first.id, told.seq, False, desk.clock.now)
    assert replay == Enqueued(first.id, told.seq, True)
    assert await desk.store.get(desk.tenant, [again.id]) == [None]
    assert len(await desk.history(first.id)) == 1
    assert await desk.claimed(limit=10) == [first.id]


async def test_the_same_key_with_another_body_is_refused_and_names_the_job(desk: Desk) -> None:
    first = await desk.add(idempotency_key="k", body_sha256=BODY)
    before = await desk.trace(first)
    (answer,) = await desk.store.enqueue(desk.tenant, [new_job(idempotency_key="k", body_sha256=OTHER_BODY)])
    assert isinstance(answer, Refused)
    assert isinstance(answer.error, IdempotencyKeyReuse)
    assert (answer.error.key, answer.error.job_id) == ("k", first)
    assert await desk.trace(first) == before


async def test_a_key_belongs_to_its_tenant(desk: Desk, rival: Desk) -> None:
    mine = await desk.add(idempotency_key="k", body_sha256=BODY)
    theirs = await rival.add(idempotency_key="k", body_sha256=OTHER_BODY)
    assert mine != theirs
    assert (await rival.job(theirs)).idempotency_key == "k"


async def test_a_key_lives_as_long_as_its_job(desk: Desk) -> None:
    job = await desk.running(idempotency_key="k", body_sha256=BODY)
    await desk.do(complete(job))
    desk.clock.advance(400 * 86_400)
    (replay,) = await desk.store.enqueue(desk.tenant, [new_job(idempotency_key="k", body_sha256=BODY)])
    assert replay == Enqueued(job.id, job.seq, True)


async def test_keys_differ_by_every_character(desk: Desk) -> None:
    keys = ["k", "K", "k ", "\uff4b", "é", "e\u0301", "🔑", '"', "\\", "{k}", "k,k", "NULL", "%", "k" * 200]
    jobs = [new_job(idempotency_key=key, body_sha256=BODY) for key in keys]
    assert await desk.add_all(jobs) == [job.id for job in jobs]
    replays = await desk.store.enqueue(desk.tenant, [job._replace(id=new_job().id) for job in jobs])
    assert [(a.id, a.replayed) for a in replays if isinstance(a, Enqueued)] == [(job.id, True) for job in jobs]


async def test_inside_one_batch_the_first_of_a_key_wins_and_the_rest_are_replays(desk: Desk) -> None:
    jobs = [new_job(idempotency_key=key, body_sha256=BODY) for key in "zaza"]
    answers = await desk.store.enqueue(desk.tenant, jobs)
    assert [(a.id, a.replayed) for a in answers if isinstance(a, Enqueued)] == [
        (jobs[0].id, False),
        (jobs[1].id, False),
        (jobs[0].id, True),
        (jobs[1].id, True),
    ]
    assert await desk.claimed(limit=10) == [jobs[0].id, jobs[1].id]


async def test_inside_one_batch_a_key_with_another_body_is_refused(desk: Desk) -> None:
    first = new_job(idempotency_key="k", body_sha256=BODY)
    other = new_job(idempotency_key="k", body_sha256=OTHER_BODY)
    told, refused = await desk.store.enqueue(desk.tenant, [first, other])
    assert isinstance(told, Enqueued)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, IdempotencyKeyReuse)
    assert refused.error.job_id == first.id


async def test_a_replay_is_answered_even_if_the_parent_has_ended_since(desk: Desk) -> None:
    parent = await desk.running(type="parent")
    child = new_job(parent_id=parent.id, idempotency_key="k", body_sha256=BODY)
    await desk.add_all([child])
    await desk.do(complete(parent))
    (replay,) = await desk.store.enqueue(desk.tenant, [child._replace(id=new_job().id)])
    assert isinstance(replay, Enqueued)
    assert (replay.id, replay.replayed) == (child.id, True)


async def test_a_whole_batch_with_one_refusal_adds_nothing_and_names_the_items(desk: Desk) -> None:
    taken = await desk.add(idempotency_key="taken", body_sha256=BODY)
    ended = await desk.running(type="parent")
    await desk.do(complete(ended))
    jobs = [
        new_job(),
        new_job(idempotency_key="taken", body_sha256=OTHER_BODY),
        new_job(idempotency_key="taken", body_sha256=BODY),
        new_job(idempotency_key="new", body_sha256=BODY),
        new_job(parent_id=ended.id),
        new_job(parent_id=NEVER),
        new_job(type="never-seen-before"),
    ]
    answers = await desk.store.enqueue(desk.tenant, jobs, whole=True)
    refusals = {i: type(a.error) for i, a in enumerate(answers) if isinstance(a, Refused)}
    assert len(answers) == len(jobs)
    assert refusals == {1: IdempotencyKeyReuse, 4: ParentEnded, 5: Invalid}
    assert await desk.store.get(desk.tenant, [job.id for job in jobs]) == [None] * len(jobs)
    assert await desk.claimed(limit=10) == [taken]
    # The key of a job that was not added is free.
    (told,) = await desk.store.enqueue(desk.tenant, [jobs[3]])
    assert isinstance(told, Enqueued)
    assert not told.replayed


async def test_a_whole_batch_of_new_jobs_and_replays_is_added(desk: Desk) -> None:
    old = await desk.add(idempotency_key="k", body_sha256=BODY)
    fresh = new_job()
    answers = await desk.store.enqueue(desk.tenant, [new_job(idempotency_key="k", body_sha256=BODY), fresh], whole=True)
    assert [(a.id, a.replayed) for a in answers if isinstance(a, Enqueued)] == [(old, True), (fresh.id, False)]


async def test_a_batch_that_was_refused_as_a_whole_can_be_sent_again(desk: Desk) -> None:
    parent = new_job()
    batch = [new_job(idempotency_key="k", body_sha256=BODY), new_job(parent_id=parent.id)]
    assert isinstance((await desk.store.enqueue(desk.tenant, batch, whole=True))[1], Refused)
    await desk.add_all([parent])
    answers = await desk.store.enqueue(desk.tenant, batch, whole=True)
    assert [(a.id, a.replayed) for a in answers if isinstance(a, Enqueued)] == [(job.id, False) for job in batch]
    assert await desk.claimed(limit=10) == [parent.id, batch[0].id, batch[1].id]
