"""Finishing: a lease ends at most once, and the receipt stays the same after any later change."""

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
    TenantQueue,
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


async def finished(queue: TenantQueue, verb: str, **fields: Any) -> tuple[Job, Receipt]:
    """A job whose first grant was ended by this verb."""
    job = await queue.running(**fields)
    if verb == "cancel_ack":
        await queue.do(cancel(job.id))
    return job, await queue.do(MAKERS[verb](job))


async def test_completing_ends_a_job_with_its_result(queue: TenantQueue) -> None:
    job = await queue.running()
    queue.clock.advance(3)
    order = complete(job, result='{"n":1}', result_summary="one", usage='{"tokens":5}')
    assert await queue.do(order) == Receipt(job.id, 1, Status.SUCCEEDED, 1, 3, None, queue.clock.now)
    now, rows = await queue.trace(job.id)
    assert (now.status, now.result, now.result_summary, now.usage) == (
        Status.SUCCEEDED,
        '{"n":1}',
        "one",
        '{"tokens":5}',
    )
    assert (now.worker, now.lease_expires_at, now.error, now.finished_at) == (None, None, None, queue.clock.now)
    assert (rows[-1].from_status, rows[-1].verb, rows[-1].actor) == (Status.RUNNING, Verb.COMPLETE, "worker:w1")
    await queue.verify()


async def test_completing_clears_the_error_of_earlier_attempts(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.do(fail(job, retry_after_seconds=1.0))
    queue.clock.advance(1)
    second = await queue.again(job)
    assert second.error == ERROR
    await queue.do(complete(second))
    assert (await queue.job(job.id)).error is None


async def test_a_final_failure_ends_a_job_with_its_error(queue: TenantQueue) -> None:
    job = await queue.running(max_attempts=5)
    receipt = await queue.do(fail(job, retryable=False))
    assert receipt == Receipt(job.id, 1, Status.FAILED, 1, 3, None, queue.clock.now)
    now, rows = await queue.trace(job.id)
    assert (now.status, now.error, now.attempt) == (Status.FAILED, ERROR, 1)
    assert facts(rows[-1]) == {"error": json.loads(ERROR)}


async def test_a_final_failure_may_leave_a_result(queue: TenantQueue) -> None:
    jobs = [await queue.running(max_attempts=5) for _ in range(3)]
    orders = [
        fail(jobs[0], retryable=False, result='{"n": 1.10}', sanitized=True),
        fail(jobs[1], retryable=False),
        fail(jobs[2], result="2"),
    ]
    reported = await queue.store.carry_out(queue.tenant, orders)
    assert [isinstance(one, Receipt) and one.status for one in reported] == [Status.FAILED, Status.FAILED, Status.RETRY]
    first, second, third = [await queue.job(job.id) for job in jobs]
    assert (first.result, first.error, first.sanitized, first.usage) == ('{"n": 1.10}', ERROR, True, None)
    assert (second.result, third.result) == (None, None), "a job that will be retried has no result yet"
    await queue.verify()


@pytest.mark.parametrize("verb", MAKERS)
async def test_the_same_finish_again_gets_the_same_receipt(queue: TenantQueue, verb: str) -> None:
    """G08."""
    job, receipt = await finished(queue, verb)
    before = await queue.trace(job.id)
    queue.clock.advance(100)
    for _ in range(2):
        assert await queue.do(MAKERS[verb](job)) == receipt
    assert await queue.trace(job.id) == before


@pytest.mark.parametrize("verb", ["fail", "release"])
async def test_the_receipt_stays_the_same_while_the_job_continues(queue: TenantQueue, verb: str) -> None:
    job, receipt = await finished(queue, verb, max_attempts=3)
    queue.clock.advance(1000)
    second = await queue.again(job, worker="w2")
    assert await queue.do(MAKERS[verb](job)) == receipt
    await queue.do(complete(second))
    assert await queue.do(MAKERS[verb](job)) == receipt
    assert (await queue.job(job.id)).status is Status.SUCCEEDED


async def test_a_repeated_finish_is_not_validated_again(queue: TenantQueue) -> None:
    """The operation, the fence and the worker make it the same call; its other fields are ignored."""
    job = await queue.running()
    receipt = await queue.do(complete(job, result='"first"'))
    assert await queue.do(complete(job, result='"second"')) == receipt
    assert (await queue.job(job.id)).result == '"first"'
    job = await queue.running()
    receipt = await queue.do(fail(job))
    assert await queue.do(fail(job, retryable=False)) == receipt


@pytest.mark.parametrize(("first", "second"), [(a, b) for a in MAKERS for b in MAKERS if a != b])
async def test_another_operation_after_a_finish_is_rejected(queue: TenantQueue, first: str, second: str) -> None:
    job, _ = await finished(queue, first)
    before = await queue.trace(job.id)
    queue.clock.advance(1)
    error = await queue.refused(MAKERS[second](job))
    assert isinstance(error, AlreadyFinished)
    assert first in str(error)
    assert await queue.trace(job.id) == before


async def lose_by_expiry(queue: TenantQueue, job: Job) -> None:
    queue.clock.advance(60)
    await queue.do(expire(job.id))


async def lose_by_revoke(queue: TenantQueue, job: Job) -> None:
    await queue.do(revoke(job.id))


async def lose_by_force(queue: TenantQueue, job: Job) -> None:
    await queue.do(cancel(job.id, force=True))


@pytest.mark.parametrize("lose", [lose_by_expiry, lose_by_revoke, lose_by_force])
@pytest.mark.parametrize("verb", MAKERS)
async def test_a_revoked_lease_is_lost(queue: TenantQueue, lose: Any, verb: str) -> None:
    job = await queue.running()
    await lose(queue, job)
    before = await queue.trace(job.id)
    queue.clock.advance(1)
    assert isinstance(await queue.refused(MAKERS[verb](job)), LeaseLost)
    assert isinstance(await queue.heartbeat_rejected(heartbeat(job)), LeaseLost)
    assert isinstance(await queue.checkpoint_rejected(save(job, 1)), LeaseLost)
    assert await queue.trace(job.id) == before


async def test_a_stale_worker_cannot_complete_a_reclaimed_job(queue: TenantQueue) -> None:
    """G05, P24: only the newest fence may finish."""
    stale = await queue.running(lease_seconds=10.0)
    queue.clock.advance(10)
    current = await queue.again(stale, worker="w2")
    before = await queue.trace(stale.id)
    assert isinstance(await queue.refused(complete(stale)), LeaseLost)
    assert await queue.trace(stale.id) == before
    assert (await queue.do(complete(current))).fence == 2


async def test_a_late_finish_whose_fence_is_current_is_accepted(queue: TenantQueue) -> None:
    """G06: the lease has expired, but no process has swept the job yet."""
    for verb, make in MAKERS.items():
        job = await queue.running(type=verb, lease_seconds=1.0)
        await queue.do(cancel(job.id))
        queue.clock.advance(86_400)
        receipt = await queue.do(make(job))
        assert (receipt.fence, receipt.finished_at) == (job.fence, queue.clock.now)


@pytest.mark.parametrize("verb", MAKERS)
async def test_heartbeat_and_checkpoint_after_a_finish_are_not_running(queue: TenantQueue, verb: str) -> None:
    job, _ = await finished(queue, verb)
    before = await queue.trace(job.id)
    queue.clock.advance(1)
    assert isinstance(await queue.heartbeat_rejected(heartbeat(job)), NotRunning)
    assert isinstance(await queue.checkpoint_rejected(save(job, 1)), NotRunning)
    assert isinstance(await queue.heartbeat_rejected(heartbeat(job, checkpoint=save(job, 1))), NotRunning)
    assert await queue.trace(job.id) == before


@pytest.mark.parametrize("wrong", [{"fence": 2}, {"fence": 0}, {"fence": -1}, {"worker": "w2"}], ids=str)
async def test_a_finish_needs_both_the_fence_and_the_worker(queue: TenantQueue, wrong: dict[str, Any]) -> None:
    job = await queue.running()
    await queue.do(cancel(job.id))
    before = await queue.trace(job.id)
    queue.clock.advance(1)
    for verb, make in MAKERS.items():
        assert isinstance(await queue.refused(make(job, **wrong)), LeaseLost), verb
    assert await queue.trace(job.id) == before


async def test_another_worker_cannot_read_the_receipt_of_a_finish(queue: TenantQueue) -> None:
    job, _ = await finished(queue, "complete")
    assert isinstance(await queue.refused(complete(job, worker="w2")), LeaseLost)


@pytest.mark.parametrize("verb", MAKERS)
async def test_unknown_and_foreign_jobs_are_equally_not_found(
    queue: TenantQueue, rival: TenantQueue, verb: str
) -> None:
    theirs = await rival.running()
    before = await rival.trace(theirs.id)
    foreign = await queue.refused(MAKERS[verb](theirs))
    unknown = await queue.refused(MAKERS[verb](theirs, id=NEVER))
    assert type(foreign) is type(unknown) is NotFound
    assert str(foreign).replace(theirs.id, NEVER) == str(unknown)
    assert await rival.trace(theirs.id) == before


async def test_a_job_that_was_never_leased_cannot_be_finished(queue: TenantQueue) -> None:
    job = (await queue.job(await queue.add()))._replace(worker="w1")
    assert isinstance(await queue.refused(complete(job)), LeaseLost)
    assert isinstance(await queue.refused(fail(job)), LeaseLost)
    assert isinstance(await queue.heartbeat_rejected(heartbeat(job)), LeaseLost)


async def test_a_terminal_job_never_changes(queue: TenantQueue) -> None:
    """G07: terminal is final."""
    job, _ = await finished(queue, "complete")
    before = await queue.trace(job.id)
    queue.clock.advance(86_400)
    assert isinstance(await queue.refused(cancel(job.id)), AlreadyFinished)
    assert isinstance(await queue.refused(cancel(job.id, force=True)), AlreadyFinished)
    assert isinstance(await queue.refused(revoke(job.id)), AlreadyFinished)
    await queue.do(expire(job.id))
    await queue.sweep()
    assert await queue.claim(limit=10) == []
    assert await queue.trace(job.id) == before


async def test_acknowledging_a_cancel_that_was_not_requested_is_rejected(queue: TenantQueue) -> None:
    job = await queue.running()
    before = await queue.trace(job.id)
    assert isinstance(await queue.refused(cancel_ack(job)), NoCancelRequested)
    assert await queue.trace(job.id) == before


async def test_each_finish_of_a_batch_gets_its_own_result(queue: TenantQueue, rival: TenantQueue) -> None:
    jobs = {name: await queue.running(type=name) for name in ("ok", "again", "bad", "lost", "back")}
    theirs = await rival.running()
    first = await queue.do(complete(jobs["again"]))
    await queue.do(revoke(jobs["lost"].id))
    orders: list[Command] = [
        fail(jobs["bad"], retryable=False), complete(jobs["again"]), complete(theirs), complete(jobs["ok"]),
        complete(jobs["lost"]), release(jobs["back"]), fail(jobs["ok"]),
    ]  # fmt: skip
    answers = await queue.store.carry_out(queue.tenant, orders)
    kinds = [type(a.error) if isinstance(a, Rejected) else a.status for a in answers]
    assert kinds == [
        Status.FAILED, Status.SUCCEEDED, NotFound, Status.SUCCEEDED, LeaseLost, Status.QUEUED, AlreadyFinished,
    ]  # fmt: skip
    assert answers[1] == first
    await queue.verify()


async def test_several_commands_for_one_job_in_one_batch_are_applied_in_order(queue: TenantQueue) -> None:
    job = await queue.running()
    answers = await queue.store.carry_out(
        queue.tenant, [cancel(job.id), cancel_ack(job), complete(job), cancel_ack(job), cancel(job.id)]
    )
    kinds = [type(a.error) if isinstance(a, Rejected) else a.status for a in answers]
    assert kinds == [Status.RUNNING, Status.CANCELLED, AlreadyFinished, Status.CANCELLED, Status.CANCELLED]
    assert answers[1] == answers[3] == answers[4]


async def test_a_finish_repeated_in_one_batch_is_applied_once(queue: TenantQueue) -> None:
    job = await queue.running()
    first, second = await queue.store.carry_out(queue.tenant, [complete(job, result="1"), complete(job, result="2")])
    assert isinstance(first, Receipt)
    assert first == second
    assert (await queue.job(job.id)).result == "1"


async def test_an_empty_batch_of_commands_returns_no_results(queue: TenantQueue) -> None:
    assert await queue.store.carry_out(queue.tenant, []) == []
    assert await queue.store.heartbeat(queue.tenant, []) == []
    assert await queue.store.checkpoint(queue.tenant, []) == []
    assert await queue.store.get(queue.tenant, []) == []


async def reported(queue: TenantQueue, jobs: list[Job], given: list[dict[str, Any]]) -> None:
    """Complete them in one batch, in no order of theirs, and look at each."""
    orders = [complete(job, **fields) for job, fields in zip(jobs, given, strict=True)][::-1]
    receipts = await queue.store.carry_out(queue.tenant, orders)
    assert [(r.id, r.fence) for r in receipts if isinstance(r, Receipt)] == [(o.id, o.fence) for o in orders]
    for job, fields in zip(jobs, given, strict=True):
        now = await queue.job(job.id)
        assert {name: getattr(now, name) for name in fields} == fields
    await queue.verify()


async def test_completions_of_one_batch_keep_their_own_results(queue: TenantQueue) -> None:
    jobs = [await queue.running(worker=f"w{i % 2}") for i in range(4)]
    await queue.do(release(jobs[0]))
    jobs[0] = await queue.again(jobs[0])  # by a third worker, under a higher fence
    summaries = [None, '"', "\\", "NULL"]
    given = [
        {"result": f'["\\\\", "{i}"]', "result_summary": summary, "sanitized": i == 2}
        for i, summary in enumerate(summaries)
    ]
    await reported(queue, jobs, given)


@pytest.mark.parametrize("sanitized", [False, True])
async def test_completions_of_one_batch_may_all_be_equal(queue: TenantQueue, sanitized: bool) -> None:
    jobs = [await queue.running() for _ in range(4)]
    await reported(queue, jobs, [{"result": "{}", "result_summary": None, "sanitized": sanitized}] * 4)


async def test_a_batch_of_completions_with_one_wrong_fence_for_all_is_rejected(queue: TenantQueue) -> None:
    jobs = [await queue.running() for _ in range(3)]
    answers = await queue.store.carry_out(queue.tenant, [complete(job, fence=job.fence + 1) for job in jobs])
    assert [isinstance(a, Rejected) and isinstance(a.error, LeaseLost) for a in answers] == [True] * 3
