"""The PostgreSQL that other tests rely on is real, durable, and gone afterwards."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.support import postgres as support
from tests.support.eventually import RETRY_SECONDS
from tests.support.postgres import GivenPostgres, PostgresMissing, PostgresServer

ROOT = Path(__file__).parents[1]

# Starts a server that it never stops, reports its address, and waits to be killed.
ABANDON = """
import sys
from tests.support.postgres import PostgresServer
server = PostgresServer()
server.start()
print(server.pid, server.home, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


async def ask(server: PostgresServer, query: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(server.dsn(), timeout=RETRY_SECONDS)
    try:
        return await connection.fetch(query)
    finally:
        await connection.close()


async def value(server: PostgresServer, query: str) -> object:
    return (await ask(server, query))[0][0]


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_the_test_server_responds_and_is_durable_by_default(server: PostgresServer) -> None:
    assert await value(server, "select 1") == 1
    assert int(str(await value(server, "show server_version_num"))) >= support.OLDEST * 10000
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        assert await value(server, f"show {setting}") == "on"


async def test_committed_rows_survive_a_kill(server: PostgresServer) -> None:
    await ask(server, "create table kept as select 42 as answer")
    address, killed = server.dsn(), server.pid
    server.kill()
    assert not exists(killed)
    server.start()
    assert (server.dsn(), server.pid != killed) == (address, True)
    assert await value(server, "select answer from kept") == 42


async def test_stopping_leaves_no_process_and_closing_no_file() -> None:
    server = PostgresServer()
    server.start()
    home = server.home
    assert home is not None
    pids = {server.pid, *(row["pid"] for row in await ask(server, "select pid from pg_stat_activity"))}
    assert len(pids) > 3
    server.stop()
    assert [pid for pid in pids if exists(pid)] == []
    assert home.exists()
    server.close()
    assert not home.exists()


if sys.platform == "linux":  # elsewhere a child is not notified that its parent died

    def test_the_test_server_stops_when_the_test_process_is_killed() -> None:
        with subprocess.Popen(
            [sys.executable, "-c", ABANDON],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as owner:
            assert owner.stdout is not None
            pid, home = owner.stdout.readline().split()
            postmaster = os.pidfd_open(int(pid))
            try:
                owner.send_signal(signal.SIGKILL)
                assert select.select([postmaster], [], [], RETRY_SECONDS)[0], "the server outlived its test process"
            finally:
                os.close(postmaster)
                shutil.rmtree(home)


def test_the_programs_of_another_version_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual = support.find_binaries()
    monkeypatch.setenv(support.GIVEN_BINARIES, str(usual))
    assert support.find_binaries() == usual
    monkeypatch.setenv(support.GIVEN_BINARIES, str(tmp_path))
    with pytest.raises(PostgresMissing, match="expected a directory of PostgreSQL 15 or newer"):
        support.find_binaries()


def test_a_machine_without_postgresql_gets_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "find_spec", lambda name: None)
    monkeypatch.setattr(support, "_complete", lambda place: False)
    with pytest.raises(PostgresMissing, match="INTERLOCK_TEST_POSTGRES"):
        support.find_binaries()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            "postgresql://root:s%40cret@db:5433/x?ssl=require",
            "postgresql://root:s%40cret@db:5433/t?ssl=require",
        ),
        ("postgresql://localhost", "postgresql://localhost/t"),
    ],
)
def test_a_given_server_is_addressed_as_its_superuser(given: str, expected: str) -> None:
    assert GivenPostgres(given).dsn("t") == expected


def test_a_given_server_is_addressed_as_another_role() -> None:
    given = GivenPostgres("postgresql://root:secret@db:5433/x")
    assert given.dsn("t", "app", "p/w") == "postgresql://app:p%2Fw@db:5433/t"
