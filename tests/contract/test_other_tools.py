"""A SQLite file in another tool: Python's own sqlite3 module, in the installed version."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from interlock.domain.policy import ClaimFilter
from interlock.errors import SchemaMismatch
from interlock.storage.sqlite.store import SQLiteStore
from tests.contract.builders import new_job

NAME = "only_interlock_may_change_jobs"


@pytest.fixture
def tool(tmp_path: Path) -> sqlite3.Connection:
    """A plain connection to a file with one running and one queued job."""
    path = str(tmp_path / "jobs.db")

    async def fill() -> None:
        store = await SQLiteStore.open(path)
        await store.enqueue("t", [new_job(), new_job()])
        await store.claim("t", ClaimFilter("w"))
        await store.close()

    asyncio.run(fill())
    return sqlite3.connect(path)


def test_a_file_of_another_program_with_a_table_called_job_is_rejected_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    theirs = sqlite3.connect(path)
    theirs.execute("CREATE TABLE job (name TEXT)")
    path.chmod(0o600)
    with pytest.raises(SchemaMismatch, match="another application"):
        asyncio.run(SQLiteStore.open(str(path)))
    assert list(theirs.iterdump()) == ["BEGIN TRANSACTION;", "CREATE TABLE job (name TEXT);", "COMMIT;"]
    theirs.close()


def test_another_tool_can_read_every_table_and_view(tool: sqlite3.Connection) -> None:
    names = [name for (name,) in tool.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
    assert {"job", "job_body", "job_history", "job_view"} <= set(names)
    for name in names:
        tool.execute(f"SELECT * FROM {name}").fetchall()
    assert [status for (status,) in tool.execute("SELECT status FROM job_view ORDER BY seq")] == ["running", "queued"]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE job SET status = 'succeeded'", NAME),
        ("UPDATE job SET status = 'cancelled', version = version + 1, finished_at = 1", NAME),
        ("UPDATE job SET priority = 5", NAME),
        ("UPDATE job_body SET payload = '1'", "payload above all, never changes"),
        ("UPDATE job_history SET actor = 'user:mallory'", "append-only"),
        ("DELETE FROM job_history", "append-only"),
        ("DELETE FROM job", NAME),
        ("DELETE FROM job_body", "goes only with the job"),
    ],
)
def test_another_tool_is_rejected_with_a_clear_message_and_nothing_changes(
    tool: sqlite3.Connection, statement: str, message: str
) -> None:
    before = "\n".join(tool.iterdump())
    with pytest.raises(sqlite3.Error, match=message):
        tool.execute(statement)
    tool.rollback()
    assert "\n".join(tool.iterdump()) == before
