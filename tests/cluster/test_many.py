"""Many servers and many workers on one database, killed at random: nothing is lost and nothing is finished twice."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

from interlock.storage.postgres.store import PostgresStore
from tests.cluster.deployment import TENANT, Program, plant
from tests.support.forms import chance
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, fresh_database

Property = Callable[[str, object], None]
KILLS = 10 if os.environ.get("INTERLOCK_TEST_LONG") else 4


async def test_three_servers_and_four_workers_killed_at_random_lose_nothing_and_finish_nothing_twice(
    postgres: Postgres, tmp_path: Path, record_property: Property
) -> None:
    dice = chance()
    killed: list[str] = []
    async with fresh_database(postgres) as name:
        dsn = postgres.dsn(name, user=APP_LOGIN)
        with plant(tmp_path, dsn) as works:
            urls = [works.add_server(f"server-{number}") for number in range(3)]
            for number, url in enumerate((urls[0], urls[1], dsn, dsn)):
                works.add_worker(f"worker-{number}", url)
            await works.until_ready(*urls)
            for url in (*urls, dsn):
                works.produce(url)
            await works.all_make_progress()
            for program in dealt(dice, works.programs):
                await asyncio.sleep(dice.uniform(0, 0.5))  # a random moment, not a wait
                program.end()
                killed.append(program.name)
                program.start()
            await works.until_ready(*urls)
            await works.all_make_progress()
            await works.wind_up()
            store = await PostgresStore.open(dsn)
            try:
                jobs = await works.compare(store)
                verdict = await store.audit.verify(TENANT)
                assert (verdict.jobs, verdict.first_bad) == (jobs, None)
            finally:
                await store.close()
    line = f"{jobs} jobs by three servers and four workers, of which {', '.join(killed)} were killed one after another"
    print(line)
    record_property("many", line)


def dealt(dice: random.Random, programs: list[Program]) -> list[Program]:
    """In random order, and each one once per pass."""
    order: list[Program] = []
    while len(order) < KILLS:
        order += dice.sample(programs, len(programs))
    return order[:KILLS]
