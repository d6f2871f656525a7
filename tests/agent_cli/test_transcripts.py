"""What the real claude, codex and gemini printed, recorded by `tests.agent_cli.record`, and how it is understood."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from interlock.agent_cli.adapter import Adapter, Note, Outcome, Setup
from interlock.agent_cli.process import Exit
from interlock.agent_cli.runner import ADAPTERS
from tests.agent_cli.fake_models import INPUT_TOKENS, OUTPUT_TOKENS
from tests.agent_cli.record import CASES, RESET, SESSION, TRANSCRIPTS

ALL = sorted(ADAPTERS.keys() - {"plain"})


def played(name: str, place: Path) -> tuple[Adapter, list[Note], Outcome]:
    """The adapter after a recorded run, its notes, and how it judges the end."""
    recorded = json.loads((TRANSCRIPTS / f"{name}.json").read_text())
    case = CASES[name]
    adapter = ADAPTERS[case.adapter](Setup([case.adapter], place, case.session, SESSION))
    adapter.command()
    notes = [note for line in recorded["stdout"] for note in adapter.read(line)]
    return adapter, notes, adapter.outcome(Exit(code=recorded["exit"]), "\n".join(recorded["stderr"]))


def used(adapter: Adapter) -> tuple[float, float]:
    return adapter.usage["input_tokens"], adapter.usage["output_tokens"]


def test_every_recording_has_a_case() -> None:
    assert {file.stem for file in TRANSCRIPTS.iterdir()} == set(CASES)


@pytest.mark.parametrize("cli", ALL)
def test_an_answer(cli: str, tmp_path: Path) -> None:
    adapter, notes, outcome = played(f"{cli}-success", tmp_path)
    assert (outcome.message, outcome.error) == ("hello", None)
    assert used(adapter) == (INPUT_TOKENS, OUTPUT_TOKENS)
    assert notes[0].message == "session started"
    assert notes[0].payload["session"] == adapter.session


@pytest.mark.parametrize("cli", ALL)
def test_a_tool_call(cli: str, tmp_path: Path) -> None:
    adapter, notes, outcome = played(f"{cli}-tool", tmp_path)
    assert outcome.message == "finished"
    assert used(adapter) == (2 * INPUT_TOKENS, 2 * OUTPUT_TOKENS)
    messages = [note.message for note in notes]
    assert "I will run it." in messages
    (tool,) = [note for note in notes if note.message.startswith("tool ")]
    assert "echo made" in json.dumps(tool.payload)


@pytest.mark.parametrize("cli", ALL)
def test_a_session_that_is_not_there(cli: str, tmp_path: Path) -> None:
    assert played(f"{cli}-unknown-session", tmp_path)[2].is_session_missing


@pytest.mark.parametrize(
    ("name", "until"),
    [
        ("claude-limited", None),
        ("claude-limited-with-reset", RESET),
        ("codex-limited", None),
        ("codex-limited-with-reset", RESET - RESET % 60),  # the prose has no seconds
        ("gemini-limited", None),
    ],
)
def test_a_rate_limit(name: str, until: int | None, tmp_path: Path) -> None:
    adapter, _, outcome = played(name, tmp_path)
    assert outcome.is_rate_limited
    assert outcome.until == (None if until is None else datetime.fromtimestamp(until, UTC))
    assert not any(adapter.usage.values())


@pytest.mark.parametrize("cli", ALL)
def test_a_rejected_credential_is_an_error_and_no_rate_limit(cli: str, tmp_path: Path) -> None:
    outcome = played(f"{cli}-unauthorized", tmp_path)[2]
    assert outcome.error is not None
    assert (outcome.is_rate_limited, outcome.is_session_missing) == (False, False)


def test_of_two_tool_calls_the_last_one_is_deferred(tmp_path: Path) -> None:
    adapter, _, outcome = played("claude-deferred", tmp_path)
    call: Any = outcome.deferred
    assert (call.id, call.name, call.input["command"]) == ("toolu_2", "Bash", "echo 2")
    assert used(adapter) == (INPUT_TOKENS, OUTPUT_TOKENS)
    assert adapter.usage["usd"] == pytest.approx(0.0006)
