"""Processes that fire schedules together and are killed between a tick and its job: exactly one job for each tick."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final

import msgspec
import pytest

from interlock.domain.job import Filter
from interlock.domain.principal import Principal
from interlock.domain.retry import SECOND
from interlock.domain.schedule import CatchUp, Overlap, Schedule
from interlock.domain.timestamps import when
from interlock.engine.engine import Engine
from interlock.errors import Unavailable
from interlock.storage.contract import Store
from tests.process.actions import TENANT
from tests.process.conftest import FAST, Checker
from tests.process.test_kills import orphans_gone
from tests.support.forms import chance
from tests.support.postgres import PostgresServer
from tests.support.stores import APP_LOGIN, TEMPLATE, make_template
from tests.support.workers import Failed, Member, Place, failed, members, until

ROUNDS: Final = 3 if FAST else 10
PROCESSES: Final = 3 if FAST else 8
SCHEDULES: Final = 4
TICKS: Final = 96  # of each schedule: more than the processes that die can fire
EVERY: Final = 3600  # seconds: no tick becomes due during the test, or one at most
STAGES: Final = ("before the job", "after the job", "after the tick")
WHO: Final = Principal(TENANT, "user:ada", frozenset({"read", "produce", "operate"}))

Call = Callable[..., Awaitable[Any]]


def fire_in_a_process(pipe: Connection, place: Place, stage: str | None, nth: int) -> None:
    """Fire all that is due, or fire and die when a stage is reached for the nth time."""
    passed: Counter[str] = Counter()

    def at(here: str) -> None:
        passed[here] += 1
        if here == stage and passed[here] == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def between(before: str, call: Call, after: str) -> Call:
        async def passes(*args: Any, **options: Any) -> Any:
            at(before)
            answer = await call(*args, **options)
            at(after)
            return answer

        return passes

    async def fire() -> int:
        store: Any = await place.open(size=2)
        store.enqueue = between("before the job", store.enqueue, "after the job")
        store.schedules.advance = between("before the tick", store.schedules.advance, "after the tick")
        engine = Engine(store)
        fired = 0
        while (some := await engine.schedules.fire_due()) or stage is not None:
            fired += some
        return fired

    try:
        pipe.send(asyncio.run(fire()))
    except Unavailable:
        pipe.send(0)  # SQLite: another process held the lock for too long
    except Exception as error:
        pipe.send(failed(error))


async def set_due(store: Store, name: str, overlap: Overlap, now: int) -> Schedule:
    """Create a schedule with ticks that are due and none fired."""
    first = now - TICKS * EVERY * SECOND
    job = '{"type":"report"}'
    given = Schedule(
        name, None, float(EVERY), "UTC", first, None, job, overlap, CatchUp.ALL, 0.0, first,
        None, None, None, None, None, 0, first, "user:ada", now,
    )  # fmt: skip
    return await store.schedules.set(TENANT, given, actor="user:ada")


async def ticks_of(checker: Checker) -> list[tuple[str, str]]:
    """The schedule and the tick of every job."""
    jobs = await checker.jobs([job.id for job in await checker.everything()])
    headers = [msgspec.json.decode(job.headers or "{}") for job in jobs]
    return [(one["schedule"], one["tick"]) for one in headers]


@pytest.mark.parametrize("stage", STAGES)
async def test_each_tick_has_one_job_whatever_dies(checker: Checker, stage: str) -> None:
    dice, now = chance(), await checker.store.now()
    names = [f"s{n}" for n in range(SCHEDULES)]
    made = [await set_due(checker.store, name, Overlap.ALLOW, now) for name in names]
    engine = Engine(checker.store)
    for _ in range(ROUNDS):
        started = [Member(fire_in_a_process, checker.place, stage, dice.randrange(1, 5)) for _ in range(PROCESSES)]
        with members(*started):
            for name in names:  # an update with the same times in between changes no tick
                await checker.store.schedules.set(TENANT, await engine.schedules.get(TENANT, name), actor="user:ada")
            for member in started:
                await asyncio.to_thread(member.wait)
            assert {member.process.exitcode for member in started} == {-signal.SIGKILL}
    if checker.place.engine == "postgres":
        await orphans_gone(checker)
    survivors = [Member(fire_in_a_process, checker.place, None, 0) for _ in range(2)]
    with members(*survivors):
        for fired in [await asyncio.to_thread(member.receive) for member in survivors]:
            assert not isinstance(fired, Failed), fired
    while await engine.schedules.fire_due():
        pass
    found = await ticks_of(checker)
    expected = [(one.name, when(tick)) for one in made for tick in one.timing.latest(one.starts_at or 0, now, 1000)]
    assert sorted(one for one in found if one[1] <= when(now)) == sorted(expected)
    assert len(found) == len({*found})
    for name in names:
        kept = await engine.schedules.get(TENANT, name)
        assert (kept.last_error, kept.last_at is not None and kept.last_at >= now - EVERY * SECOND) == (None, True)
    await checker.check()


async def test_with_skip_one_job_at_a_time_survives_the_kills(checker: Checker) -> None:
    now = await checker.store.now()
    await set_due(checker.store, "s", Overlap.SKIP, now)
    for stage in STAGES:
        member = Member(fire_in_a_process, checker.place, stage, 1)
        with members(member):
            await asyncio.to_thread(member.wait)
        assert len(await checker.store.find(TENANT, Filter())) <= 1
    engine = Engine(checker.store)
    while await engine.schedules.fire_due():
        pass
    (job,) = await checker.store.find(TENANT, Filter())
    assert (await engine.schedules.get(TENANT, "s")).last_job_id == job.id


async def test_a_database_that_is_down_over_ticks_loses_none_and_repeats_none() -> None:
    with PostgresServer() as server:
        await make_template(server)
        place = Place("postgres", server.dsn(TEMPLATE, user=APP_LOGIN))
        store = await place.open()
        checker, engine = Checker(place, store, server.dsn(TEMPLATE)), Engine(store)
        try:
            now = await store.now()
            (made, *_) = [await set_due(store, f"s{n}", Overlap.ALLOW, now) for n in range(SCHEDULES)]

            async def has_begun() -> bool:
                return bool(await store.find(TENANT, Filter()))

            async def is_done() -> bool:
                with suppress(Unavailable):
                    kept = [await engine.schedules.get(TENANT, f"s{n}") for n in range(SCHEDULES)]
                    return all(one.last_at is not None and one.last_at >= now - EVERY * SECOND for one in kept)
                return False

            engine.maintenance.start()
            await until(has_begun, "a tick has a job")
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await until(is_done, "all ticks are fired")
            found = await ticks_of(checker)
            assert len(found) == len({*found})
            expected = [when(tick) for tick in made.timing.latest(made.starts_at or 0, now, 1000)]
            for n in range(SCHEDULES):
                assert sorted(tick for name, tick in found if name == f"s{n}" and tick <= when(now)) == expected
        finally:
            await engine.maintenance.stop()
            await store.close()
