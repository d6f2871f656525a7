"""The real claude, codex and gemini from npm, against a fake model API in a network of their own. Long form only."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.agent_cli.fake_models import INPUT_TOKENS, OUTPUT_TOKENS
from tests.agent_cli.real_clis import cache_directory, installed
from tests.agent_cli.shell import SHELL, shell

ROOT = Path(__file__).parents[2]
ADAPTERS = ("claude", "codex", "gemini")
RUN_SECONDS = 600
# How each provider rejects a request when its limit is reached; none of these names a time.
LIMITED: dict[str, dict[str, Any]] = {
    "claude": {"type": "error", "error": {"type": "rate_limit_error", "message": "limited"}},
    "codex": {"error": {"type": "usage_limit_reached", "message": "limited"}},
    "gemini": {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Quota exceeded"}},
}


@pytest.fixture(scope="module")
def bin() -> Path:
    return installed(cache_directory())


def run(bin: Path, place: Path, adapter: str, replies: Sequence[Any], **more: Any) -> dict[str, Any]:
    """Run one job in a network of its own, and return what happened."""
    spec = {"adapter": adapter, "bin": str(bin), "payload": "Say hello", "replies": replies, **more}
    (place / "spec.json").write_text(json.dumps(spec))
    command = ["unshare", "-n", sys.executable, "-m", "tests.agent_cli.isolated", str(place / "spec.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS)
    assert done.returncode == 0, done.stderr[-5000:]
    found: dict[str, Any] = json.loads((place / "found.json").read_text())
    assert "fake-key-0123456789" not in json.dumps(found) + done.stderr + done.stdout
    return found


def last(found: dict[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = found["states"][-1]
    assert state["status"] == "succeeded", state["error"]
    # What the model was asked for, and nothing else: a rejected request costs nothing.
    answered = sum(not one["failed"] for one in found["requests"])
    assert state["usage"]["input_tokens"] == answered * INPUT_TOKENS
    assert state["usage"]["output_tokens"] == answered * OUTPUT_TOKENS
    return state


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_prompt_is_answered(bin: Path, tmp_path: Path, adapter: str) -> None:
    found = run(bin, tmp_path, adapter, [{"text": "hello"}])
    assert last(found)["result"] == "hello"
    assert found["events"][0]["message"] == "session started"


SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_result_is_json_by_the_schema(bin: Path, tmp_path: Path, adapter: str) -> None:
    call = {"tools": [{"id": "toolu_1", "name": "StructuredOutput", "input": {"ok": True}}]}
    replies = [call, {"text": "done"}] if adapter == "claude" else [{"text": '{"ok": true}'}]
    assert last(run(bin, tmp_path, adapter, replies, schema=SCHEMA))["result"] == {"ok": True}


@pytest.mark.parametrize("adapter", LIMITED)
def test_a_rate_limit_releases_the_job_and_the_next_run_resumes_the_session(
    bin: Path, tmp_path: Path, adapter: str
) -> None:
    replies = [{"text": "hello", "status": 429, "fails": 1, "error": LIMITED[adapter]}, {"text": "hello"}]
    found = run(bin, tmp_path, adapter, replies, between=["run_now"])
    first = found["states"][0]
    assert (first["status"], first["attempt"], first["releases"]) == ("queued", 1, 0)
    state = last(found)
    assert (state["result"], state["attempt"]) == ("hello", 1)
    started = {
        event["payload"]["output"]["session"] for event in found["events"] if event["message"] == "session started"
    }
    assert len(started) == (2 if adapter == "gemini" else 1)  # gemini saves no session before its first response


@pytest.mark.parametrize("decision", ["approve", "deny"])
def test_a_deferred_tool_call_waits_for_its_approval_and_the_session_continues(
    bin: Path, tmp_path: Path, decision: str
) -> None:
    command = {"command": "echo made > artifacts/made.txt", "description": "make a file"}
    replies = [{"tools": [{"id": "toolu_1", "name": "Bash", "input": command}]}, {"text": "finished"}]
    found = run(bin, tmp_path, "claude", replies, approve_tools="Bash", between=[decision])
    assert found["states"][0]["status"] == "waiting_for_approval"
    assert last(found)["result"] == "finished"
    assert found["files"] == (["made.txt"] if decision == "approve" else [])


@pytest.mark.parametrize(
    "settings",
    [
        {"disableAllHooks": True},
        {"env": {"CLAUDE_CODE_SIMPLE": "1"}},
        {"permissions": {"defaultMode": "bypassPermissions"}},
        {"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "echo '{}'"}]}]}},
    ],
    ids=json.dumps,
)
def test_settings_in_the_work_directory_do_not_replace_an_approval(
    bin: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    found = run(
        bin, tmp_path, "claude", [shell("claude", "touch artifacts/made.txt"), {"text": "finished"}],
        approve_tools="Bash", settings=settings, words=SHELL["claude"][2], between=["deny"],
    )  # fmt: skip
    assert found["states"][0]["status"] == "waiting_for_approval"
    assert found["files"] == []


def test_of_two_tool_calls_in_one_turn_the_dropped_one_is_repeated(bin: Path, tmp_path: Path) -> None:
    calls = [
        {
            "id": f"toolu_{n}",
            "name": "Bash",
            "input": {"command": f"echo {n} > artifacts/{n}.txt", "description": "make"},
        }
        for n in (1, 2, 3)
    ]
    replies = [{"tools": calls[:2]}, {"tools": calls[2:]}, {"text": "finished"}]
    found = run(bin, tmp_path, "claude", replies, approve_tools="Bash", between=["approve", "approve"])
    assert [state["status"] for state in found["states"][:2]] == ["waiting_for_approval"] * 2
    assert last(found)["result"] == "finished"
    assert sorted(found["files"]) == ["2.txt", "3.txt"]


ONCE = "test -e reached || { touch reached; sleep 600; }; echo made > artifacts/made.txt"


@pytest.mark.parametrize("end", ["worker", "cli", "both"])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_run_that_is_killed_in_a_tool_continues_in_its_session(
    bin: Path, tmp_path: Path, adapter: str, end: str
) -> None:
    replies = [shell(adapter, ONCE), shell(adapter, ONCE), {"text": "finished"}]
    found = run(bin, tmp_path, adapter, replies, end=end, words=SHELL[adapter][2])
    state = found["states"][-1]
    assert (state["status"], state["result"], state["attempt"]) == ("succeeded", "finished", 2), state["error"]
    assert found["files"] == ["made.txt"]
    assert [one["turn"] for one in found["requests"] if one["turn"] >= 0] == [0, 1, 2]


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_cancel_in_a_tool_ends_all_processes(bin: Path, tmp_path: Path, adapter: str) -> None:
    found = run(bin, tmp_path, adapter, [shell(adapter, ONCE)], end="cancel", words=SHELL[adapter][2])
    assert found["states"][-1]["status"] == "cancelled"


def test_claude_that_waits_for_a_long_rate_limit_gives_its_worker_back(bin: Path, tmp_path: Path) -> None:
    limited = {"status": 429, "fails": 99, "error": LIMITED["claude"], "headers": {"retry-after": "60"}}
    found = run(bin, tmp_path, "claude", [limited], environment={"CLAUDE_CODE_MAX_RETRIES": ""})
    released(found["states"][0], timedelta(minutes=1))


def test_the_reset_of_a_subscription_of_claude_is_kept(bin: Path, tmp_path: Path) -> None:
    headers = {"anthropic-ratelimit-unified-status": "rejected",
               "anthropic-ratelimit-unified-representative-claim": "five_hour",
               "anthropic-ratelimit-unified-reset": str(int(time.time()) + 3600)}  # fmt: skip
    limited = {"status": 429, "fails": 99, "error": LIMITED["claude"], "headers": headers}
    found = run(
        bin, tmp_path, "claude", [limited],
        environment={"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-fake-token"},
    )  # fmt: skip
    released(found["states"][0], timedelta(hours=1))


def test_the_reset_in_the_prose_of_codex_is_kept(bin: Path, tmp_path: Path) -> None:
    error = {"type": "usage_limit_reached", "message": "limited", "resets_at": int(time.time()) + 3600}
    found = run(bin, tmp_path, "codex", [{"status": 429, "fails": 99, "error": {"error": error}}])
    released(found["states"][0], timedelta(hours=1))


def released(state: dict[str, Any], delay: timedelta) -> None:
    """The job waits without a worker; the reset may be rounded to minutes, and the CLI took a part of the time."""
    assert (state["status"], state["attempt"], state["releases"]) == ("queued", 1, 0), state["error"]
    until = datetime.fromisoformat(state["run_at"]) - datetime.fromisoformat(state["created_at"])
    assert delay - timedelta(minutes=1) < until < delay + timedelta(minutes=4)


def test_a_rejected_credential_fails_the_attempt_at_once(bin: Path, tmp_path: Path) -> None:
    error = {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}
    found = run(
        bin, tmp_path, "claude", [{"status": 401, "fails": 99, "error": error}],
        environment={"CLAUDE_CODE_MAX_RETRIES": ""},
    )  # fmt: skip
    state = found["states"][0]
    assert (state["status"], state["attempt"]) == ("retry", 2)
    assert "claude" in state["error"]["message"] or "credential" in state["error"]["message"]
