"""`interlock doctor`: it finds what is wrong, and names the next step."""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import asyncpg
import pytest

from interlock.cli.doctor import faults
from tests.cli.test_cli import CLI, cli
from tests.support.postgres import OWNER, Postgres

__all__ = ["cli"]  # the fixture


def test_doctor_reports_privileges_schema_and_clock(cli: CLI) -> None:
    reported = cli.json("doctor")
    assert (reported["wrong"], reported["notes"]) == ([], [])
    assert float(str(reported["clock_skew_seconds"])) < 5
    if "sqlite" in cli.database:
        assert reported["permissions"] == "0600"
    else:
        assert (reported["rights"], reported["row_security"], reported["history"]) == ("app", "forced", "append-only")


@pytest.mark.parametrize("engine", ["sqlite"])
def test_a_file_readable_by_others_is_an_error(cli: CLI) -> None:
    cli("jobs", "add", "t")
    Path(cli.database.removeprefix("sqlite:///")).chmod(0o644)
    done = cli("doctor", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["wrong"] == [
        "permissions is 0644, not 0600: others can read payloads and hashes of tokens; chmod 600 the file"
    ]
    assert "error: permissions is 0644" in cli("doctor").stdout


@pytest.mark.parametrize("engine", ["postgres"])
async def test_a_table_without_forced_row_security_and_a_writable_history_are_errors(
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
@pytest.mark.parametrize(("login", "rights"), [(None, "superuser"), (OWNER, "owner")])
def test_a_login_with_excess_privileges_is_noted(cli: CLI, postgres: Postgres, login: str | None, rights: str) -> None:
    name = cli.database.partition("?")[0].rpartition("/")[2]
    reported = cli.json("doctor", "--database", postgres.dsn(name, user=login))
    assert (reported["rights"], reported["wrong"]) == (rights, [])
    assert "only the role interlock_app" in str(reported["notes"])


# What is changed by hand, and what the rehearsal meets.
SPOILT = {
    "a right": ("revoke insert on interlock.job from interlock_verbs", "enqueue: permission denied for table job"),
    "a function": (
        "revoke execute on function interlock.ensure_agent from interlock_app",
        "a limited agent: permission denied for function ensure_agent",
    ),
    "a policy": (
        "create policy lock_only on interlock.ready as restrictive for update to interlock_app "
        "using (true) with check (false)",
        'new row violates row-level security policy "lock_only" for table "ready"',
    ),
    "a trigger": (
        "CREATE TRIGGER stop BEFORE UPDATE OF priority ON job BEGIN SELECT RAISE(ABORT, 'no edits here'); END",
        "edit: no edits here",
    ),
}


async def by_hand(cli: CLI, postgres: Postgres, *statements: str) -> None:
    """As a user with all rights."""
    if cli.database.startswith("sqlite"):
        db = apsw.Connection(cli.database.removeprefix("sqlite:///"))
        for statement in statements:
            db.execute(statement)
        db.close()
        return
    admin = await asyncpg.connect(postgres.dsn(cli.database.partition("?")[0].rpartition("/")[2]))
    try:
        for statement in statements:
            await admin.execute(statement)
    finally:
        await admin.close()


@pytest.mark.parametrize(
    ("engine", "what"),
    [("postgres", "a right"), ("postgres", "a function"), ("postgres", "a policy"), ("sqlite", "a trigger")],
)
async def test_a_fault_that_blocks_all_jobs_fails_the_rehearsal(cli: CLI, postgres: Postgres, what: str) -> None:
    assert cli.json("doctor")["rehearsal"] == "ok"
    statement, reported = SPOILT[what]
    await by_hand(cli, postgres, statement)
    done = cli("doctor", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, reported in answer["rehearsal"]) == (1, True), answer["rehearsal"]
    (wrong,) = answer["wrong"]
    assert "jobs cannot run; undo manual changes to the database" in wrong
    assert "error: rehearsal is " in cli("doctor").stdout


async def test_an_invalid_row_is_named_and_repaired(cli: CLI, postgres: Postgres) -> None:
    id, other = (cli("jobs", "add", "t").stdout.strip() for _ in range(2))
    if cli.database.startswith("sqlite"):
        await by_hand(
            cli,
            postgres,
            "PRAGMA ignore_check_constraints = ON",
            *(f"DROP TRIGGER {name}" for name in ("rules_of_change", "history_of_change")),
            f"UPDATE job SET attempt = 7, max_attempts = 5 WHERE id = '{id}'",
            *(trigger_text(cli, name) for name in ("rules_of_change", "history_of_change")),
        )
    else:
        await by_hand(
            cli,
            postgres,
            "set session_replication_role = replica",
            "alter table interlock.job drop constraint attempt_within_max",
            f"update interlock.job set attempt = 7, max_attempts = 5 where id = '{id}'",
            "alter table interlock.job add constraint attempt_within_max "
            "check (attempt between 1 and max_attempts and max_attempts <= 100) not valid",
        )
    found = cli("doctor")
    named = f"{id} of tenant default violates attempt_within_max: its attempt is between 1 and max_attempts"
    assert (found.returncode, f"error: {named}" in found.stdout, "doctor --repair" in found.stdout) == (1, True, True)
    repaired = cli("doctor", "--repair")
    assert (repaired.returncode, f"repaired: {named}" in repaired.stdout) == (0, True), repaired.stdout
    assert "all checks passed" in cli("doctor").stdout
    assert (cli.json("jobs", "show", id)["status"], cli.json("jobs", "show", other)["status"]) == (
        "cancelled",
        "queued",
    )
    assert json.loads(cli("audit", "verify", "--json").stdout)["ok"] is True


def trigger_text(cli: CLI, name: str) -> str:
    """The statement that makes a trigger of a SQLite file."""
    db = apsw.Connection(cli.database.removeprefix("sqlite:///"))
    ((text,),) = db.execute("SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = ?", (name,))
    db.close()
    return str(text)


def test_a_wrong_clock_is_an_error() -> None:
    assert faults({"clock_skew_seconds": "0.020"}) == []
    (fault,) = faults({"clock_skew_seconds": "7.000"})
    assert "off by 7.000 s from this machine's" in fault
