"""A file is promoted under load while the promoting process is killed at every point: nothing is lost or changed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import asyncpg

from interlock.domain.job import Filter, Job
from interlock.domain.registry import Agent
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.promotion.promoter import Promoted
from interlock.storage.sqlite.store import SQLiteStore
from tests.process.moving import Load
from tests.process.promoting import Following, promote
from tests.support.eventually import eventually
from tests.support.invariants import check_history, check_postgres
from tests.support.postgres import OWNER, Postgres
from tests.support.scratch import LONG
from tests.support.stores import APP_LOGIN, empty_database, migrated_file, opened
from tests.support.workers import Failed, Member

TENANT = "traveller"
POINTS = (
    "target begun", "begun", "copied job", "copied job_event", "copied", "copied again", "caught up", "counted",
    "verified", "frozen", "ready to switch", "switched",
)  # fmt: skip
ROUNDS = 20 if os.environ.get(LONG) else 1


async def attempt(path: str, dsn: str, die_at: str | None) -> tuple[Promoted, list[str]] | None:
    """The report of a promotion, and the points it passed; None if it was killed."""
    member = Member(promote, path, dsn, die_at)
    try:
        await asyncio.to_thread(member.wait)
        if member.process.exitcode == -signal.SIGKILL:
            return None
        reported = member.receive()
        assert not isinstance(reported, Failed), reported
        done, points = reported
        return done, points
    finally:
        member.close()


async def everything(store: Store) -> list[Job]:
    found: list[Job] = []
    while page := await store.find(TENANT, Filter(before_seq=found[-1].seq if found else None, limit=200)):
        found += page
    return found


async def test_a_file_is_promoted_under_load_by_processes_killed_at_every_point(
    tmp_path: Path, postgres: Postgres
) -> None:
    for number in range(ROUNDS):
        path = await asyncio.to_thread(migrated_file, tmp_path / f"{number}.db")
        async with empty_database(postgres) as name, opened(SQLiteStore.open(path)) as file:
            await promoted_under_load(file, postgres.dsn(name, user=OWNER), postgres.dsn(name, user=APP_LOGIN))
            await check_tables(postgres.dsn(name))


async def promoted_under_load(file: SQLiteStore, owner: str, app: str) -> None:
    await file.registry.set_agent(TENANT, Agent("planner", "one", max_concurrency=2))
    following = Following(file)
    load = Load(following.store, TENANT)
    working = asyncio.create_task(load.run())
    await eventually(lambda: _true(working.done() or len(load.ended) > 20))
    for point in POINTS:
        assert await attempt(file.path, owner, point) is None, f"it did not reach {point!r}"
        assert not working.done(), working.exception()
        if point == "switched":
            await eventually(lambda: _true(working.done() or following.refused > 0))
        else:
            await goes_on(load, working, 1)
            assert following.refused == 0
    finished = await attempt(file.path, owner, None)
    assert finished is not None
    assert finished[0].state == "promoted"
    async with opened(PostgresStore.open(app, size=4)) as store:
        assert await store.audit.head() == await file.audit.head()
        assert await store.audit.verify() == await file.audit.verify()
        following.follow(store)
        await goes_on(load, working, 5)
        load.stop()
        await working
        await check(store, load)


async def goes_on(load: Load, working: asyncio.Task[None], rounds: int) -> None:
    """Until the producer has made this many more rounds."""
    enough = load.rounds + rounds
    await eventually(lambda: _true(working.done() or load.rounds > enough))


async def _true(value: bool) -> bool:
    return value


async def check(store: Store, load: Load) -> None:
    """Every acknowledged job exists once, ended as its worker's response stated, with a history that verifies."""
    jobs = await everything(store)
    assert sorted(job.id for job in jobs) == sorted(load.created.values())
    by_id = {job.id: job for job in jobs}
    assert {id: by_id[id].status for id in load.ended} == load.ended
    assert {id: by_id[id].version for id in load.edited} == load.edited
    assert load.ended
    for job in jobs:
        check_history(job, await store.history(TENANT, job.id))
    assert await store.audit.verify(TENANT) == (len(jobs), sum(job.version for job in jobs), None)
    assert sum(sum(stats[1:10]) for stats in await store.registry.stats(TENANT)) == len(jobs)


async def check_tables(superuser: str) -> None:
    connection = await asyncpg.connect(superuser)
    try:
        await check_postgres(connection, TENANT)
    finally:
        await connection.close()
