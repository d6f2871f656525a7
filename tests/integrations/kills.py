"""A worker that is killed at random calls of a run, and what must hold whatever was killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import interlock
from interlock.domain.decide import RevokeLease
from interlock.domain.lifecycle import TERMINAL, Status
from tests.integrations.model_server import PARALLEL, TURNS, Call, ModelServer
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.forms import IS_LONG

ROOT = Path(__file__).parents[2]
KILLS = 10 if IS_LONG else 4
AT_ONCE = interlock.Backoff("fixed", base=0)  # an attempt that fails on a busy machine must not wait for minutes
LAST_CALL = Call("model", TURNS + 1)
MAX_DELAY = 0.03  # between a response and the kill: saving a step takes less


class Rig:
    """A model, a worker process for the tasks of a module, and an app on the same database."""

    def __init__(self, module: str, url: str, model: ModelServer, app: interlock.App, directory: Path) -> None:
        self.url, self.model, self.app = url, model, app
        self.kills: list[str] = []
        self._module, self._pid_file, self._log = module, directory / "pid", directory / "worker.log"
        self._dice = random.Random()
        self._lock, self._armed, self._left = threading.Lock(), False, 0
        self._killed: int | None = None  # the process of a worker whose lease is still to be given up
        self._program: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("wb") as log:
            self._program = subprocess.Popen(
                [sys.executable, "-m", "tests.integrations.worker_program", self._module, str(self._pid_file)],
                cwd=ROOT,
                env={**os.environ, "JOBS": self.url, "MODEL": self.model.url, "OPENAI_API_KEY": "none"},
                stderr=log,
                start_new_session=True,
            )

    def stop(self) -> None:
        if self._program is not None:
            os.killpg(self._program.pid, signal.SIGKILL)  # with the worker, also one that was forked right now
            self._program.wait()

    async def run(self, type: str, *, kills: int = 0, **payload: Any) -> interlock.Job:
        """Run a job to its end, or to its next approval, and kill the worker meanwhile."""
        self._left = kills
        self._arm()
        return await self.follow(await self.app.tasks[type].enqueue(**payload))

    async def follow(self, handle: interlock.JobHandle[Any]) -> interlock.Job:
        """Wait until a job has ended, or waits for an approval, and all kills were made."""
        try:
            async with asyncio.timeout(RETRY_SECONDS):
                return await self._follow(handle)
        except TimeoutError:
            job = await handle.refresh()
            facts = job, self.kills, self._left, self._armed, self._killed, self._pid(), self.model.connections
            raise AssertionError(f"{facts}\n{self._log.read_text()}") from None

    async def _follow(self, handle: interlock.JobHandle[Any]) -> interlock.Job:
        while True:
            job = await handle.refresh()
            is_over = job.status in TERMINAL or job.status is Status.WAITING_FOR_APPROVAL
            if is_over and self._left == 0:  # the last kill may come after the end
                assert self._log.read_text().count("Traceback") == 0, self._log.read_text()
                return job
            if self._program is not None and self._program.poll() is not None:
                raise AssertionError(self._log.read_text())
            if self._killed is not None and self._pid() != self._killed:
                await self._give_up_lease(handle, self._killed)
            await asyncio.sleep(0.01)

    async def _give_up_lease(self, handle: interlock.JobHandle[Any], pid: int) -> None:
        """End the lease of a worker that has ended, now instead of at its expiry.

        A call that the worker sent before it was killed may end the lease too, and even the job: so only this lease is
        ended, and it does not matter if it is over. The next kill is armed before that, since the next worker may run
        the whole job before this process continues.
        """
        await asyncio.to_thread(self.model.settle)
        job = await handle.refresh()
        self._killed = None
        self._left -= 1
        self._arm()
        if job.worker == f"worker/{pid}":
            client: Any = await self.app._client()
            order = RevokeLease(job.id, "user:test", "the worker was killed", below=job.fence + 1)
            await client.engine.store.carry_out((await client.me()).tenant, [order])

    def _pid(self) -> int:
        return int(self._pid_file.read_text())

    def _arm(self) -> None:
        with self._lock:
            self._armed = self._left > 0
        self.model.before = self._maybe_before
        self.model.after = self._maybe_after

    def _maybe_before(self, call: Call) -> None:
        if self._dice.random() < 0.3 or (call == LAST_CALL and self._left > 1):
            self._kill("before", call)

    def _maybe_after(self, call: Call) -> None:
        if self._dice.random() < 0.3 or call == LAST_CALL:  # none of the kills is left out
            time.sleep(self._dice.uniform(0, MAX_DELAY))
            self._kill("after", call)

    def _kill(self, when: str, call: Call) -> None:
        with self._lock:
            if not self._armed:
                return
            self._armed = False
            self.kills.append(f"{when} {call.kind} {call.turn}.{call.number}")
            self._killed = self._pid()
            os.kill(self._killed, signal.SIGKILL)


def check_calls(calls: list[Call]) -> None:
    """No call is repeated once a call that needs its result was made: then it was finished and saved."""
    seen: set[Call] = set()
    for call in calls:
        later = {one for one in seen if one.turn > call.turn or (one.turn == call.turn and one.kind > call.kind)}
        assert not later, f"{call} was repeated after {sorted(later)}: {calls}"
        seen.add(call)
    wanted = {Call("model", turn) for turn in range(1, TURNS + 2)}
    wanted |= {Call("tool", turn, number) for turn in range(1, TURNS + 1) for number in range(1, PARALLEL + 1)}
    assert seen == wanted


@asynccontextmanager
async def rigged(module: str, url: str, model: ModelServer, directory: Path) -> AsyncIterator[Rig]:
    """A rig whose worker runs for as long as the block lasts."""
    async with interlock.App(url) as app:
        client = await app._client()
        await client.now()  # the database is there before the worker
        rig = Rig(module, url, model, app, directory)
        rig.start()
        try:
            yield rig
        finally:
            await asyncio.to_thread(rig.stop)


__all__ = ["AT_ONCE", "KILLS", "Rig", "check_calls", "eventually", "rigged"]
