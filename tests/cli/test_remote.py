"""The command line on a server: every noun answers as it does on the database behind it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from interlock.cli import runner
from interlock.cli.main import app
from tests.support.eventually import RETRY_SECONDS


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Command:
    """Runs commands in this process; `here` on the database, else on the server in front of it."""

    def __init__(self, directory: Path, url: str, token_file: Path) -> None:
        self.directory, self.url = directory, url
        self.database = f"sqlite:///{directory}/jobs.db"
        self.on_server = ["--server", url, "--token-file", str(token_file)]

    def __call__(self, *words: str, here: bool = False) -> Done:
        return run(*words, *(["--database", self.database] if here else self.on_server))

    def json(self, *words: str, here: bool = False) -> Any:
        done = self(*words, "--json", here=here)
        assert done.code == 0, done
        return json.loads(done.out)

    def both(self, *words: str) -> Any:
        """The output of both, which is the same."""
        there, here = self.json(*words), self.json(*words, here=True)
        assert there == here
        return there


def run(*words: str) -> Done:
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app(list(words), exit_on_error=False, result_action="return_value")
        except SystemExit as ended:
            code = int(ended.code or 0)
    out.flush()
    return Done(code, out.buffer.getvalue().decode(), err.getvalue())


def spawn(*words: str, directory: Path, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "interlock", *words],
        cwd=directory, stdout=subprocess.PIPE, stderr=stderr, text=True, env=os.environ,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine must not look like a server that cannot be reached."""
    monkeypatch.setattr(runner, "RETRY_SECONDS", RETRY_SECONDS)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """A server with auth on, and the token of an admin in a file."""
    directory = tmp_path_factory.mktemp("served")
    database = f"sqlite:///{directory}/jobs.db"
    roles = [word for role in ("admin", "operate", "produce", "read", "approve") for word in ("--role", role)]
    token_file = directory / "token"
    assert run("migrate", "--database", database).code == 0
    token_file.write_text(run("tokens", "create", *roles, "--database", database).out)
    words = ("serve", "--port", "0", "--auth", "tokens", "--database", database)
    server = spawn(*words, directory=directory, stderr=subprocess.DEVNULL)
    try:
        assert server.stdout is not None
        url = next(word for word in server.stdout.readline().split() if word.startswith("http://"))
        yield Command(directory, url, token_file)
    finally:
        server.terminate()
        server.communicate(timeout=RETRY_SECONDS)


def work(command: Command, text: str, *words: str) -> None:
    """Let a worker run what is due, straight on the database."""
    name = f"tasks_{abs(hash(text))}"
    (command.directory / f"{name}.py").write_text(
        f"import interlock\napp = interlock.App({command.database!r})\n{text}"
    )
    worker = spawn("worker", f"{name}:app", "--drain", *words, directory=command.directory)
    _, reported = worker.communicate(timeout=RETRY_SECONDS)
    assert worker.returncode == 0, reported


def test_jobs_are_enqueued_listed_shown_explained_and_cancelled(command: Command) -> None:
    added = command.json("jobs", "add", "far", '{"n": 1.50}', "--tag", "a", "--key", "once", "--agent", "planner/1")
    assert command.json("jobs", "add", "far", '{"n": 1.50}', "--tag", "a", "--key", "once", "--agent", "planner/1")[
        "replayed"
    ]
    id = added["id"]
    assert command("jobs", "add", "far", "{").code == 4
    assert command.both("jobs", "list", "--type", "far")["items"][0]["id"] == id
    assert command.both("jobs", "list", "--type", "nobody's") == {"items": []}
    assert command.both("jobs", "show", id)["payload"] == {"n": 1.5}
    assert "planner" in command("jobs", "show", id).out
    assert command.both("jobs", "why", id)["clause"]
    child = command.json("jobs", "add", "far", "--parent", id)["id"]
    assert command.json("jobs", "cancel", id, "--cascade", "--reason", "enough")["descendants"] == 1
    assert command.both("jobs", "show", child)["status"] == "cancelled"
    assert command("jobs", "wait", id).code == 6
    again = command.json("jobs", "redrive", id, "--priority", "3", "--payload", '{"n": 2}')
    assert (again["redrive_of"], again["priority"], again["payload"]) == (id, 3, {"n": 2})
    assert command("jobs", "revoke", again["id"]).code == 4
    assert command("jobs", "show", "01890000-0000-7000-8000-000000000000").code == 3


def test_short_ids_edits_links_steps_and_counts_work_the_same_on_a_server(command: Command) -> None:
    id = command.json("jobs", "add", "shortened", "{}", "--delay", "3600", "--deadline", "2999-01-01T00:00:00Z")["id"]
    end = id[-8:]
    assert command.both("jobs", "show", end)["id"] == id
    edited = command.json("jobs", "edit", end, "--priority", "4", "--no-deadline", "--tag", "x")
    assert (edited["priority"], edited["deadline"], edited["tags"]) == (4, None, ["x"])
    assert command.json("jobs", "run-now", end)["location"] == "ready"
    assert command("queues", "show", "nosuch").code == command("queues", "pause", "nosuch").code == 3
    assert command.json("queues", "show", "shortened")["ready"] == 1
    work(
        command,
        "@app.task\nasync def shortened(ctx: interlock.Context) -> None:\n"
        "    await ctx.step('one', lambda: 1)\n    ctx.event('begun')\n    await ctx.approve('Sure?')\n",
    )
    encoded = command.both("jobs", "show", end)
    assert [(step["name"], step["result"]) for step in encoded["steps"]] == [("one", 1)]
    assert [event["message"] for event in encoded["events"]] == ["begun"]
    (approval,) = command.both("approvals", "list", "--job", end)["items"]
    link = command("approvals", "link", approval["id"][-8:]).out.strip()
    assert link.startswith(f"{command.url}/approve#")
    assert command("approvals", "approve", approval["id"][-8:]).out == "approved\n"
    token = command.json("tokens", "create", "--role", "read")["id"]
    assert command("tokens", "revoke", token[-8:]).out == f"revoked {token}\n"
    made = command.json("subscriptions", "create", "https://example.com/hook", "--event", "job.succeeded")["id"]
    assert command.both("subscriptions", "show", made[-8:])["id"] == made
    assert command("subscriptions", "delete", made[-8:]).out == f"{made}: deleted\n"
    assert command("jobs", "show", "0" * 8).code == 3


def test_a_bulk_operation_runs_in_one_call(command: Command) -> None:
    for _ in range(3):
        command("jobs", "add", "many")
    refused = command("jobs", "cancel", "--type", "many")
    assert (refused.code, "cancel 3 jobs" in refused.err) == (4, True)
    assert command("jobs", "cancel", "--type", "many", "--dry-run").out == "3 matched\n"
    assert command("jobs", "cancel", "--type", "many", "--yes").out == "3 of 3 done\n"
    assert command("jobs", "redrive", "--type", "many", "--yes").out == "3 of 3 done\n"


def test_a_filter_means_the_same_on_a_server_and_on_its_database(command: Command) -> None:
    ids = [command.json("jobs", "add", "mixed", "--tag", "a", "--agent", "planner/mixed")["id"] for _ in range(4)]
    command.json("jobs", "cancel", ids[0])
    command.json("jobs", "cancel", ids[1])
    command.json("jobs", "redrive", ids[1])
    every = ("--type", "mixed", "--tag", "a", "--agent", "planner/mixed", "--created-after", "2020-01-01T00:00:00Z")
    for verb, count in (("redrive", 1), ("cancel", 4)):  # what lives, was redriven before or has ended is passed over
        reported = command.both("jobs", verb, *every, "--dry-run")
        assert reported == {"matched": count, "done": 0, "more": False, "refused": []}
        reported = command.json("jobs", verb, *every, "--yes")
        assert reported == {"matched": count, "done": count, "more": False, "refused": []}
        assert command.both("jobs", verb, *every, "--status", "succeeded", "--dry-run")["matched"] == 0


def test_a_job_is_run_followed_and_its_files_are_downloaded(command: Command, tmp_path: Path) -> None:
    id = command.json("jobs", "add", "report", "{}")["id"]
    work(
        command,
        "@app.task\nasync def report(ctx: interlock.Context) -> int:\n"
        "    ctx.event('half\\x1b[2J way', done=0.5)\n    await ctx.attach('report.md', '# hello')\n    return 42\n",
    )
    waited = command("jobs", "wait", id)
    assert (waited.code, waited.out) == (0, "42\n")
    reported = command("jobs", "tail", id)
    assert ("half\\x1b[2J way" in reported.out, "\x1b" in reported.out) == (True, False)
    assert json.loads(command("jobs", "tail", id, "--json").out)["payload"] == {"done": 0.5}
    (listed,) = command.both("artifacts", "list", id)["items"]
    for name in ("report.md", listed["id"]):
        assert command("artifacts", "get", id, name, "--output", str(tmp_path / "it")).code == 0
        assert (tmp_path / "it").read_text() == "# hello"
    assert command("artifacts", "get", id, "nothing", "--output", str(tmp_path / "it")).code == 3
    asked = [
        type for one in command.both("workers", "list")["items"] for ask in one["asks"] for type in ask["types"] or ()
    ]
    assert "report" not in asked, "a worker that has stopped leaves the list"


def test_an_approval_is_listed_and_decided(command: Command) -> None:
    id = command.json("jobs", "add", "publish", "{}")["id"]
    work(
        command,
        "@app.task\nasync def publish(ctx: interlock.Context) -> None:\n"
        "    await ctx.approve('Publish?', details={'pages': 3}, schema={'type': 'object'})\n",
    )
    (approval,) = command.both("approvals", "list", "--job", id)["items"]
    assert command.both("approvals", "show", approval["id"])["details"] == {"pages": 3}
    assert command("approvals", "approve", approval["id"], "--digest", "0" * 64).code == 4
    assert command("approvals", "approve", approval["id"], "--data", '{"a"').code == 4
    assert (
        command("approvals", "approve", approval["id"], "--data", '{"a": 1}', "--comment", "fine").out == "approved\n"
    )
    assert command("approvals", "deny", approval["id"]).code == 4
    decided = command.both("approvals", "list", "--all", "--job", id)["items"][0]
    assert (decided["data"], decided["comment"], decided["votes"][0]["decision"]) == ({"a": 1}, "fine", "approve")


def test_queues_types_and_agents_are_managed(command: Command) -> None:
    command("jobs", "add", "kept", "{}")
    assert command("queues", "pause", "kept", "--reason", "a break").out == "kept: paused\n"
    listed = {one["type"]: one for one in command.json("queues", "list")["items"]}
    assert (listed["kept"]["paused"], listed["kept"]["pause_reason"]) == (True, "a break")
    assert command("queues", "resume", "kept").code == 0
    set_ = ("types", "set", "shaped", "--schema", '{"type": "object"}', "--defaults", '{"max_attempts": 7}')
    assert command.json(*set_)["defaults"] == {"max_attempts": 7}
    assert command.both("types", "show", "shaped")["schema"] == {"type": "object"}
    assert [one["name"] for one in command.both("types", "list")["items"]] == ["shaped"]
    assert command("jobs", "add", "shaped", "[]").code == 4
    assert command("types", "delete", "shaped").code == 0
    assert command("types", "show", "shaped").code == 3
    assert command.json("agents", "set", "writer", "1", "--max-concurrency", "2")["strict"] is False
    agents = command.both("agents", "list")["items"]
    assert [one["max_concurrency"] for one in agents if one["kind"] == "writer"] == [2]
    assert command("agents", "delete", "writer", "1").code == 0


def test_tokens_and_subscriptions_are_created_and_deleted(command: Command) -> None:
    made = command.json("tokens", "create", "--role", "read", "--description", "for a look", "--expires-in", "3600")
    assert made["token"]
    assert command.both("tokens", "list", "--limit", "1")["items"][0]["id"] == made["id"]
    assert made["id"] not in str(command.json("tokens", "list", "--before", made["id"]))
    assert command.json("tokens", "revoke", made["id"])["revoked_at"]
    hook = command.json("subscriptions", "create", "https://example.com/hook", "--event", "job.succeeded", "--key", "h")
    assert hook["secret"].startswith("whsec_")
    again = ("subscriptions", "create", "https://example.com/hook", "--event", "job.succeeded", "--key", "h")
    assert [command.json(*again, here=here)["replayed"] for here in (False, True)] == [True, True]
    assert command.both("subscriptions", "list")["items"][0]["id"] == hook["id"]
    assert command.json("subscriptions", "rotate", hook["id"])["secret"] != hook["secret"]
    assert command.json("subscriptions", "renew", hook["id"], "--expires-in", "3600")["expires_at"]
    assert command.both("subscriptions", "deliveries") == {"items": []}
    assert command("subscriptions", "redeliver", hook["id"]).code == 3
    assert command("subscriptions", "delete", hook["id"]).code == 0
    assert command("subscriptions", "show", hook["id"]).code == 3


def test_history_is_verified_exported_and_pruned(command: Command, tmp_path: Path) -> None:
    id = command.json("jobs", "add", "old", "{}")["id"]
    command("jobs", "cancel", id)
    assert command.json("audit", "verify")["ok"] is True
    assert command.both("audit", "head")["head"]
    for name, here in (("there", False), ("here", True)):
        assert command("audit", "export", "--output", str(tmp_path / name), here=here).code == 0
    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()
    assert command("audit", "verify", "--all-tenants").code == 4
    assert command.json("prune", "--days", "1", "--dry-run")["matched"] == 0
    assert command.json("prune", "--days", "0", "--yes")["deleted"] >= 1
    assert command("jobs", "show", id).code == 3


def test_an_audit_stops_after_the_requested_number_of_jobs(command: Command) -> None:
    for _ in range(3):
        command("jobs", "add", "audited")
    first = command.json("audit", "verify", "--limit", "2")
    assert (first["jobs"], first["ok"]) == (2, True)
    rest = command.json("audit", "verify", "--cursor", first["next_cursor"])
    assert first["jobs"] + rest["jobs"] == command.both("audit", "verify")["jobs"]


def test_an_unavailable_or_rejecting_server_sets_the_exit_code(command: Command, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("il_nothing")
    assert run("jobs", "list", "--server", command.url, "--token-file", str(wrong)).code == 4
    assert run("jobs", "list", "--server", "ftp://x").code == 4
    assert run("jobs", "list", "--token-file", str(wrong)).code == 4
    assert command("jobs", "list", "--tenant", "other").code == 4
    assert command("jobs", "list", "--database", command.database).code == 4


@pytest.mark.parametrize(
    ("words", "name"),
    [(("jobs", "list", "--limit", "0"), "limit"), (("jobs", "add", "t", "--priority", "9999"), "priority")],
)
def test_a_rejected_value_is_named_locally_and_remotely(command: Command, words: tuple[str, ...], name: str) -> None:
    for here in (False, True):
        done = command(*words, here=here)
        assert (done.code, name in done.err) == (4, True), done


def test_a_closed_port_is_reported_as_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.5)
    done = run("jobs", "list", "--server", "http://127.0.0.1:1")
    assert (done.code, "cannot be reached" in done.err) == (5, True)


def test_local_only_commands_are_rejected_with_a_server(tmp_path: Path) -> None:
    reported = spawn("migrate", "--server", "http://127.0.0.1:1", directory=tmp_path)
    _, given = reported.communicate(timeout=RETRY_SECONDS)
    assert (reported.returncode, "works on a database only: use --database" in given) == (2, True)
