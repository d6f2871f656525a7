"""Starting programs for tests: never as root, and not outliving the test process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

NOBODY: Final = 65534

# Becomes the real command after giving up root and asking for a signal when the test process dies. A separate program,
# because a preexec_fn is unsafe, and from Python 3.12 a warning, in a process with threads. Of root's rights only the one
# to read all files is kept, on request: Python and its packages may be installed where only root can read.
# It is kept in the ambient set, so that it outlives the change of user and every exec. The last look at the
# parent closes the gap in which it died before the request was made.
_LAUNCHER: Final = """
import ctypes, os, sys
parent, user, reads_all, death_signal, *command = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
if int(user):
    words, override, read_search = ctypes.c_uint32 * 6, 1, 2
    header, own = (ctypes.c_uint32 * 2)(0x20080522, 0), words()
    if int(reads_all):
        libc.capget(header, own)
        libc.prctl(8, 1, 0, 0, 0)
    kept = own[1] & (1 << override | 1 << read_search)
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
    if int(reads_all):
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

# Linux sends that signal when the thread that started the child ends, not only its process: so every child is
# started from one thread that lives as long as the process does.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="child-starter")


def must_drop_root() -> bool:
    """PostgreSQL refuses to run as root, and nothing else has to."""
    return os.geteuid() == 0


def launch(
    command: Sequence[str | Path],
    home: Path,
    *,
    output: int,
    at_our_death: signal.Signals,
    reads_all: bool = False,
    keep: Sequence[int] = (),
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in its home; `keep` are the files that stay open in it."""
    user = NOBODY if must_drop_root() else 0
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER]
    words = [str(os.getpid()), str(user), str(int(reads_all)), str(int(at_our_death)), *map(str, command)]
    return _starter.submit(
        subprocess.Popen,
        launcher + words,
        cwd=home,
        env={**_environment(), "HOME": str(home), **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=keep,
        # A terminal's Ctrl-C is for the test run, which then stops its children in its own way.
        start_new_session=True,
    ).result()


def _environment() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PG", "PATRONI_", "ETCD_"))}
