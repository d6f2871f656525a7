"""Trying again: when, how often, and what is left when no try is left."""

from __future__ import annotations

import json

import pytest

from interlock.domain.job import Receipt
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.retry import SHORTEST_DELAY, Backoff
from interlock.domain.timestamps import when
from tests.contract.builders import ERROR, FIXED, TenantQueue, cancel, complete, facts, fail
from tests.support.stores import SECOND


async def test_a_retryable_failure_with_attempts_left_is_retried_later(queue: TenantQueue) -> None:
    job = await queue.running(backoff=FIXED)
    queue.clock.advance(2)
    receipt = await queue.do(fail(job))
    assert receipt == Receipt(job.id, 1, Status.RETRY, 2, 3, queue.after(10), None)
    now, rows = await queue.trace(job.id)
    assert (now.status, now.attempt, now.run_at, now.error) == (Status.RETRY, 2, queue.after(10), ERROR)
    assert (now.worker, now.lease_expires_at, now.finished_at, now.attempt) == (None, None, None, 2)
    last = rows[-1]
    assert (last.from_status, last.verb, last.actor, last.attempt) == (Status.RUNNING, Verb.FAIL, "worker:w1", 1)
    reported = facts(last)
    assert reported == {"error": json.loads(ERROR), "attempt": 2, "run_at": when(queue.after(10))}


async def test_no_attempt_starts_before_its_due_time(queue: TenantQueue) -> None:
    """G10, G11."""
    job = await queue.running(backoff=FIXED)
    await queue.do(fail(job))
    queue.clock.advance(9.999999)
    assert await queue.claim() == []
    queue.clock.now += 1
    assert (await queue.again(job)).attempt == 2


async def test_a_failure_of_the_last_attempt_goes_to_the_dead_letters(queue: TenantQueue) -> None:
    job = await queue.running(max_attempts=1)
    receipt = await queue.do(fail(job))
    assert receipt == Receipt(job.id, 1, Status.DEAD_LETTER, 1, 3, None, queue.clock.now)
    now, rows = await queue.trace(job.id)
    assert (now.status, now.error, now.finished_at, now.attempt) == (Status.DEAD_LETTER, ERROR, queue.clock.now, 1)
    assert facts(rows[-1]) == {"error": json.loads(ERROR)}


@pytest.mark.parametrize("max_attempts", [1, 2, 5])
async def test_a_job_that_always_fails_uses_exactly_max_attempts(queue: TenantQueue, max_attempts: int) -> None:
    """G09."""
    id = await queue.add(max_attempts=max_attempts, backoff=FIXED)
    attempts = []
    while jobs := await queue.claim():
        attempts.append(jobs[0].attempt)
        await queue.do(fail(jobs[0]))
        queue.clock.advance(10)
    assert attempts == list(range(1, max_attempts + 1))
    assert (await queue.job(id)).status is Status.DEAD_LETTER
    await queue.verify()


async def test_the_delay_grows_with_the_attempt_that_just_ended(queue: TenantQueue) -> None:
    backoff = Backoff("exponential", base_seconds=2.0, max_seconds=30.0, multiplier=3.0).to_text()
    await queue.add(max_attempts=6, backoff=backoff)
    delays = []
    for _ in range(5):
        (job,) = await queue.claim()
        run_at = (await queue.do(fail(job))).run_at
        assert run_at is not None
        delays.append((run_at - queue.clock.now) // SECOND)
        queue.clock.now = run_at
    assert delays == [2, 6, 18, 30, 30]


async def test_without_a_policy_the_delay_is_full_jitter_from_one_second(queue: TenantQueue) -> None:
    """G11: within bounds, and not always the same."""
    seen = set()
    for _ in range(20):
        job = await queue.running(max_attempts=3)
        run_at = (await queue.do(fail(job))).run_at
        assert run_at is not None
        seen.add(run_at - queue.clock.now)
        await queue.do(cancel(job.id))
    assert all(SHORTEST_DELAY <= delay <= SECOND for delay in seen)
    assert len(seen) > 5


async def test_a_retry_after_overrides_the_policy(queue: TenantQueue) -> None:
    job = await queue.running(backoff=FIXED)
    assert (await queue.do(fail(job, retry_after_seconds=86_400.5))).run_at == queue.after(86_400.5)


async def test_a_retry_is_never_sooner_than_a_tenth_of_a_second(queue: TenantQueue) -> None:
    none = Backoff("fixed", base_seconds=0.0).to_text()
    job = await queue.running(backoff=none)
    assert (await queue.do(fail(job))).run_at == queue.clock.now + SHORTEST_DELAY
    other = await queue.running(type="other")
    assert (await queue.do(fail(other, retry_after_seconds=0.0))).run_at == queue.clock.now + SHORTEST_DELAY


async def test_a_final_failure_is_not_retried(queue: TenantQueue) -> None:
    job = await queue.running(max_attempts=100)
    await queue.do(fail(job, retryable=False))
    queue.clock.advance(86_400)
    assert await queue.claim(limit=10) == []


async def test_a_retryable_failure_with_a_cancel_pending_ends_as_cancelled(queue: TenantQueue) -> None:
    job = await queue.running()
    await queue.do(cancel(job.id, reason="stop"))
    receipt = await queue.do(fail(job))
    assert (receipt.status, receipt.finished_at, receipt.run_at) == (Status.CANCELLED, queue.clock.now, None)


async def test_the_second_attempt_can_succeed(queue: TenantQueue) -> None:
    job = await queue.running(backoff=FIXED)
    await queue.do(fail(job))
    queue.clock.advance(10)
    second = await queue.again(job)
    assert (await queue.do(complete(second))).attempt == 2
    assert [row.attempt for row in await queue.history(job.id)] == [1, 1, 1, 2, 2]
    await queue.verify()
