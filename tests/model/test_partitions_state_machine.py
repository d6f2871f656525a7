"""The state machine over a database whose history is partitioned: it behaves like one where it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest
from hypothesis.stateful import run_state_machine_as_test

from interlock.storage.postgres.store import PostgresStore
from tests.model.rig import Rig, examples
from tests.model.test_state_machine import Machine
from tests.support.partitions import partitioned_database
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, ManualClock


@pytest.fixture
def rig(postgres: Postgres) -> Iterator[Rig]:
    with partitioned_database(postgres) as name, asyncio.Runner() as runner:
        admin = runner.run(asyncpg.connect(postgres.dsn(name)))
        runner.run(admin.execute(f"alter database {name} set synchronous_commit = off"))
        dsn, clock = postgres.dsn(name, user=APP_LOGIN), ManualClock()
        opened = Rig(runner, lambda: PostgresStore.open(dsn, size=1, clock=clock), clock, admin)
        try:
            yield opened
        finally:
            runner.run(opened.store.close())
            runner.run(admin.close())


def test_a_store_with_partitions_behaves_like_the_model(rig: Rig) -> None:
    run_state_machine_as_test(lambda: Machine(rig), settings=examples(15, 8, steps=rig.steps))  # type: ignore[arg-type]
