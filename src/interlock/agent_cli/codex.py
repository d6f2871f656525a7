"""The codex CLI: `codex exec --json`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from interlock.agent_cli.adapter import NOT_RUN, JsonAdapter, Note, Outcome, Setup, last_line, member, number, tokens
from interlock.agent_cli.adapter import text as text_of
from interlock.agent_cli.process import Exit

# The reset is prose in local time; the command runs in UTC.
_AT: Final = re.compile(r"try again at (?:(\w{3})\w* (\d{1,2})\w{2},? (\d{4}),? )?(\d{1,2}):(\d{2}) ([AP]M)", re.I)
_IN: Final = re.compile(r"try again in ((?:\d+ (?:days?|hours?|minutes?|seconds?)[, ]*)+)", re.I)
_LIMIT: Final = re.compile(r"usage limit|rate limit|\b429\b|too many requests|quota", re.I)


class Codex(JsonAdapter):
    """One run of codex."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._message, self._error, self._is_complete = "", "", False

    def command(self) -> list[str]:
        given = self._setup
        made = [*given.command, "exec", "--json", "--skip-git-repo-check"]
        if given.schema is not None:
            made += ["--output-schema", str(given.schema)]
        return [*made, *(["resume", given.session] if given.session is not None else []), "-"]

    def _read(self, one: dict[str, Any]) -> list[Note]:
        match one.get("type"):
            case "thread.started":
                self.session = text_of(one.get("thread_id")) or self.session
                return [Note("session started", payload={"session": self.session})]
            case "item.completed":
                return self._item(one.get("item"))
            case "turn.completed":
                self._is_complete, used = True, member(one, "usage") or {}
                cached = number(used.get("cached_input_tokens"))
                self.usage = tokens(number(used.get("input_tokens")), number(used.get("output_tokens")), cached)
            case "turn.failed":
                self._error = text_of(member(one, "error", "message"))
            case "error":
                self._error = self._error or text_of(one.get("message"))
        return []

    def _item(self, item: Any) -> list[Note]:
        match member(item, "type"):
            case "agent_message":
                self._message = text_of(item.get("text"))
                return [Note(self._message)] if self._message.strip() else []
            case "command_execution":
                payload = {"command": item.get("command"), "exit_code": item.get("exit_code")}
                return [Note("tool command_execution", payload=payload)]
        return []

    def outcome(self, ended: Exit, errors: str) -> Outcome:
        if self._is_complete and ended.code == 0:
            return Outcome(self._message)
        why = self._error or last_line(errors) or str(ended)
        if _LIMIT.search(why):
            return Outcome(error=why, is_rate_limited=True, until=reset_time(why, datetime.now(UTC)))
        missing = self._setup.session is not None and bool(
            re.search(r"no (rollout|thread|session) found", errors, re.I)
        )
        return Outcome(error=f"codex failed: {why}", is_permanent=ended.code in NOT_RUN, is_session_missing=missing)


def reset_time(text: str, now: datetime) -> datetime | None:
    """Return the time in "try again at 6:17 PM" or "try again in 3 hours 2 minutes"."""
    if (found := _IN.search(text)) is not None:
        parts = re.findall(r"(\d+) (day|hour|minute|second)", found[1], re.I)
        return now + timedelta(**{f"{unit.lower()}s": int(amount) for amount, unit in parts})
    if (found := _AT.search(text)) is None:
        return None
    month, day, year, hour, minute, half = found.groups()
    hours = int(hour) % 12 + (12 if half.upper() == "PM" else 0)
    try:
        if month is not None:
            date = datetime.strptime(f"{month} {day} {year}", "%b %d %Y")
            return date.replace(hour=hours, minute=int(minute), tzinfo=UTC)
        today = now.replace(hour=hours, minute=int(minute), second=0, microsecond=0)
    except ValueError:
        return None
    return today if today > now - timedelta(minutes=1) else today + timedelta(days=1)
