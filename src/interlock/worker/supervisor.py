"""Supervisor of several worker processes: starts them, restarts crashed ones, and stops them together."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any, Final

from interlock.pauses import Pauses
from interlock.worker.log import logger

SHORTEST_LIFE_SECONDS: Final = 10.0
FIRST_PAUSE_SECONDS: Final = 0.5
MAX_PAUSE_SECONDS: Final = 30.0
STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_context = multiprocessing.get_context("spawn")


class Supervisor:
    """Runs `serve` in every process. Exit code 0 means done; a crashed process is restarted if that can help."""

    def __init__(
        self, serve: Callable[..., None], arguments: Sequence[Any], processes: int, *, hopeless: Collection[int] = ()
    ) -> None:
        self._serve = serve
        self._arguments = tuple(arguments)
        self._wanted = processes
        self._hopeless = hopeless
        self._exit_code = 0
        self._members: dict[SpawnProcess, float] = {}
        self._stopping = False
        self._pauses = Pauses(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        self._log: Any = logger()

    def run(self) -> int:
        """Run until all processes are done; return the exit code. A second signal stops them immediately."""
        for number in STOPS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                signal.signal(number, self._pass_on)
        for _ in range(self._wanted):
            self._start()
        while self._members:
            wait([member.sentinel for member in self._members])
            for member in [member for member in self._members if member.exitcode is not None]:
                self._replace(member, self._members.pop(member))
        return self._exit_code

    def _start(self) -> None:
        member = _context.Process(target=_be_member, args=(self._serve, self._arguments))
        member.start()
        self._members[member] = time.monotonic()
        if self._stopping:  # the signal came while it was being started
            member.terminate()

    def _replace(self, member: SpawnProcess, since: float) -> None:
        if self._stopping or not member.exitcode:
            return
        if member.exitcode in self._hopeless:  # a replacement would end in the same way
            self._exit_code = member.exitcode
            self._pass_on()
            return
        self._log.error("worker process crashed, restarting", pid=member.pid, exit_code=member.exitcode)
        if time.monotonic() - since < SHORTEST_LIFE_SECONDS:
            time.sleep(self._pauses.next())
        else:
            self._pauses.reset()
        if not self._stopping:
            self._start()

    def _pass_on(self, *_: object) -> None:
        self._stopping = True
        for member in list(self._members):
            if member.is_alive():
                member.terminate()


def _be_member(serve: Callable[..., None], arguments: Sequence[Any]) -> None:
    """Ignore terminal signals, which the parent handles; stop when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, name="interlock-parent-watch", daemon=True).start()
    serve(*arguments)
