"""Programs that tests start: never as root, ended by their own process id, and not outliving the test process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.support.postgres import NOBODY

TIMEOUT: Final = 60.0

# Becomes the real command after giving up root and asking for a signal when the test process dies. Of root's
# rights only one is kept, to read what others may not: Python and its packages may be installed where nobody
# else can walk to. It is kept in the ambient set, so that it outlives the change of user and every exec.
LAUNCHER: Final = """
import ctypes, os, sys
parent, user, death_signal, *command = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
if int(user):
    words, override, read_search = ctypes.c_uint32 * 6, 1, 2
    header, own = (ctypes.c_uint32 * 2)(0x20080522, 0), words()
    libc.capget(header, own)
    kept = own[1] & (1 << override | 1 << read_search)
    libc.prctl(8, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
    libc.capset(header, words(kept, kept, kept, 0, 0, 0))
    for right in (override, read_search):
        libc.prctl(47, 2, right, 0, 0)
if sys.platform == "linux":
    libc.prctl(1, int(death_signal), 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("the test process is gone")
try:
    os.execv(command[0], command)
except OSError as error:
    sys.exit(f"cannot run {command[0]}: {error}")
"""

# Linux sends that signal when the thread that started the child ends, not only its process.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="child-starter")


def must_drop_root() -> bool:
    return os.geteuid() == 0


def own(path: Path) -> None:
    """Give a path to the user whom children run as."""
    if must_drop_root():
        os.chown(path, NOBODY, NOBODY)


class Child:
    """One program and what it writes."""

    def __init__(self, command: Sequence[str | Path], home: Path, log: Path, **variables: str) -> None:
        self.log = log
        user = NOBODY if must_drop_root() else 0
        launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER]
        words = [str(os.getpid()), str(user), str(int(signal.SIGTERM)), *map(str, command)]
        with log.open("ab") as output:
            self._process = _starter.submit(
                subprocess.Popen,
                launcher + words,
                cwd=home,
                env={**_environment(), "HOME": str(home), **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A terminal's Ctrl-C is for the test run, which then stops its children in its own way.
                start_new_session=True,
            ).result()

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


def _environment() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PG", "PATRONI_", "ETCD_"))}


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
