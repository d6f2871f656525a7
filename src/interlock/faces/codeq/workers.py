"""Routes of workers: claim tasks, extend leases, release tasks, submit results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Final, Self

import msgspec

from interlock import wire
from interlock.api import auth, body
from interlock.api.adapters import MAX_LEASE_SECONDS, AdapterError, Batch, Lenient
from interlock.api.long_poll import claim_with_wait
from interlock.api.native.encode import kept
from interlock.api.routes import ABSENT, Nothing, RequestContext, Response, RouteTable, respond
from interlock.domain.artifact import File, Holder, Link, content_type
from interlock.domain.decide import CompleteJob, FailJob, Finish, ReleaseJob
from interlock.domain.job import ANY_FENCE, Heartbeat, Job, Rejected
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter, Names
from interlock.domain.retry import SECOND
from interlock.engine.artifacts import BATCH_SIZE as MAX_ATTACHED
from interlock.engine.leases import OrderedTypes
from interlock.errors import Conflict, Error, Invalid, LeaseLost, Malformed, NotFound
from interlock.faces.codeq import commands, model
from interlock.faces.codeq.model import BASE, reject
from interlock.faces.codeq.producers import MAX_BATCH, MAX_BATCH_BODY

routes = RouteTable()

LEASE_SECONDS: Final = 300
MAX_CLAIM_WAIT_SECONDS: Final = 30.0
MAX_NACK_SECONDS: Final = 900
MAX_CLAIMED: Final = 10
MAX_COMMANDS: Final = 100  # each is a separate claim


class ClaimRequest(Lenient, frozen=True, kw_only=True):
    """The commands that a worker accepts, the preferred one first."""

    commands: list[str] | None = None
    lease_seconds: int | None = None
    wait_seconds: float | None = None


class ClaimBatchRequest(Lenient, frozen=True, kw_only=True):
    """A claim of several tasks; a bare array lists commands."""

    count: int | None = None
    commands: list[str] | None = None
    lease_seconds: int | None = None

    @classmethod
    def read(cls, raw: bytes, *, limit: int, sanitizes: bool) -> tuple[Self, bool]:
        if raw.lstrip().startswith(b"["):
            raw = b'{"commands":%b}' % raw
        return super().read(raw, limit=limit + len('{"commands":}'), sanitizes=sanitizes)


class HeartbeatRequest(Lenient, frozen=True, kw_only=True):
    """A lease extension."""

    extend_seconds: int | None = None


class NackRequest(Lenient, frozen=True, kw_only=True):
    """A failed run that may be retried."""

    delay_seconds: int | None = None
    reason: str | None = None


class ResultArtifact(Lenient, frozen=True, kw_only=True):
    """A file or a link of a result."""

    name: str = ""
    url: str | None = None
    content_base64: bytes | None = None
    content_type: str | None = None


class ResultRequest(Lenient, frozen=True, kw_only=True):
    """The outcome of a task."""

    status: str
    result: msgspec.Raw = ABSENT
    error: str | None = None
    artifacts: tuple[ResultArtifact, ...] | None = None


class BatchResultItem(ResultRequest, frozen=True, kw_only=True):
    """One outcome of a batch; codeQ's Go SDK puts all but the id into `options`."""

    task_id: str = ""
    status: str = ""
    options: ResultRequest | None = None


class ItemId(Lenient, frozen=True, kw_only=True):
    """The only part that an unreadable item of a batch needs for its response."""

    task_id: str = ""


class ResultBatchRequest(Batch, frozen=True, kw_only=True):
    """The outcomes of several tasks."""

    items_field: ClassVar[str] = "results"
    results: list[msgspec.Raw]


@routes.add("POST", f"{BASE}/tasks/claim", roles=["work"], body=ClaimRequest, answers={200: None, 204: None})
async def claim_task(call: RequestContext[ClaimRequest, Nothing]) -> Response:
    """Lease the next task of the first command that has one."""
    claim = _Claim(call, call.body.commands, call.body.lease_seconds)
    jobs = await claim.now()
    seconds = min(max(call.body.wait_seconds or 0.0, 0.0), MAX_CLAIM_WAIT_SECONDS)
    if not jobs and seconds:
        jobs = await claim_with_wait(call, claim.ask, seconds, in_order=claim.in_order, max_lease=MAX_LEASE_SECONDS)
    return respond((await model.encode_tasks(call, jobs))[0]) if jobs else _no_content()


@routes.add("POST", f"{BASE}/tasks/claim/batch", roles=["work"], body=ClaimBatchRequest, answers={200: None, 204: None})
async def claim_tasks(call: RequestContext[ClaimBatchRequest, Nothing]) -> Response:
    """Lease several tasks."""
    request = call.body
    is_bare = request.count is None and request.commands is not None  # as codeQ's Go SDK sends it and reads it
    count = MAX_CLAIMED if is_bare else request.count
    if count is None or count < 1:
        raise reject(400, "invalid body")
    if count > MAX_CLAIMED:
        raise reject(400, f"count exceeds maximum of {MAX_CLAIMED}")
    jobs = await _Claim(call, request.commands, request.lease_seconds, limit=count).now()
    if not jobs:
        return _no_content()
    tasks = await model.encode_tasks(call, jobs)
    return respond(tasks if is_bare else {"tasks": tasks})


@routes.add(
    "POST", f"{BASE}/tasks/{{id}}/heartbeat", roles=["work"], body=HeartbeatRequest, body_optional=True,
    answers={200: None},
)  # fmt: skip
async def heartbeat(call: RequestContext[HeartbeatRequest, Nothing]) -> Response:
    """Extend the lease of a task."""
    extension = Heartbeat(call.path["id"], ANY_FENCE, _worker(call), _lease(call.body.extend_seconds))
    try:
        await call.engine.leases.heartbeat(call.who.tenant, extension, max_lease=MAX_LEASE_SECONDS)
    except (NotFound, Conflict) as error:
        raise _not_owner(error) from None
    return respond({"ok": True})


@routes.add("POST", f"{BASE}/tasks/{{id}}/abandon", roles=["work"], answers={200: None})
async def abandon(call: RequestContext[None, Nothing]) -> Response:
    """Release a task immediately, without using an attempt."""
    try:
        await call.engine.leases.release(call.who.tenant, ReleaseJob(call.path["id"], ANY_FENCE, _worker(call)))
    except (NotFound, Conflict) as error:
        raise _not_owner(error) from None
    return respond({"status": "requeued"})


@routes.add(
    "POST", f"{BASE}/tasks/{{id}}/nack", roles=["work"], body=NackRequest, body_optional=True, sanitizes=True,
    answers={200: None},
)  # fmt: skip
async def nack(call: RequestContext[NackRequest, Nothing]) -> Response:
    """Fail a run: the task is retried, or becomes a dead letter when no attempt is left."""
    request = call.body
    delay = min(request.delay_seconds or 0, MAX_NACK_SECONDS)
    if request.reason:
        error, replaced = wire.error_body(request.reason)
    else:
        error, replaced = wire.error_body("nack without a reason", kind=model.NACK)
    command = FailJob(
        call.path["id"], ANY_FENCE, _worker(call), error, sanitized=replaced or call.sanitized,
        retry_after_seconds=delay if delay > 0 else None,
    )  # fmt: skip
    try:
        receipt = await call.engine.leases.fail(call.who.tenant, command)
    except (NotFound, Conflict) as refusal:
        raise _not_owner(refusal) from None
    if receipt.status is not Status.RETRY or receipt.run_at is None:
        return respond({"status": "dlq", "delaySeconds": 0})
    if delay <= 0:
        left = receipt.run_at - await call.engine.queries.now()
        delay = max(-(-left // SECOND), 0)
    return respond({"status": "requeued", "delaySeconds": delay})


@routes.add(
    "POST",
    f"{BASE}/tasks/{{id}}/result",
    roles=["work"],
    body=ResultRequest,
    sanitizes=True,
    largest_body=MAX_BATCH_BODY,
    answers={200: None},
)
async def submit_result(call: RequestContext[ResultRequest, Nothing]) -> Response:
    """Finish a task; the artifacts of the result are stored first."""
    return respond(await _submit(call, call.path["id"], call.body, sanitized=call.sanitized))


@routes.add(
    "POST", f"{BASE}/tasks/batch/results", roles=["work"], body=ResultBatchRequest, largest_body=MAX_BATCH_BODY,
    answers={200: None},
)  # fmt: skip
async def submit_results(call: RequestContext[ResultBatchRequest, Nothing]) -> Response:
    """Finish up to 100 tasks, each on its own."""
    items = call.body.results
    if len(items) > MAX_BATCH:
        raise reject(400, f"batch size exceeds maximum of {MAX_BATCH}")
    if not items:
        raise reject(400, "invalid body")
    results = [await _submit_item(call, item) for item in items]
    return respond(results if call.body.is_bare else {"results": results})


class _Claim:
    """A claim of commands in their order, each in all its spellings."""

    def __init__(
        self, call: RequestContext[Any, Any], names: Sequence[str] | None, lease_seconds: int | None, *, limit: int = 1
    ) -> None:
        if names is not None and len(names) > MAX_COMMANDS:
            raise reject(400, f"commands exceed maximum of {MAX_COMMANDS}")
        commands.check_commands(call, names or ())
        who = call.who
        ask = ClaimFilter(
            worker=_worker(call),
            types=frozenset(names) if names else None,
            capabilities=frozenset() if who.policy is None else who.policy.capabilities,
            affinity_keys=None,
            limit=limit,
            lease_seconds=_lease(lease_seconds),
        )
        self.ask = who.narrowed(ask)
        self._call = call
        self._names = names

    async def now(self) -> list[Job]:
        """Claim with the spellings that are known, then with those that the store knows."""
        claim = partial(self._call.engine.leases.claim, self._call.who.tenant, self.ask, max_lease=MAX_LEASE_SECONDS)
        if self.in_order is None:
            return await claim()
        first = self._spellings()

        async def known() -> Sequence[Names]:
            return first

        jobs = await claim(in_order=known)
        if not jobs and (again := await self._refreshed()) != first:

            async def all_of_them() -> Sequence[Names]:
                return again

            jobs = await claim(in_order=all_of_them)
        return jobs

    @property
    def in_order(self) -> OrderedTypes | None:
        """Return the types of a waiting claim, read again for every poll."""
        return None if self.ask.types is None else self._refreshed

    async def _refreshed(self) -> Sequence[Names]:
        await commands.refresh(self._call)
        return self._spellings()

    def _spellings(self) -> Sequence[Names]:
        if self._names:
            return commands.spellings(self._call, self._names)
        return [frozenset().union(*commands.spellings(self._call, sorted(self.ask.types or ())))]


async def _submit(
    call: RequestContext[Any, Any], task_id: str, request: ResultRequest, *, sanitized: bool
) -> dict[str, Any]:
    """Finish one task, or raise what codeQ responds: the state of the task counts before the outcome's fields."""
    result = kept(request.result)
    if result == "null":
        result = None
    if result is not None and not result.startswith("{"):
        raise reject(400, "invalid request body")
    try:
        if (fault := _fault(request, result)) is not None:
            await _leased(call, task_id)
            raise reject(400, fault)
        await _attach(call, task_id, request.artifacts or ())
        (given,) = await call.engine.leases.finishes(
            call.who.tenant, [_finish(call, task_id, request, result, sanitized=sanitized)]
        )
        if isinstance(given, Rejected):
            raise given.error
    except NotFound:
        raise reject(404, "task not found") from None
    except Conflict:
        job = await call.engine.queries.job(call.who.tenant, wire.job_id(task_id))
        running = job.status is Status.RUNNING
        raise (reject(403, "not-owner") if running else reject(409, "not-in-progress")) from None
    return await model.encode_result(call, await call.engine.queries.job(call.who.tenant, given.id))


async def _submit_item(call: RequestContext[Any, Any], raw: msgspec.Raw) -> dict[str, Any]:
    try:
        item, replaced = body.decode(bytes(raw), BatchResultItem, limit=MAX_BATCH_BODY, sanitizes=True)
    except (Invalid, Malformed, msgspec.MsgspecError):
        return {"taskId": _item_id(raw), "error": "invalid body"}
    try:
        record = await _submit(call, item.task_id, item.options or item, sanitized=replaced)
    except AdapterError as said:
        return {"taskId": item.task_id, "error": said.document["error"]}
    except Error as error:
        return {"taskId": item.task_id, "error": str(error)}
    return {"taskId": item.task_id, "result": record}


def _item_id(raw: msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(raw, type=ItemId).task_id
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


def _fault(request: ResultRequest, result: str | None) -> str | None:
    match request.status:
        case "COMPLETED":
            return "result required when status=COMPLETED" if result is None else None
        case "FAILED":
            return None if (request.error or "").strip() else "error required when status=FAILED"
        case _:
            return "invalid status"


def _finish(
    call: RequestContext[Any, Any], task_id: str, request: ResultRequest, result: str | None, *, sanitized: bool
) -> Finish:
    if request.status == "COMPLETED":
        return CompleteJob(task_id, ANY_FENCE, _worker(call), result, sanitized=sanitized)
    error, replaced = wire.error_body(request.error or "")
    return FailJob(
        task_id, ANY_FENCE, _worker(call), error, retryable=False, sanitized=replaced or sanitized, result=result
    )


async def _leased(call: RequestContext[Any, Any], task_id: str) -> Holder:
    """The lease that the caller has on a task, or LeaseLost."""
    id, worker = wire.job_id(task_id), _worker(call)
    job = await call.engine.queries.job(call.who.tenant, id)
    if job.status is not Status.RUNNING or job.worker != worker:
        raise LeaseLost(id, job.fence)
    return Holder(id, job.fence, worker)


async def _attach(call: RequestContext[Any, Any], task_id: str, artifacts: Sequence[ResultArtifact]) -> None:
    """Store artifacts under the lease of the caller: a finished task must not be rejected for a name or a URL."""
    given = [one for one in artifacts if one.url or one.content_base64]
    if not given:
        return
    holder = await _leased(call, task_id)
    things: list[File | Link] = []
    for one, name in zip(given, model.stored_names([one.name for one in given]), strict=True):
        if one.url:
            things.append(Link(name, one.url.replace("\x00", "\ufffd")))
        else:
            things.append(File(name, one.content_base64 or b"", _media_type(one.content_type)))
    things.sort(key=lambda thing: isinstance(thing, File))  # codeQ lists links before files
    for start in range(0, len(things), MAX_ATTACHED):
        some = things[start : start + MAX_ATTACHED]
        await call.engine.artifacts.attach(call.who.tenant, holder, some, any_url=True)


def _media_type(value: str | None) -> str | None:
    """A media type as it was sent, unless it is not a valid one."""
    try:
        return content_type(value or None)
    except Invalid:
        return None


def _not_owner(error: Error) -> AdapterError:
    return reject(404, "not-found") if isinstance(error, NotFound) else reject(403, "not-owner")


def _worker(call: RequestContext[Any, Any]) -> str:
    return auth.worker_name(call.who, None)


def _lease(seconds: int | None) -> float:
    asked = seconds if seconds is not None and seconds > 0 else LEASE_SECONDS
    return float(min(asked, MAX_LEASE_SECONDS))


def _no_content() -> Response:
    return Response(204, media_type="")
