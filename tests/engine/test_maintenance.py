"""What the clock does by itself, on both engines."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.engine.engine import Engine
from interlock.engine.maintenance import MAX_STEPS, MaintenanceTask, repeat_until_empty
from interlock.errors import Unavailable
from interlock.wire import job_request
from tests.support.eventually import eventually
from tests.support.stores import SECOND, ManualClock


async def test_a_sweep_expires_leases_of_every_tenant(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    for tenant in ("acme", "other", "third"):
        await interlock_engine.jobs.enqueue(who._replace(tenant=tenant), job_request({"type": "t"}))
        await interlock_engine.leases.claim(tenant, ClaimFilter("w", lease_seconds=10))
    assert (await interlock_engine.maintenance.sweep()).leases == 0
    clock.advance(10)
    assert (await interlock_engine.maintenance.sweep()).leases == 3
    assert (await interlock_engine.maintenance.sweep()).leases == 0


async def test_a_sweep_ends_waiting_jobs_whose_deadline_has_passed(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    deadline = datetime.fromtimestamp(clock.now / SECOND + 60, UTC).isoformat()
    late = await interlock_engine.jobs.enqueue(who, job_request({"type": "t", "deadline": deadline}))
    await interlock_engine.jobs.enqueue(who, job_request({"type": "t"}))
    assert (await interlock_engine.maintenance.sweep()).deadlines == 0
    clock.advance(61)
    assert (await interlock_engine.maintenance.sweep()).deadlines == 1
    assert (await interlock_engine.queries.job(who.tenant, late.id)).status is Status.CANCELLED
    assert (await interlock_engine.maintenance.sweep()).deadlines == 0


async def test_a_sweep_processes_more_than_one_batch(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    await interlock_engine.jobs.enqueue_batch(who, [job_request({"type": "t"}) for _ in range(900)])
    for _ in range(9):
        await interlock_engine.leases.claim("acme", ClaimFilter("w", limit=100, lease_seconds=10))
    clock.advance(11)
    assert (await interlock_engine.maintenance.sweep()).leases == 900


async def test_two_concurrent_sweeps_do_the_work_once(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    await interlock_engine.jobs.enqueue(who, job_request({"type": "t", "max_attempts": 1}))
    (job,) = await interlock_engine.leases.claim("acme", ClaimFilter("w", lease_seconds=10))
    clock.advance(11)
    await asyncio.gather(interlock_engine.maintenance.sweep(), interlock_engine.maintenance.sweep())
    history = await interlock_engine.queries.history("acme", job.id)
    assert [row.to_status for row in history] == [Status.QUEUED, Status.RUNNING, Status.DEAD_LETTER]


async def test_background_maintenance_needs_no_claim(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    await interlock_engine.jobs.enqueue(who, job_request({"type": "t"}))
    (job,) = await interlock_engine.leases.claim("acme", ClaimFilter("w", lease_seconds=10))
    clock.advance(11)
    interlock_engine.maintenance.start()

    async def is_retried() -> bool:
        return (await interlock_engine.queries.job("acme", job.id)).status is Status.RETRY

    await eventually(is_retried)


async def test_a_hanging_maintenance_task_delays_no_other(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    begun = asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    interlock_engine.maintenance.tasks.insert(0, MaintenanceTask("hangs", 0.01, hang))
    await interlock_engine.jobs.enqueue(who, job_request({"type": "t"}))
    (job,) = await interlock_engine.leases.claim("acme", ClaimFilter("w", lease_seconds=10))
    interlock_engine.maintenance.start()
    await begun.wait()
    clock.advance(11)

    async def is_retried() -> bool:
        return (await interlock_engine.queries.job("acme", job.id)).status is Status.RETRY

    await eventually(is_retried)


async def test_a_failed_maintenance_task_is_retried(interlock_engine: Engine) -> None:
    tries = 0

    async def fail() -> None:
        nonlocal tries
        tries += 1
        raise (Unavailable("gone for a while") if tries % 2 else ValueError("a bad row"))

    interlock_engine.maintenance.tasks.append(MaintenanceTask("fails", 0.001, fail))
    interlock_engine.maintenance.start()

    async def tried_often() -> bool:
        return tries >= 6

    await eventually(tried_often)


async def test_steps_repeat_until_one_finds_nothing_within_a_limit() -> None:
    left = 7

    async def step() -> int:
        nonlocal left
        some = min(left, 3)
        left -= some
        return some

    assert await repeat_until_empty(step) == 7

    async def endless() -> int:
        return 3

    assert await repeat_until_empty(endless) == 3 * MAX_STEPS


async def test_old_claims_are_deleted_once_their_jobs_no_longer_run(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    await interlock_engine.jobs.enqueue(who, job_request({"type": "t"}))
    await interlock_engine.leases.claim("acme", ClaimFilter("w", claim_id="a", lease_seconds=3600))
    await interlock_engine.leases.claim("acme", ClaimFilter("w", claim_id="empty"))  # nothing to remember
    clock.advance(3601)
    assert await interlock_engine.maintenance.forget_claims() == 0
    await interlock_engine.maintenance.sweep()
    clock.advance(3601)
    assert await interlock_engine.maintenance.forget_claims() == 1
