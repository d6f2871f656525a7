"""The leases of a worker: heartbeats for all of them in one call, and a watch for those that end early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from interlock.client.port import Client
from interlock.domain.job import Heartbeat, HeartbeatReply, Rejected
from interlock.errors import Fatal
from interlock.sdk.leases import HEARTBEATS_PER_CALL, LOST
from interlock.worker.reconnect import Reconnect
from interlock.worker.run import Run, StopReason

BLOCKED_SECONDS: Final = 1.0
WAIT_SECONDS: Final = 20.0
SETTLED_SECONDS: Final = 0.2  # most runs finish before watching them pays off
PAUSE_SECONDS: Final = 2.0


class HeartbeatLoop:
    """Sends heartbeats until stopped. Cancellation and lease loss reach a run with the next reply."""

    def __init__(
        self,
        client: Client,
        log: Any,
        *,
        every_seconds: float,
        leased_runs: Callable[[], Iterable[Run]],
        stop: Callable[[Run, StopReason], None],
        broken: Callable[[BaseException], None],
    ) -> None:
        self._client = client
        self._log = log
        self._every_seconds = every_seconds
        self._leased_runs = leased_runs
        self._stop = stop
        self._broken = broken
        self._reconnect = Reconnect(log, "heartbeat")
        self._in_flight = asyncio.Lock()

    async def heartbeat(self) -> None:
        """Send heartbeats until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + self._every_seconds
            await asyncio.sleep(self._every_seconds)
            if (late := clock() - due) > max(self._every_seconds, BLOCKED_SECONDS):
                self._log.warning("event loop blocked, leases may expire", seconds=round(late, 1))
            try:
                await self._once()
                self._reconnect.rest()
            except Fatal as error:
                self._broken(error)
                return
            except Exception as error:
                await self._reconnect.wait(error)

    async def check(self, runs: Sequence[Run]) -> None:
        """Send heartbeats for some runs now; the replies contain which of them must stop, and why."""
        await self._heartbeat_for(runs)

    async def at_rest(self) -> None:
        """Wait for the reply to a heartbeat in flight: its result must be known before its runs are finished."""
        async with self._in_flight:
            pass

    async def _once(self) -> None:
        runs = list(self._leased_runs())
        for start in range(0, len(runs), HEARTBEATS_PER_CALL):
            await self._heartbeat_for(runs[start : start + HEARTBEATS_PER_CALL])

    async def _heartbeat_for(self, runs: Sequence[Run]) -> None:
        heartbeats = [run.heartbeat() for run in runs]
        for run, heartbeat in zip(runs, heartbeats, strict=True):
            run.sending_events = bool(heartbeat.events)
        try:
            async with self._in_flight:
                answers = await self._client.work.heartbeats(heartbeats)
        except BaseException:
            for run, heartbeat in zip(runs, heartbeats, strict=True):
                if run.context is not None:
                    run.context._give_back(heartbeat.events)
            raise
        finally:
            for run in runs:
                run.sending_events = False
        odd: list[Run] = []
        for run, answer in zip(runs, answers, strict=True):
            if not self._took(run, answer):
                odd.append(run)
        if odd:  # retry without events and lease duration: an error in them must not cost the lease
            for run, answer in zip(
                odd, await self._client.work.heartbeats([Heartbeat(*run.holder) for run in odd]), strict=True
            ):
                self._took(run, answer)

    def _took(self, run: Run, answer: HeartbeatReply | Rejected) -> bool:
        """Apply the reply to a run; return False if the heartbeat was rejected but the lease may still be valid."""
        if not isinstance(answer, Rejected):
            if answer.cancel_requested:
                self._stop(run, StopReason.CANCELLED)
            if run.context is not None:
                run.context.is_budget_spent = answer.budget_exceeded
        elif isinstance(answer.error, LOST):
            self._stop(run, StopReason.LOST)
        else:
            self._log.warning("heartbeat rejected", job=run.job.id, error=str(answer.error))
            return False
        return True


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
