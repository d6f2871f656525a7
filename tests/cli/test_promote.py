"""`interlock promote` as a command, while a server serves the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.support.commands import run_command
from tests.support.emptied import lent_database
from tests.support.eventually import RETRY_SECONDS
from tests.support.postgres import OWNER, Postgres
from tests.support.stores import TEMPLATE


@pytest.fixture
def dsn(postgres: Postgres) -> Iterator[str]:
    with lent_database(postgres, TEMPLATE) as name:
        yield postgres.dsn(name, user=OWNER)


def run(place: Path, *arguments: str, code: int = 0) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK_")}
    done = run_command(arguments, cwd=place, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_served_file_is_promoted_and_its_server_stops_with_the_name_of_the_new_place(
    tmp_path: Path, dsn: str
) -> None:
    run(tmp_path, "migrate")
    id = run(tmp_path, "jobs", "add", "report").strip()
    source = "sqlite:///interlock.db"
    assert "1 job, " in run(tmp_path, "promote", source, dsn, "--dry-run")
    server = subprocess.Popen(
        [sys.executable, "-m", "interlock", "serve", "--port", "0"],
        cwd=tmp_path, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK_")},
    )  # fmt: skip
    try:
        assert server.stdout is not None
        served = next(line for line in server.stdout if "serves http" in line)
        address = served[served.index("http") :].split()[0]
        done = json.loads(run(tmp_path, "promote", source, dsn, "--json"))
        assert (done["state"], done["rows"]["job"], done["target"]) == ("promoted", 1, dsn)
        answer = httpx2.post(f"{address}/v1/jobs", json={"type": "report"}, timeout=RETRY_SECONDS)
        problem = answer.json()
        assert (answer.status_code, problem["code"], problem["target"]) == (503, "database_promoted", dsn)
        printed, _ = server.communicate(timeout=RETRY_SECONDS)
        assert server.returncode != 0
        assert f"was promoted to {dsn}" in printed
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
        assert server.stdout is not None
        server.stdout.close()
    assert f"was promoted to {dsn}" in run(tmp_path, "jobs", "add", "report", code=4)
    assert "queued" in run(tmp_path, "jobs", "show", id, "--database", dsn)
    assert "already" in run(tmp_path, "promote", source, dsn)
    heads = {run(tmp_path, "audit", "head", "--database", where) for where in (source, dsn)}
    assert heads == {f"{done['head']}\n"}
    refused = run(tmp_path, "promote", source, dsn, "--back-out", code=4)
    assert "irreversible" in refused


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("sqlite:///missing.db", "postgresql://nowhere/x"), 5, "does not exist"),
        (("postgresql://nowhere/x", "sqlite:///a.db"), 4, "the first URL is that of the SQLite file"),
        (("sqlite:///a.db", "sqlite:///b.db"), 4, "the second URL is that of the new database"),
        (("sqlite:///a.db", "postgresql://x@127.0.0.1:1/x"), 5, "PostgreSQL cannot be reached"),
        (("sqlite:///a.db", "postgresql://x/x", "--tenant", "one"), 4, "moves all tenants"),
        (("sqlite:///a.db", "postgresql://x/x", "--dry-run", "--back-out"), 4, "mutually exclusive"),
    ],
)
def test_a_wrong_call_is_refused_with_its_reason(
    tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    run(tmp_path, "migrate", "--database", "sqlite:///a.db")
    assert said in run(tmp_path, "promote", *arguments, code=code)
