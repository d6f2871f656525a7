"""One store per engine for thousands of short examples: each gets its own tenant, not a database."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import asyncpg
from hypothesis import HealthCheck, settings

from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from tests.support.invariants import check_postgres, check_sqlite
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, ManualClock, fresh_database

T = TypeVar("T")
Opener = Callable[[], Coroutine[Any, Any, Store]]
FAST: Final = not os.environ.get("INTERLOCK_TEST_LONG")
MEMORY_DISK: Final = Path("/dev/shm")  # these tests are about rules, not about disks
_numbers = itertools.count(1)


class Rig:
    """A store with a clock that is moved by hand, and the loop it lives on."""

    def __init__(self, runner: asyncio.Runner, open: Opener, clock: ManualClock, truth: Path | asyncpg.Connection[Any]):
        self._runner = runner
        self._open = open
        self.store = self.run(open())
        self.clock = clock
        self._truth = truth
        self.seen: Counter[str] = Counter()
        # Where every call crosses a wire there is time for a little less.
        self.steps, self.look_every = (30, 1) if isinstance(truth, Path) else (25, 3)

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        # Not runner.run(), which sets and resets the handler of Ctrl-C each time, and that takes longer than most calls.
        return self._runner.get_loop().run_until_complete(call)

    def restart(self) -> None:
        """As a process that ends and comes back: all that is left is what was stored."""
        self.run(self.store.close())
        self.store = self.run(self._open())

    def check_invariants(self, tenant: str) -> None:
        if isinstance(self._truth, Path):
            check_sqlite(self._truth, tenant)
        else:
            self.run(check_postgres(self._truth, tenant))

    @staticmethod
    def new_tenant() -> str:
        return f"tenant {next(_numbers)}"


@contextmanager
def open_rig(engine: str, postgres: Postgres, runner: asyncio.Runner, clock: ManualClock) -> Iterator[Rig]:
    with sqlite_rig(runner, clock) if engine == "sqlite" else postgres_rig(postgres, runner, clock) as rig:
        yield rig


@contextmanager
def sqlite_rig(runner: asyncio.Runner, clock: ManualClock) -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None) as directory:
        path = Path(directory) / "model.db"
        rig = Rig(runner, lambda: SQLiteStore.open(str(path), clock=clock), clock, path)
        try:
            yield rig
        finally:
            runner.run(rig.store.close())


@contextmanager
def postgres_rig(postgres: Postgres, runner: asyncio.Runner, clock: ManualClock) -> Iterator[Rig]:
    database = fresh_database(postgres)
    name = runner.run(database.__aenter__())
    try:
        admin = runner.run(asyncpg.connect(postgres.dsn(name)))
        runner.run(admin.execute(f"alter database {name} set synchronous_commit = off"))
        dsn = postgres.dsn(name, user=APP_LOGIN)
        rig = Rig(runner, lambda: PostgresStore.open(dsn, size=1, clock=clock), clock, admin)
        try:
            yield rig
        finally:
            runner.run(rig.store.close())
            runner.run(admin.close())
    finally:
        runner.run(database.__aexit__(None, None, None))


def examples(many: int, few: int, *, steps: int = 30) -> settings:
    return settings(
        max_examples=few if FAST else many,
        stateful_step_count=steps,
        deadline=None,
        derandomize=FAST,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
