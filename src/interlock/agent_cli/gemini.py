"""The gemini CLI with JSON lines."""

from __future__ import annotations

import re
from typing import Any, Final

from interlock.agent_cli.adapter import (
    NOT_RUN,
    JsonAdapter,
    Note,
    Outcome,
    Setup,
    last_line,
    member,
    number,
    tokens,
)
from interlock.agent_cli.adapter import text as text_of
from interlock.agent_cli.process import MAX_LINE_BYTES, Exit

RATE_LIMITED: Final = 173
_LIMIT: Final = re.compile(r"RESOURCE_EXHAUSTED|\b429\b|quota|rate limit", re.I)


class Gemini(JsonAdapter):
    """One run of gemini."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._message, self._error, self._is_complete = "", "", False

    def command(self) -> list[str]:
        resumed = ["--resume", self._setup.session] if self._setup.session is not None else []
        return [*self._setup.command, "--output-format", "stream-json", "--skip-trust", *resumed]

    def _read(self, one: dict[str, Any]) -> list[Note]:
        match one.get("type"):
            case "init":
                self.session = text_of(one.get("session_id")) or self.session
                return [Note("session started", payload={"session": self.session, "model": one.get("model")})]
            case "message" if one.get("role") == "assistant":
                said = text_of(one.get("content"))
                self._message = (self._message + said if one.get("delta") else said)[:MAX_LINE_BYTES]
            case "tool_use":
                said, self._message = self._message, ""  # the result is what follows the last tool
                tool = Note(f"tool {text_of(one.get('tool_name'))}", payload={"input": one.get("parameters")})
                return [*([Note(said)] if said.strip() else []), tool]
            case "error":
                self._error = text_of(one.get("message"))
            case "result":
                self._is_complete = one.get("status") == "success"
                self._error = text_of(member(one, "error", "message")) or self._error
                used = member(one, "stats") or {}
                self.usage = tokens(
                    number(used.get("input_tokens")), number(used.get("output_tokens")), number(used.get("cached"))
                )
        return []

    def outcome(self, ended: Exit, errors: str) -> Outcome:
        if self._is_complete and ended.code == 0:
            return Outcome(self._message)
        why = self._error or last_line(errors) or str(ended)
        if ended.code == RATE_LIMITED or _LIMIT.search(why):
            return Outcome(error=why, is_rate_limited=True)
        missing = self._setup.session is not None and bool(
            re.search(r"Error resuming session|session.*not found", errors, re.I)
        )
        return Outcome(error=f"gemini failed: {why}", is_permanent=ended.code in NOT_RUN, is_session_missing=missing)
