"""A node that stands still without being dead: as if its machine hung, or were cut off from all others."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.support.cluster import Node


class Frozen:
    """A frozen node: open connections get no response, and new connections wait."""

    def __init__(self, node: Node) -> None:
        assert node.child is not None
        self._patroni = _stop(node.child.pid)
        self._postgres = _stop(int((node.data / "postmaster.pid").read_text().split()[0]))

    def wake_postgres(self) -> None:
        """It does not know that another node leads: it responds, and considers itself the leader."""
        while self._postgres:
            _send(self._postgres.pop(), signal.SIGCONT)

    def wake(self) -> None:
        self.wake_postgres()
        while self._patroni:
            _send(self._patroni.pop(), signal.SIGCONT)


@contextlib.contextmanager
def frozen(node: Node) -> Iterator[Frozen]:
    """Stopped for as long as the block lasts."""
    node.answers = False
    made = Frozen(node)
    try:
        yield made
    finally:
        made.wake()
        node.answers = True


def _stop(root: int) -> list[int]:
    """Stop a process and all its descendants, until no new one has started meanwhile."""
    stopped: list[int] = []
    while new := [pid for pid in _family(root) if pid not in stopped]:
        for pid in new:
            _send(pid, signal.SIGSTOP)
        stopped += new
    return stopped


def _family(root: int) -> list[int]:
    """A process, its children and theirs, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    family = [root]
    for pid in family:
        family += children.get(pid, [])
    return family


def _send(pid: int, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)
