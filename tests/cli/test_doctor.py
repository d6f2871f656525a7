"""`interlock doctor`: it finds what is wrong, and says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import asyncpg
import pytest

from interlock.cli.doctor import faults
from tests.cli.test_cli import CLI, cli
from tests.support.postgres import Postgres

__all__ = ["cli"]  # the fixture


def test_doctor_tells_of_rights_schema_and_clock(cli: CLI) -> None:
    told = cli.json("doctor")
    assert (told["wrong"], told["notes"]) == ([], [])
    assert float(str(told["clock_skew_seconds"])) < 5
    if "sqlite" in cli.database:
        assert told["permissions"] == "0600"
    else:
        assert (told["rights"], told["row_security"], told["history"]) == ("app", "forced", "append-only")


@pytest.mark.parametrize("engine", ["sqlite"])
def test_a_file_that_others_can_read_is_wrong(cli: CLI) -> None:
    cli("jobs", "add", "t")
    Path(cli.database.removeprefix("sqlite:///")).chmod(0o644)
    done = cli("doctor", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["wrong"] == [
        "permissions is 0644, not 0600: others can read payloads and hashes of tokens; chmod 600 the file"
    ]
    assert "WRONG: permissions is 0644" in cli("doctor").stdout


@pytest.mark.parametrize("engine", ["postgres"])
async def test_a_table_without_forced_row_security_and_a_writable_history_are_wrong(
    cli: CLI, postgres: Postgres
) -> None:
    name = cli.database.partition("?")[0].rpartition("/")[2]
    admin = await asyncpg.connect(postgres.dsn(name))
    try:
        await admin.execute("alter table interlock.job no force row level security")
        await admin.execute("grant update on interlock.job_history to interlock_app")
    finally:
        await admin.close()
    done = cli("doctor", "--json")
    assert done.returncode == 1
    wrong = json.loads(done.stdout)["wrong"]
    assert [fault.partition(",")[0] for fault in wrong] == [
        "row_security is not forced on job",
        "history is writable by the app role",
    ]


@pytest.mark.parametrize("engine", ["postgres"])
def test_a_login_with_more_rights_than_it_needs_is_noted(cli: CLI, postgres: Postgres) -> None:
    name = cli.database.partition("?")[0].rpartition("/")[2]
    told = cli.json("doctor", "--database", postgres.dsn(name))
    assert (told["rights"], told["wrong"]) == ("superuser", [])
    assert "interlock_app and no more" in str(told["notes"])


def test_a_clock_that_differs_is_wrong() -> None:
    assert faults({"clock_skew_seconds": "0.020"}) == []
    (fault,) = faults({"clock_skew_seconds": "7.000"})
    assert "differs from this machine's by 7.000 s" in fault
