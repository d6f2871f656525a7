"""Progress of running jobs: steps and events, and readers that follow them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

import msgspec

from interlock import wire
from interlock.domain import json_text
from interlock.domain.job import Rejected
from interlock.domain.progress import (
    LARGEST_NUMBER,
    LARGEST_OCCURRENCE,
    Event,
    EventRow,
    FeedEvent,
    FeedPosition,
    Level,
    Report,
    Step,
    StepRow,
    fitted,
)
from interlock.engine.results import answered, each
from interlock.errors import Invalid, NotFound
from interlock.storage.contract import Store
from interlock.wire import Limits

MAX_PAGE_SIZE: Final = 200
POLL_SECONDS: Final = 0.5
GATHER_SECONDS: Final = 0.02
QUIET_SECONDS: Final = 15.0
T = TypeVar("T")


class Progress:
    """Steps and events: written under the fence of a lease, readable by the whole tenant."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits

    async def save_step(self, tenant: str, step: Step) -> StepRow:
        """Save the result of a step; the first result of a name and occurrence is kept and returned."""
        (answer,) = await self.save_steps(tenant, [step])
        return answered(answer)

    async def save_steps(self, tenant: str, steps: Sequence[Step]) -> list[StepRow | Rejected]:
        """Save several steps, each with its own result."""
        wire.check_batch(steps, self._limits)
        return await each(steps, self._sanitized_step, lambda good: self._store.save_steps(tenant, good))

    async def steps(self, tenant: str, job_id: str, *, after: int = 0, limit: int = MAX_PAGE_SIZE) -> list[StepRow]:
        """List the steps of a job after a number, oldest first."""
        id = _page_of(job_id, after, limit)
        (found,) = await self._store.steps(tenant, [id], after=after, limit=limit)
        return found or await self._nothing(tenant, id)

    async def steps_of(self, tenant: str, job_ids: Sequence[str]) -> list[list[StepRow]]:
        """Return all steps of claimed jobs, so that their workers can replay them."""
        found = await self._store.steps(tenant, job_ids, limit=MAX_PAGE_SIZE)
        for id, steps in zip(job_ids, found, strict=True):
            more = steps
            while len(more) == MAX_PAGE_SIZE:
                (more,) = await self._store.steps(tenant, [id], after=steps[-1].seq, limit=MAX_PAGE_SIZE)
                steps += more
        return found

    async def add_events(self, tenant: str, report: Report, *, max_bytes: int | None = None) -> tuple[int, ...]:
        """Add events and return their numbers; an event that already exists keeps its number.

        `max_bytes` replaces the limit on the size of an event.
        """
        (answer,) = await self.reports(tenant, [report], max_bytes=max_bytes)
        return answered(answer)

    async def reports(
        self, tenant: str, reports: Sequence[Report], *, max_bytes: int | None = None
    ) -> list[tuple[int, ...] | Rejected]:
        """Add events of several jobs, each report with its own result."""
        wire.check_batch(reports, self._limits)
        limits = self._limits if max_bytes is None else msgspec.structs.replace(self._limits, event=max_bytes)
        check = partial(self._sanitized_report, limits=limits)
        return await each(reports, check, lambda good: self._store.add_events(tenant, good))

    async def events(
        self, tenant: str, job_id: str, *, after: int = 0, since: int | None = None, limit: int = MAX_PAGE_SIZE
    ) -> list[EventRow]:
        """List the events of a job after a number and, if given, later than a time, oldest first."""
        id = _page_of(job_id, after, limit)
        found = await self._store.events(tenant, id, after=after, since=since, limit=limit)
        return found or await self._nothing(tenant, id)

    async def feed(self, tenant: str, after: FeedPosition, *, limit: int = MAX_PAGE_SIZE) -> list[FeedEvent]:
        """List the events of all jobs after a position: those of one job in order, without gaps."""
        wire.whole(limit, "limit", 1, MAX_PAGE_SIZE)
        return await self._store.feed(tenant, after, limit=limit)

    async def feed_end(self, tenant: str) -> FeedPosition:
        """Return the position before all future events."""
        return await self._store.feed_end(tenant)

    async def tail(self, tenant: str, job_id: str, *, after: int = 0) -> AsyncIterator[list[EventRow]]:
        """Yield pages of a job's events as they arrive until it is terminal; an empty page after a long silence."""
        id = _page_of(job_id, after, MAX_PAGE_SIZE)
        seen = after

        async def look() -> list[EventRow] | None:
            nonlocal seen
            ended = await self._store.has_ended(tenant, id)  # before the events: none can follow the end
            if ended is None:
                raise NotFound(id)
            page = await self._store.events(tenant, id, after=seen, limit=MAX_PAGE_SIZE)
            if page:
                seen = page[-1].seq
            return None if ended and not page else page

        async for page in self._prepared(look):
            yield page

    async def follow(self, tenant: str, after: FeedPosition) -> AsyncIterator[list[FeedEvent]]:
        """Yield pages of the feed indefinitely as it grows; an empty page after a long silence."""
        seen = after

        async def look() -> list[FeedEvent] | None:
            nonlocal seen
            page = await self._store.feed(tenant, seen, limit=MAX_PAGE_SIZE)
            if page:
                seen = page[-1].position
            return page

        async for page in self._prepared(look):
            yield page

    async def _prepared(self, look: Callable[[], Awaitable[list[T] | None]]) -> AsyncIterator[list[T]]:
        """Read when events are added, and poll for hints that were lost; None ends the iteration."""
        clock = asyncio.get_running_loop().time
        heard = clock()
        while True:
            results = self._store.watch_events()
            page = await look()
            if page is None:
                return
            if page or clock() - heard >= QUIET_SECONDS:
                yield page
                heard = clock()
            if not page:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await results.wait()
                        await asyncio.sleep(GATHER_SECONDS)  # under load, fewer and fuller pages

    async def _nothing(self, tenant: str, job_id: str) -> list[T]:
        """Return an empty page if the job exists."""
        if await self._store.has_ended(tenant, job_id) is None:
            raise NotFound(job_id)
        return []

    def _sanitized_step(self, step: Step) -> Step:
        """Sanitize the result of a step; reject it only for its size or numbers, never for invalid Unicode."""
        wire.whole(step.fence, "fence", 0, LARGEST_NUMBER)
        wire.whole(step.occurrence, "occurrence", 0, LARGEST_OCCURRENCE)
        result, sanitized = json_text.sanitize(step.result, what="result", limit=self._limits.step)
        function = wire.remark(step.function, "function")
        return step._replace(
            id=wire.job_id(step.id),
            worker=wire.name(step.worker, "worker"),
            name=wire.name(step.name, "name"),
            result=result,
            function=function,
            sanitized=step.sanitized or sanitized or function != step.function,
        )

    def _sanitized_report(self, report: Report, *, limits: Limits) -> Report:
        wire.whole(report.fence, "fence", 0, LARGEST_NUMBER)
        if not report.events:
            raise Invalid("there are no events to add", pointer="/events")
        id, worker = wire.job_id(report.id), wire.name(report.worker, "worker")
        return report._replace(id=id, worker=worker, events=sanitized_events(report.events, limits))


def sanitized_events(events: Sequence[Event], limits: Limits) -> tuple[Event, ...]:
    """Sanitize events, up to the batch limit."""
    wire.whole(len(events), "events", 0, limits.batch)
    return tuple(_sanitized_event(event, f"/events/{i}", limits.event) for i, event in enumerate(events))


def _sanitized_event(event: Event, pointer: str, limit: int) -> Event:
    """Sanitize the text of an event and truncate its message at the limit."""
    try:
        id, level = str(UUID(event.id)), Level(event.level)
    except (ValueError, TypeError, AttributeError):
        raise Invalid("an event needs a UUID as its id, and a level: info, warn or error", pointer=pointer) from None
    payload, sanitized = event.payload, event.sanitized
    if payload is not None:
        payload, replaced = json_text.sanitize(payload, what="event", limit=limit)
        sanitized = sanitized or replaced
    message, replaced = json_text.sanitize_text(event.message)
    sanitized = sanitized or replaced or "\x00" in message
    message = message.replace("\x00", "\ufffd")
    if json_text.is_blank(message):
        raise Invalid(f"message is {message[:20]!r}: expected text that people can read", pointer=f"{pointer}/message")
    if event.at is not None:
        wire.whole(event.at, "at", wire.FIRST_INSTANT, wire.LAST_INSTANT)
    return Event(id, level, fitted(message, payload, limit), payload, sanitized, event.at)


def _page_of(job_id: str, after: int, limit: int) -> str:
    wire.whole(after, "after", 0, LARGEST_NUMBER)
    wire.whole(limit, "limit", 1, MAX_PAGE_SIZE)
    return wire.job_id(job_id)
