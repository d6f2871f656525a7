"""Signs of life for everything a worker holds, in one call, well before any lease runs out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from interlock.client.protocol import Client
from interlock.domain.job import Beat, Pulse, Refused
from interlock.errors import Conflict, Fatal, NotFound
from interlock.worker.reconnect import Patience
from interlock.worker.run import Ending, Run

AT_ONCE: Final = 1000
BLOCKED_SECONDS: Final = 1.0


class Heart:
    """Beats until it is stopped; a cancel request and the loss of a lease reach the run with the next beat."""

    def __init__(
        self,
        client: Client,
        log: Any,
        *,
        every_seconds: float,
        held: Callable[[], Iterable[Run]],
        stop: Callable[[Run, Ending], None],
        broken: Callable[[BaseException], None],
    ) -> None:
        self._client = client
        self._log = log
        self._every_seconds = every_seconds
        self._held = held
        self._stop = stop
        self._broken = broken
        self._patience = Patience(log, "heartbeat")
        self._beating = asyncio.Lock()

    async def beat(self) -> None:
        """Forever."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + self._every_seconds
            await asyncio.sleep(self._every_seconds)
            if (late := clock() - due) > max(self._every_seconds, BLOCKED_SECONDS):
                self._log.warning("event loop blocked, leases may expire", seconds=round(late, 1))
            try:
                await self._once()
                self._patience.rest()
            except Fatal as error:
                self._broken(error)
                return
            except Exception as error:
                await self._patience.wait(error)

    async def check(self, runs: Sequence[Run]) -> None:
        """Send heartbeats for some runs now: the replies tell which of them must stop, and why."""
        await self._beat_for(runs)

    async def at_rest(self) -> None:
        """Until the beat under way is answered: what it tells of a run must come before the report of its end."""
        async with self._beating:
            pass

    async def _once(self) -> None:
        runs = list(self._held())
        for start in range(0, len(runs), AT_ONCE):
            await self._beat_for(runs[start : start + AT_ONCE])

    async def _beat_for(self, runs: Sequence[Run]) -> None:
        beats = [run.beat() for run in runs]
        for run, beat in zip(runs, beats, strict=True):
            run.telling = bool(beat.events)
        try:
            async with self._beating:
                answers = await self._client.heartbeats(beats)
        except BaseException:
            for run, beat in zip(runs, beats, strict=True):
                if run.context is not None:
                    run.context.give_back(beat.events)
            raise
        finally:
            for run in runs:
                run.telling = False
        odd: list[Run] = []
        for run, answer in zip(runs, answers, strict=True):
            if not self._took(run, answer):
                odd.append(run)
        if odd:  # what was wrong with a beat, its events or its length of lease, must not cost the lease
            for run, answer in zip(odd, await self._client.heartbeats([Beat(*run.holder) for run in odd]), strict=True):
                self._took(run, answer)

    def _took(self, run: Run, answer: Pulse | Refused) -> bool:
        """Hand on what a beat has told of a run; False if it was refused although the lease may still be ours."""
        if not isinstance(answer, Refused):
            if answer.cancel_requested:
                self._stop(run, Ending.CANCELLED)
        elif isinstance(answer.error, (Conflict, NotFound)):
            self._stop(run, Ending.LOST)
        else:
            self._log.warning("heartbeat rejected", job=run.job.id, error=str(answer.error))
            return False
        return True
