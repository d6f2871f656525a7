"""Any command: the prompt on standard input, the result is the last line, exit code 0 is success."""

from __future__ import annotations

import json
import os
import re
from typing import Final

from interlock.agent_cli.adapter import NOT_RUN, Note, Outcome, Setup, last_line, number
from interlock.agent_cli.process import Exit

RATE_LIMITED: Final = 75  # EX_TEMPFAIL: try again later
PERMANENT: Final = 65  # EX_DATAERR: the input is wrong


USAGE: Final = "usage.json"
MAX_USAGE_BYTES: Final = 64 * 1024
_UNIT: Final = re.compile(r"[\w.:/-]{1,200}", re.ASCII)


class Plain:
    """A command without a protocol. Exit code 75 releases the job, 65 fails it permanently.

    It may write what it has used into a file, as a JSON object.
    """

    def __init__(self, setup: Setup) -> None:
        self.session: str | None = None
        self.usage: dict[str, float] = {}
        self.should_end = False
        self._setup = setup
        self._last = ""

    def command(self) -> list[str]:
        (self._setup.files / USAGE).unlink(missing_ok=True)
        return list(self._setup.command)

    def read(self, line: str) -> list[Note]:
        if not line.strip():
            return []
        self._last = line
        return [Note(line)]

    def outcome(self, ended: Exit, errors: str) -> Outcome:
        self.usage = self._used()
        reason = f"the command ended with {ended}" + (f": {last}" if (last := last_line(errors)) else "")
        if ended.code == 0:
            return Outcome(self._last)
        if ended.code == RATE_LIMITED:
            return Outcome(error=reason, is_rate_limited=True)
        return Outcome(error=reason, is_permanent=ended.code == PERMANENT or ended.code in NOT_RUN)

    def _used(self) -> dict[str, float]:
        """Return the amounts in the file; others than numbers are left out."""
        try:
            with os.fdopen(
                os.open(self._setup.files / USAGE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb"
            ) as file:
                written = json.loads(file.read(MAX_USAGE_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        amounts = written.items() if isinstance(written, dict) else ()
        return {name: number(amount) for name, amount in amounts if _UNIT.fullmatch(name) and number(amount)}
