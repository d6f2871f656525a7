"""Cancel requests and lost leases, as soon as they happen instead of with the next heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from interlock.client.port import Client
from interlock.errors import Fatal
from interlock.sdk.leases import HEARTBEATS_PER_CALL
from interlock.worker.heartbeats import HeartbeatLoop
from interlock.worker.run import Run

WAIT_SECONDS: Final = 20.0
SETTLED_SECONDS: Final = 0.2  # most runs finish before watching them pays off
PAUSE_SECONDS: Final = 2.0


class Interruptions:
    """Watches the leases of runs in one long poll; heartbeats are the fallback. Very short runs are not watched."""

    def __init__(
        self, client: Client, log: Any, heart: HeartbeatLoop, *, leased_runs: Callable[[], Iterable[Run]]
    ) -> None:
        self._client = client
        self._log = log
        self._heart = heart
        self._leased_runs = leased_runs
        self._begun = asyncio.Event()

    def note_begin(self) -> None:
        """Record that a run has started."""
        self._begun.set()

    async def watch(self) -> None:
        """Watch until cancelled."""
        while True:
            runs = self._watched()
            if runs:
                await self._watch(runs)
            elif not any(True for _ in self._leased_runs()):
                self._begun.clear()
                await self._begun.wait()
            await asyncio.sleep(SETTLED_SECONDS)

    async def _watch(self, runs: Sequence[Run]) -> None:
        """Watch until one of the runs must stop, or the set of runs changes."""
        keys = {run.key for run in runs}
        polling = asyncio.create_task(
            self._client.work.interrupted([run.key for run in runs], wait_seconds=WAIT_SECONDS)
        )  # fmt: skip
        try:
            while not polling.done() and all(run.key in keys for run in self._watched()):
                await asyncio.wait([polling], timeout=SETTLED_SECONDS)
            if polling.done() and (ids := set(polling.result())):
                still_running = {run.key for run in self._watched()}
                if stopped := [run for run in runs if run.job.id in ids and run.key in still_running]:
                    await self._heart.check(stopped)
        except Fatal:
            return  # the heartbeat loop stops the worker
        except Exception as error:
            self._log.debug("cancel requests not watched, retrying", error=str(error))
            await asyncio.sleep(PAUSE_SECONDS)
        finally:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)

    def _watched(self) -> list[Run]:
        before = asyncio.get_running_loop().time() - SETTLED_SECONDS
        return [
            run
            for run in self._leased_runs()
            if run.ending is None and run.started_at is not None and run.started_at < before
        ][:HEARTBEATS_PER_CALL]
