"""The claude CLI, in print mode with JSON lines."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from interlock.agent_cli import claude_hook
from interlock.agent_cli.adapter import (
    NOT_RUN,
    UNSET,
    JsonAdapter,
    Note,
    Outcome,
    Setup,
    ToolCall,
    last_line,
    member,
    number,
    together,
    tokens,
)
from interlock.agent_cli.adapter import text as text_of
from interlock.agent_cli.process import Exit

LONGEST_RETRY_SECONDS: Final = 20.0  # a longer pause of the CLI is better spent without a worker
RATE_LIMITED: Final = 429
UNAUTHENTICATED: Final = (401, 403)
DECISIONS: Final = "decisions.json"
CALLS: Final = "calls.jsonl"


class Claude(JsonAdapter):
    """One run of claude. A tool call that needs approval is deferred by a hook, which ends the process."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._result: dict[str, Any] = {}
        self._limited: Outcome | None = None
        self._seen: dict[str, dict[str, Any]] = {}  # usage by message, for a run without a result

    def command(self) -> list[str]:
        given = self._setup
        made = [*given.command, "-p", "--output-format", "stream-json", "--verbose"]
        made += ["--session-id", given.new_session] if given.session is None else ["--resume", given.session]
        self.session = given.session or given.new_session
        if given.schema is not None:
            made += ["--json-schema", given.schema.read_text()]
        if given.max_usd is not None:
            made += ["--max-budget-usd", f"{given.max_usd:.6f}"]
        if given.approve_tools is not None:
            made += ["--settings", json.dumps(self._hooks(given.approve_tools))]
        return made

    def _hooks(self, matcher: str) -> Mapping[str, Any]:
        decisions, calls = self._setup.files / DECISIONS, self._setup.files / CALLS
        decisions.write_text(json.dumps(self._setup.decisions))
        calls.unlink(missing_ok=True)
        program = [sys.executable, "-I", "-S", str(Path(claude_hook.__file__)), str(decisions), str(calls)]
        hook = {"type": "command", "command": shlex.join(program)}
        # Settings in the work directory, which the agent may write, could disable the hook otherwise.
        kept = {"disableAllHooks": False, "env": {"CLAUDE_CODE_SIMPLE": ""}}
        return {**kept, "hooks": {"PreToolUse": [{"matcher": matcher, "hooks": [hook]}]}}

    def _read(self, one: dict[str, Any]) -> list[Note]:
        match one.get("type"), one.get("subtype"):
            case "system", "init":
                self.session = text_of(one.get("session_id")) or self.session
                return [Note("session started", payload={"session": self.session, "model": one.get("model")})]
            case "system", "api_retry":
                return self._retries(one)
            case "rate_limit_event", _:
                return self._limits(member(one, "rate_limit_info"))
            case "assistant", _:
                return self._says(member(one, "message"))
            case "result", _:
                self._result = one
                self.usage = self._used(one)
        return []

    def _retries(self, one: dict[str, Any]) -> list[Note]:
        """The CLI waits itself, and holds a worker meanwhile: end it if the pause is long."""
        seconds = number(one.get("retry_delay_ms")) / 1000
        if one.get("error_status") == RATE_LIMITED and seconds > LONGEST_RETRY_SECONDS:
            until = datetime.now(UTC) + timedelta(seconds=seconds)
            self._limited = Outcome(error="rate limit of the model API", is_rate_limited=True, until=until)
            self.should_end = True
        if one.get("error_status") in UNAUTHENTICATED:  # the CLI would retry for minutes
            self._limited = Outcome(error=f"the model API rejects the credential: {one.get('error_status')}")
            self.should_end = True
        return [Note("model request failed", "warn", {"status": one.get("error_status"), "retry_in": seconds})]

    def _limits(self, info: Any) -> list[Note]:
        if member(info, "status") != "rejected":
            return []
        until = _time(member(info, "resetsAt"))
        self._limited = Outcome(error="the quota is used up", is_rate_limited=True, until=until)
        return [Note("quota used up", "warn", {"limit": member(info, "rateLimitType")})]

    def _says(self, message: Any) -> list[Note]:
        if isinstance(used := member(message, "usage"), dict):
            self._seen[text_of(member(message, "id"))] = used
            self.usage = together(map(_tokens, self._seen.values()))
        notes = []
        for block in member(message, "content") or ():
            if member(block, "type") == "text" and text_of(block.get("text")).strip():
                notes.append(Note(text_of(block["text"])))
            elif member(block, "type") == "tool_use":
                notes.append(Note(f"tool {text_of(block.get('name'))}", payload={"input": block.get("input")}))
        return notes

    def _used(self, result: dict[str, Any]) -> dict[str, float]:
        return {**_tokens(member(result, "usage") or {}), "usd": number(result.get("total_cost_usd"))}

    def outcome(self, ended: Exit, errors: str) -> Outcome:
        result = self._result
        if not result:
            return self._limited or Outcome(
                error=f"claude ended with {ended} and without a result: {last_line(errors)}",
                is_permanent=ended.code in NOT_RUN,
            )
        if (deferred := member(result, "deferred_tool_use")) is not None:
            call = ToolCall(text_of(deferred.get("id")), text_of(deferred.get("name")), deferred.get("input"))
            return Outcome(deferred=call, skipped=[one for one in self._asked() if one.id != call.id])
        if result.get("is_error") or ended.code != 0:
            return self._failed(result, ended, errors)
        return Outcome(text_of(result.get("result")), result.get("structured_output", UNSET))

    def _failed(self, result: dict[str, Any], ended: Exit, errors: str) -> Outcome:
        limited = self._limited
        is_announced = limited is not None and limited.is_rate_limited and result.get("subtype") == "success"
        if result.get("api_error_status") == RATE_LIMITED or is_announced:
            return limited or Outcome(error="rate limit of the model API", is_rate_limited=True)
        why = text_of(result.get("result")) or last_line(errors) or str(ended)
        if result.get("subtype") == "error_max_budget_usd":
            return Outcome(error="the budget of the run is spent", is_budget_spent=True)
        missing = "No conversation found" in f"{errors} {result.get('errors')}"
        return Outcome(error=f"claude failed: {why}", is_session_missing=missing)

    def _asked(self) -> list[ToolCall]:
        """Return the tool calls that the hook has deferred."""
        try:
            written = (self._setup.files / CALLS).read_text().splitlines()
        except OSError:
            return []
        return [ToolCall(one["id"], one["name"], one["input"]) for one in map(json.loads, written)]


def _tokens(usage: dict[str, Any]) -> dict[str, float]:
    cached = number(usage.get("cache_read_input_tokens"))
    given = number(usage.get("input_tokens")) + number(usage.get("cache_creation_input_tokens")) + cached
    return tokens(given, number(usage.get("output_tokens")), cached)


def _time(seconds: Any) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
