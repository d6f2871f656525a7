"""A command runs for each job: payload in, output, usage, files and result out; its process tree ends with the run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from interlock.agent_cli import claude_hook
from interlock.agent_cli.adapter import JsonLines
from interlock.agent_cli.process import MARK, tail_of
from interlock.agent_cli.runner import AgentOptions, declare
from interlock.client.port import JobRequest
from interlock.domain.approval import ApprovalFilter, Decision
from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from interlock.domain.principal import local
from interlock.domain.usage import summed
from interlock.storage.contract import Store
from interlock.storage.object_store.s3 import S3Objects
from interlock.wire import LimitUse
from interlock.wire.budgets import BudgetRequest
from interlock.wire.limits import LimitRequest
from tests.support.apps import TENANT, StoreApp
from tests.support.eventually import RETRY_SECONDS, eventually

FAKE = str(Path(__file__).with_name("fake_cli.py"))


class Rig:
    """An app whose jobs of type `agent` run the fake CLI."""

    def __init__(self, app: StoreApp, directory: Path) -> None:
        self.app, self.directory = app, directory

    def declare(self, adapter: Any, *words: str, **options: Any) -> None:
        command = (sys.executable, FAKE, adapter, *words)
        given = {"work_dir": self.directory, "keep": "always", **options}
        declare(self.app, "agent", AgentOptions(adapter, command, **given))

    async def enqueue(self, payload: Any, **fields: Any) -> str:
        client = await self.app._client()
        request = JobRequest(type="agent", payload=msgspec.Raw(json.dumps(payload).encode()), **fields)
        (made,) = await client.jobs.enqueue([request])
        return made.id

    async def run(self, payload: Any, **fields: Any) -> Job:
        id = await self.enqueue(payload, **fields)
        await self.app.drain()
        return await self.app.job(id)

    def work(self, id: str) -> Path:
        return self.directory / id / "work"

    def payload(self, id: str) -> Any:
        return json.loads((self.directory / id / "payload.json").read_text())

    def has_begun(self, id: str) -> bool:
        return (self.work(id) / "waiting").exists()

    def runs(self, id: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.work(id) / "runs.log").read_text().splitlines()]


@pytest.fixture
async def rig(store: Store, tmp_path: Path) -> AsyncIterator[Rig]:
    app = StoreApp(store, S3Objects.in_memory())
    yield Rig(app, tmp_path / "jobs")
    await app.close()


def marked(job_id: str) -> list[int]:
    """The live processes of a job."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if f"{MARK}={job_id}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def result(job: Job) -> Any:
    assert job.status == Status.SUCCEEDED, job.error
    return json.loads(job.result or "null")


async def test_a_run_reports_result_usage_and_files_and_saves_its_session(rig: Rig) -> None:
    rig.declare("claude")
    job = await rig.run({"prompt": "hello"})
    assert result(job) == "done: hello"
    used = json.loads(job.usage or "{}")
    assert (used["usd"], used["tokens"], used["input_tokens"]) == (0.5, 120, 100)
    (run,) = rig.runs(job.id)
    assert json.loads(job.checkpoint or "{}")["session"] == run["session"]
    (file,) = await rig.app.engine.artifacts.list(TENANT, job.id)
    assert file.name == "report.txt"


@pytest.mark.parametrize("action", ["quota", "uncoded"])
async def test_a_used_up_quota_releases_the_job_until_the_reset_and_the_next_run_resumes(rig: Rig, action: str) -> None:
    rig.declare("claude")
    job = await rig.run(action)
    assert (job.status, job.attempt) == (Status.QUEUED, 1)
    client = await rig.app._client()
    await client.jobs.run_now(job.id)
    await rig.app.drain()
    job = await rig.app.job(job.id)
    assert result(job) == f"done: {action}"
    assert [run["resumed"] for run in rig.runs(job.id)] == [False, True]
    assert json.loads(job.usage or "{}")["usd"] == 1.0


async def test_a_limit_without_a_reset_releases_the_job_for_the_given_delay(rig: Rig) -> None:
    rig.declare("claude", rate_limit_delay=1234.0)
    job = await rig.run("busy")
    assert (job.status, job.attempt, job.releases) == (Status.QUEUED, 1, 0)
    assert job.run_at - job.updated_at == 1234 * 1_000_000


@pytest.mark.parametrize("named", [None, "provider"])
async def test_a_used_up_quota_holds_the_limit_that_the_job_names(rig: Rig, named: str | None) -> None:
    limits = (await rig.app._client()).limits
    await limits.set("provider", LimitRequest(concurrency=5))
    rig.declare("claude", limit=named)
    job = await rig.run("quota", limits=[LimitUse(name="provider")])
    assert (job.status, job.attempt, job.releases) == (Status.QUEUED, 1, 0)
    held = (await limits.get("provider")).state.held_until
    assert held is not None
    assert 3000 < (held - job.updated_at) / 1_000_000 < 3700


async def test_a_used_up_quota_holds_only_the_key_that_the_job_names(rig: Rig) -> None:
    limits = (await rig.app._client()).limits
    await limits.set("provider", LimitRequest(concurrency=5, keyed=True))
    rig.declare("claude")
    job = await rig.run("quota", limits=[LimitUse(name="provider", key="team-a")])
    assert (job.status, job.attempt, job.releases) == (Status.QUEUED, 1, 0)
    held = {bucket.key: bucket.held_until for bucket in await limits.keys("provider")}
    assert (held["team-a"] is not None, set(held)) == (True, {"team-a"})
    other = await rig.run("hello", limits=[LimitUse(name="provider", key="team-b")])
    assert result(other) == "done: hello"


async def test_a_job_that_does_not_name_the_limit_is_only_released(rig: Rig) -> None:
    limits = (await rig.app._client()).limits
    await limits.set("provider", LimitRequest(concurrency=5))
    rig.declare("claude", limit="provider")
    job = await rig.run("quota")
    assert (job.status, job.attempt) == (Status.QUEUED, 1)
    assert (await limits.get("provider")).state.held_until is None


async def test_the_output_is_a_stream(rig: Rig) -> None:
    rig.declare("plain", environment={"KEY": "key-of-the-model"})
    job = await rig.run("environment")
    text = b"".join(chunk.data for chunk in await streamed(rig, job)).decode()
    assert json.loads(text)["INTERLOCK_JOB_ID"] == job.id
    assert "key-of-the-model" not in text
    much = await rig.run("much")
    assert result(much) == "last line"
    text = b"".join(chunk.data for chunk in await streamed(rig, much)).decode()
    assert text.endswith("[further output is not recorded]\n")
    assert len(text) < 5_000_000


async def streamed(rig: Rig, job: Job) -> list[Any]:
    found: list[Any] = []
    while page := await rig.app.store.streams.chunks(
        TENANT, job.id, "output", after=found[-1].offset if found else -1, limit=200
    ):
        found += page
    return found


def git(repository: Path, *words: str) -> str:
    command = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@example.org", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def repository_at(place: Path, hook: str = "") -> Path:
    """A repository with one commit and a hook that runs after a checkout."""
    place.mkdir()
    git(place, "init", "-q", "-b", "main")
    (place / "README").write_text("read me")
    git(place, "add", "README")
    git(place, "commit", "-qm", "begin")
    if hook:
        file = place / ".git" / "hooks" / "post-checkout"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{hook}\n")
        file.chmod(0o755)
    return place


async def test_each_job_has_a_worktree_and_a_branch_that_stays(rig: Rig, tmp_path: Path) -> None:
    repository = repository_at(tmp_path / "repository")
    rig.declare("plain", repository=repository)
    first, second = await rig.run("commit"), await rig.run("commit")
    assert result(first) == result(second) == "read me"
    for job in (first, second):
        assert git(repository, "show", f"interlock/{job.id}:made.txt") == "made"
        (file,) = await rig.app.engine.artifacts.list(TENANT, job.id)
        assert file.name == "log.txt"
    assert not (repository / "made.txt").exists()


@pytest.mark.parametrize("decision", [Decision.APPROVE, Decision.DENY])
async def test_a_tool_call_waits_for_its_approval_without_a_process(rig: Rig, decision: Decision) -> None:
    rig.declare("claude", approve_tools="Bash")
    job = await rig.run("tool")
    assert (job.status, job.worker) == (Status.WAITING_FOR_APPROVAL, None)
    assert marked(job.id) == []
    (approval,) = await rig.app.engine.approvals.list(TENANT, ApprovalFilter(job_id=job.id))
    assert json.loads(approval.details or "")["input"] == {"command": "echo t2"}
    await rig.app.engine.approvals.decide(local(TENANT), approval.id, decision, comment="because")
    await rig.app.drain()
    job = await rig.app.job(job.id)
    answer = json.loads(result(job))
    used = json.loads(job.usage or "{}")
    assert (used["usd"], used["input_tokens"]) == (1.0, 200)  # of both runs
    assert answer["permissionDecision"] == {"approve": "allow", "deny": "deny"}[decision.value]
    assert answer["permissionDecisionReason"] == "because"
    assert "echo t1" in answer["additionalContext"]  # the call that the CLI has dropped
    first, second = rig.runs(job.id)
    assert second["prompt"] == ""
    settings = json.loads(first["words"][first["words"].index("--settings") + 1])
    assert (settings["disableAllHooks"], settings["env"]) == (False, {"CLAUDE_CODE_SIMPLE": ""})


async def test_a_session_that_is_gone_is_replaced_by_a_new_one(rig: Rig) -> None:
    rig.declare("claude")
    job = await rig.run("quota")
    for known in rig.work(job.id).glob("session-*"):
        known.unlink()
    await (await rig.app._client()).jobs.run_now(job.id)
    await rig.app.drain()
    assert [run["resumed"] for run in rig.runs(job.id)] == [False, True, False]


async def test_a_json_line_with_another_line_inside_is_read(rig: Rig) -> None:
    rig.declare("claude")
    job = await rig.run("split")
    events = await rig.app.engine.progress.events(TENANT, job.id)
    assert [event.payload for event in events if event.message == "put together"] == [None]


async def test_the_budget_is_passed_on_and_a_spent_one_fails_the_job(rig: Rig) -> None:
    rig.declare("claude", max_usd=0.5)
    job = await rig.run("quota")
    words = rig.runs(job.id)[0]["words"]
    assert words[words.index("--max-budget-usd") + 1] == "0.500000"
    await (await rig.app._client()).jobs.run_now(job.id)
    await rig.app.drain()
    job = await rig.app.job(job.id)
    assert (job.status, json.loads(job.error or "{}")["kind"]) == (Status.FAILED, "budget_exceeded")


@pytest.mark.parametrize("named", [True, False])
async def test_the_budget_of_the_job_bounds_a_run_and_pauses_the_job(rig: Rig, named: bool) -> None:
    client = await rig.app._client()
    await client.budgets.set("team", BudgetRequest(amount={"usd": 2}))
    rig.declare("claude", max_usd=50)
    fields: dict[str, Any] = {"budgets": ["team"]} if named else {"budget": {"usd": 2}}
    job = await rig.run("spend", **fields)
    words = rig.runs(job.id)[0]["words"]
    assert words[words.index("--max-budget-usd") + 1] == "2.000000"
    assert (job.status, job.attempt) == (Status.QUEUED, 1)
    await (client.budgets.raise_by("team", {"usd": 3}) if named else client.jobs.raise_budget(job.id, {"usd": 3}))
    await client.jobs.run_now(job.id)
    await rig.app.drain()
    job = await rig.app.job(job.id)
    assert result(job) == "done: spend"
    words = rig.runs(job.id)[1]["words"]
    assert words[words.index("--max-budget-usd") + 1] == "2.900000"
    assert json.loads(job.usage or "{}")["usd"] == pytest.approx(2.6)


async def test_a_silent_run_counts_what_it_has_used(rig: Rig) -> None:
    rig.declare("claude", idle_timeout=2)
    job = await rig.run("silent", max_attempts=100)
    assert job.status == Status.RETRY
    assert "wrote nothing" in (job.error or "")
    while job.status == Status.RETRY:  # on a busy machine the command may not even begin within the time
        await (await rig.app._client()).jobs.run_now(job.id)
        await rig.app.drain()
        job = await rig.app.job(job.id)
    assert result(job) == "done: silent"
    assert json.loads(job.usage or "{}")["input_tokens"] == 200


async def usage_of(rig: Rig, job_id: str) -> dict[str, float]:
    """What all runs of a job have reported, also of one without a result."""
    job = await rig.app.job(job_id)
    steps = await rig.app.engine.progress.steps(TENANT, job_id)
    return json.loads(job.usage) if job.usage else summed(job_id, steps, has_ended=True)


@pytest.mark.parametrize("end", ["revoke", "cancel"])
async def test_the_usage_of_a_run_that_is_ended_is_counted_once(rig: Rig, end: str) -> None:
    rig.declare("claude")
    id = await rig.enqueue("silent")
    client = await rig.app._client()

    async def has_noted_usage() -> bool:
        return '"input_tokens":100' in ((await rig.app.job(id)).checkpoint or "")

    async with rig.app.working():
        await eventually(has_noted_usage)
        if end == "cancel":
            await client.jobs.cancel(id)
            await rig.app.until(id, Status.CANCELLED)
        else:
            await client.jobs.revoke(id)
            await rig.app.until(id, Status.SUCCEEDED)
    used = await usage_of(rig, id)
    assert (used["input_tokens"], used.get("usd")) == ((100, None) if end == "cancel" else (200, 0.5))


async def test_a_redriven_job_reports_its_own_usage_and_may_cost_as_much_again(rig: Rig) -> None:
    rig.declare("claude", max_usd=0.7)
    first = await rig.run("broken", max_attempts=1)
    assert (await usage_of(rig, first.id))["usd"] == 0.5
    client = await rig.app._client()
    again = await client.jobs.redrive(first.id, start_from="checkpoint")
    await rig.app.drain()
    job = await rig.app.job(again.id)
    words = rig.runs(job.id)[-1]["words"]
    assert words[words.index("--max-budget-usd") + 1] == "0.700000"
    assert (await usage_of(rig, job.id))["usd"] == 0.5


async def test_the_command_sees_the_job_and_no_secret_of_the_worker(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_TOKEN", "secret-of-the-worker")
    rig.declare("plain", environment={"MODEL_KEY": "key-of-the-model"})
    job = await rig.run({"prompt": "environment", "x": 1})
    shown = json.loads(result(job))
    assert "INTERLOCK_TOKEN" not in shown
    assert (shown["INTERLOCK_JOB_ID"], shown["INTERLOCK_JOB_TYPE"]) == (job.id, "agent")
    assert shown["INTERLOCK_JOB_PAYLOAD"] == str(rig.directory / job.id / "payload.json")
    assert rig.payload(job.id) == {"prompt": "environment", "x": 1}
    events = await rig.app.engine.progress.events(TENANT, job.id)
    written = json.dumps([event.message for event in events]) + (job.result or "")
    assert "key-of-the-model" not in written
    assert "secret-of-the-worker" not in written
    assert shown["MODEL_KEY"] == "***"


SECRET = 'key "of\\ the model'
KEY_FILE = "-----BEGIN KEY-----\nfirst line of the key\nlast line of the key\n"


async def everything_kept(rig: Rig, job: Job) -> str:
    """What others can read of a job, as text."""
    events = await rig.app.engine.progress.events(TENANT, job.id)
    approvals = await rig.app.engine.approvals.list(TENANT, ApprovalFilter(job_id=job.id))
    text = b"".join(chunk.data for chunk in await streamed(rig, job)).decode()
    parts = [one.message + (one.payload or "") for one in events] + [one.details or "" for one in approvals]
    return "".join([*parts, text, job.result or "", job.checkpoint or "", job.error or ""])


@pytest.mark.parametrize("action", ["tell", "tool"])
@pytest.mark.parametrize("secret", [SECRET, KEY_FILE])
async def test_a_secret_of_the_command_is_masked_in_every_form(rig: Rig, action: str, secret: str) -> None:
    rig.declare("claude", environment={"KEY": secret}, approve_tools="Bash")
    kept = await everything_kept(rig, await rig.run(action))
    assert "***" in kept
    for line in secret.splitlines():
        assert line not in kept
        assert json.dumps(line)[1:-1] not in kept


async def test_a_secret_is_masked_where_a_message_is_cut(rig: Rig) -> None:
    rig.declare("plain", environment={"KEY": "secret-of-the-command"})
    kept = await everything_kept(rig, await rig.run("nearly", max_attempts=1))
    assert "***" in kept
    assert "secr" not in kept


async def test_hooks_of_a_repository_see_no_secret_of_the_worker(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_TOKEN", "secret-of-the-worker")
    rig.declare("plain", repository=repository_at(tmp_path / "repository", f"env > {tmp_path}/seen"))
    result(await rig.run("commit"))
    assert "secret-of-the-worker" not in (tmp_path / "seen").read_text()


async def test_a_worktree_that_was_half_made_is_made_again(rig: Rig, tmp_path: Path) -> None:
    """A worker that is killed by a hook of the repository while git makes the worktree."""
    repository = repository_at(tmp_path / "repository", "rm README; kill -9 $PPID")
    rig.declare("plain", repository=repository)
    id = await rig.enqueue("commit")
    await rig.app.drain()
    assert (await rig.app.job(id)).status == Status.RETRY
    (repository / ".git" / "hooks" / "post-checkout").unlink()
    await (await rig.app._client()).jobs.run_now(id)
    await rig.app.drain()
    assert result(await rig.app.job(id)) == "read me"


async def test_the_payload_reaches_the_command_as_it_was_sent(rig: Rig) -> None:
    client = await rig.app._client()
    payload = '{"prompt":"environment","large":1e400,"exact":0.1000000000000000055511}'
    rig.declare("plain", "{large}", "{prompt}", "{exact}")
    (made,) = await client.jobs.enqueue([JobRequest(type="agent", payload=msgspec.Raw(payload.encode()))])
    await rig.app.drain()
    shown = json.loads(result(await rig.app.job(made.id)))
    assert shown["INTERLOCK_JOB_PAYLOAD_JSON"] == payload
    assert (rig.directory / made.id / "payload.json").read_text() == payload
    long = await rig.run({"prompt": "environment", "text": "x" * 70_000})
    assert "INTERLOCK_JOB_PAYLOAD_JSON" not in json.loads(result(long))
    assert len(rig.payload(long.id)["text"]) == 70_000


async def test_the_prompt_may_be_an_argument(rig: Rig) -> None:
    rig.declare("plain", "--message={prompt}", "{text}", prompt="arguments")
    assert json.loads(result(await rig.run({"text": "a"}))) == ["--message=arguments", "a"]
    job = await rig.run({"prompt": "arguments", "text": "x" * 200_000})
    assert (job.status, json.loads(job.error or "{}")["kind"]) == (Status.FAILED, "invalid_payload")


async def test_a_plain_command_reports_usage_and_sees_its_budget(rig: Rig) -> None:
    rig.declare("plain")
    job = await rig.run("used", budget={"usd": 2})
    assert result(job) == "2.000000"
    assert json.loads(job.usage or "{}") == {"usd": 0.25, "tokens": 7}


async def test_a_file_that_cannot_be_attached_does_not_fail_the_run(rig: Rig) -> None:
    rig.declare("plain")
    job = await rig.run("names")
    assert job.status == Status.SUCCEEDED
    (file,) = await rig.app.engine.artifacts.list(TENANT, job.id)
    assert file.name == "good"
    events = await rig.app.engine.progress.events(TENANT, job.id)
    assert [event.message for event in events] == ["artifact not attached"] * 2


async def test_files_are_left_out_where_no_artifacts_are_configured(store: Store, tmp_path: Path) -> None:
    rig = Rig(StoreApp(store), tmp_path / "jobs")
    rig.declare("claude")
    job = await rig.run("hello")
    assert result(job) == "done: hello"
    events = await rig.app.engine.progress.events(TENANT, job.id)
    assert "artifact not attached" in [event.message for event in events]
    await rig.app.close()


@pytest.mark.parametrize("keep", ["always", "failed", "never"])
@pytest.mark.parametrize(("prompt", "attempts"), [("arguments", 1), ("1", 1), ("65", 3), ("1", 3)])
async def test_the_directory_of_a_job_is_kept_as_chosen(rig: Rig, keep: str, prompt: str, attempts: int) -> None:
    rig.declare("plain", keep=keep)
    job = await rig.run(prompt, max_attempts=attempts)
    is_kept = keep == "always" or job.status == Status.RETRY or (keep == "failed" and job.status != Status.SUCCEEDED)
    assert (rig.directory / job.id).exists() is is_kept


@pytest.mark.parametrize(("prompt", "wanted"), [("bytes", "caf\ufffd \ufffd"), ("much", "last line")])
async def test_output_that_is_not_text_or_very_long_is_read_in_bounded_memory(
    rig: Rig, prompt: str, wanted: str
) -> None:
    rig.declare("plain")
    assert result(await rig.run(prompt)) == wanted


async def test_arguments_come_from_the_payload_but_never_become_options(rig: Rig) -> None:
    rig.declare("plain", "--file", "{file}")
    job = await rig.run({"prompt": "arguments", "file": "a b.txt"})
    assert json.loads(result(job)) == ["--file", "a b.txt"]
    job = await rig.run({"prompt": "arguments", "file": "--force"})
    assert (job.status, json.loads(job.error or "{}")["kind"]) == (Status.FAILED, "invalid_payload")


@pytest.mark.parametrize(
    ("code", "status"),
    [("1", Status.DEAD_LETTER), ("65", Status.FAILED), ("75", Status.QUEUED), ("127", Status.FAILED)],
)
async def test_exit_codes_decide_about_the_next_attempt(rig: Rig, code: str, status: Status) -> None:
    rig.declare("plain")
    job = await rig.run(code, max_attempts=1)
    assert job.status == status
    if status is not Status.QUEUED:
        assert f"exit code {code}: wrong" in (job.error or "")


async def test_a_silent_command_is_ended(rig: Rig) -> None:
    rig.declare("plain", idle_timeout=timedelta(milliseconds=300).total_seconds())
    job = await rig.run("tree", max_attempts=1)
    assert job.status == Status.DEAD_LETTER
    assert "wrote nothing" in (job.error or "")
    assert marked(job.id) == []


async def test_a_command_that_writes_errors_is_not_silent() -> None:
    errors, heard = asyncio.StreamReader(), []
    errors.feed_data(b"working\n")
    errors.feed_eof()
    assert await tail_of(errors, lambda: heard.append(True)) == "working\n"
    assert heard


@pytest.mark.parametrize(("prompt", "processes"), [("tree", 5), ("chain", 2)])
async def test_a_cancel_ends_the_whole_process_tree(rig: Rig, prompt: str, processes: int) -> None:
    rig.declare("plain")
    id = await rig.enqueue(prompt)
    async with rig.app.working():

        async def begun() -> bool:
            return rig.has_begun(id) and len(marked(id)) >= processes

        await eventually(begun)
        await (await rig.app._client()).jobs.cancel(id)
        await rig.app.until(id, Status.CANCELLED)
    assert marked(id) == []


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + RETRY_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def shown_environment(pid: int) -> bytes:
    """What another process of the same user, or root, can read of the environment of a process."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        return b""


@pytest.mark.parametrize("also_supervisor", [False, True])
def test_the_tree_ends_when_the_worker_is_killed_and_the_next_run_resumes(
    tmp_path: Path, also_supervisor: bool
) -> None:
    """A real worker process on SQLite; its supervisor, if killed too, leaves processes that the next run ends."""
    database, directory = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "jobs"
    interlock = [sys.executable, "-m", "interlock"]
    environment = {**os.environ, "INTERLOCK_DATABASE": database, "OTHER_KEY": "secret-of-the-worker"}
    enqueue = [*interlock, "jobs", "add", "agent", '"wait"', "--json"]
    subprocess.run([*interlock, "migrate"], env=environment, check=True, capture_output=True)
    made = subprocess.run(enqueue, env=environment, check=True, capture_output=True, text=True)
    id = json.loads(made.stdout)["id"]
    words = ["--type", "agent", "--adapter", "claude", "--work-dir", str(directory), "--keep", "always", "--lease", "2"]
    command = [*interlock, "agent", "run", *words, "--drain", "--", sys.executable, FAKE, "claude"]
    worker = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        wait_for((directory / id / "work" / "waiting").exists)
        assert b"secret-of-the-worker" not in shown_environment(worker.pid)
        if also_supervisor:
            for pid in marked(id):
                if "supervisor.py" in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)
    finally:
        worker.kill()
        worker.wait()

    wait_for(lambda: marked(id) == [])

    def succeeded() -> bool:
        subprocess.run(command, env=environment, check=True, capture_output=True)
        shown = subprocess.run(
            [*interlock, "jobs", "show", id, "--json"], env=environment, check=True, capture_output=True, text=True
        )
        return bool(json.loads(shown.stdout)["status"] == "succeeded")

    wait_for(succeeded)
    runs = [json.loads(line) for line in (directory / id / "work" / "runs.log").read_text().splitlines()]
    assert [run["resumed"] for run in runs] == [False, True]
    assert runs[0]["session"] == runs[1]["session"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"idle_timeout": 0.0}, "--idle-timeout is 0"),
        ({"adapter": "claude", "max_usd": -1.0}, "--max-usd is -1"),
        ({"command": ["no-such-program"]}, "command 'no-such-program' is not found"),
        ({"repository": Path("/")}, "worktree / is not a git repository"),
    ],
)
def test_options_that_cannot_work_are_rejected_at_the_start(rig: Rig, options: dict[str, Any], reason: str) -> None:
    given = {"adapter": "plain", "command": [sys.executable], **options}
    with pytest.raises(ValueError, match=reason):
        declare(rig.app, "agent", AgentOptions(**given))


def test_a_line_with_many_beginnings_is_read_in_bounded_time() -> None:
    """A cut line, as of a large tool result; tried in full from each beginning it would take minutes."""
    lines = JsonLines()
    assert lines.read('{"type":"user","content":[' + '{"type":"text"},' * 200_000) == []
    assert lines.read('{"type":"result"}') == [{"type": "result"}]
    assert len(lines.read('{"type":"assistant","x{"type":"result","y":[{"type":"z"}]}')) == 1
    assert lines.read('":1}') == [{"type": "assistant", "x": 1}]


@pytest.mark.parametrize("decisions", [None, "no JSON"])
def test_a_hook_that_fails_denies_the_call(tmp_path: Path, decisions: str | None) -> None:
    """With any other exit code than 2, claude runs the tool."""
    if decisions is not None:
        (tmp_path / "decisions").write_text(decisions)
    command = [sys.executable, "-I", "-S", claude_hook.__file__, str(tmp_path / "decisions"), str(tmp_path / "calls")]
    done = subprocess.run(command, input='{"tool_use_id": "t1"}', capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be requested" in done.stderr


@pytest.mark.parametrize("adapter", ["codex", "gemini", "plain"])
async def test_a_limit_of_cost_that_the_adapter_cannot_keep_is_rejected(rig: Rig, adapter: str) -> None:
    with pytest.raises(ValueError, match=f"--max-usd does not work with {adapter}"):
        rig.declare(adapter, max_usd=1.0)
