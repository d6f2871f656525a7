"""Finishing: a grant ends at most once, and the answer is a receipt that stays the same whatever happens since."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from interlock.domain.decide import Command, Finish
from interlock.domain.job import Job, Receipt, Rejected
from interlock.domain.lifecycle import Status, Verb
from interlock.errors import AlreadyFinished, LeaseLost, NoCancelRequested, NotFound, NotRunning
from tests.contract.builders import (
    ERROR,
    NEVER,
    Desk,
    cancel,
    cancel_ack,
    complete,
    expire,
    facts,
    fail,
    heartbeat,
    release,
    revoke,
    save,
)  # fmt: skip

Maker = Callable[..., Finish]
MAKERS: dict[str, Maker] = {"complete": complete, "fail": fail, "release": release, "cancel_ack": cancel_ack}


async def finished(remote: Desk, verb: str, **fields: Any) -> tuple[Job, Receipt]:
    """A job whose first grant was ended by this verb."""
    job = await remote.running(**fields)
    if verb == "cancel_ack":
        await remote.do(cancel(job.id))
    return job, await remote.do(MAKERS[verb](job))


async def test_completing_ends_a_job_with_its_result(remote: Desk) -> None:
    job = await remote.running()
    remote.clock.advance(3)
    order = complete(job, result='{"n":1}', result_summary="one", usage='{"tokens":5}')
    assert await remote.do(order) == Receipt(job.id, 1, Status.SUCCEEDED, 1, 3, None, remote.clock.now)
    now, rows = await remote.trace(job.id)
    assert (now.status, now.result, now.result_summary, now.usage) == (
        Status.SUCCEEDED,
        '{"n":1}',
        "one",
        '{"tokens":5}',
    )
    assert (now.worker, now.lease_expires_at, now.error, now.finished_at) == (None, None, None, remote.clock.now)
    assert (rows[-1].from_status, rows[-1].verb, rows[-1].actor) == (Status.RUNNING, Verb.COMPLETE, "worker:w1")
    await remote.verify()


async def test_completing_clears_the_error_of_earlier_attempts(remote: Desk) -> None:
    job = await remote.running()
    await remote.do(fail(job, retry_after_seconds=1.0))
    remote.clock.advance(1)
    second = await remote.again(job)
    assert second.error == ERROR
    await remote.do(complete(second))
    assert (await remote.job(job.id)).error is None


async def test_a_final_failure_ends_a_job_with_its_error(remote: Desk) -> None:
    job = await remote.running(max_attempts=5)
    receipt = await remote.do(fail(job, retryable=False))
    assert receipt == Receipt(job.id, 1, Status.FAILED, 1, 3, None, remote.clock.now)
    now, rows = await remote.trace(job.id)
    assert (now.status, now.error, now.attempt) == (Status.FAILED, ERROR, 1)
    assert facts(rows[-1]) == {"error": json.loads(ERROR)}


async def test_a_final_failure_may_leave_a_result(remote: Desk) -> None:
    jobs = [await remote.running(max_attempts=5) for _ in range(3)]
    orders = [
        fail(jobs[0], retryable=False, result='{"n": 1.10}', sanitized=True),
        fail(jobs[1], retryable=False),
        fail(jobs[2], result="2"),
    ]
    reported = await remote.store.carry_out(remote.tenant, orders)
    assert [isinstance(one, Receipt) and one.status for one in reported] == [Status.FAILED, Status.FAILED, Status.RETRY]
    first, second, third = [await remote.job(job.id) for job in jobs]
    assert (first.result, first.error, first.sanitized, first.usage) == ('{"n": 1.10}', ERROR, True, None)
    assert (second.result, third.result) == (None, None), "what is tried again has no result yet"
    await remote.verify()


@pytest.mark.parametrize("verb", MAKERS)
async def test_the_same_finish_again_gets_the_same_receipt(remote: Desk, verb: str) -> None:
    """G08."""
    job, receipt = await finished(remote, verb)
    before = await remote.trace(job.id)
    remote.clock.advance(100)
    for _ in range(2):
        assert await remote.do(MAKERS[verb](job)) == receipt
    assert await remote.trace(job.id) == before


@pytest.mark.parametrize("verb", ["fail", "release"])
async def test_the_receipt_stays_the_same_while_the_job_goes_on(remote: Desk, verb: str) -> None:
    job, receipt = await finished(remote, verb, max_attempts=3)
    remote.clock.advance(1000)
    second = await remote.again(job, worker="w2")
    assert await remote.do(MAKERS[verb](job)) == receipt
    await remote.do(complete(second))
    assert await remote.do(MAKERS[verb](job)) == receipt
    assert (await remote.job(job.id)).status is Status.SUCCEEDED


async def test_a_repeated_finish_is_not_read_again(remote: Desk) -> None:
    """The verb, the fence and the worker make it the same call; what else it says comes too late."""
    job = await remote.running()
    receipt = await remote.do(complete(job, result='"first"'))
    assert await remote.do(complete(job, result='"second"')) == receipt
    assert (await remote.job(job.id)).result == '"first"'
    job = await remote.running()
    receipt = await remote.do(fail(job))
    assert await remote.do(fail(job, retryable=False)) == receipt


@pytest.mark.parametrize(("first", "second"), [(a, b) for a in MAKERS for b in MAKERS if a != b])
async def test_another_verb_after_a_finish_is_told_so(remote: Desk, first: str, second: str) -> None:
    job, _ = await finished(remote, first)
    before = await remote.trace(job.id)
    remote.clock.advance(1)
    error = await remote.refused(MAKERS[second](job))
    assert isinstance(error, AlreadyFinished)
    assert first in str(error)
    assert await remote.trace(job.id) == before


async def lose_by_expiry(remote: Desk, job: Job) -> None:
    remote.clock.advance(60)
    await remote.do(expire(job.id))


async def lose_by_revoke(remote: Desk, job: Job) -> None:
    await remote.do(revoke(job.id))


async def lose_by_force(remote: Desk, job: Job) -> None:
    await remote.do(cancel(job.id, force=True))


@pytest.mark.parametrize("lose", [lose_by_expiry, lose_by_revoke, lose_by_force])
@pytest.mark.parametrize("verb", MAKERS)
async def test_a_grant_that_was_taken_away_is_lost(remote: Desk, lose: Any, verb: str) -> None:
    job = await remote.running()
    await lose(remote, job)
    before = await remote.trace(job.id)
    remote.clock.advance(1)
    assert isinstance(await remote.refused(MAKERS[verb](job)), LeaseLost)
    assert isinstance(await remote.heartbeat_refused(heartbeat(job)), LeaseLost)
    assert isinstance(await remote.checkpoint_refused(save(job, 1)), LeaseLost)
    assert await remote.trace(job.id) == before


async def test_a_stale_worker_cannot_complete_a_reclaimed_job(remote: Desk) -> None:
    """G05, P24: only the newest fence may finish."""
    stale = await remote.running(lease_seconds=10.0)
    remote.clock.advance(10)
    current = await remote.again(stale, worker="w2")
    before = await remote.trace(stale.id)
    assert isinstance(await remote.refused(complete(stale)), LeaseLost)
    assert await remote.trace(stale.id) == before
    assert (await remote.do(complete(current))).fence == 2


async def test_a_late_finish_whose_fence_is_current_is_accepted(remote: Desk) -> None:
    """G06: the lease has run out, but nobody took the job away."""
    for verb, make in MAKERS.items():
        job = await remote.running(type=verb, lease_seconds=1.0)
        await remote.do(cancel(job.id))
        remote.clock.advance(86_400)
        receipt = await remote.do(make(job))
        assert (receipt.fence, receipt.finished_at) == (job.fence, remote.clock.now)


@pytest.mark.parametrize("verb", MAKERS)
async def test_heartbeat_and_checkpoint_after_ones_own_finish_are_not_running(remote: Desk, verb: str) -> None:
    job, _ = await finished(remote, verb)
    before = await remote.trace(job.id)
    remote.clock.advance(1)
    assert isinstance(await remote.heartbeat_refused(heartbeat(job)), NotRunning)
    assert isinstance(await remote.checkpoint_refused(save(job, 1)), NotRunning)
    assert isinstance(await remote.heartbeat_refused(heartbeat(job, checkpoint=save(job, 1))), NotRunning)
    assert await remote.trace(job.id) == before


@pytest.mark.parametrize("wrong", [{"fence": 2}, {"fence": 0}, {"fence": -1}, {"worker": "w2"}], ids=str)
async def test_a_finish_needs_both_the_fence_and_the_worker(remote: Desk, wrong: dict[str, Any]) -> None:
    job = await remote.running()
    await remote.do(cancel(job.id))
    before = await remote.trace(job.id)
    remote.clock.advance(1)
    for verb, make in MAKERS.items():
        assert isinstance(await remote.refused(make(job, **wrong)), LeaseLost), verb
    assert await remote.trace(job.id) == before


async def test_another_worker_cannot_read_the_receipt_of_a_finish(remote: Desk) -> None:
    job, _ = await finished(remote, "complete")
    assert isinstance(await remote.refused(complete(job, worker="w2")), LeaseLost)


@pytest.mark.parametrize("verb", MAKERS)
async def test_unknown_and_foreign_jobs_are_equally_not_found(remote: Desk, rival: Desk, verb: str) -> None:
    theirs = await rival.running()
    before = await rival.trace(theirs.id)
    foreign = await remote.refused(MAKERS[verb](theirs))
    unknown = await remote.refused(MAKERS[verb](theirs, id=NEVER))
    assert type(foreign) is type(unknown) is NotFound
    assert str(foreign).replace(theirs.id, NEVER) == str(unknown)
    assert await rival.trace(theirs.id) == before


async def test_a_job_nobody_ever_held_has_no_lease_to_finish(remote: Desk) -> None:
    job = (await remote.job(await remote.add()))._replace(worker="w1")
    assert isinstance(await remote.refused(complete(job)), LeaseLost)
    assert isinstance(await remote.refused(fail(job)), LeaseLost)
    assert isinstance(await remote.heartbeat_refused(heartbeat(job)), LeaseLost)


async def test_an_ended_job_stays_as_it_ended(remote: Desk) -> None:
    """G07: terminal is final."""
    job, _ = await finished(remote, "complete")
    before = await remote.trace(job.id)
    remote.clock.advance(86_400)
    assert isinstance(await remote.refused(cancel(job.id)), AlreadyFinished)
    assert isinstance(await remote.refused(cancel(job.id, force=True)), AlreadyFinished)
    assert isinstance(await remote.refused(revoke(job.id)), AlreadyFinished)
    await remote.do(expire(job.id))
    await remote.sweep()
    assert await remote.claim(limit=10) == []
    assert await remote.trace(job.id) == before


async def test_an_ack_of_a_cancel_that_nobody_asked_for_is_refused(remote: Desk) -> None:
    job = await remote.running()
    before = await remote.trace(job.id)
    assert isinstance(await remote.refused(cancel_ack(job)), NoCancelRequested)
    assert await remote.trace(job.id) == before


async def test_many_finishes_are_answered_each_on_its_own(remote: Desk, rival: Desk) -> None:
    jobs = {name: await remote.running(type=name) for name in ("ok", "again", "bad", "lost", "back")}
    theirs = await rival.running()
    first = await remote.do(complete(jobs["again"]))
    await remote.do(revoke(jobs["lost"].id))
    orders: list[Command] = [
        fail(jobs["bad"], retryable=False), complete(jobs["again"]), complete(theirs), complete(jobs["ok"]),
        complete(jobs["lost"]), release(jobs["back"]), fail(jobs["ok"]),
    ]  # fmt: skip
    answers = await remote.store.carry_out(remote.tenant, orders)
    kinds = [type(a.error) if isinstance(a, Rejected) else a.status for a in answers]
    assert kinds == [
        Status.FAILED, Status.SUCCEEDED, NotFound, Status.SUCCEEDED, LeaseLost, Status.QUEUED, AlreadyFinished,
    ]  # fmt: skip
    assert answers[1] == first
    await remote.verify()


async def test_several_orders_for_one_job_in_one_batch_follow_each_other(remote: Desk) -> None:
    job = await remote.running()
    answers = await remote.store.carry_out(
        remote.tenant, [cancel(job.id), cancel_ack(job), complete(job), cancel_ack(job), cancel(job.id)]
    )
    kinds = [type(a.error) if isinstance(a, Rejected) else a.status for a in answers]
    assert kinds == [Status.RUNNING, Status.CANCELLED, AlreadyFinished, Status.CANCELLED, Status.CANCELLED]
    assert answers[1] == answers[3] == answers[4]


async def test_the_same_finish_twice_in_one_batch_is_done_once(remote: Desk) -> None:
    job = await remote.running()
    first, second = await remote.store.carry_out(remote.tenant, [complete(job, result="1"), complete(job, result="2")])
    assert isinstance(first, Receipt)
    assert first == second
    assert (await remote.job(job.id)).result == "1"


async def test_no_orders_are_no_answers(remote: Desk) -> None:
    assert await remote.store.carry_out(remote.tenant, []) == []
    assert await remote.store.heartbeat(remote.tenant, []) == []
    assert await remote.store.checkpoint(remote.tenant, []) == []
    assert await remote.store.get(remote.tenant, []) == []


async def reported(remote: Desk, jobs: list[Job], given: list[dict[str, Any]]) -> None:
    """Complete them in one batch, in no order of theirs, and look at each."""
    orders = [complete(job, **fields) for job, fields in zip(jobs, given, strict=True)][::-1]
    receipts = await remote.store.carry_out(remote.tenant, orders)
    assert [(r.id, r.fence) for r in receipts if isinstance(r, Receipt)] == [(o.id, o.fence) for o in orders]
    for job, fields in zip(jobs, given, strict=True):
        now = await remote.job(job.id)
        assert {name: getattr(now, name) for name in fields} == fields
    await remote.verify()


async def test_completions_of_one_batch_keep_what_each_of_them_says(remote: Desk) -> None:
    jobs = [await remote.running(worker=f"w{i % 2}") for i in range(4)]
    await remote.do(release(jobs[0]))
    jobs[0] = await remote.again(jobs[0])  # by a third worker, under a higher fence
    summaries = [None, '"', "\\", "NULL"]
    given = [
        {"result": f'["\\\\", "{i}"]', "result_summary": summary, "sanitized": i == 2}
        for i, summary in enumerate(summaries)
    ]
    await reported(remote, jobs, given)


@pytest.mark.parametrize("sanitized", [False, True])
async def test_completions_of_one_batch_may_all_say_the_same(remote: Desk, sanitized: bool) -> None:
    jobs = [await remote.running() for _ in range(4)]
    await reported(remote, jobs, [{"result": "{}", "result_summary": None, "sanitized": sanitized}] * 4)


async def test_a_batch_of_completions_with_one_wrong_fence_for_all_is_refused(remote: Desk) -> None:
    jobs = [await remote.running() for _ in range(3)]
    answers = await remote.store.carry_out(remote.tenant, [complete(job, fence=job.fence + 1) for job in jobs])
    assert [isinstance(a, Rejected) and isinstance(a.error, LeaseLost) for a in answers] == [True] * 3
