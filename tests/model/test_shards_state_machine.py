"""The state machine over two shards: for any calls in any order, a sharded store responds as the model does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import asyncpg
import pytest
from hypothesis.stateful import run_state_machine_as_test

from interlock.domain.shards import first_shard
from interlock.storage.shards.factory import open_sharded_store
from tests.model.rig import Rig, examples
from tests.model.test_state_machine import Machine
from tests.support.invariants import check_postgres
from tests.support.postgres import Postgres
from tests.support.shards import SHARDS, copied_shards
from tests.support.stores import APP_LOGIN, ManualClock

Admins = Mapping[str, "asyncpg.Connection[asyncpg.Record]"]


class ShardsRig(Rig):
    """A router over two databases; about half of the examples live on either."""

    def __init__(self, runner: asyncio.Runner, addresses: Mapping[str, str], admins: Admins) -> None:
        self._admins = admins
        self.homes: Counter[str] = Counter()
        clock = ManualClock()
        super().__init__(runner, lambda: open_sharded_store(addresses, size=1, clock=clock), clock, admins[SHARDS[0]])

    def check_invariants(self, tenant: str) -> None:
        home = first_shard(tenant, SHARDS)
        self.homes[home] += 1
        self.run(check_postgres(self._admins[home], tenant))


@contextmanager
def shards_rig(postgres: Postgres, runner: asyncio.Runner) -> Iterator[ShardsRig]:
    with copied_shards(postgres) as databases:
        owners = {name: postgres.dsn(database) for name, database in databases.items()}
        addresses = {name: postgres.dsn(database, user=APP_LOGIN) for name, database in databases.items()}
        admins = {name: runner.run(asyncpg.connect(owner)) for name, owner in owners.items()}
        for name, admin in admins.items():
            runner.run(admin.execute(f"alter database {databases[name]} set synchronous_commit = off"))
        rig = ShardsRig(runner, addresses, admins)
        try:
            yield rig
        finally:
            runner.run(rig.store.close())
            for admin in admins.values():
                runner.run(admin.close())


@pytest.fixture
def rig(postgres: Postgres) -> Iterator[ShardsRig]:
    with asyncio.Runner() as runner, shards_rig(postgres, runner) as opened:
        yield opened


def test_a_router_over_two_shards_behaves_like_the_model(rig: ShardsRig) -> None:
    run_state_machine_as_test(lambda: Machine(rig), settings=examples(60, 10, steps=rig.steps))  # type: ignore[arg-type]
    assert set(rig.homes) == set(SHARDS)
