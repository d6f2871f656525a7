"""Other versions of Interlock: databases that they migrate themselves, and how their processes are started."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import asyncpg

from bench.plan import BenchFailed
from tests.support.postgres import OWNER, Postgres

_numbers = count(1)


def variables(before: Path | None) -> dict[str, str]:
    """The environment of a process that runs Interlock as it is here, or as in the checkout of another version."""
    return {} if before is None else {"PYTHONPATH": str(before.resolve() / "src")}


@asynccontextmanager
async def empty_database(server: Postgres) -> AsyncIterator[str]:
    """The name of a new database without a schema, dropped afterwards."""
    name = f"interlock_bench_{os.getpid()}_{next(_numbers)}"
    await as_admin(server, f"create database {name} owner {OWNER}")
    try:
        yield name
    finally:
        await as_admin(server, f"drop database {name} with (force)")


@asynccontextmanager
async def migrated_database(server: Postgres, environment: Mapping[str, str]) -> AsyncIterator[str]:
    """The name of a new database, migrated by the version that the environment selects."""
    async with empty_database(server) as name:
        command = [sys.executable, "-m", "interlock", "migrate", "--database", server.dsn(name, user=OWNER)]
        ran = await asyncio.to_thread(
            subprocess.run, command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
        )
        if ran.returncode:
            raise BenchFailed(ran.stderr[-2000:])
        yield name


async def as_admin(server: Postgres, statement: str, database: str = "postgres") -> None:
    connection = await asyncpg.connect(server.dsn(database))
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
