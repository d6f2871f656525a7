"""REPLACE deletes a row without firing the triggers that refuse a deletion: on SQLite no row that is kept goes that way either."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from interlock.domain.token import NewToken
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.store import SQLiteStore
from tests.contract.approvals import command, created_link, decided, waiting
from tests.contract.builders import OPERATOR, TenantQueue, complete, new_id, save
from tests.contract.progress import append_events, event, keep, report, step
from tests.contract.test_prune import prune
from tests.support.stores import ManualClock, migrated_file

FUNCTION = "only_interlock_may_change_jobs"
# What a tool reads that has our functions, and whether one that has none reads the same.
KEPT = {
    "job": ("interlock: (a job is not replaced|a new job is queued)", False),
    "job_body": ("payload above all, never changes", False),
    "job_history": ("history is append-only", False),
    "job_result": ("what a job ended with never changes", False),
    "job_step": ("a step is (kept as it was first saved|saved under the lease)", False),
    "job_event": ("events are append-only", True),
    "approval": ("(an approval is not replaced|decided once|never changes)", False),
    "approval_vote": ("a vote never changes", False),
    "prune": ("prune records are permanent", True),
    "token": ("a token never changes", False),
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with rows in every table that keeps what it has."""
    path = Path(migrated_file(tmp_path_factory.mktemp("replacing") / "jobs.db"))

    async def fill() -> None:
        clock = ManualClock()
        store = await SQLiteStore.open(str(path), clock=clock)
        queue = TenantQueue(store, "t", clock)
        await queue.do(complete(await queue.running()))
        clock.advance(10)
        await prune(queue, cutoff=clock.now)
        _, approval = await waiting(queue, job=await queue.running(idempotency_key="k", body_sha256=b"x" * 32))
        await created_link(queue, approval, "link")
        await decided(queue, command(approval))
        (job,) = await queue.claim()
        await keep(queue, step(job))
        await append_events(queue, report(job, event()))
        await queue.store.checkpoint("t", [save(job, 1)])
        await queue.do(complete(job, result='"kept"'))
        await queue.add()
        await store.tokens.create(
            "t", [NewToken(id=new_id(), hash=b"x" * 32, roles=("read",), created_by=OPERATOR, key="k")]
        )
        await store.close()

    asyncio.run(fill())
    return path.read_bytes()


@pytest.fixture(params=["functions", "plain", "sqlite3"])
def tool(request: pytest.FixtureRequest, filled: bytes, tmp_path: Path) -> Iterator[Tool]:
    path = tmp_path / "jobs.db"
    path.write_bytes(filled)
    path.chmod(0o600)
    tool = Tool(request.param, str(path))
    yield tool
    tool.close()


class Tool:
    """A connection outside the operations: with our functions, or without."""

    def __init__(self, name: str, path: str) -> None:
        self.has_functions = name == "functions"
        self._ours = Connection(path, clock=ManualClock()) if self.has_functions else None
        opened = self._ours.db if self._ours else apsw.Connection(path) if name == "plain" else None
        self._db: Any = opened or sqlite3.connect(path, isolation_level=None)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._db.execute(sql)]

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        tables = self.rows("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
        return {name: self.rows(f"SELECT * FROM {name}") for (name,) in tables}

    def columns(self, table: str) -> list[str]:
        return [row[1] for row in self.rows(f"PRAGMA table_info({table})")]

    def rejection(self, sql: str) -> str:
        before = self.everything()
        with pytest.raises((apsw.Error, sqlite3.Error)) as caught:
            self.rows(sql)
        assert self.everything() == before
        return str(caught.value)

    def close(self) -> None:
        (self._ours or self._db).close()


def keys(tool: Tool, table: str) -> list[list[str]]:
    """The columns of every unique key of a table."""
    unique = [row[1] for row in tool.rows(f"PRAGMA index_list({table})") if row[2]]
    return [[row[2] for row in tool.rows(f"PRAGMA index_info({name})")] for name in unique]


def other(column: str) -> str:
    """A value that passes every CHECK and conflicts with no row."""
    values = {
        "id": f"'{new_id()}'", "seq": "seq + 1000", "hash": "zeroblob(32)", "fence": "fence + 1000", "at": "at + 1000",
        "voter": "'user:nobody'", "occurrence": "occurrence + 1000", "name": "'other'", "version": "version + 1000",
    }  # fmt: skip
    return values.get(column, column)


@pytest.mark.parametrize("table", KEPT)
def test_a_row_cannot_be_replaced_through_any_of_its_keys(tool: Tool, table: str) -> None:
    given, local_principal = KEPT[table]
    columns = tool.columns(table)
    assert tool.rows(f"SELECT 1 FROM {table}")
    for key in keys(tool, table):
        values = [name if name in key else other(name) for name in columns]
        rows = f"INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} FROM {table}"
        for form in ("REPLACE", "INSERT OR REPLACE"):
            message = tool.rejection(f"{form} {rows}")
            assert_rejected_with(given if tool.has_functions or local_principal else FUNCTION, message, (form, key))


@pytest.mark.parametrize("table", KEPT)
def test_a_row_cannot_be_replaced_by_an_update_or_an_upsert(tool: Tool, table: str) -> None:
    columns = tool.columns(table)
    for statement in (
        *(f"UPDATE OR REPLACE {table} SET {name} = {other(name)}" for name in columns if other(name) != name),
        f"INSERT INTO {table} SELECT * FROM {table} WHERE true ON CONFLICT DO UPDATE SET tenant = 'other'",
    ):
        assert_rejected_with(f"interlock|a token never changes|{FUNCTION}", tool.rejection(statement), statement)


@pytest.mark.parametrize("name", ["rowid", "oid", "_rowid_"])
def test_a_job_cannot_be_replaced_through_its_row_id(tool: Tool, name: str) -> None:
    given = "never changes|not replaced|written before" if tool.has_functions else FUNCTION
    move = (
        f"UPDATE OR REPLACE job SET {name} = (SELECT min({name}) FROM job) WHERE {name} = (SELECT max({name}) FROM job)"
    )
    assert_rejected_with(given, tool.rejection(move), move)
    columns = [column for column in tool.columns("job") if column not in ("id", "seq")]
    shared = ", ".join(columns)
    creation = (
        f"INSERT OR REPLACE INTO job ({name}, id, seq, {shared}) "
        f"SELECT {name}, '{new_id()}', seq + 1, {shared} FROM job WHERE status = 'queued'"
    )
    assert tool.rows("SELECT 1 FROM job WHERE status = 'queued'")
    assert_rejected_with(given, tool.rejection(creation), creation)


def test_history_cannot_be_rewritten_with_valid_hashes(tool: Tool) -> None:
    columns = tool.columns("job_history")
    values = ["'user:mallory'" if name == "actor" else name for name in columns]
    values[columns.index("hash")] = (
        "interlock_history_hash((SELECT p.hash FROM job_history p WHERE p.tenant = h.tenant AND p.seq = h.seq "
        "AND p.version = h.version - 1), tenant, (SELECT id FROM job j WHERE j.seq = h.seq), version, from_status, "
        "to_status, verb, 'user:mallory', attempt, fence, reason, metadata, at)"
    )
    newest = "version = (SELECT version FROM job j WHERE j.tenant = h.tenant AND j.seq = h.seq)"
    select = f"SELECT {', '.join(values)} FROM job_history h WHERE {newest}"
    message = tool.rejection(f"REPLACE INTO job_history {select}")
    assert_rejected_with("history is append-only" if tool.has_functions else "no such function", message, "newest rows")


def assert_rejected_with(pattern: str, message: str, what: object) -> None:
    """The message fits, and if not it is shown with what was tried."""
    assert re.search(pattern, message), (what, message)
