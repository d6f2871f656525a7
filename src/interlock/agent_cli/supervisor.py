"""A program that runs one command and ends its whole process tree, also when the worker dies.

The worker starts it with a socket as standard input: `python -I -S supervisor.py STDIN_FILE COMMAND…`. A line `term` or
`kill` ends the tree; so does the end of the socket, which is how the death of the worker arrives. As a child subreaper
it inherits every orphan of the command, so that double forks and new sessions do not escape. It reports
`exit CODE`, `signal NUMBER` or `error TEXT` on the socket when no process of the tree is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_SECONDS = 2.0
POLL_SECONDS = 0.02


def main(stdin_file: str, command: list[str]) -> None:
    control = os.dup(0)
    os.set_inheritable(control, False)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the worker, or its death, ends the command
    child = _start(stdin_file, command)
    ending = _watch(control, wake, child)
    _end_tree()
    with contextlib.suppress(OSError):  # the worker may be gone
        os.write(control, f"{ending}\n".encode())


def _start(stdin_file: str, command: list[str]) -> int:
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.setpgid(0, 0)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(137)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(stdin_file, os.O_RDONLY), 0)
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
    os._exit(127)


def _watch(control: int, wake: int, child: int) -> str:
    """Wait for the end of the command, or end it when the worker asks or dies; return how it ended."""
    deadline: float | None = None
    while True:
        wait = None if deadline is None else max(0.0, deadline - time.monotonic())
        readable, _, _ = select.select([control, wake] if control >= 0 else [wake], [], [], wait)
        if wake in readable:
            os.read(wake, 4096)
        if control in readable:
            try:
                order = os.read(control, 100)
            except OSError:
                order = b""
            if b"term" in order and deadline is None:
                deadline = time.monotonic() + GRACE_SECONDS
                _signal_group(child, signal.SIGTERM)
            elif b"term" not in order:
                deadline = time.monotonic()
        if (ended := _reap(child)) is not None:
            return ended
        if deadline is not None and time.monotonic() >= deadline:
            _end_tree()
            return f"signal {int(signal.SIGKILL)}"


def _reap(child: int) -> str | None:
    """Collect ended processes; return how the command ended, if it is among them."""
    ended = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            ended = f"exit {code}" if code >= 0 else f"signal {-code}"


def _end_tree() -> None:
    """Kill all descendants until none is left. A kill of a process group also reaches processes that it is forking."""
    while found := descendants(os.getpid()):
        for group in {group for _, group in found if group != os.getpgrp()}:
            _signal_group(group, signal.SIGKILL)
        for pid, _ in found:
            _signal(pid, signal.SIGKILL)
        _reap(-1)
        time.sleep(POLL_SECONDS)


def descendants(root: int) -> list[tuple[int, int]]:
    """Return process and group of every descendant that has not ended."""
    parents: dict[int, list[tuple[int, int]]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            state, parent, group = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue  # it has ended meanwhile
        if state != "X":
            parents.setdefault(int(parent), []).append((int(entry.name), int(group)))
    found, left = [], [root]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += [pid for pid, _ in children]
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, number)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
