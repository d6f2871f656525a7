"""Routes of events: messages of workers and transitions of the job, as one list or as a stream."""

from __future__ import annotations

import asyncio
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
from interlock.api.adapters import Lenient
from interlock.api.native.encode import kept
from interlock.api.routes import ABSENT, Nothing, RequestContext, Response, RouteTable, respond
from interlock.domain import json_text, principal
from interlock.domain.artifact import Artifact
from interlock.domain.job import HistoryRow, Job
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.progress import Event, EventRow, Level, Report
from interlock.domain.retry import SECOND
from interlock.engine.progress import MAX_PAGE_SIZE as MAX_PAGE
from interlock.errors import Conflict, Invalid
from interlock.faces.moonmind import model
from interlock.faces.moonmind.artifacts import newest
from interlock.faces.moonmind.jobs import queue
from interlock.faces.moonmind.model import BASE, MoonmindRequest, Text
from interlock.wire.encode import raw, when

routes = RouteTable()

POLL_SECONDS: Final = 0.5
MAX_ARTIFACTS: Final = 500
MAX_EVENT_BYTES: Final = 1024 * 1024  # as large as a body
_FAILED: Final = frozenset({Status.RETRY, Status.FAILED, Status.DEAD_LETTER})
_TRANSITIONS: Final = {
    Status.QUEUED: ("info", "Job queued"),
    Status.RUNNING: ("info", "Job claimed"),
    Status.WAITING_FOR_APPROVAL: ("info", "Job waits for approval"),
    Status.RETRY: ("warn", "Job failed (retryable)"),
    Status.SUCCEEDED: ("info", "Job completed"),
    Status.FAILED: ("error", "Job failed"),
    Status.DEAD_LETTER: ("warn", "Job failed (retryable)"),
    Status.CANCELLED: ("warn", "Job cancelled"),
}


class AppendEventRequest(MoonmindRequest, frozen=True, kw_only=True):
    """A message about the progress of a job."""

    worker_id: Text
    message: Text
    level: Level = Level.INFO
    payload: msgspec.Raw = ABSENT

    def event(self, *, sanitized: bool) -> Event:
        message, payload = self.message.strip(), kept(self.payload)
        if not message:
            raise Invalid("message is empty: expected a text", pointer="/message")
        if payload == "null":
            payload = None
        if payload is not None and not payload.startswith("{"):
            raise Invalid("payload must be an object or null", pointer="/payload")
        return Event(wire.new_id(), self.level, message, payload, sanitized)


class EventQuery(Lenient, frozen=True, kw_only=True):
    """The start and the length of a list."""

    after: datetime | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 200

    @property
    def micros(self) -> int | None:
        """`after` in microseconds; a time without an offset is in UTC, as in MoonMind."""
        if self.after is None:
            return None
        return wire.instant(self.after if self.after.tzinfo else self.after.replace(tzinfo=UTC), "after")


class TimedEvent(NamedTuple):
    """An event and its time in microseconds, which orders the list."""

    at: int
    body: dict[str, Any]

    def moved(self, at: int) -> TimedEvent:
        return self if at == self.at else TimedEvent(at, self.body | {"createdAt": wire.when(at)})


@routes.add(
    "POST",
    f"{BASE}/jobs/{{job_id}}/events",
    roles=["work"],
    body=AppendEventRequest,
    sanitizes=True,
    answers={201: None},
)
async def append_event(call: RequestContext[AppendEventRequest, Nothing]) -> Response:
    """Append an event to a job that is leased to the caller."""
    request, service = call.body, queue(call)
    event = request.event(sanitized=call.sanitized)
    holder = await service.holder(call.path["job_id"], request.worker_id)
    report = Report(*holder, (event,))
    try:
        (seq,) = await call.engine.progress.add_events(call.who.tenant, report, max_bytes=MAX_EVENT_BYTES)
    except Conflict:
        await service.holder(call.path["job_id"], request.worker_id)  # raises the reason, unless it is leased again
        raise
    (row,) = await call.engine.progress.events(call.who.tenant, holder.job_id, after=seq - 1, limit=1)
    return respond(_message(row).body, 201)


@routes.add("GET", f"{BASE}/jobs/{{job_id}}/events", roles=["read"], query=EventQuery, answers={200: None})
async def list_events(call: RequestContext[None, EventQuery]) -> Response:
    """List events after a time, oldest first."""
    items: list[dict[str, Any]] = []
    async with aclosing(_Reader(call).pages()) as pages:
        async for page in pages:
            items += [one.body for one in page[: call.query.limit - len(items)]]
            if len(items) == call.query.limit:
                break
    return respond({"items": items})


@routes.add("GET", f"{BASE}/jobs/{{job_id}}/events/stream", roles=["read"], query=EventQuery, answers={200: None})
async def stream_events(call: RequestContext[None, EventQuery]) -> Response:
    """Stream events until the job is terminal."""
    reader = _Reader(call)
    await reader.job()

    async def pieces() -> AsyncIterator[bytes]:
        while True:
            async with aclosing(reader.pages()) as pages:
                async for page in pages:
                    yield b"".join(_line(one) for one in page)
            if reader.ended:
                return
            await asyncio.sleep(POLL_SECONDS)

    source = pieces()
    return stream.streamed(call, source, source)


class _Reader:
    """The events of one job after a time; every read continues where the last one ended.

    Clients page by `after`, which has the time of the last event they saw. The times in a list are therefore distinct:
    an event with the time of its predecessor, or an earlier one, is dated a microsecond after the predecessor.
    """

    def __init__(self, call: RequestContext[Any, EventQuery]) -> None:
        self._engine, self._tenant = call.engine, call.who.tenant
        self._job_id = wire.job_id(model.decode_id(call.path["job_id"]))
        self._after = call.query.micros
        # Events of one time may be dated up to as many microseconds later: their first must be read to date the others.
        self._since = None if self._after is None else max(self._after - SECOND, 0)
        self._last = -1
        self._seq = 0
        self._version = 0
        self._artifacts: set[str] = set()
        self.ended = False

    async def job(self) -> Job:
        return await self._engine.queries.job(self._tenant, self._job_id)

    async def pages(self) -> AsyncGenerator[list[TimedEvent]]:
        """New events in order of their times, a page at a time: a job may have very many."""
        job = await self.job()
        others = deque(await self._others(job))
        more = True
        while more:
            events = await self._engine.progress.events(self._tenant, job.id, after=self._seq, since=self._since)
            more = len(events) == MAX_PAGE
            page: list[TimedEvent] = []
            for row in events:
                while others and others[0].at < row.at:
                    page.append(others.popleft())
                page.append(_message(row))
                self._seq = row.seq
            if not more:
                page += others
            if dated := self._dated(page):
                yield dated
        self.ended = job.status in TERMINAL  # it was read first: no event is added after it

    def _dated(self, page: list[TimedEvent]) -> list[TimedEvent]:
        """The page with distinct, rising times, without the events up to the time of the query."""
        found: list[TimedEvent] = []
        for event in page:
            self._last = max(event.at, self._last + 1)
            if self._after is None or self._last > self._after:
                found.append(event.moved(self._last))
        return found

    async def _others(self, job: Job) -> list[TimedEvent]:
        """New transitions and artifacts of the job, oldest first."""
        found: list[TimedEvent] = []
        if job.version > self._version:
            rows = await self._engine.queries.history(self._tenant, job.id)
            found += [_transition(row, job) for row in rows if self._version < row.version <= job.version]
            self._version = job.version
        for artifact in reversed(await newest(self._engine, self._tenant, job.id, MAX_ARTIFACTS)):
            if artifact.id not in self._artifacts:
                self._artifacts.add(artifact.id)
                found.append(_uploaded(artifact))
        found.sort(key=lambda one: one.at)
        return [one for one in found if self._since is None or one.at > self._since]


def _message(row: EventRow) -> TimedEvent:
    return _event(row.at, row.id, row.job_id, row.level, row.message, raw(row.payload))


def _uploaded(artifact: Artifact) -> TimedEvent:
    payload = {"artifactId": model.encode_id(artifact.id), "name": artifact.name, "sizeBytes": artifact.size}
    id = str(uuid5(UUID(artifact.id), "uploaded"))
    return _event(artifact.created_at, id, artifact.job_id, "info", "Artifact uploaded", payload)


def _transition(row: HistoryRow, job: Job) -> TimedEvent:
    """A transition with the payload of MoonMind's event, plus the actor, the attempt and the error."""
    level, message = _TRANSITIONS[row.to_status]
    metadata = json_text.loads(row.metadata) if row.metadata else {}
    payload: dict[str, Any] = {"actor": row.actor, "attempt": row.attempt}
    if row.actor.startswith(principal.worker("")):
        payload["workerId"] = row.actor.removeprefix(principal.worker(""))
    if row.from_status == row.to_status:
        level, message = "info", f"Job changed by {row.verb}"
    elif row.from_status is None:
        creator = model.user_id(job.created_by)
        payload |= {"type": job.type, "createdByUserId": creator, "requestedByUserId": creator}
    elif row.to_status in _FAILED:
        run_at = metadata.get("run_at") if row.to_status is Status.RETRY else None
        payload |= {
            "retryable": row.to_status is not Status.FAILED,
            "status": model.STATUS[row.to_status],
            "nextAttemptAt": when(run_at) if isinstance(run_at, int) else run_at,
        }
    if "error" in metadata:
        payload["error"] = metadata["error"]["message"]
    id = str(uuid5(UUID(row.job_id), str(row.version)))
    return _event(row.at, id, row.job_id, level, message, payload)


def _event(at: int, id: str, job_id: str, level: str, message: str, payload: object) -> TimedEvent:
    return TimedEvent(
        at,
        {
            "id": model.encode_id(id), "jobId": model.encode_id(job_id), "level": level, "message": message,
            "payload": payload, "createdAt": wire.when(at),
        },
    )  # fmt: skip


def _line(event: TimedEvent) -> bytes:
    return b"id: %b\nevent: queue_event\ndata: %b\n\n" % (event.body["id"].encode(), msgspec.json.encode(event.body))
