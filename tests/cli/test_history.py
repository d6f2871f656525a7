"""`interlock history` from outside: the tables of history, and how they become partitions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.test_cli import CLI
from tests.support.postgres import OWNER, Postgres
from tests.support.stores import APP_LOGIN, fresh_database


@pytest.fixture
async def database(postgres: Postgres) -> AsyncIterator[str]:
    async with fresh_database(postgres) as name:
        yield name


def test_history_is_partitioned_and_its_tables_are_listed(postgres: Postgres, database: str, tmp_path: Path) -> None:
    cli = CLI(postgres.dsn(database, user=OWNER), tmp_path)
    job = cli("jobs", "add", "early").stdout.strip()
    (table,) = json.loads(cli("history", "list", "--json").stdout)["items"]
    assert (table["name"], table["first"], table["before"], table["state"]) == ("job_history", None, None, "in use")

    refused = CLI(postgres.dsn(database, user=APP_LOGIN), tmp_path)("history", "partition", "--days", "7")
    assert (refused.returncode, "connect with the owner's database URL" in refused.stderr) == (4, True)
    for days in ("0", "0.01", "367", "-1", "nan"):
        assert cli("history", "partition", "--days", days).returncode in (2, 4), days
    assert cli("history", "partition", "--days", "7").stdout.strip() == "history is partitioned from now on"
    again = cli("history", "partition", "--days", "3")
    assert (again.returncode, again.stdout.strip()) == (0, "history was partitioned already; the width is set")

    first, *dated, other = json.loads(cli("history", "list", "--json").stdout)["items"]
    assert (first["first"], other["first"], other["before"], other["state"]) == (None, None, None, "all other ids")
    assert [one["before"] for one in (first, *dated)][:-1] == [one["first"] for one in dated]
    assert first["name"] in cli("history", "list").stdout
    assert cli("jobs", "cancel", job).returncode == 0
    assert json.loads(cli("audit", "verify", "--json").stdout)["rows"] == 2
    assert "made until" in json.loads(cli("doctor", "--json").stdout)["history_partitions"]


def test_a_file_has_no_partitions(tmp_path: Path) -> None:
    cli = CLI(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    for command in (("list",), ("partition", "--days", "7")):
        refused = cli("history", *command)
        assert (refused.returncode, "only PostgreSQL keeps history in partitions" in refused.stderr) == (4, True)
