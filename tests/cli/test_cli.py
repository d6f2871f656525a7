"""The command line from outside: what it prints and how it exits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.eventually import PATIENCE_SECONDS
from tests.support.postgres import OWNER, Postgres
from tests.support.stores import APP_LOGIN, empty_database


class CLI:
    """Runs `interlock` in a process of its own."""

    def __init__(self, database: str, directory: Path) -> None:
        self.database, self.directory = database, directory

    def __call__(self, *arguments: str, stdin: str | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "interlock", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            cwd=self.directory,
            env=os.environ | {"INTERLOCK_DATABASE": self.database} | environ,
        )

    def json(self, *arguments: str) -> dict[str, object]:
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict)
        return answer


@pytest.fixture
async def cli(engine: str, tmp_path: Path, postgres: Postgres) -> AsyncIterator[CLI]:
    if engine == "sqlite":
        yield CLI(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    else:
        async with empty_database(postgres) as name:
            yield CLI(postgres.dsn(name, user=APP_LOGIN), tmp_path)


def test_a_job_that_was_added_is_listed_and_shown(cli: CLI) -> None:
    id = cli("jobs", "add", "research", '{"topic": "tides"}', "--tag", "a", "--tag", "b").stdout.strip()
    assert id in cli("jobs", "list").stdout
    shown = cli.json("jobs", "show", id)
    assert (shown["type"], shown["payload"], shown["tags"]) == ("research", {"topic": "tides"}, ["a", "b"])
    assert (shown["status"], shown["location"]) == ("queued", "ready")
    history = shown["history"]
    assert isinstance(history, list)
    assert [(row["from"], row["to"], row["actor"]) for row in history] == [(None, "queued", "user:local")]
    text = cli("jobs", "show", id).stdout
    assert "research" in text
    assert '{"topic": "tides"}' in text


def test_a_list_for_programs_leaves_out_what_it_does_not_read_and_calls_it_none_nowhere(cli: CLI) -> None:
    cli("jobs", "add", "research", '{"topic": "tides"}')
    listed = cli.json("jobs", "list")["items"]
    assert isinstance(listed, list)
    assert listed[0]["type"] == "research"
    assert not {"payload", "checkpoint", "result", "error"} & listed[0].keys()


def test_the_payload_comes_from_a_file_or_standard_input_too(cli: CLI) -> None:
    (cli.directory / "p.json").write_text('{"from": "file"}')
    from_file = cli("jobs", "add", "t", "@p.json").stdout.strip()
    from_stdin = cli("jobs", "add", "t", "-", stdin='{"from": "stdin"}').stdout.strip()
    assert cli.json("jobs", "show", from_file)["payload"] == {"from": "file"}
    assert cli.json("jobs", "show", from_stdin)["payload"] == {"from": "stdin"}


def test_exit_codes_tell_what_went_wrong(cli: CLI) -> None:
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
    ("arguments", "told"),
    [
        (("jobs", "add"), "TYPE"),
        (("jobs", "list", "--limit", "many"), "--limit"),
        (("nonsense",), "nonsense"),
        (("jobs", "list", "--unheard"), "--unheard"),
        (("migrate", "--server", "http://127.0.0.1:1"), "say --database"),
    ],
)
def test_a_usage_error_is_json_for_programs(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    cli = CLI(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    done = cli(*arguments, "--json")
    assert (done.returncode, done.stderr) == (2, "")
    error = json.loads(done.stdout)["error"]
    assert (error["code"], told.lower() in error["detail"].lower()) == ("usage", True), error
    for_people = cli(*arguments)
    assert (for_people.returncode, for_people.stdout, told.lower() in for_people.stderr.lower()) == (2, "", True)


@pytest.mark.parametrize("arguments", [("--help",), ("jobs", "--help"), ("serve", "--help"), ("--version",), ("jobs",)])
def test_help_that_nobody_reads_ends_as_any_output_that_nobody_reads(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "interlock", *arguments],
        stdout=writer, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS, cwd=tmp_path, env=os.environ,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("jobs", "add", "t", "@missing.json"), "the payload file cannot be read"),
        (("jobs", "add", "t", "--agent", "nobody"), "KIND/ID"),
        (("agents", "set", "bot", "1", "--defaults", "[1]"), "must be a JSON object"),
        (("jobs", "list", "--tenant", ""), "tenant must be"),
        (("jobs", "list", "--before", f"{2**63}"), "before must be from"),
        (("jobs", "cancel", "01890000-0000-7000-8000-000000000000", "--type", "t"), "not both"),
    ],
)
def test_an_argument_that_means_nothing_is_refused_in_a_sentence(
    tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    cli = CLI(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    done = cli(*arguments)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("interlock: ")
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(cli(*arguments, "--json").stdout)["error"]["code"] == "invalid"


def test_a_noun_alone_lists_what_there_is_and_an_unknown_word_after_it_is_named(tmp_path: Path) -> None:
    cli = CLI(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    cli("agents", "set", "bot", "1")
    assert cli.json("agents") == cli.json("agents", "list")
    done = cli("agents", "sett")
    assert done.returncode == 2
    assert "no command or argument 'sett'" in done.stderr


@pytest.mark.parametrize("noun", ["agents", "approvals", "queues", "subscriptions", "tokens", "types", "workers"])
def test_a_list_of_nothing_says_so(tmp_path: Path, noun: str) -> None:
    cli = CLI(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    assert cli(noun).stdout == f"no {noun}\n"
    assert cli.json(noun) == {"items": []}


def test_text_from_jobs_never_steers_the_terminal(cli: CLI) -> None:
    id = cli("jobs", "add", "t", '"\x1b[31mred\u202e"'.replace("\x1b", "\\u001b")).stdout.strip()
    assert cli("jobs", "cancel", id, "--reason", "\u202eevil").returncode == 0
    for done in (cli("jobs", "show", id), cli("jobs", "list")):
        assert "\x1b" not in done.stdout
        assert "\u202e" not in done.stdout


def test_audit_verifies_and_gives_one_head(cli: CLI) -> None:
    cli("jobs", "add", "t")
    first = cli("audit", "head").stdout.strip()
    assert len(first) == 64
    assert cli("audit", "head").stdout.strip() == first
    assert cli("audit", "verify").stdout.strip() == "1 job, 1 row: every chain fits"
    cli("jobs", "add", "t")
    assert cli("audit", "head").stdout.strip() != first
    answer = cli.json("audit", "verify")
    assert (answer["ok"], answer["jobs"], answer["rows"]) == (True, 2, 2)


def test_audit_gives_the_head_of_everybody_or_of_one_tenant(cli: CLI) -> None:
    cli("jobs", "add", "t")
    alone = cli("audit", "head").stdout
    cli("jobs", "add", "t", "--tenant", "other")
    assert cli("audit", "head", "--tenant", "default").stdout == alone
    assert cli("audit", "head").stdout not in (alone, cli("audit", "head", "--tenant", "other").stdout)


def test_doctor_finds_everything_in_order(cli: CLI) -> None:
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
        command = [sys.executable, "-m", "interlock", "migrate", *arguments]
        subprocess.run(
            command, cwd=tmp_path, env=environ | more, check=True, capture_output=True, timeout=PATIENCE_SECONDS
        )

    run()
    run(INTERLOCK_DATABASE="sqlite:///from_environ.db")
    run("--database", "sqlite:///from_flag.db", INTERLOCK_DATABASE="sqlite:///unused.db")
    assert {p.name for p in tmp_path.glob("*.db")} == {"from_file.db", "from_environ.db", "from_flag.db"}
    (tmp_path / "interlock.toml").write_text("databse = 1\n")
    assert "unknown settings: databse" in cli("migrate", INTERLOCK_DATABASE="sqlite:///x.db").stderr


async def test_migrate_brings_an_empty_postgres_up_to_date_and_says_so(postgres: Postgres, tmp_path: Path) -> None:
    import asyncpg

    admin = await asyncpg.connect(postgres.dsn())
    name = f"interlock_cli_migrate_{os.getpid()}"
    await admin.execute(f"create database {name} owner {OWNER}")
    try:
        cli = CLI(postgres.dsn(name, user=OWNER), tmp_path)
        assert "run interlock migrate" in cli("jobs", "list").stderr
        assert "applied 0001_jobs" in cli("migrate").stdout
        assert "nothing to do" in cli("migrate").stdout
        assert cli("jobs", "add", "t").returncode == 0
    finally:
        await admin.execute(f"drop database {name} with (force)")
        await admin.close()
