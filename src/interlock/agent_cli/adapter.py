"""What an adapter does: build the command of one run, read its output, and judge its end."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

from interlock.agent_cli.process import Exit

UNSET: Final = object()
NOT_RUN: Final = (126, 127)  # exit codes of a command that cannot be run
MAX_INSERTED: Final = 1000  # places in a line at which another line may begin
_DECODER: Final = json.JSONDecoder()
_BEGIN: Final = re.compile(r'\{"type"')


@dataclass(frozen=True)
class ToolCall:
    """A tool call of an agent that waits for an approval."""

    id: str
    name: str
    input: Any


@dataclass(frozen=True)
class Setup:
    """What the command of one run is built from."""

    command: Sequence[str]
    files: Path  # a directory for the adapter's own files
    session: str | None = None  # of an earlier run; None starts a new one
    new_session: str = ""
    schema: Path | None = None
    approve_tools: str | None = None
    max_usd: float | None = None
    decisions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by ID of the tool call


@dataclass
class Outcome:
    """How a run of the command ended."""

    message: str = ""
    structured: Any = UNSET
    error: str | None = None
    is_permanent: bool = False  # retrying cannot help
    is_rate_limited: bool = False
    until: datetime | None = None  # when the rate limit ends, if it is known
    deferred: ToolCall | None = None
    skipped: Sequence[ToolCall] = ()  # calls of the same turn that the CLI has dropped
    is_session_missing: bool = False
    is_budget_spent: bool = False  # the run has cost as much as it may


@dataclass(frozen=True)
class Note:
    """A progress event."""

    message: str
    level: str = "info"
    payload: Mapping[str, Any] = field(default_factory=dict)


class Adapter(Protocol):
    """One run of one kind of command."""

    session: str | None
    usage: dict[str, float]
    """Amounts that this run has used."""
    should_end: bool
    """Whether the command should be ended now, since it only waits."""

    def command(self) -> list[str]: ...

    def read(self, line: str) -> list[Note]:
        """Read a line of standard output; return what is worth an event."""
        ...

    def outcome(self, ended: Exit, errors: str) -> Outcome:
        """Judge the end, given the tail of standard error."""
        ...


class JsonLines:
    """Decodes lines of JSON objects, also if another line was written into the middle of one."""

    def __init__(self) -> None:
        self._begun = ""

    def read(self, line: str) -> list[dict[str, Any]]:
        line = line.rstrip()
        if (whole := _object(line)) is not None:
            return [whole]
        if self._begun and (joined := _object(self._begun + line)) is not None:
            self._begun = ""
            return [joined]
        for place in islice((found.start() for found in _BEGIN.finditer(line, 1)), MAX_INSERTED):
            if (inner := _object(line, place)) is not None:
                self._begun = line[:place]
                return [inner]
        self._begun = line if line.startswith("{") else ""
        return []


class JsonAdapter(ABC):
    """An adapter of a command that writes JSON lines."""

    def __init__(self, setup: Setup) -> None:
        self.session = setup.session
        self.usage: dict[str, float] = {}
        self.should_end = False
        self._setup = setup
        self._lines = JsonLines()

    def read(self, line: str) -> list[Note]:
        return [note for one in self._lines.read(line) for note in self._read(one)]

    @abstractmethod
    def _read(self, one: dict[str, Any]) -> list[Note]:
        """Read one line; return what is worth an event."""


def _object(line: str, start: int = 0) -> dict[str, Any] | None:
    """Return the JSON object from `start` to the end of the line."""
    if not line.startswith("{", start):
        return None
    try:
        read, end = _DECODER.raw_decode(line, start)
    except (ValueError, RecursionError):
        return None
    return read if end == len(line) else None


def member(value: Any, *names: str) -> Any:
    """Return a nested member, or None where one is missing or not an object."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def number(value: Any) -> float:
    """Return a finite amount that is not negative; 0 for anything else."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and 0 <= value < float("inf") else 0


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def tokens(input: float, output: float, cached: float = 0) -> dict[str, float]:
    """Return amounts of usage; `input_tokens` includes the cached ones."""
    return {
        "input_tokens": input, "output_tokens": output, "cached_tokens": cached, "tokens": input + output,
    }  # fmt: skip


def together(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sum amounts by name."""
    total: dict[str, float] = {}
    for one in amounts:
        for name, amount in one.items():
            total[name] = total.get(name, 0) + amount
    return total


def last_line(errors: str) -> str:
    """Return the last line of standard error that is not blank."""
    return next((line.strip() for line in reversed(errors.splitlines()) if line.strip()), "")
