"""A handle for producers: wait for a job's result, follow it, cancel it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar

import msgspec

from interlock.client.port import Client
from interlock.domain.job import Job as JobRecord
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.errors import Invalid
from interlock.sdk import large, serialization
from interlock.sdk.exceptions import JobCancelled, JobFailed, in_seconds
from interlock.sdk.sync import background_loop, iterate, sync_version
from interlock.sdk.values import Chunk, Event, HistoryRow, Job, Message, value_of

R = TypeVar("R")
MAX_POLL_SECONDS: Final = 30.0
PAGE: Final = 200


class JobHandle(Generic[R]):
    """One job. `replayed` is true if its idempotency key was already used for the same call."""

    def __init__(
        self, id: str, client: Callable[[], Awaitable[Client]], returns: Any = Any, *, replayed: bool = False
    ) -> None:
        self.id = id
        self.replayed = replayed
        self._client = client
        self._returns = returns

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"

    async def result(self, /, timeout: float | timedelta | None = None) -> R:  # noqa: ASYNC109 - part of the verb
        """Return the result of the job; raise JobFailed, JobCancelled, or TimeoutError if it takes too long."""
        client = await self._client()
        seconds = in_seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = MAX_POLL_SECONDS if deadline is None else max(deadline - time.monotonic(), 0.0)
            job = await client.jobs.wait(self.id, seconds=min(left, MAX_POLL_SECONDS))
            if job.status in TERMINAL:
                if job.status is Status.SUCCEEDED and self._returns is not None:
                    job = job._replace(result=await large.job_result(client, job.id, job.result))
                result: R = outcome(job, self._returns)
                return result
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"job {self.id} is still {job.status} after {seconds} s")

    async def refresh(self) -> Job:
        """Return the current state of the job."""
        return value_of(Job, await (await self._client()).jobs.get(self.id))

    async def history(self) -> list[HistoryRow]:
        """Return all transitions, oldest first."""
        return [value_of(HistoryRow, row) for row in await (await self._client()).jobs.history(self.id)]

    async def cancel(self, reason: str | None = None, *, force: bool = False, cascade: bool = False) -> Status:
        """Cancel the job and return its status: cancelled, or running until its worker acknowledges.

        With `force` its lease is revoked immediately; with `cascade` all descendants are cancelled too.
        """
        jobs = (await self._client()).jobs
        if cascade:
            return (await jobs.cancel_tree(self.id, reason=reason, force=force)).receipt.status
        return (await jobs.cancel(self.id, reason=reason, force=force)).status

    async def redrive(
        self,
        start_from: str = "start",
        *,
        idempotency_key: str | None = None,
        payload: Any = None,
        priority: int | None = None,
        run_at: datetime | None = None,
        delay: float | timedelta | None = None,
        max_attempts: int | None = None,
        tags: Sequence[str] | None = None,
    ) -> JobHandle[R]:
        """Create a new job from this terminal one: from the start, from its checkpoint, or after a named step.

        Options that are None stay as they were.
        """
        enqueued = await (await self._client()).jobs.redrive(
            self.id, start_from=start_from, idempotency_key=idempotency_key, priority=priority, run_at=run_at,
            delay_seconds=in_seconds(delay), max_attempts=max_attempts, tags=tags,
            payload=None if payload is None else serialization.encode(payload).encode(),
        )  # fmt: skip
        return JobHandle(enqueued.id, self._client, self._returns, replayed=enqueued.replayed)

    async def send(self, name: str, payload: Any = None, /, *, id: str | None = None) -> Message:
        """Send a message to the job; with the ID of an earlier message to the job, return that one."""
        text = None if payload is None else serialization.encode(payload)
        return value_of(Message, await (await self._client()).jobs.send(self.id, name, text, id=id))

    async def events(self, after: int = 0) -> list[Event]:
        """Return the events of the job, oldest first; only those with a seq above `after`."""
        client = await self._client()
        found: list[Event] = []
        while page := await client.jobs.events(self.id, after=found[-1].seq if found else after, limit=PAGE):
            found += [value_of(Event, row) for row in page]
        return found

    async def tail(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield events as they arrive, until the job is terminal."""
        async with aclosing((await self._client()).jobs.tail(self.id, after=after)) as results:
            async for event in results:
                yield value_of(Event, event)

    def tail_sync(self, after: int = 0) -> Iterator[Event]:
        """Yield events as they arrive, until the job is terminal."""
        return iterate(self._loop_for_blocking(), self.tail(after))

    async def stream(self, name: str, *, after: int = -1) -> AsyncIterator[Chunk]:
        """Yield the chunks of a stream as they arrive, until the job is terminal; `after` skips up to that offset."""
        async with aclosing((await self._client()).jobs.stream(self.id, name, after=after)) as chunks:
            async for chunk in chunks:
                yield value_of(Chunk, chunk)

    def stream_sync(self, name: str, *, after: int = -1) -> Iterator[Chunk]:
        """Yield the chunks of a stream as they arrive, until the job is terminal; `after` skips up to that offset."""
        return iterate(self._loop_for_blocking(), self.stream(name, after=after))

    result_sync = sync_version(result)
    refresh_sync = sync_version(refresh)
    history_sync = sync_version(history)
    cancel_sync = sync_version(cancel)
    redrive_sync = sync_version(redrive)
    send_sync = sync_version(send)
    events_sync = sync_version(events)

    def _loop_for_blocking(self) -> asyncio.AbstractEventLoop:
        return background_loop()


def outcome(job: JobRecord, returns: Any = Any) -> Any:
    """Return the result of a terminal job; raise JobFailed or JobCancelled if it did not succeed."""
    if job.status is Status.SUCCEEDED:
        try:
            return serialization.decode(job.result, returns) if returns is not None else None
        except msgspec.ValidationError as error:
            raise Invalid(f"the result of job {job.id} does not match the return type of its task: {error}") from error
    if job.status is Status.CANCELLED:
        raise JobCancelled(job.id, job.cancel_reason)
    raise JobFailed(job.id, str(job.status), serialization.decode(job.error) or {})
