"""Routes of producers and admins: create and read tasks, wait for results, requeue, count and clean up."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final
from urllib.parse import quote

import msgspec

from interlock import wire
from interlock.api import body
from interlock.api.adapters import AdapterError, Batch, Lenient
from interlock.api.long_poll import waiting
from interlock.api.routes import Nothing, RequestContext, Response, RouteTable, respond
from interlock.domain.artifact import served_as
from interlock.domain.job import MAX_ATTEMPTS, Filter, Job
from interlock.domain.json_text import is_visible_name
from interlock.domain.lifecycle import TERMINAL
from interlock.domain.registry import QueueStats
from interlock.domain.retry import DAY
from interlock.engine.completion import MAX_WAIT_SECONDS
from interlock.engine.queries import MAX_PAGE_SIZE
from interlock.engine.retention import MAX_DAYS
from interlock.errors import Error, IdempotencyKeyReuse, Invalid, Malformed, NotFound, NotTerminal, TooLarge
from interlock.faces.codeq import commands, model
from interlock.faces.codeq.model import ADMINS, BASE, NAME, READERS, STATUSES, reject, sent_name
from interlock.wire import JobRequest

routes = RouteTable()

DEFAULT_MAX_ATTEMPTS: Final = 5
BACKOFF: Final = {"kind": "full_jitter", "base_seconds": 5, "max_seconds": 900}
MAX_PRIORITY: Final = 9
KEY_LIFETIME_SECONDS: Final = 86_400.0
MAX_BATCH: Final = 100
MAX_BATCH_BODY: Final = 8 * 1024 * 1024


class CreateTaskRequest(Lenient, frozen=True, kw_only=True):
    """A new task."""

    command: str
    payload: msgspec.Raw
    priority: float | None = None  # clamped, never rejected
    webhook: str | None = None
    max_attempts: int | None = None
    idempotency_key: str | None = None
    run_at: str | None = None
    delay_seconds: int | None = None


class CreateBatchRequest(Batch, frozen=True, kw_only=True):
    """New tasks, each created on its own."""

    items_field: ClassVar[str] = "tasks"
    tasks: list[msgspec.Raw]


class Wait(Lenient, frozen=True, kw_only=True):
    """The time to wait for a result."""

    wait_seconds: float = 0.0


@routes.add("POST", f"{BASE}/tasks", roles=["produce"], body=CreateTaskRequest, answers={202: None})
async def create_task(call: RequestContext[CreateTaskRequest, Nothing]) -> Response:
    """Create a task; an idempotency key repeated within 24 hours returns the first one."""
    job = await _create(call, call.body)
    return respond((await model.encode_tasks(call, [job]))[0], 202)


@routes.add(
    "POST", f"{BASE}/tasks/batch", roles=["produce"], body=CreateBatchRequest, largest_body=MAX_BATCH_BODY,
    answers={200: None},
)  # fmt: skip
async def create_tasks(call: RequestContext[CreateBatchRequest, Nothing]) -> Response:
    """Create up to 100 tasks, each on its own."""
    items = call.body.tasks
    if len(items) > MAX_BATCH:
        raise reject(400, f"batch size exceeds maximum of {MAX_BATCH}")
    if not items:
        raise reject(400, "invalid body")
    results = [await _create_item(call, item) for item in items]
    return respond(results if call.body.is_bare else {"results": results})


@routes.add("GET", f"{BASE}/tasks/{{id}}", roles=READERS, answers={200: None})
async def get_task(call: RequestContext[None, Nothing]) -> Response:
    """Read a task."""
    try:
        job = await call.engine.queries.job(call.who.tenant, wire.job_id(call.path["id"]))
    except NotFound:
        raise reject(404, "not found") from None
    return respond((await model.encode_tasks(call, [job]))[0])


@routes.add("GET", f"{BASE}/tasks/{{id}}/result", roles=READERS, query=Wait, answers={200: None})
async def get_result(call: RequestContext[None, Wait]) -> Response:
    """Read the outcome of a task, and wait for it up to a minute."""
    seconds = min(max(call.query.wait_seconds, 0.0), MAX_WAIT_SECONDS)
    try:
        job = await call.engine.waits.ended(call.who.tenant, call.path["id"])
        if seconds and job.status not in TERMINAL:
            async with waiting(call) as enough:
                job = await call.engine.waits.ended(call.who.tenant, job.id, wait_seconds=seconds, enough=enough)
    except NotFound:
        raise reject(404, "task not found") from None
    if job.status not in TERMINAL:
        raise reject(404, "result not found")
    (task,) = await model.encode_tasks(call, [job])
    return respond({"task": task, "result": await model.encode_result(call, job)})


@routes.add(
    "GET", f"{BASE}/tasks/{{id}}/artifacts/{{artifact_id}}", roles=READERS, answers={200: None},
    produces="application/octet-stream",
)  # fmt: skip
async def get_artifact(call: RequestContext[None, Nothing]) -> Response:
    """Download a file of a result; browsers never render it."""
    try:
        download = await call.engine.artifacts.read(call.who.tenant, call.path["id"], call.path["artifact_id"])
    except NotFound:
        raise reject(404, "not found") from None
    found = download.artifact
    headers = {
        "content-length": str(found.size),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(sent_name(found.name), safe='')}",
        "content-security-policy": "sandbox; default-src 'none'",
    }
    return Response(200, media_type=served_as(found.content_type), headers=headers, stream=download.chunks)


@routes.add("POST", f"{BASE}/tasks/{{id}}/requeue", roles=["operate"], answers={202: None})
async def requeue(call: RequestContext[None, Nothing]) -> Response:
    """Redrive a terminal task as a new one."""
    try:
        done = await call.engine.operations.redrive(call.who, call.path["id"])
    except NotFound:
        raise reject(404, "not found") from None
    except NotTerminal:
        raise reject(409, "not-terminal") from None
    job = await call.engine.queries.job(call.who.tenant, done.id)
    return respond((await model.encode_tasks(call, [job]))[0], 202)


async def _create_item(call: RequestContext[Any, Any], item: msgspec.Raw) -> dict[str, Any]:
    try:
        request, _ = body.decode(bytes(item), CreateTaskRequest, limit=MAX_BATCH_BODY, sanitizes=False)
        job = await _create(call, request)
    except (Invalid, Malformed, TooLarge, msgspec.MsgspecError):
        return {"error": "invalid body"}
    except AdapterError as said:
        return {"error": said.document["error"]}
    return {"task": (await model.encode_tasks(call, [job]))[0]}


async def _create(call: RequestContext[Any, Any], asked: CreateTaskRequest) -> Job:
    request = await _request(call, asked)
    try:
        enqueue = call.engine.jobs.enqueue
        done = await enqueue(
            call.who, request, traceparent=call.headers.traceparent, webhook_format=NAME,
            key_lifetime_seconds=KEY_LIFETIME_SECONDS,
        )  # fmt: skip
        id = done.id
    except IdempotencyKeyReuse as known:
        id = known.job_id  # codeQ returns the first task, regardless of the body
    except TooLarge as error:
        raise reject(413, str(error)) from None
    except Invalid as error:
        raise reject(400, "invalid webhook url" if error.pointer == "/webhook" else str(error)) from None
    commands.add(call, asked.command)
    return await call.engine.queries.job(call.who.tenant, id)


async def _request(call: RequestContext[Any, Any], asked: CreateTaskRequest) -> JobRequest:
    if bytes(asked.payload) == b"null":
        raise reject(400, "invalid body")
    if not is_visible_name(asked.command):
        raise reject(400, "invalid command")
    run_at = None
    if asked.run_at:
        run_at = parsed_time(asked.run_at, "runAt")
        if (wire.instant(run_at, "run_at") or 0) <= await call.engine.queries.now():
            run_at = None
    elif asked.delay_seconds is not None and asked.delay_seconds < 0:
        raise reject(400, "invalid 'delaySeconds' (must be >= 0)")
    attempts = asked.max_attempts or 0
    return JobRequest(
        type=asked.command,
        payload=asked.payload,
        priority=int(min(max(asked.priority or 0, 0), MAX_PRIORITY)),
        webhook=asked.webhook or None,
        max_attempts=min(attempts, MAX_ATTEMPTS) if attempts > 0 else DEFAULT_MAX_ATTEMPTS,
        backoff=BACKOFF,
        idempotency_key=asked.idempotency_key or None,
        run_at=run_at,
        delay_seconds=None if asked.run_at else asked.delay_seconds,
    )


def parsed_time(text: str, field: str) -> datetime:
    """Parse an RFC 3339 time with an offset."""
    try:
        found = msgspec.convert(text, datetime)
        wire.instant(found, field)
    except (msgspec.ValidationError, Error):
        raise reject(400, f"invalid '{field}' (use RFC3339)") from None
    return found


KEPT_DAYS: Final = 1.0
MAX_CLEANUP: Final = 1_000_000


class TaskQuery(Lenient, frozen=True, kw_only=True):
    """The filter of a task list."""

    status: str | None = None
    command: str | None = None
    limit: int = 50


class CleanupRequest(Lenient, frozen=True, kw_only=True):
    """How many tasks to delete, and the time that their retention must have ended before."""

    limit: int | None = None
    before: str | None = None


@routes.add("GET", f"{BASE}/healthz", needs_credential=False, answers={200: None})
async def healthz(call: RequestContext[None, Nothing]) -> Response:
    """Report that the service is up."""
    return respond({"status": "ok"})


@routes.add("GET", f"{BASE}/admin/queues", roles=ADMINS, answers={200: None})
async def list_queues(call: RequestContext[None, Nothing]) -> Response:
    """Count the tasks of every command."""
    return respond([_queue(stats) for stats in await call.engine.queries.queues(call.who.tenant)])


@routes.add("GET", f"{BASE}/admin/queues/{{command}}", roles=ADMINS, answers={200: None})
async def get_queue(call: RequestContext[None, Nothing]) -> Response:
    """Count the tasks of one command in all its spellings; an unused command has none."""
    command = call.path["command"]
    every = await call.engine.queries.queues(call.who.tenant)
    counts = [_queue(stats) for stats in every if stats.type.lower() == command.lower()]
    empty = _queue(QueueStats(command))
    return respond(empty | {name: sum(one[name] for one in counts) for name in empty if name != "command"})


@routes.add("GET", f"{BASE}/admin/tasks", roles=ADMINS, query=TaskQuery, answers={200: None})
async def list_tasks(call: RequestContext[None, TaskQuery]) -> Response:
    """List tasks, newest first."""
    query = call.query
    if query.status is not None and query.status not in STATUSES:
        raise reject(400, "invalid status")
    statuses = () if query.status is None else STATUSES[query.status]
    limit = min(max(query.limit, 1), MAX_PAGE_SIZE)
    found = await call.engine.queries.jobs(call.who.tenant, Filter(statuses, type=query.command, limit=limit))
    jobs = await call.engine.queries.some(call.who.tenant, [job.id for job in found])
    return respond(await model.encode_tasks(call, jobs))


@routes.add(
    "POST", f"{BASE}/admin/tasks/cleanup", roles=["admin"], body=CleanupRequest, body_optional=True,
    answers={200: None},
)  # fmt: skip
async def clean_up(call: RequestContext[CleanupRequest, Nothing]) -> Response:
    """Delete tasks that ended a day before a time, by default now, as codeQ keeps them for a day."""
    limit = call.body.limit if call.body.limit is not None and call.body.limit > 0 else 1000
    now = await call.engine.queries.now()
    before = now if not call.body.before else wire.instant(parsed_time(call.body.before, "before"), "before") or 0
    days = min(max((now - before) / DAY + KEPT_DAYS, 0), MAX_DAYS)  # nothing is older than that
    pruned = await call.engine.retention.prune(call.who, days, limit=min(limit, MAX_CLEANUP))
    return respond({"deleted": pruned.deleted, "before": wire.when(before), "limit": limit})


def _queue(stats: QueueStats) -> dict[str, Any]:
    return {
        "command": stats.type,
        "ready": stats.ready,
        "delayed": stats.delayed,
        "inProgress": stats.in_progress,
        "dlq": stats.dead_letter,
    }
