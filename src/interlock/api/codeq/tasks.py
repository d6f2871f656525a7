"""Producers: create tasks, look at them, wait for their results, do them again."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final
from urllib.parse import quote

import msgspec

from interlock import wire
from interlock.api.codeq import encode
from interlock.api.codeq.auth import READERS, refused
from interlock.api.face import Lenient, Said
from interlock.api.routes import Answer, Call, Nothing, Routes, answer
from interlock.api.waiting import patience
from interlock.domain.artifact import served_as
from interlock.domain.codeq import BASE
from interlock.domain.dialect import Dialect
from interlock.domain.job import MAX_ATTEMPTS, Job
from interlock.domain.lifecycle import TERMINAL
from interlock.domain.text import is_visible_name
from interlock.engine.waits import LONGEST_WAIT_SECONDS
from interlock.errors import Error, IdempotencyKeyReuse, Invalid, NotEnded, NotFound, TooLarge
from interlock.wire import JobRequest

routes = Routes()

DEFAULT_MAX_ATTEMPTS: Final = 5
BACKOFF: Final = {"kind": "full_jitter", "base_seconds": 5, "max_seconds": 900}
HIGHEST_PRIORITY: Final = 9
MOST_AT_ONCE: Final = 100
LARGEST_BATCH_BODY: Final = 8 * 1024 * 1024


class CreateTask(Lenient, frozen=True, kw_only=True):
    """A task as a producer asks for it."""

    command: str
    payload: msgspec.Raw
    priority: float | None = None  # however large: it is clamped, never refused
    webhook: str | None = None
    max_attempts: int | None = None
    idempotency_key: str | None = None
    run_at: str | None = None
    delay_seconds: int | None = None


class CreateTasks(Lenient, frozen=True, kw_only=True):
    """Tasks that are made one by one, each with its own answer; an item that cannot be read spoils no other."""

    bare: ClassVar[str | None] = "tasks"
    tasks: list[msgspec.Raw]


class Wait(Lenient, frozen=True, kw_only=True):
    """How long to wait for a result."""

    wait_seconds: float = 0.0


@routes.add("POST", f"{BASE}/tasks", roles=["produce"], body=CreateTask, answers={202: None})
async def create_task(call: Call[CreateTask, Nothing]) -> Answer:
    """Create a task; a key seen before answers the first one."""
    job = await _created(call, call.body)
    return answer((await encode.tasks(call, [job]))[0], 202)


@routes.add(
    "POST", f"{BASE}/tasks/batch", roles=["produce"], body=CreateTasks, largest_body=LARGEST_BATCH_BODY,
    answers={200: None},
)  # fmt: skip
async def create_tasks(call: Call[CreateTasks, Nothing]) -> Answer:
    """Create up to 100 tasks, item by item."""
    items = call.body.tasks
    if len(items) > MOST_AT_ONCE:
        raise refused(400, f"batch size exceeds maximum of {MOST_AT_ONCE}")
    if not items:
        raise refused(400, "invalid body")
    return answer({"results": [await _one_of_many(call, item) for item in items]})


@routes.add("GET", f"{BASE}/tasks/{{id}}", roles=READERS, answers={200: None})
async def get_task(call: Call[None, Nothing]) -> Answer:
    """Show a task."""
    try:
        job = await call.engine.reads.job(call.who.tenant, wire.job_id(call.path["id"]))
    except NotFound:
        raise refused(404, "not found") from None
    return answer((await encode.tasks(call, [job]))[0])


@routes.add("GET", f"{BASE}/tasks/{{id}}/result", roles=READERS, query=Wait, answers={200: None})
async def get_result(call: Call[None, Wait]) -> Answer:
    """Show how a task ended, and wait for it up to a minute."""
    seconds = min(max(call.query.wait_seconds, 0.0), LONGEST_WAIT_SECONDS)
    try:
        job = await call.engine.waits.ended(call.who.tenant, call.path["id"])
        if seconds and job.status not in TERMINAL:
            async with patience(call) as enough:
                job = await call.engine.waits.ended(call.who.tenant, job.id, wait_seconds=seconds, enough=enough)
    except NotFound:
        raise refused(404, "task not found") from None
    if job.status not in TERMINAL:
        raise refused(404, "result not found")
    (task,) = await encode.tasks(call, [job])
    return answer({"task": task, "result": await encode.result(call, job)})


@routes.add(
    "GET", f"{BASE}/tasks/{{id}}/artifacts/{{artifact_id}}", roles=READERS, answers={200: None},
    produces="application/octet-stream",
)  # fmt: skip
async def get_artifact(call: Call[None, Nothing]) -> Answer:
    """Read a file that came with a result; it is offered as a download, never shown."""
    try:
        download = await call.engine.artifacts.read(call.who.tenant, call.path["id"], call.path["artifact_id"])
    except NotFound:
        raise refused(404, "not found") from None
    found = download.artifact
    headers = {
        "content-length": str(found.size),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(found.name, safe='')}",
        "content-security-policy": "sandbox; default-src 'none'",
    }
    return Answer(200, media_type=served_as(found.content_type), headers=headers, stream=download.chunks)


@routes.add("POST", f"{BASE}/tasks/{{id}}/requeue", roles=["operate"], answers={202: None})
async def requeue(call: Call[None, Nothing]) -> Answer:
    """Do an ended task again, as a new one."""
    try:
        done = await call.engine.operations.redrive(call.who, call.path["id"])
    except NotFound:
        raise refused(404, "not found") from None
    except NotEnded:
        raise refused(409, "not-terminal") from None
    job = await call.engine.reads.job(call.who.tenant, done.id)
    return answer((await encode.tasks(call, [job]))[0], 202)


async def _one_of_many(call: Call[Any, Any], item: msgspec.Raw) -> dict[str, Any]:
    try:
        job = await _created(call, msgspec.json.decode(item, type=CreateTask))
    except msgspec.MsgspecError:
        return {"error": "invalid body"}
    except Said as said:
        return {"error": said.document["error"]}
    return {"task": (await encode.tasks(call, [job]))[0]}


async def _created(call: Call[Any, Any], asked: CreateTask) -> Job:
    request = await _request(call, asked)
    try:
        enqueue = call.engine.jobs.enqueue
        done = await enqueue(call.who, request, traceparent=call.headers.traceparent, told_in=Dialect.CODEQ)
        id = done.id
    except IdempotencyKeyReuse as known:
        id = known.job_id  # here the first task is the answer, whatever the body
    except TooLarge as error:
        raise refused(413, str(error)) from None
    except Invalid as error:
        raise refused(400, "invalid webhook url" if error.pointer == "/webhook" else str(error)) from None
    return await call.engine.reads.job(call.who.tenant, id)


async def _request(call: Call[Any, Any], asked: CreateTask) -> JobRequest:
    if not is_visible_name(asked.command):
        raise refused(400, "invalid command")
    run_at = None
    if asked.run_at:
        run_at = parsed_time(asked.run_at, "runAt")
        if (wire.instant(run_at, "run_at") or 0) <= await call.engine.reads.now():
            run_at = None
    elif asked.delay_seconds is not None and asked.delay_seconds < 0:
        raise refused(400, "invalid 'delaySeconds' (must be >= 0)")
    attempts = asked.max_attempts or 0
    return JobRequest(
        type=asked.command,
        payload=asked.payload,
        priority=int(min(max(asked.priority or 0, 0), HIGHEST_PRIORITY)),
        webhook=asked.webhook or None,
        max_attempts=min(attempts, MAX_ATTEMPTS) if attempts > 0 else DEFAULT_MAX_ATTEMPTS,
        backoff=BACKOFF,
        idempotency_key=asked.idempotency_key or None,
        run_at=run_at,
        delay_seconds=None if asked.run_at else asked.delay_seconds,
    )


def parsed_time(text: str, field: str) -> datetime:
    """A time as RFC 3339 writes it, with an offset."""
    try:
        found = msgspec.convert(text, datetime)
        wire.instant(found, field)
    except (msgspec.ValidationError, Error):
        raise refused(400, f"invalid '{field}' (use RFC3339)") from None
    return found
