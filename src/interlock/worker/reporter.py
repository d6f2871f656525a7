"""Finishes of runs: collected while the previous batch is in flight, repeated until the server responds."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, Final, TypeVar

from interlock.client.port import Client
from interlock.domain.artifact import File, Holder
from interlock.domain.decide import CompleteJob, FailJob, Finish, ReleaseJob
from interlock.domain.job import Receipt, Rejected
from interlock.domain.progress import Report
from interlock.errors import (
    ArtifactsNotConfigured,
    Error,
    Fatal,
    Invalid,
    Malformed,
    TooLarge,
    Unavailable,
    WouldDeadlock,
)
from interlock.sdk import large
from interlock.sdk.leases import LOST
from interlock.worker.executor import in_place_of
from interlock.worker.heartbeats import HeartbeatLoop
from interlock.worker.reconnect import Reconnect
from interlock.worker.run import Run

T = TypeVar("T")
A = TypeVar("A")
BATCH_SIZE: Final = 1000
MAX_TURNS: Final = 8
ODD_TRIES: Final = 10
LONGEST_MESSAGE: Final = 500
Ended = tuple[Run, Finish]


class Reporter:
    """Sends finishes without a timer: immediately when idle, otherwise in the next batch."""

    def __init__(
        self,
        client: Client,
        log: Any,
        heart: HeartbeatLoop,
        *,
        settled: Callable[[Run], None],
        broken: Callable[[BaseException], None],
    ) -> None:
        self._client = client
        self._log = log
        self._heart = heart
        self._settled = settled
        self._broken = broken
        self._reconnect = Reconnect(log, "reporting")
        self._waiting: list[Ended] = []
        self._sending: asyncio.Task[None] | None = None
        self._under_way = 0

    @property
    def backlog(self) -> int:
        """The number of finishes without a response."""
        return len(self._waiting) + self._under_way

    def report(self, run: Run, order: Finish) -> None:
        self._waiting.append((run, order))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all())

    async def flushed(self) -> None:
        """Wait until every finish reported so far has a response."""
        while self._sending is not None:
            await asyncio.wait([self._sending])

    async def give_up(self) -> int:
        """Stop retrying; return the number of finishes without a response."""
        left = self.backlog
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])
        return left

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                await self._gather()
                batch, self._waiting = self._waiting[:BATCH_SIZE], self._waiting[BATCH_SIZE:]
                self._under_way = len(batch)
                await self._send(batch)
                self._under_way = 0
        except Fatal as error:
            self._broken(error)
        finally:
            self._sending = None

    async def _gather(self) -> None:
        """Let a few turns of the event loop pass while they bring more finishes: runs of small jobs end together."""
        for _ in range(MAX_TURNS):
            seen = len(self._waiting)
            await asyncio.sleep(0)
            if len(self._waiting) == seen or seen >= BATCH_SIZE:
                return

    async def _send(self, batch: Sequence[Ended]) -> None:
        await self._send_events([run for run, _ in batch])
        try:
            answers = await self._insist(self._client.work.finishes, [order for _, order in batch])
        except Fatal:
            raise
        except Exception:
            if len(batch) == 1:
                # Do not settle it: its claim ID would return the same job repeatedly.
                self._log.exception("finish failed", job=batch[0][0].job.id)
                return
            for one in batch:  # so that one invalid finish does not affect the others
                await self._send([one])
            return
        for (run, order), answer in zip(batch, answers, strict=True):
            if isinstance(answer, Rejected):
                await self._refused(run, order, answer.error)
            else:
                self._settled(run)
                self._note(run, order, answer)

    async def _insist(self, verb: Callable[[T], Awaitable[A]], items: T) -> A:
        """Repeat the call until the queue is available; every finish is idempotent."""
        for tries in count(1):
            try:
                answer = await verb(items)
            except Unavailable as error:
                await self._reconnect.wait(error)
            except Error:
                raise
            except Exception as error:  # possibly an error of the driver while the database restarts
                if tries == ODD_TRIES:
                    raise
                await self._reconnect.wait(error)
            else:
                self._reconnect.rest()
                return answer
        raise AssertionError

    async def _send_events(self, runs: Sequence[Run]) -> None:
        """Send the last events of the runs, retrying as long as for the finishes themselves."""
        if any(run.sending_events for run in runs):
            await self._heart.at_rest()
        while results := [
            (run, events) for run in runs if run.context is not None and (events := run.context._take_events())
        ]:
            reports = [Report(*run.holder, events) for run, events in results]
            try:
                answers = await self._insist(self._client.work.add_events, reports)
            except Fatal:
                raise
            except Exception:  # the finish of a run matters more than its events
                self._log.exception("events not delivered", jobs=[run.job.id for run, _ in results])
                return
            for (run, _), answer in zip(results, answers, strict=True):
                if isinstance(answer, Rejected):
                    self._log.warning("events rejected", job=run.job.id, error=str(answer.error))

    async def _as_artifact(self, run: Run, order: CompleteJob, error: TooLarge) -> Finish:
        """Store a result that is too large for the job as an artifact, and return a result that names it."""
        content = (order.result or "").encode(errors="backslashreplace")
        file = File(large.RESULT, content, "application/json")

        async def attach(file: File) -> str | Error:
            try:
                return await self._client.work.attach(Holder(*run.holder), file)
            except (ArtifactsNotConfigured, TooLarge, Invalid, Malformed) as other:
                return other

        id = await self._insist(attach, file)
        if isinstance(id, Error):
            self._log.warning("a large result was not stored as an artifact", job=run.job.id, error=str(id))
            return in_place_of(order, run, error)
        summary = order.result_summary or f"The result has {len(content)} bytes and is the artifact {large.RESULT}."
        named = large.in_result(large.reference_to(large.RESULT, content, id=id))
        return order._replace(result=named, result_summary=summary)

    async def _refused(self, run: Run, order: Finish, error: Error) -> None:
        if isinstance(order, CompleteJob) and isinstance(error, TooLarge):
            try:
                self._waiting.append((run, await self._as_artifact(run, order, error)))
                return
            except LOST as lost:
                error = lost
        if isinstance(order, (CompleteJob, ReleaseJob)) and isinstance(
            error, (TooLarge, Invalid, Malformed, WouldDeadlock)
        ):
            self._waiting.append((run, in_place_of(order, run, error)))
            return
        if isinstance(error, LOST):
            self._settled(run)
            self._log.info("lease lost before finish", job=run.job.id, fence=run.job.fence, code=error.code)
        else:
            self._log.error("finish rejected", job=run.job.id, fence=run.job.fence, error=str(error))

    def _note(self, run: Run, order: Finish, receipt: Receipt) -> None:
        """Log one line per run. Build it only if it is logged: a worker may finish thousands of runs per second."""
        if run.trouble is None and not self._log.isEnabledFor(logging.INFO):
            return
        facts: dict[str, Any] = {
            "job": run.job.id,
            "type": run.job.type,
            "attempt": run.job.attempt,
            "status": str(receipt.status),
        }
        if run.seconds is not None:
            facts["duration_seconds"] = round(run.seconds, 3)
        if run.trouble is not None:
            self._log.error("run released, a role is missing", **facts, error=run.trouble)
        elif type(order) is CompleteJob:
            self._log.info("run succeeded", **facts)
        elif type(order) is FailJob:
            self._log.info("run failed", **facts, error=_message(order.error))
        else:
            self._log.info("run ended", **facts, by=str(order.verb))


def _message(error: str) -> str:
    """Return the message of a failure for the log; its traceback is in the record of the job."""
    return str(json.loads(error)["message"])[:LONGEST_MESSAGE]
