"""The real claude, codex and gemini from npm, against a fake model API in a network of their own. Long form only."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.agent_cli.fake_models import INPUT_TOKENS, OUTPUT_TOKENS
from tests.agent_cli.real_clis import cache_directory, installed

ROOT = Path(__file__).parents[2]
ADAPTERS = ("claude", "codex", "gemini")
RUN_SECONDS = 600
# How each provider rejects a request when its limit is reached; none of these names a time.
LIMITED: dict[str, dict[str, Any]] = {
    "claude": {"type": "error", "error": {"type": "rate_limit_error", "message": "limited"}},
    "codex": {"error": {"type": "usage_limit_reached", "message": "limited"}},
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
    assert len(started) == 1


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
