"""A tenant is moved under load while the mover is killed at every turn: nothing is lost, doubled or changed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import asyncpg
import pytest

from interlock.domain.job import Filter, Job
from interlock.domain.registry import Agent
from interlock.storage.contract import Store
from interlock.storage.shards.factory import open_sharded_store
from interlock.storage.shards.tenant_move import Moved
from tests.process.moving import FRESH_SECONDS, Load, move
from tests.support.eventually import eventually
from tests.support.invariants import check_history, check_postgres
from tests.support.postgres import Postgres
from tests.support.shards import copied_shards
from tests.support.stores import APP_LOGIN
from tests.support.workers import TIMEOUT, Failed, Member

KILLS = 50
TENANT = "traveller"


@pytest.fixture
def databases(postgres: Postgres) -> Iterator[dict[str, str]]:
    with copied_shards(postgres) as names:
        yield names


async def attempt(owners: dict[str, str], target: str, die_at: str | None) -> tuple[Moved, list[str]] | None:
    """The report of a mover, and the points it passed; None if it was killed."""
    member = Member(move, owners, TENANT, target, die_at)
    try:
        await asyncio.to_thread(member.wait)
        if member.process.exitcode == -signal.SIGKILL:
            return None
        reported = member.receive()
        assert not isinstance(reported, Failed), reported
        moved, points = reported
        return moved, points
    finally:
        member.close()


async def everything(store: Store) -> list[Job]:
    found: list[Job] = []
    while page := await store.find(TENANT, Filter(before_seq=found[-1].seq if found else None, limit=200)):
        found += page
    return found


async def rows_left(owner: str) -> int:
    """How many rows of the tenant a database still has, except the one that records its move."""
    connection = await asyncpg.connect(owner)
    try:
        tables = await connection.fetch(
            """select c.relname from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant'
               where c.relnamespace = 'interlock'::regnamespace and c.relkind in ('r', 'p')
                 and c.relname not in ('tenant', 'placement')"""
        )
        counts = [
            await connection.fetchval(f"select count(*) from interlock.{name} where tenant = $1", TENANT)
            for (name,) in tables
        ]
        return sum(counts)
    finally:
        await connection.close()


async def test_a_tenant_is_moved_under_load_by_movers_killed_at_every_point(
    databases: dict[str, str], postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    # From one mover's death to the end of the next, and of those that die where it had stopped.
    monkeypatch.setattr("interlock.storage.shards.routing.MOVE_SECONDS", TIMEOUT)
    owners = {name: postgres.dsn(database) for name, database in databases.items()}
    addresses = {name: postgres.dsn(database, user=APP_LOGIN) for name, database in databases.items()}
    store = await open_sharded_store(addresses, size=4, fresh_seconds=FRESH_SECONDS)
    try:
        await store.registry.set_agent(TENANT, Agent("planner", "one", max_concurrency=2))
        load = Load(store, TENANT)
        working = asyncio.create_task(load.run())
        await eventually(lambda: _true(working.done() or len(load.ended) > 20))
        (home,) = await store.homes(TENANT)
        here, there = (home.name, "b" if home.name == "a" else "a")
        first = await attempt(owners, there, None)
        assert first is not None
        points = first[1]
        here, there = there, here
        kills = 0
        for point in points:
            # If an earlier attempt has passed this point already, the move back reaches it.
            while (finished := await attempt(owners, there, point)) is not None:
                assert finished[0][1:3] == (here, there)
                assert await rows_left(owners[here]) == 0
                here, there = there, here
            kills += 1
            assert not working.done(), working.exception()
        assert kills >= KILLS
        assert await attempt(owners, there, None) is not None
        assert await rows_left(owners[here]) == 0

        done = load.rounds
        await eventually(lambda: _true(working.done() or load.rounds > done + 5))
        load.stop()
        await working
        await check(store, load, owners[there])
    finally:
        await store.close()


async def _true(value: bool) -> bool:
    return value


async def check(store: Store, load: Load, owner: str) -> None:
    """Every acknowledged job exists once, ended as its worker's response stated, with a history that verifies."""
    jobs = await everything(store)
    assert sorted(job.id for job in jobs) == sorted(load.created.values())
    by_id = {job.id: job for job in jobs}
    assert {id: by_id[id].status for id in load.ended} == load.ended
    assert {id: by_id[id].version for id in load.edited} == load.edited
    assert load.ended
    for job in jobs:
        check_history(job, await store.history(TENANT, job.id))
    verdict = await store.audit.verify(TENANT)
    assert verdict == (len(jobs), sum(job.version for job in jobs), None)
    assert sum(sum(stats[1:10]) for stats in await store.registry.stats(TENANT)) == len(jobs)
    connection = await asyncpg.connect(owner)
    try:
        await check_postgres(connection, TENANT)
    finally:
        await connection.close()
