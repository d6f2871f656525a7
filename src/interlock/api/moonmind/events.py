"""Events: what a worker tells of a job, and what became of it, as one list or as a stream."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Any, Final, NamedTuple
from uuid import UUID, uuid5

import msgspec
from msgspec import Meta

from interlock import wire
from interlock.api import stream
from interlock.api.face import Lenient
from interlock.api.moonmind.artifacts import newest
from interlock.api.moonmind.jobs import BASE, queue
from interlock.api.moonmind.requests import Asked, Text
from interlock.api.native.shown import kept, raw
from interlock.api.routes import ABSENT, Answer, Call, Nothing, Routes, answer
from interlock.domain.artifact import Artifact
from interlock.domain.job import HistoryRow, Job
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.progress import Event, EventRow, Level, Report
from interlock.engine.progress import LONGEST_PAGE
from interlock.errors import Conflict, Invalid

routes = Routes()

LOOK_EVERY_SECONDS: Final = 0.5
MOST_ARTIFACTS: Final = 500
_BECAME: Final = {
    Status.QUEUED: ("info", "Job queued"),
    Status.RUNNING: ("info", "Job claimed"),
    Status.WAITING_FOR_APPROVAL: ("info", "Job waits for approval"),
    Status.RETRY: ("warn", "Job failed and will be tried again"),
    Status.SUCCEEDED: ("info", "Job completed"),
    Status.FAILED: ("error", "Job failed"),
    Status.DEAD_LETTER: ("error", "Job failed for the last time"),
    Status.CANCELLED: ("warn", "Job cancelled"),
}


class NewEvent(Asked, frozen=True, kw_only=True):
    """A message about the progress of a job."""

    worker_id: Text
    message: Text
    level: Level = Level.INFO
    payload: msgspec.Raw = ABSENT

    def event(self, *, sanitized: bool) -> Event:
        message, payload = self.message.strip(), kept(self.payload)
        if not message:
            raise Invalid("message must have something to read", pointer="/message")
        if payload == "null":
            payload = None
        if payload is not None and not payload.startswith("{"):
            raise Invalid("payload must be an object or null", pointer="/payload")
        return Event(wire.new_id(), self.level, message, payload, sanitized)


class EventQuery(Lenient, frozen=True, kw_only=True):
    """From when on, and how many."""

    after: datetime | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 200

    @property
    def micros(self) -> int | None:
        """The time as we count it; one without an offset is meant as UTC, as it was there."""
        if self.after is None:
            return None
        return wire.instant(self.after if self.after.tzinfo else self.after.replace(tzinfo=UTC), "after")


class Told(NamedTuple):
    """An event and when it was, which is its place in the list."""

    at: int
    shown: dict[str, Any]


@routes.add("POST", f"{BASE}/jobs/{{job_id}}/events", roles=["work"], body=NewEvent, mends=True, answers={201: None})
async def append_event(call: Call[NewEvent, Nothing]) -> Answer:
    """Tell of progress in a job that is the caller's."""
    body, desk = call.body, queue(call)
    event = body.event(sanitized=call.sanitized)
    holder = await desk.holder(call.path["job_id"], body.worker_id)
    try:
        (seq,) = await call.engine.progress.add_events(call.who.tenant, Report(*holder, (event,)))
    except Conflict:
        await desk.holder(call.path["job_id"], body.worker_id)  # says why, unless the job is held again
        raise
    (row,) = await call.engine.progress.events(call.who.tenant, holder.job_id, after=seq - 1, limit=1)
    return answer(_told(row).shown, 201)


@routes.add("GET", f"{BASE}/jobs/{{job_id}}/events", roles=["read"], query=EventQuery, answers={200: None})
async def list_events(call: Call[None, EventQuery]) -> Answer:
    """List what happened after a time, oldest first."""
    items: list[dict[str, Any]] = []
    async with aclosing(_Watch(call).news()) as pages:
        async for page in pages:
            items += [one.shown for one in page[: call.query.limit - len(items)]]
            if len(items) == call.query.limit:
                break
    return answer({"items": items})


@routes.add("GET", f"{BASE}/jobs/{{job_id}}/events/stream", roles=["read"], query=EventQuery, answers={200: None})
async def stream_events(call: Call[None, EventQuery]) -> Answer:
    """Follow what happens to a job until it has ended."""
    watch = _Watch(call)
    await watch.job()

    async def pieces() -> AsyncIterator[bytes]:
        while True:
            async with aclosing(watch.news()) as pages:
                async for page in pages:
                    yield b"".join(_line(one) for one in page)
            if watch.ended:
                return
            await asyncio.sleep(LOOK_EVERY_SECONDS)

    source = pieces()
    return stream.streamed(call, source, source)


class _Watch:
    """What was told of one job after a time; each look finds what is new since the last."""

    def __init__(self, call: Call[Any, EventQuery]) -> None:
        self._engine, self._tenant = call.engine, call.who.tenant
        self._job_id = wire.job_id(call.path["job_id"])
        self._after = call.query.micros
        self._seq = 0
        self._version = 0
        self._artifacts: set[str] = set()
        self.ended = False

    async def job(self) -> Job:
        return await self._engine.reads.job(self._tenant, self._job_id)

    async def news(self) -> AsyncGenerator[list[Told]]:
        """Whatever is new in the order it happened, a page at a time: a job may have told of very much."""
        job = await self.job()
        others = deque(await self._others(job))
        more = True
        while more:
            events = await self._engine.progress.events(self._tenant, job.id, after=self._seq, since=self._after)
            more = len(events) == LONGEST_PAGE
            page: list[Told] = []
            for row in events:
                while others and others[0].at < row.received_at:
                    page.append(others.popleft())
                page.append(_told(row))
                self._seq = row.seq
            if not more:
                page += others
            if page:
                yield page
        self.ended = job.status in TERMINAL  # read first: nothing is told after it

    async def _others(self, job: Job) -> list[Told]:
        """What is new of the job besides what its workers told, oldest first."""
        found: list[Told] = []
        for artifact in await newest(self._engine, self._tenant, job.id, MOST_ARTIFACTS):
            if artifact.id not in self._artifacts:
                self._artifacts.add(artifact.id)
                found.append(_uploaded(artifact))
        if job.version > self._version:
            rows = await self._engine.reads.history(self._tenant, job.id)
            found += [_became(row) for row in rows if self._version < row.version <= job.version]
            self._version = job.version
        return sorted((one for one in found if self._after is None or one.at > self._after), key=lambda one: one.at)


def _told(row: EventRow) -> Told:
    return _event(row.received_at, row.id, row.job_id, row.level, row.message, raw(row.payload))


def _uploaded(artifact: Artifact) -> Told:
    payload = {"artifactId": artifact.id, "name": artifact.name}
    id = str(uuid5(UUID(artifact.id), "uploaded"))
    return _event(artifact.created_at, id, artifact.job_id, "info", "Artifact uploaded", payload)


def _became(row: HistoryRow) -> Told:
    level, message = _BECAME[row.to_status]
    if row.from_status == row.to_status:
        level, message = "info", f"Job changed by {row.verb}"
    facts = json.loads(row.metadata) if row.metadata else {}
    payload: dict[str, Any] = {"actor": row.actor, "attempt": row.attempt}
    if "error" in facts:
        payload["error"] = facts["error"]["message"]
    return _event(row.at, str(uuid5(UUID(row.job_id), str(row.version))), row.job_id, level, message, payload)


def _event(at: int, id: str, job_id: str, level: str, message: str, payload: object) -> Told:
    return Told(
        at,
        {"id": id, "jobId": job_id, "level": level, "message": message, "payload": payload, "createdAt": wire.when(at)},
    )


def _line(told: Told) -> bytes:
    return b"id: %b\nevent: queue_event\ndata: %b\n\n" % (told.shown["id"].encode(), msgspec.json.encode(told.shown))
