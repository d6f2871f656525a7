"""Any command: the prompt on standard input, the result is the last line, exit code 0 is success."""

from __future__ import annotations

from typing import Final

from interlock.agent_cli.adapter import Note, Outcome, Setup, last_line
from interlock.agent_cli.process import Exit

RATE_LIMITED: Final = 75  # EX_TEMPFAIL: try again later
PERMANENT: Final = 65  # EX_DATAERR: the input is wrong
NOT_RUN: Final = (126, 127)


class Plain:
    """A command without a protocol. Exit code 75 releases the job, 65 fails it permanently."""

    def __init__(self, setup: Setup) -> None:
        self.session: str | None = None
        self.usage: dict[str, float] = {}
        self.should_end = False
        self._setup = setup
        self._last = ""

    def command(self) -> list[str]:
        return list(self._setup.command)

    def read(self, line: str) -> list[Note]:
        if not line.strip():
            return []
        self._last = line
        return [Note(line[:1000])]

    def outcome(self, ended: Exit, errors: str) -> Outcome:
        reason = f"the command ended with {ended}" + (f": {last}" if (last := last_line(errors)) else "")
        if ended.code == 0:
            return Outcome(self._last)
        if ended.code == RATE_LIMITED:
            return Outcome(error=reason, is_rate_limited=True)
        return Outcome(error=reason, is_permanent=ended.code == PERMANENT or ended.code in NOT_RUN)
