"""Programs that tests start: never as root, ended by their own process id, and not outliving the test process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.launch import NOBODY, launch, must_drop_root

TIMEOUT: Final = 600.0


def own(path: Path) -> None:
    """Give a path to the user whom children run as."""
    if must_drop_root():
        os.chown(path, NOBODY, NOBODY)


class Child:
    """One program and what it writes."""

    def __init__(self, command: Sequence[str | Path], home: Path, log: Path, **variables: str) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = launch(
                command,
                home,
                output=output.fileno(),
                at_our_death=signal.SIGTERM,
                reads_all=True,
                variables=variables,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """The exit code, once there is one."""
        return self._process.poll()

    @property
    def wrote(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-2000:]

    def end(self, how: signal.Signals) -> None:
        """Signal exactly this process and wait for its end, by force if it does not obey."""
        self._process.send_signal(how)
        try:
            self._process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def end_stranger(pid: int, how: signal.Signals) -> None:
    """Signal a process that a child of ours has started, and return when it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)
    deadline = time.monotonic() + TIMEOUT
    while is_alive(pid):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} did not end within {TIMEOUT:.0f} s of {how.name}")
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Not so of a zombie, whom only its parent can bury."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
