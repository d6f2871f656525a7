"""An upgrade: the program of this tree works on databases that the previous release has made and used.

The previous release is the newest tag `v*` that this commit contains; before the first one it is this tree itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import asyncpg
import pytest

from tests.support.emptied import drop_database
from tests.support.postgres import OWNER, Postgres
from tests.support.stores import ENGINES
from tests.test_release import ROOT, build, install, lend_the_run_lock, new_environment

TASKS = """
import interlock

app = interlock.App()


@app.task
async def publish(ctx: interlock.Context, title: str) -> dict[str, object]:
    draft = await ctx.step("draft", write, title)
    answer = await ctx.approve(f"Publish {draft}?", on_deny="resume")
    return {"draft": draft, "published": answer.approved}


def write(title: str) -> str:
    return title.upper()


@app.task
async def fail() -> None:
    raise interlock.Fail("no")
"""


class Program:
    """One version of the command, on one database."""

    def __init__(self, command: list[str], database: str, place: Path) -> None:
        self._command = command
        self._place = place
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("INTERLOCK_", "PYTHON"))},
            "INTERLOCK_DATABASE": database,
            "PYTHONPATH": str(place),
        }

    def __call__(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [*self._command, *arguments], cwd=self._place, env=self._environment, capture_output=True, text=True,
            check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def json(self, *arguments: str) -> dict[str, object]:
        return dict(json.loads(self(*arguments, "--json")))


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of the previous release, from its wheel in an environment of its own."""
    place = tmp_path_factory.mktemp("previous")
    source, tag = ROOT, git("describe", "--tags", "--abbrev=0", "--match", "v*")
    if tag:
        source = place / "source"
        git("archive", "--format=tar", "-o", str(place / "source.tar"), tag)
        with tarfile.open(place / "source.tar") as archive:
            archive.extractall(source, filter="data")
    wheel, _ = build(source, place / "dist")
    programs = new_environment(place / "venv")
    if tag:
        install(programs, f"{wheel}[all]")
    else:
        lend_the_run_lock(programs)
        install(programs, "--no-deps", "--no-index", str(wheel))
    return [str(programs / "interlock")]


@contextmanager
def database(engine: str, place: Path, postgres: Postgres) -> Iterator[str]:
    """The URL of a database that nobody has used."""
    if engine == "sqlite":
        yield f"sqlite:///{place}/jobs.db"
        return
    name = f"interlock_upgrade_{os.getpid()}"
    asyncio.run(execute(postgres.dsn(), f"create database {name} owner {OWNER}"))
    try:
        yield postgres.dsn(name, user=OWNER)
    finally:
        asyncio.run(drop_database(postgres, name))


async def execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def add_migration(url: str) -> None:
    """Record a migration that no version of this program knows, as a newer version would have."""
    columns = "insert into {} values (99, '0099_newer', 'unknown', {})"
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.execute(columns.format("schema_migration", 0))
        connection.close()
    else:
        asyncio.run(execute(url, columns.format("interlock.schema_migration", "now()")))


@pytest.mark.parametrize("engine", ENGINES)
def test_jobs_of_the_previous_release_go_on_after_an_upgrade(
    engine: str, previous: list[str], tmp_path: Path, postgres: Postgres
) -> None:
    (tmp_path / "letters.py").write_text(TASKS)
    with database(engine, tmp_path, postgres) as url:
        old = Program(previous, url, tmp_path)
        new = Program([sys.executable, "-m", "interlock"], url, tmp_path)

        assert "0001_schema" in old("migrate")
        waiting = old("jobs", "add", "publish", '{"title": "tides"}').strip()
        failing = old("jobs", "add", "fail").strip()
        old("worker", "letters:app", "--drain")
        later = old("jobs", "add", "publish", '{"title": "wind"}', "--key", "once").strip()
        assert old.json("jobs", "show", waiting)["status"] == "waiting_for_approval"

        applied = new.json("migrate")["applied"]
        assert isinstance(applied, list)
        assert new("migrate").strip() == "nothing to apply, the schema is up to date"
        assert new("doctor")
        assert new.json("audit", "verify")["ok"] is True
        assert new("jobs", "add", "publish", '{"title": "wind"}', "--key", "once").split()[0] == later
        assert new.json("jobs", "show", failing)["status"] == "failed"
        new("jobs", "redrive", failing)
        items = new.json("approvals", "list")["items"]
        assert isinstance(items, list)
        new("approvals", "approve", items[0]["id"])
        new("worker", "letters:app", "--drain")
        job = new.json("jobs", "show", waiting)
        assert (job["status"], job["result"]) == ("succeeded", {"draft": "TIDES", "published": True})
        assert new.json("jobs", "show", later)["status"] == "waiting_for_approval"
        assert new.json("audit", "verify")["ok"] is True


@pytest.mark.parametrize("engine", ENGINES)
def test_a_database_of_a_newer_release_is_refused(engine: str, tmp_path: Path, postgres: Postgres) -> None:
    with database(engine, tmp_path, postgres) as url:
        program = Program([sys.executable, "-m", "interlock"], url, tmp_path)
        program("migrate")
        add_migration(url)
        for command in (("migrate",), ("jobs", "list"), ("serve", "--port", "0")):
            refused = program(*command, code=1)
            assert "was migrated by a newer version of Interlock (migration 99)" in refused
            assert "install that version" in refused
