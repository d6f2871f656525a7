"""Schedules on both engines: one job per tick, even if processes stop or crash."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.domain.retry import SECOND
from interlock.domain.schedule import Fired
from interlock.domain.timestamps import EPOCH, micros, when
from interlock.engine.engine import Engine
from interlock.errors import Invalid, NotFound
from interlock.storage.contract import Store
from interlock.wire.schedule import ScheduleRequest
from tests.support.stores import ManualClock


def request(**given: Any) -> ScheduleRequest:
    text = msgspec.json.encode({"job": {"type": "report"}, "every_seconds": 60, **given})
    return msgspec.json.decode(text, type=ScheduleRequest)


async def jobs_of(engine: Engine, tenant: str = "acme") -> list[Job]:
    """All jobs, oldest first, whole."""
    found = await engine.queries.jobs(tenant, Filter())
    return [await engine.queries.job(tenant, job.id) for job in reversed(found)]


async def headers_of(engine: Engine) -> list[dict[str, str]]:
    return [msgspec.json.decode(job.headers or "{}") for job in await jobs_of(engine)]


async def test_a_tick_enqueues_the_job_once(interlock_engine: Engine, who: Principal, clock: ManualClock) -> None:
    made = await interlock_engine.schedules.set(
        who, "hourly", request(job={"type": "report", "payload": {"to": "ann"}, "headers": {"a": "b"}, "priority": 5})
    )
    assert made.next_at is not None
    assert await interlock_engine.schedules.fire_due() == 0
    clock.advance(60)
    assert await interlock_engine.schedules.fire_due() == 1
    assert await interlock_engine.schedules.fire_due() == 0
    (job,) = await jobs_of(interlock_engine)
    assert (job.type, job.payload, job.priority, job.created_by) == ("report", '{"to":"ann"}', 5, "schedule:hourly")
    tick = (EPOCH + timedelta(microseconds=made.next_at)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    assert await headers_of(interlock_engine) == [{"a": "b", "schedule": "hourly", "tick": tick}]
    kept = await interlock_engine.schedules.get("acme", "hourly")
    assert (kept.last_at, kept.last_job_id, kept.last_error) == (made.next_at, job.id, None)
    assert kept.next_at == made.next_at + 60 * SECOND


async def test_a_schedule_with_the_longest_name_fires_each_tick_once(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    for name in ("ü" * 200, "ü" * 199 + "y"):
        await interlock_engine.schedules.set(who, name, request())
    for _ in range(2):
        clock.advance(60)
        await asyncio.gather(*(interlock_engine.schedules.fire_due() for _ in range(4)))
    assert len(await jobs_of(interlock_engine)) == 4
    assert (await interlock_engine.schedules.get("acme", "ü" * 200)).last_error is None


async def test_many_processes_fire_a_tick_once(interlock_engine: Engine, who: Principal, clock: ManualClock) -> None:
    for name in ("a", "b", "c"):
        await interlock_engine.schedules.set(who, name, request())
    clock.advance(60)
    await asyncio.gather(*(interlock_engine.schedules.fire_due() for _ in range(8)))
    assert len(await jobs_of(interlock_engine)) == 3


async def test_a_process_that_dies_before_it_records_the_tick_leaves_one_job(
    interlock_engine: Engine, store: Store, who: Principal, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await interlock_engine.schedules.set(who, "s", request())
    clock.advance(60)

    async def die(*_: object) -> bool:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(type(store.schedules), "advance", die)
        with pytest.raises(asyncio.CancelledError):
            await interlock_engine.schedules.fire_due()
    (job,) = await jobs_of(interlock_engine)
    await interlock_engine.schedules.set(who, "other", request())  # an edit of another schedule changes nothing
    assert await interlock_engine.schedules.fire_due() == 1
    assert [one.id for one in await jobs_of(interlock_engine)] == [job.id]
    assert (await interlock_engine.schedules.get("acme", "s")).last_job_id == job.id


async def test_an_outcome_of_an_old_version_is_not_recorded(
    interlock_engine: Engine, store: Store, who: Principal
) -> None:
    old = await interlock_engine.schedules.set(who, "s", request())
    await interlock_engine.schedules.set(who, "s", request(every_seconds=5))
    assert not await store.schedules.advance("acme", old, Fired(old.next_at or 0, None))
    assert (await interlock_engine.schedules.get("acme", "s")).next_at is not None


@pytest.mark.parametrize(("catch_up", "expected"), [("none", 0), ("last", 1), ("all", 3)])
async def test_ticks_without_a_running_process_are_missed(
    interlock_engine: Engine, who: Principal, clock: ManualClock, catch_up: str, expected: int
) -> None:
    await interlock_engine.schedules.set(who, "s", request(catch_up=catch_up))
    clock.advance(60 * 3 + 30)
    assert await interlock_engine.schedules.fire_due() == expected
    clock.advance(30)
    assert await interlock_engine.schedules.fire_due() == 1
    assert len(await jobs_of(interlock_engine)) == expected + 1


@pytest.mark.parametrize(("catch_up", "expected"), [("none", 0), ("last", 1), ("all", 2)])
async def test_ticks_during_a_pause_are_missed(
    interlock_engine: Engine, who: Principal, clock: ManualClock, catch_up: str, expected: int
) -> None:
    await interlock_engine.schedules.set(who, "s", request(catch_up=catch_up))
    paused = await interlock_engine.schedules.pause(who, "s")
    assert paused.paused_by == who.actor
    clock.advance(60 * 2 + 1)
    assert await interlock_engine.schedules.fire_due() == 0
    resumed = await interlock_engine.schedules.resume(who, "s")
    assert resumed.paused_at is None
    assert await interlock_engine.schedules.fire_due() == expected


async def test_a_clock_that_jumps_back_repeats_no_tick(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    await interlock_engine.schedules.set(who, "s", request())
    clock.advance(60)
    assert await interlock_engine.schedules.fire_due() == 1
    clock.advance(-30)
    assert await interlock_engine.schedules.fire_due() == 0
    clock.advance(30)
    assert await interlock_engine.schedules.fire_due() == 0
    await interlock_engine.schedules.set(who, "s", request())  # nor does an edit at the time of the tick
    assert await interlock_engine.schedules.fire_due() == 0


@pytest.mark.parametrize(
    ("timezone", "change", "cron"),
    [
        ("Europe/Berlin", "2027-03-28T01:00", "30 2 * * *"),
        ("America/New_York", "2027-03-14T07:00", "15,45 2 * * *"),
        ("America/Havana", "2027-03-14T05:00", "0 0 * * *"),
    ],
)
async def test_a_time_that_spring_skips_has_one_job_right_after_the_change(
    interlock_engine: Engine, who: Principal, clock: ManualClock, timezone: str, change: str, cron: str
) -> None:
    moment = datetime.fromisoformat(change).replace(tzinfo=UTC)
    clock.now = micros(moment - timedelta(hours=2))
    made = await interlock_engine.schedules.set(who, "s", request(every_seconds=None, cron=cron, timezone=timezone))
    assert made.next_at == micros(moment)
    clock.now = micros(moment) - 1
    assert await interlock_engine.schedules.fire_due() == 0
    clock.now = micros(moment) + SECOND // 2
    assert await interlock_engine.schedules.fire_due() == 1
    clock.advance(7200)
    assert await interlock_engine.schedules.fire_due() == 0
    assert [given["tick"] for given in await headers_of(interlock_engine)] == [when(micros(moment))]


async def test_overlap_skip_waits_for_the_previous_job(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    await interlock_engine.schedules.set(who, "s", request(overlap="skip"))
    clock.advance(60)
    assert await interlock_engine.schedules.fire_due() == 1
    clock.advance(60)
    assert await interlock_engine.schedules.fire_due() == 0
    (job,) = await jobs_of(interlock_engine)
    assert job.id in ((await interlock_engine.schedules.get("acme", "s")).last_error or "")
    await interlock_engine.jobs.cancel(who, job.id)
    clock.advance(60)
    assert await interlock_engine.schedules.fire_due() == 1
    assert (await interlock_engine.schedules.get("acme", "s")).last_error is None


async def test_overlap_cancel_ends_the_previous_job(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    await interlock_engine.schedules.set(who, "s", request(overlap="cancel"))
    for _ in range(2):
        clock.advance(60)
        assert await interlock_engine.schedules.fire_due() == 1
    first, second = await jobs_of(interlock_engine)
    assert (first.status, second.status) == (Status.CANCELLED, Status.QUEUED)
    assert first.cancel_reason is None or "schedule s" in first.cancel_reason
    (leased,) = await interlock_engine.leases.claim("acme", ClaimFilter("w", lease_seconds=3600))
    clock.advance(60)
    assert await interlock_engine.schedules.fire_due() == 1
    assert (await interlock_engine.queries.job("acme", leased.id)).cancel_requested_at is not None


async def test_a_rejected_tick_says_why_and_the_next_one_runs(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    await interlock_engine.schedules.set(who, "s", request(job={"type": "report", "payload": {"n": 1}}))
    await interlock_engine.registry.set_type(who, "report", schema='{"required": ["m"]}')
    clock.advance(60)
    assert await interlock_engine.schedules.fire_due() == 0
    assert "m" in ((await interlock_engine.schedules.get("acme", "s")).last_error or "")
    await interlock_engine.registry.set_type(who, "report")
    clock.advance(60)
    assert await interlock_engine.schedules.fire_due() == 1


async def test_run_enqueues_now_and_keeps_the_ticks(interlock_engine: Engine, who: Principal) -> None:
    made = await interlock_engine.schedules.set(who, "s", request())
    await interlock_engine.schedules.pause(who, "s")
    first = await interlock_engine.schedules.run(who, "s")
    second = await interlock_engine.schedules.run(who, "s")
    assert first.job.id != second.job.id
    assert [given["schedule"] for given in await headers_of(interlock_engine)] == ["s", "s"]
    kept = await interlock_engine.schedules.get("acme", "s")
    assert (kept.next_at, kept.last_at) == (made.next_at, None)


async def test_jitter_delays_the_job_and_not_the_tick(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    made = await interlock_engine.schedules.set(who, "s", request(jitter_seconds=3600, every_seconds=7200))
    clock.advance(7200)
    assert await interlock_engine.schedules.fire_due() == 1
    (job,) = await jobs_of(interlock_engine)
    assert made.next_at is not None
    assert made.next_at <= job.run_at <= made.next_at + 3600 * SECOND
    assert msgspec.json.decode(job.headers or "{}")["tick"][:19] in str(
        EPOCH + timedelta(microseconds=made.next_at)
    ).replace(" ", "T")


async def test_an_edit_keeps_the_past(interlock_engine: Engine, who: Principal, clock: ManualClock) -> None:
    made = await interlock_engine.schedules.set(who, "s", request())
    clock.advance(60)
    await interlock_engine.schedules.fire_due()
    (job,) = await jobs_of(interlock_engine)
    edited = await interlock_engine.schedules.set(
        who, "s", request(every_seconds=None, cron="0 7 * * *", timezone="Europe/Berlin")
    )
    assert (edited.version, edited.last_job_id, edited.created_at) == (2, job.id, made.created_at)
    assert (edited.cron, edited.every_seconds) == ("0 7 * * *", None)


async def test_an_update_with_the_same_times_keeps_the_tick_that_is_due(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    made = await interlock_engine.schedules.set(who, "s", request())
    clock.advance(60.2)
    same = await interlock_engine.schedules.set(who, "s", request())
    assert (same.version, same.next_at) == (2, made.next_at)
    assert await interlock_engine.schedules.fire_due() == 1
    await interlock_engine.schedules.pause(who, "s")
    clock.advance(3 * 60)
    await interlock_engine.schedules.set(who, "s", request(catch_up="all", job={"type": "other"}))
    await interlock_engine.schedules.resume(who, "s")
    assert await interlock_engine.schedules.fire_due() == 3
    assert [job.type for job in await jobs_of(interlock_engine)] == ["report", "other", "other", "other"]


async def test_an_interval_counts_from_the_creation_of_its_schedule(
    interlock_engine: Engine, store: Store, who: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the clock moves between the request and the transaction."""
    now = store.now

    async def earlier() -> int:
        return await now() - 700

    with monkeypatch.context() as patch:
        patch.setattr(store, "now", earlier)
        made = await interlock_engine.schedules.set(who, "s", request())
    again = await interlock_engine.schedules.set(who, "s", request())
    assert (again.starts_at, again.created_at) == (made.starts_at, made.created_at)
    assert made.starts_at == made.created_at + 60 * SECOND


async def test_an_update_of_the_times_fires_the_tick_that_is_due_first(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    made = await interlock_engine.schedules.set(who, "s", request())
    clock.advance(60.2)
    edited = await interlock_engine.schedules.set(who, "s", request(every_seconds=7, job={"type": "other"}))
    assert edited.last_at == made.next_at
    (job,) = await jobs_of(interlock_engine)
    assert (job.type, job.id) == ("report", edited.last_job_id)
    assert await interlock_engine.schedules.fire_due() == 0


async def test_an_update_of_the_times_misses_no_tick_from_before_it(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    await interlock_engine.schedules.set(who, "s", request(catch_up="all"))
    await interlock_engine.schedules.pause(who, "s")
    clock.advance(3 * 60)
    start = (EPOCH + timedelta(microseconds=clock.now) - timedelta(hours=1)).isoformat()
    await interlock_engine.schedules.set(who, "s", request(catch_up="all", every_seconds=7, starts_at=start))
    await interlock_engine.schedules.resume(who, "s")
    assert await interlock_engine.schedules.fire_due() <= 1  # one that is due exactly now
    assert len(await jobs_of(interlock_engine)) <= 1


@pytest.mark.parametrize(("catch_up", "expected"), [("none", 3), ("last", 3), ("all", 3)])
async def test_a_process_that_looks_late_misses_no_tick(
    interlock_engine: Engine, who: Principal, clock: ManualClock, catch_up: str, expected: int
) -> None:
    await interlock_engine.schedules.set(who, "s", request(every_seconds=1, catch_up=catch_up))
    assert await interlock_engine.schedules.fire_due() == 0
    clock.advance(3.4)
    assert await interlock_engine.schedules.fire_due() == expected
    ticks = [given["tick"] for given in await headers_of(interlock_engine)]
    assert len({*ticks}) == expected


async def test_hundreds_of_schedules_fire_in_one_look_despite_one_that_cannot(
    interlock_engine: Engine, store: Store, who: Principal, clock: ManualClock
) -> None:
    for n in range(230):
        await interlock_engine.schedules.set(who, f"s{n:03}", request())
    broken = await interlock_engine.schedules.get("acme", "s000")
    await store.schedules.set(
        "acme", broken._replace(timezone="Mars/Base", cron="* * * * *", every_seconds=None, next_at=0), actor="x"
    )
    clock.advance(60)
    assert await interlock_engine.schedules.fire_due() == 229
    found = await interlock_engine.schedules.page("acme", limit=200)
    assert [one.name for one in found if one.last_job_id is None] == ["s000"]


async def test_the_last_tick_ends_a_schedule(interlock_engine: Engine, who: Principal, clock: ManualClock) -> None:
    made = await interlock_engine.schedules.set(who, "s", request())
    assert made.next_at is not None
    end = EPOCH + timedelta(microseconds=made.next_at)
    await interlock_engine.schedules.set(
        who, "s", request(starts_at=end.isoformat(), ends_at=(end + timedelta(seconds=60)).isoformat())
    )
    for _ in range(5):
        clock.advance(60)
        await interlock_engine.schedules.fire_due()
    assert len(await jobs_of(interlock_engine)) == 2
    assert (await interlock_engine.schedules.get("acme", "s")).next_at is None


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ({"cron": "* * * * *"}, "/cron"),
        ({"every_seconds": None, "cron": "* * * * * *"}, "/cron"),
        ({"timezone": "Mars/Base"}, "/timezone"),
        ({"jitter_seconds": -1}, "/jitter_seconds"),
        ({"job": {"type": ""}}, "/job/type"),
        ({"job": {"type": "t", "priority": 5000}}, "/job/priority"),
        ({"job": {"type": "t", "run_at": "2030-01-01T00:00:00Z"}}, "/job/run_at"),
        ({"job": {"type": "t", "idempotency_key": "k"}}, "/job/idempotency_key"),
    ],
)
async def test_an_invalid_schedule_is_rejected(
    interlock_engine: Engine, who: Principal, given: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await interlock_engine.schedules.set(who, "s", request(**given))
    assert caught.value.pointer == pointer
    with pytest.raises(NotFound):
        await interlock_engine.schedules.get("acme", "s")


async def test_a_deleted_schedule_fires_no_more(interlock_engine: Engine, who: Principal, clock: ManualClock) -> None:
    await interlock_engine.schedules.set(who, "s", request())
    await interlock_engine.schedules.delete(who, "s")
    clock.advance(600)
    assert await interlock_engine.schedules.fire_due() == 0
    for missing in (
        interlock_engine.schedules.delete,
        interlock_engine.schedules.pause,
        interlock_engine.schedules.run,
    ):
        with pytest.raises(NotFound, match="schedule"):
            await missing(who, "s")


async def test_schedules_of_tenants_are_apart(interlock_engine: Engine, who: Principal, clock: ManualClock) -> None:
    await interlock_engine.schedules.set(who, "s", request())
    await interlock_engine.schedules.set(who._replace(tenant="other"), "s", request(job={"type": "theirs"}))
    assert [one.name for one in await interlock_engine.schedules.page("acme")] == ["s"]
    clock.advance(60)
    assert await interlock_engine.schedules.fire_due() == 2
    assert [job.type for job in await jobs_of(interlock_engine, "other")] == ["theirs"]
    await interlock_engine.schedules.delete(who, "s")
    assert (await interlock_engine.schedules.get("other", "s")).last_job_id is not None


async def test_operations_on_schedules_are_in_the_audit_log(interlock_engine: Engine, who: Principal) -> None:
    await interlock_engine.schedules.set(who, "s", request())
    await interlock_engine.schedules.pause(who, "s")
    await interlock_engine.schedules.pause(who, "s")  # changes nothing
    await interlock_engine.schedules.resume(who, "s")
    await interlock_engine.schedules.run(who, "s")
    await interlock_engine.schedules.delete(who, "s")
    rows = await interlock_engine.audit.log("acme")
    assert [row.action for row in rows] == [
        "schedule.set", "schedule.pause", "schedule.resume", "schedule.run", "schedule.delete",
    ]  # fmt: skip
