"""The command line from outside: what it prints and how it exits."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from interlock import assemble
from interlock.domain.job import Rejected
from tests.contract.builders import TenantQueue, complete, new_job
from tests.support.commands import run_command
from tests.support.eventually import RETRY_SECONDS
from tests.support.postgres import OWNER, Postgres
from tests.support.stores import APP_LOGIN, ManualClock, empty_database, migrated_file


class CLI:
    """Runs `interlock` in a separate process."""

    def __init__(self, database: str, directory: Path) -> None:
        self.database, self.directory = database, directory

    def __call__(self, *arguments: str, stdin: str | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"INTERLOCK_DATABASE": self.database} | environ
        return run_command(arguments, cwd=self.directory, env=env, stdin=stdin)

    def json(self, *arguments: str) -> dict[str, object]:
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict)
        return answer


@pytest.fixture
async def cli(engine: str, tmp_path: Path, postgres: Postgres) -> AsyncIterator[CLI]:
    if engine == "sqlite":
        path = await asyncio.to_thread(migrated_file, tmp_path / "jobs.db")
        yield CLI(f"sqlite:///{path}", tmp_path)
    else:
        async with empty_database(postgres) as name:
            yield CLI(postgres.dsn(name, user=APP_LOGIN), tmp_path)


def test_an_enqueued_job_is_listed_and_shown(cli: CLI) -> None:
    id = cli("jobs", "add", "research", '{"topic": "tides"}', "--tag", "a", "--tag", "b").stdout.strip()
    assert id in cli("jobs", "list").stdout
    encoded = cli.json("jobs", "show", id)
    assert (encoded["type"], encoded["payload"], encoded["tags"]) == ("research", {"topic": "tides"}, ["a", "b"])
    assert (encoded["status"], encoded["location"]) == ("queued", "ready")
    history = encoded["history"]
    assert isinstance(history, list)
    assert [(row["from"], row["to"], row["actor"]) for row in history] == [(None, "queued", "user:local")]
    text = cli("jobs", "show", id).stdout
    assert "research" in text
    assert '{"topic": "tides"}' in text


def test_json_lists_omit_fields_that_were_not_read(cli: CLI) -> None:
    cli("jobs", "add", "research", '{"topic": "tides"}')
    listed = cli.json("jobs", "list")["items"]
    assert isinstance(listed, list)
    assert listed[0]["type"] == "research"
    assert not {"payload", "checkpoint", "result", "error"} & listed[0].keys()


def test_the_payload_can_be_read_from_a_file_or_standard_input(cli: CLI) -> None:
    (cli.directory / "p.json").write_text('{"from": "file"}')
    from_file = cli("jobs", "add", "t", "@p.json").stdout.strip()
    from_stdin = cli("jobs", "add", "t", "-", stdin='{"from": "stdin"}').stdout.strip()
    assert cli.json("jobs", "show", from_file)["payload"] == {"from": "file"}
    assert cli.json("jobs", "show", from_stdin)["payload"] == {"from": "stdin"}


def test_exit_codes_distinguish_errors(cli: CLI) -> None:
    assert cli("jobs", "show", "01890000-0000-7000-8000-000000000000").returncode == 3
    assert cli("jobs", "show", "nonsense").returncode == 3
    assert cli("jobs", "add", "t", "{broken").returncode == 4
    assert cli("jobs", "add", "t", "--priority", "9999").returncode == 4
    assert cli("jobs", "add", "t", "--key", "k").returncode == 0
    assert cli("jobs", "add", "t", "[1]", "--key", "k").returncode == 4
    assert cli("jobs", "list", "--limit", "0").returncode == 4
    assert cli("jobs", "add").returncode == 2
    assert cli("nonsense").returncode == 2
    assert cli("doctor", "--database", "postgresql://nobody@127.0.0.1:1/none").returncode == 5
    assert cli("doctor", "--database", "mysql://x").returncode == 4


def test_an_error_is_one_sentence_without_a_traceback(cli: CLI) -> None:
    done = cli("jobs", "add", "t", "{broken")
    assert done.stdout == ""
    assert done.stderr.startswith("interlock: payload is not JSON")
    assert "Traceback" not in done.stderr
    as_json = json.loads(cli("jobs", "add", "t", "{broken", "--json").stdout)
    assert as_json["error"]["code"] == "malformed"


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("jobs", "add"), "TYPE"),
        (("jobs", "list", "--limit", "many"), "--limit"),
        (("nonsense",), "nonsense"),
        (("jobs", "list", "--unheard"), "--unheard"),
        (("migrate", "--server", "http://127.0.0.1:1"), "use --database"),
    ],
)
def test_a_usage_error_is_json_with_json_output(tmp_path: Path, arguments: tuple[str, ...], reported: str) -> None:
    cli = CLI(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    done = cli(*arguments, "--json")
    assert (done.returncode, done.stderr) == (2, "")
    error = json.loads(done.stdout)["error"]
    assert (error["code"], reported.lower() in error["detail"].lower()) == ("usage", True), error
    for_people = cli(*arguments)
    assert (for_people.returncode, for_people.stdout, reported.lower() in for_people.stderr.lower()) == (2, "", True)


@pytest.mark.parametrize("arguments", [("--help",), ("jobs", "--help"), ("serve", "--help"), ("--version",), ("jobs",)])
def test_help_into_a_closed_pipe_exits_like_any_other_output(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "interlock", *arguments],
        stdout=writer, stderr=subprocess.PIPE, text=True, timeout=RETRY_SECONDS, cwd=tmp_path, env=os.environ,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("jobs", "add", "t", "@missing.json"), "cannot read the payload file"),
        (("jobs", "add", "t", "--agent", "nobody"), "KIND/ID"),
        (("agents", "set", "bot", "1", "--defaults", "[1]"), "must be a JSON object"),
        (("jobs", "list", "--tenant", ""), "tenant must be"),
        (("jobs", "list", "--before", f"{2**63}"), "before must be from"),
        (("jobs", "cancel", "01890000-0000-7000-8000-000000000000", "--type", "t"), "not both"),
    ],
)
def test_an_invalid_argument_is_rejected_with_a_sentence(
    tmp_path: Path, arguments: tuple[str, ...], reported: str
) -> None:
    cli = CLI(f"sqlite:///{migrated_file(tmp_path / 'jobs.db')}", tmp_path)
    done = cli(*arguments)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("interlock: ")
    assert reported in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(cli(*arguments, "--json").stdout)["error"]["code"] == "invalid"


def test_a_noun_alone_prints_its_help_and_an_unknown_subcommand_is_named(tmp_path: Path) -> None:
    cli = CLI(f"sqlite:///{migrated_file(tmp_path / 'jobs.db')}", tmp_path)
    cli("agents", "set", "bot", "1")
    assert cli.json("agents") == cli.json("agents", "list")
    done = cli("agents", "sett")
    assert done.returncode == 2
    assert "unknown command or argument 'sett'" in done.stderr


@pytest.mark.parametrize("noun", ["agents", "approvals", "queues", "subscriptions", "tokens", "types", "workers"])
def test_an_empty_list_prints_so(tmp_path: Path, noun: str) -> None:
    cli = CLI(f"sqlite:///{migrated_file(tmp_path / 'jobs.db')}", tmp_path)
    assert cli(noun).stdout == f"no {noun}\n"
    assert cli.json(noun) == {"items": []}


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs", "list"), ("jobs", "add", "t"), ("jobs", "show", "01890000-0000-7000-8000-000000000000"), ("queues",),
        ("queues", "pause", "t"), ("approvals",), ("agents", "set", "bot", "1"), ("types",), ("workers",), ("tokens",),
        ("subscriptions",), ("audit", "head"), ("audit", "verify"), ("doctor",), ("prune", "--days", "1", "--yes"),
        ("restored",), ("jobs", "tail"), ("mcp",), ("tokens", "create", "--role", "admin"), ("jobs", "why", "12345678"),
        ("jobs", "edit", "12345678", "--priority", "1"), ("audit", "log"), ("audit", "export"), ("agents",),

    ],
)  # fmt: skip
def test_a_missing_file_is_reported_and_not_created(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    cli = CLI(f"sqlite:///{tmp_path}/typo.db", tmp_path)
    done = cli(*arguments)
    assert (done.returncode, done.stdout) == (5, "")
    assert "typo.db' does not exist" in done.stderr
    assert "interlock migrate" in done.stderr
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "typo.db").touch()
    assert cli(*arguments).returncode == 5
    assert [(p.name, p.stat().st_size) for p in tmp_path.iterdir()] == [("typo.db", 0)]


def test_a_file_is_created_by_migrate(tmp_path: Path) -> None:
    cli = CLI(f"sqlite:///{tmp_path}/new.db", tmp_path)
    assert cli("migrate").returncode == 0
    assert cli("tokens", "create", "--role", "admin").returncode == 0


def test_a_type_without_a_job_or_a_registration_is_not_found(cli: CLI) -> None:
    for verb in ("pause", "resume", "show"):
        done = cli("queues", verb, "nosuch")
        assert (done.returncode, done.stdout) == (3, "")
        assert "no queue nosuch: the type is not registered and never had a job" in done.stderr
    assert cli.json("queues")["items"] == []
    cli("jobs", "add", "seen")
    cli("types", "set", "registered")
    for type in ("seen", "registered"):
        assert cli("queues", "pause", type, "--reason", "deploy").stdout == f"{type}: paused\n"
        encoded = cli.json("queues", "show", type)
        assert (encoded["type"], encoded["paused"], encoded["pause_reason"]) == (type, True, "deploy")
        assert cli("queues", "resume", type).returncode == 0
        assert "paused" in cli("queues", "show", type).stdout


def test_the_end_of_an_id_selects_a_job_in_every_command(cli: CLI) -> None:
    id = cli("jobs", "add", "t").stdout.strip()
    end = id[-8:]
    assert cli.json("jobs", "show", end)["id"] == id
    assert cli.json("jobs", "show", id[-15:].upper())["id"] == id
    child = cli.json("jobs", "add", "t", "--parent", end)
    assert child["parent_id"] == id
    listed: Any = cli.json("jobs", "list", "--parent", end)["items"]
    assert [one["id"] for one in listed] == [child["id"]]
    assert cli("jobs", "why", end).returncode == 0
    assert cli.json("jobs", "edit", end, "--priority", "5")["priority"] == 5
    assert cli("artifacts", "list", end).stdout == "no artifacts\n"
    assert cli("approvals", "list", "--job", end).stdout == "no approvals\n"
    assert cli("jobs", "cancel", end, str(child["id"])[-8:], "--yes").stdout == "2 of 2 done\n"
    assert cli("jobs", "wait", end).returncode == 6
    assert cli.json("jobs", "redrive", end)["redrive_of"] == id
    for missing in ("0" * 8, id[-7:], "nonsense"):
        done = cli("jobs", "show", missing)
        assert (done.returncode, f"no job {missing}" in done.stderr) == (3, True)


def test_an_ambiguous_end_of_an_id_is_rejected_with_all_matches(cli: CLI) -> None:
    async def two() -> tuple[str, str]:
        async with assemble.open_engine(cli.database) as engine:
            ids = ("01890000-0000-7000-8000-0000abcdef12", "01890001-0000-7000-8000-0000abcdef12")
            for id in ids:
                (reported,) = await engine.store.enqueue("default", [new_job(id=id)])
                assert not isinstance(reported, Rejected)
            return ids

    first, second = asyncio.run(two())
    done = cli("jobs", "cancel", "abcdef12")
    assert done.returncode == 4
    assert first in done.stderr
    assert second in done.stderr
    assert "give more characters" in done.stderr
    assert cli.json("jobs", "show", second)["status"] == "queued"


def test_a_waiting_job_is_edited_and_made_due(cli: CLI) -> None:
    id = cli("jobs", "add", "t", "--delay", "3600", "--tag", "a", "--deadline", "2999-01-01T00:00:00Z").stdout.strip()
    edited = cli.json("jobs", "edit", id, "--priority", "7", "--max-attempts", "9", "--tag", "b", "--no-deadline")
    assert (edited["priority"], edited["max_attempts"], edited["tags"]) == (7, 9, ["b"])
    assert (edited["deadline"], edited["location"], edited["version"]) == (None, "delayed", 2)
    assert cli.json("jobs", "edit", id, "--no-tags")["tags"] == []
    done = cli("jobs", "edit", id)
    assert (done.returncode, "nothing to change" in done.stderr) == (4, True)
    assert cli("jobs", "edit", id, "--tag", "x", "--no-tags").returncode == 4
    assert cli("jobs", "run-now", id).stdout.startswith(f"{id}: queued, due ")
    encoded: Any = cli.json("jobs", "show", id)
    assert encoded["location"] == "ready"
    assert [row["verb"] for row in encoded["history"]] == ["enqueue", "edit", "edit", "edit"]
    cli("jobs", "cancel", id)
    for verb in (("run-now", id), ("edit", id, "--priority", "1")):
        assert cli("jobs", *verb).returncode == 4


def test_text_from_jobs_never_controls_the_terminal(cli: CLI) -> None:
    id = cli("jobs", "add", "t", '"\x1b[31mred\u202e"'.replace("\x1b", "\\u001b")).stdout.strip()
    assert cli("jobs", "cancel", id, "--reason", "\u202eevil").returncode == 0
    for done in (cli("jobs", "show", id), cli("jobs", "list")):
        assert "\x1b" not in done.stdout
        assert "\u202e" not in done.stdout


def test_audit_verifies_and_prints_one_head(cli: CLI) -> None:
    cli("jobs", "add", "t")
    first = cli("audit", "head").stdout.strip()
    assert len(first) == 64
    assert cli("audit", "head").stdout.strip() == first
    assert cli("audit", "verify").stdout.strip() == "1 job, 1 row: all chains verify"
    cli("jobs", "add", "t")
    assert cli("audit", "head").stdout.strip() != first
    answer = cli.json("audit", "verify")
    assert (answer["ok"], answer["jobs"], answer["rows"]) == (True, 2, 2)


def test_audit_prints_the_head_of_all_tenants_or_of_one(cli: CLI) -> None:
    cli("jobs", "add", "t")
    alone = cli("audit", "head").stdout
    cli("jobs", "add", "t", "--tenant", "other")
    assert cli("audit", "head", "--tenant", "default").stdout == alone
    assert cli("audit", "head").stdout not in (alone, cli("audit", "head", "--tenant", "other").stdout)


def test_doctor_passes_on_a_healthy_database(cli: CLI) -> None:
    answer = cli.json("doctor")
    assert answer["wrong"] == []
    assert str(answer["schema"]).startswith("00")


def test_every_command_has_help(cli: CLI) -> None:
    commands = (
        ("jobs", "add"),
        ("jobs", "list"),
        ("jobs", "show"),
        ("audit", "verify"),
        ("audit", "head"),
        ("migrate",),
        ("doctor",),
    )
    for command in commands:
        done = cli(*command, "--help")
        assert done.returncode == 0
        assert "--database" in done.stdout
        assert "--json" in done.stdout


def test_settings_come_from_flag_then_environment_then_file(tmp_path: Path) -> None:
    cli = CLI("", tmp_path)
    (tmp_path / "interlock.toml").write_text('database = "sqlite:///from_file.db"\n')
    environ = {key: value for key, value in os.environ.items() if key != "INTERLOCK_DATABASE"}

    def run(*arguments: str, **more: str) -> None:
        run_command(("migrate", *arguments), cwd=tmp_path, env=environ | more).check_returncode()

    run()
    run(INTERLOCK_DATABASE="sqlite:///from_environ.db")
    run("--database", "sqlite:///from_flag.db", INTERLOCK_DATABASE="sqlite:///unused.db")
    assert {p.name for p in tmp_path.glob("*.db")} == {"from_file.db", "from_environ.db", "from_flag.db"}
    (tmp_path / "interlock.toml").write_text("databse = 1\n")
    assert "unknown settings: databse" in cli("migrate", INTERLOCK_DATABASE="sqlite:///x.db").stderr


async def test_migrate_upgrades_an_empty_postgres_and_prints_so(postgres: Postgres, tmp_path: Path) -> None:
    import asyncpg

    admin = await asyncpg.connect(postgres.dsn())
    name = f"interlock_cli_migrate_{os.getpid()}"
    await admin.execute(f"create database {name} owner {OWNER}")
    try:
        cli = CLI(postgres.dsn(name, user=OWNER), tmp_path)
        assert "run interlock migrate" in cli("jobs", "list").stderr
        assert "applied 0001_schema" in cli("migrate").stdout
        assert "nothing to apply" in cli("migrate").stdout
        assert cli("jobs", "add", "t").returncode == 0
    finally:
        await admin.execute(f"drop database {name} with (force)")
        await admin.close()


def test_a_schedule_is_set_listed_run_and_deleted(cli: CLI) -> None:
    options = ("--cron", "0 7 * * *", "--timezone", "Europe/Berlin", "--job", '{"type": "report"}')
    made = cli.json("schedules", "set", "daily", *options)
    assert (made["name"], made["cron"], made["paused"], made["job"]) == (
        "daily",
        "0 7 * * *",
        False,
        {"type": "report"},
    )
    assert "0 7 * * * Europe/Berlin" in cli("schedules").stdout
    assert cli("schedules", "preview", "daily", "--n", "3").stdout.count("T0") == 3
    assert cli("schedules", "pause", "daily").stdout == "daily: paused\n"
    assert cli.json("schedules", "show", "daily")["next_at"] is None
    job = cli.json("schedules", "run", "daily")
    assert "daily" in str(job["headers"])
    assert "next tick" in cli("schedules", "resume", "daily").stdout
    assert cli("schedules", "delete", "daily").stdout == "daily: deleted\n"
    assert cli("schedules", "show", "daily").returncode == 3


def test_a_wrong_cron_expression_is_explained(cli: CLI) -> None:
    done = cli("schedules", "set", "x", "--cron", "every day", "--job", '{"type": "t"}')
    assert done.returncode == 4
    assert "has 2 fields: expected 5" in done.stderr


def test_a_limit_is_set_listed_held_released_and_deleted(cli: CLI) -> None:
    made = cli.json(
        "limits", "set", "provider", "--concurrency", "3", "--rate", "tokens=40000", "--rate", "requests=60",
        "--burst", "tokens=8000",
    )  # fmt: skip
    assert made["concurrency"] == 3
    assert made["rate"] == {
        "units": {"tokens": 40000.0, "requests": 60.0},
        "per_seconds": 60.0,
        "burst": {"tokens": 8000.0, "requests": 60.0},
    }
    assert "tokens 40000, requests 60 per 60 s" in cli("limits").stdout
    until = "2099-01-01T00:00:00Z"
    assert "30 days" in cli("limits", "hold", "provider", "--until", until).stderr
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert cli("limits", "hold", "provider", "--until", soon, "--reason", "429").stdout == "provider: held\n"
    assert cli.json("limits", "show", "provider")["hold_reason"] == "429"
    assert cli("limits", "release", "provider").stdout == "provider: released\n"
    assert cli.json("limits", "show", "provider")["held_until"] is None
    assert cli("limits", "delete", "provider").stdout == "provider: deleted\n"
    assert cli("limits", "show", "provider").returncode == 3


def test_the_keys_of_a_limit_are_listed(cli: CLI) -> None:
    made = cli.json("limits", "set", "customer", "--concurrency", "1", "--keyed", "--fair", "--weight", "acme=3")
    assert (made["fair"], made["weights"]) == (True, {"acme": 3.0})
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    cli.json("limits", "hold", "customer", "--key", "acme", "--until", soon)
    items = cli.json("limits", "keys", "customer")["items"]
    assert isinstance(items, list)
    (found,) = items
    assert (found["key"], found["used"], found["held_until"] is None) == ("acme", 0, False)


@pytest.mark.parametrize("amount", ["tokens", "tokens=", "tokens=many"])
def test_a_wrong_amount_of_a_limit_is_explained(cli: CLI, amount: str) -> None:
    done = cli("limits", "set", "x", "--rate", amount)
    assert done.returncode == 4
    assert f"--rate is '{amount}': expected UNIT=AMOUNT" in done.stderr


def test_a_channel_is_set_listed_tested_and_deleted(cli: CLI, tmp_path: Path) -> None:
    url = tmp_path / "url"
    url.write_text("https://nosuch.invalid/token-hush\n")
    made = cli.json(
        "channels", "set", "ops", "--kind", "slack", "--url", f"@{url}", "--event", "job.failed", "--type", "a",
        "--type", "b", "--tag", "nightly", "--min-risk", "high", "--min-interval", "5",
    )  # fmt: skip
    given = ("kind", "host", "events", "types", "tags", "min_risk", "min_interval_seconds")
    assert [made[name] for name in given] == [
        "slack", "nosuch.invalid", ["job.failed"], ["a", "b"], ["nightly"], "high", 5.0,
    ]  # fmt: skip
    assert cli.json("channels", "show", "ops") == made
    listed = cli("channels").stdout
    assert "nosuch.invalid" in listed
    assert "hush" not in listed + str(made)
    assert cli("channels", "test", "ops").stdout.startswith("ops: not delivered: cannot_")
    assert cli("channels", "delete", "ops").stdout == "ops: deleted\n"
    assert cli("channels", "show", "ops").returncode == 3


def test_an_email_channel_is_set(cli: CLI) -> None:
    done = cli("channels", "set", "mail", "--kind", "email", "--host", "10.0.0.1", "--from", "a@example.com", "--to", "b@example.com")  # fmt: skip
    assert done.returncode == 4
    assert "host refers to a host that is not public" in done.stderr
    made = cli.json(
        "channels", "set", "mail", "--kind", "email", "--host", "nosuch.invalid.example", "--from", "a@example.com",
        "--to", "b@example.com", "--to", "c@example.com", "--tls", "implicit", "--username", "u", "--password", "hush",
    )  # fmt: skip
    assert (made["port"], made["from"], made["to"]) == (465, "a@example.com", ["b@example.com", "c@example.com"])
    assert made["events"] == ["approval.requested", "job.dead_letter", "worker.stale", "budget.spent"]
    assert "hush" not in str(made)


def test_a_budget_is_set_listed_raised_and_deleted(cli: CLI) -> None:
    made = cli.json("budgets", "set", "nightly", "--amount", "usd=20", "--per", "day", "--timezone", "Europe/Berlin")
    assert (made["amount"], made["per"], made["spent"]) == ({"usd": 20.0}, "day", {"usd": 0.0})
    assert "usd 20" in cli("budgets").stdout
    assert cli("budgets", "raise", "nightly", "--amount", "usd=5").stdout == "nightly: raised\n"
    assert cli.json("budgets", "show", "nightly")["amount"] == {"usd": 25.0}
    assert cli("budgets", "delete", "nightly").stdout == "nightly: deleted\n"
    assert cli("budgets", "show", "nightly").returncode == 3


def test_usage_is_summed_by_type(cli: CLI) -> None:
    async def use() -> None:
        async with assemble.open_engine(cli.database) as engine:
            queue = TenantQueue(engine.store, "default", ManualClock())
            await queue.do(complete(await queue.running(type="summarize"), usage='{"usd": 1.5}'))

    assert cli("usage").stdout == "no usage\n"
    asyncio.run(use())
    assert cli.json("usage", "--by", "type")["items"] == [{"type": "summarize", "jobs": 1, "usage": {"usd": 1.5}}]
    lines = cli("usage", "--by", "agent").stdout.splitlines()
    assert lines[0].split() == ["agent", "jobs", "usage"]
    assert lines[1].split() == ["-", "1", "usd", "1.5"]
    assert cli.json("usage", "--by", "tree", "--from", "2026-01-01T00:00:00Z", "--to", "2026-02-01T00:00:00Z") == {
        "items": []
    }
    wrong = cli("usage", "--from", "2026-01-01T00:00:00Z", "--to", "2027-05-01T00:00:00Z")
    assert (wrong.returncode, "at most 366 days" in wrong.stderr) == (4, True)


def test_a_job_is_enqueued_with_limits_and_budgets(cli: CLI) -> None:
    cli("limits", "set", "provider", "--concurrency", "2", "--rate", "tokens=9000")
    cli("limits", "set", "customer", "--concurrency", "1", "--keyed")
    cli("budgets", "set", "team", "--amount", "usd=5")
    keyed = '{"name": "customer", "key": "{customer}"}'
    words = ("jobs", "add", "t", '{"customer": "acme"}', "--json", "--named-budget", "team")
    job = json.loads(cli(*words, "--limit", "provider", "--limit", keyed).stdout)
    assert [(one["name"], one["key"]) for one in job["limits"]] == [("provider", None), ("customer", "acme")]
    assert job["budgets"] == ["team"]
    for wrong in ("unknown", "{", '{"name": 1}', '{"name": "provider", "cost": {"tokens": 9001}}'):
        assert cli(*words, "--limit", wrong).returncode == 4
