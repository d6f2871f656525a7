"""`interlock audit` from outside: bounded verification, and an export that is whole or not there."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from typing import Any

import pytest

from tests.cli.test_cli import CLI, cli
from tests.support.eventually import RETRY_SECONDS

__all__ = ["cli"]  # the fixture


@pytest.fixture
def ids(cli: CLI) -> list[str]:
    return [cli("jobs", "add", "t").stdout.strip() for _ in range(3)]


def test_a_verification_continues_where_the_previous_one_stopped(cli: CLI, ids: list[str]) -> None:
    first = cli.json("audit", "verify", "--limit", "2")
    assert (first["ok"], first["jobs"], first["rows"], first["first_bad"]) == (True, 2, 2, None)
    rest = cli.json("audit", "verify", "--cursor", str(first["next_cursor"]))
    assert (rest["jobs"], rest["next_cursor"]) == (1, None)
    cli("jobs", "add", "t", "--tenant", "other")
    local_principal = cli.json("audit", "verify", "--all-tenants")
    assert (
        local_principal["ok"],
        local_principal["jobs"],
        local_principal["rows"],
        local_principal["next_cursor"],
    ) == (True, 4, 4, None)
    assert cli("audit", "verify", "--all-tenants", "--limit", "2").returncode == 4
    assert cli("audit", "verify", "--limit", "0").returncode == 4


def test_an_invalid_cursor_is_rejected(cli: CLI) -> None:
    assert cli("audit", "verify", "--cursor", "nonsense").returncode == 4


def test_an_export_is_a_json_line_for_every_row(cli: CLI, ids: list[str]) -> None:
    cli("jobs", "add", "t", "--tenant", "other")
    done = cli("audit", "export")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["tenant"], row["job_id"], row["version"], row["to"]) for row in rows] == [
        ("default", id, 1, "queued") for id in ids
    ]
    assert all(len(row["hash"]) == 64 for row in rows)
    assert done.stderr == "interlock: 3 rows of 3 jobs exported\n"
    local_principal = cli("audit", "export", "--all-tenants").stdout.splitlines()
    assert [json.loads(line)["tenant"] for line in local_principal] == ["default"] * 3 + ["other"]


def test_the_log_lists_operations_of_operators_and_is_exported_after_the_histories(cli: CLI, ids: list[str]) -> None:
    assert cli("queues", "pause", "t", "--reason", "down").returncode == 0
    assert cli("queues", "resume", "t").returncode == 0
    rows: Any = cli.json("audit", "log")["items"]
    assert [(row["seq"], row["action"], row["object"]) for row in rows] == [
        (1, "queue.pause", "t"), (2, "queue.resume", "t"),
    ]  # fmt: skip
    assert cli.json("audit", "log", "--after", "1")["items"] == rows[1:]
    assert cli.json("audit", "log", "--limit", "1")["items"] == rows[:1]
    assert "queue.pause" in cli("audit", "log").stdout
    assert cli("audit", "log", "--limit", "0").returncode == 4
    lines = [json.loads(line) for line in cli("audit", "export").stdout.splitlines()]
    assert [line.get("job_id") for line in lines] == [*ids, None, None]
    assert [{"tenant": "default", **row} for row in rows] == lines[3:]
    assert cli.json("audit", "verify")["ok"] is True


@pytest.mark.parametrize("engine", ["sqlite"])
def test_an_exported_file_is_private_and_replaces_the_previous_one(cli: CLI, ids: list[str]) -> None:
    file = cli.directory / "history.jsonl"
    file.write_text("old")
    assert cli("audit", "export", "--output", str(file)).returncode == 0
    assert len(file.read_text().splitlines()) == 3
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert cli("audit", "export", "-o", str(cli.directory / "nowhere" / "x")).returncode == 4
    assert not list(cli.directory.glob("*.part"))


@pytest.mark.parametrize("engine", ["sqlite"])
def test_a_broken_pipe_is_not_an_error(cli: CLI, ids: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "interlock", "audit", "export"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=RETRY_SECONDS,
            env=os.environ | {"INTERLOCK_DATABASE": cli.database},
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
