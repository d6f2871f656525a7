"""Workers: claim tasks, stay alive, hand them back, report results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from interlock import wire
from interlock.api import auth
from interlock.api.codeq import encode
from interlock.api.codeq.auth import refused
from interlock.api.codeq.tasks import LARGEST_BATCH_BODY, MOST_AT_ONCE
from interlock.api.face import Lenient, Said
from interlock.api.native.shown import kept
from interlock.api.routes import ABSENT, Answer, Call, Nothing, Routes, answer
from interlock.api.waiting import claim_patiently
from interlock.domain.artifact import File, Holder, Link
from interlock.domain.codeq import BASE
from interlock.domain.decide import Complete, Fail, Finish, Release
from interlock.domain.job import ANY_FENCE, Beat, Refused
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimAsk
from interlock.domain.retry import SECOND
from interlock.domain.text import is_visible_name
from interlock.engine.waits import LONGEST_WAIT_SECONDS
from interlock.errors import Conflict, Error, Invalid, LeaseLost, NotFound

routes = Routes()

LEASE_SECONDS: Final = 300
LONGEST_NACK_SECONDS: Final = 900
MOST_CLAIMED: Final = 10
MOST_COMMANDS: Final = 100  # each is a claim of its own


class Claim(Lenient, frozen=True, kw_only=True):
    """What a worker is ready to do, the most wanted command first."""

    commands: list[str] | None = None
    lease_seconds: int | None = None
    wait_seconds: float | None = None


class ClaimMany(Lenient, frozen=True, kw_only=True):
    """The same for several tasks at once; a bare array names commands, and asks for as many as there may be."""

    bare: ClassVar[str | None] = "commands"
    count: int | None = None
    commands: list[str] | None = None
    lease_seconds: int | None = None


class Extend(Lenient, frozen=True, kw_only=True):
    """A sign of life."""

    extend_seconds: int | None = None


class Nack(Lenient, frozen=True, kw_only=True):
    """A run that failed and may be tried again."""

    delay_seconds: int | None = None
    reason: str | None = None


class ResultArtifact(Lenient, frozen=True, kw_only=True):
    """A file or a link that comes with a result."""

    name: str
    url: str | None = None
    content_base64: bytes | None = None
    content_type: str | None = None

    def thing(self) -> File | Link:
        if self.content_base64:
            return File(self.name, self.content_base64, self.content_type or None)
        if self.url:
            return Link(self.name, self.url)
        return File(self.name, b"", self.content_type or None)


class Submit(Lenient, frozen=True, kw_only=True):
    """How a run ended for good."""

    status: str
    result: msgspec.Raw = ABSENT
    error: str | None = None
    artifacts: tuple[ResultArtifact, ...] | None = None


class SubmitOne(Submit, frozen=True, kw_only=True):
    """One result among others."""

    task_id: str


class SubmitMany(Lenient, frozen=True, kw_only=True):
    """Results of many tasks."""

    bare: ClassVar[str | None] = "results"
    results: list[SubmitOne]


@routes.add("POST", f"{BASE}/tasks/claim", roles=["work"], body=Claim, answers={200: None, 204: None})
async def claim_task(call: Call[Claim, Nothing]) -> Answer:
    """Lease the next task of the first command that has one."""
    body = call.body
    ask, commands = _ask(call, body.commands, body.lease_seconds), body.commands or ()
    jobs = await call.engine.leases.claim(call.who.tenant, ask, in_order=commands)
    seconds = min(max(body.wait_seconds or 0.0, 0.0), LONGEST_WAIT_SECONDS)
    if not jobs and seconds:
        jobs = await claim_patiently(call, ask, seconds, in_order=commands)
    return answer((await encode.tasks(call, jobs))[0]) if jobs else _nothing()


@routes.add("POST", f"{BASE}/tasks/claim/batch", roles=["work"], body=ClaimMany, answers={200: None, 204: None})
async def claim_tasks(call: Call[ClaimMany, Nothing]) -> Answer:
    """Lease several tasks at once."""
    body = call.body
    count = MOST_CLAIMED if body.count is None and body.commands is not None else body.count
    if count is None or count < 1:
        raise refused(400, "invalid body")
    if count > MOST_CLAIMED:
        raise refused(400, f"count exceeds maximum of {MOST_CLAIMED}")
    ask = _ask(call, body.commands, body.lease_seconds)._replace(limit=count)
    jobs = await call.engine.leases.claim(call.who.tenant, ask, in_order=body.commands or ())
    return answer({"tasks": await encode.tasks(call, jobs)}) if jobs else _nothing()


@routes.add(
    "POST", f"{BASE}/tasks/{{id}}/heartbeat", roles=["work"], body=Extend, body_optional=True, answers={200: None}
)
async def heartbeat(call: Call[Extend, Nothing]) -> Answer:
    """Extend the lease of a task that is still the caller's."""
    beat = Beat(call.path["id"], ANY_FENCE, _worker(call), _lease(call.body.extend_seconds))
    try:
        await call.engine.leases.heartbeat(call.who.tenant, beat)
    except NotFound:
        raise refused(404, "not-found") from None
    except Conflict:
        raise refused(403, "not-owner") from None
    return answer({"ok": True})


@routes.add("POST", f"{BASE}/tasks/{{id}}/abandon", roles=["work"], answers={200: None})
async def abandon(call: Call[None, Nothing]) -> Answer:
    """Hand a task back at once; no attempt is spent."""
    try:
        await call.engine.leases.release(call.who.tenant, Release(call.path["id"], ANY_FENCE, _worker(call)))
    except NotFound:
        raise refused(404, "not-found") from None
    except Conflict:
        raise refused(403, "not-owner") from None
    return answer({"status": "requeued"})


@routes.add(
    "POST", f"{BASE}/tasks/{{id}}/nack", roles=["work"], body=Nack, body_optional=True, mends=True,
    answers={200: None},
)  # fmt: skip
async def nack(call: Call[Nack, Nothing]) -> Answer:
    """Report a failure: the task waits for another try, or is dead when there is none left."""
    body = call.body
    after = min(body.delay_seconds or 0, LONGEST_NACK_SECONDS)
    error, mended = wire.error_body(body.reason or "nack")
    order = Fail(
        call.path["id"], ANY_FENCE, _worker(call), error, sanitized=mended or call.sanitized,
        retry_after_seconds=after if after > 0 else None,
    )  # fmt: skip
    try:
        receipt = await call.engine.leases.fail(call.who.tenant, order)
    except (NotFound, Conflict) as refusal:
        raise refused(*await _why(call, refusal, order.id, unknown="not-found")) from None
    if receipt.status is not Status.RETRY or receipt.run_at is None:
        return answer({"status": "dlq", "delaySeconds": 0})
    if after <= 0:
        left = receipt.run_at - await call.engine.reads.now()
        after = max(-(-left // SECOND), 0)
    return answer({"status": "requeued", "delaySeconds": after})


@routes.add(
    "POST", f"{BASE}/tasks/{{id}}/result", roles=["work"], body=Submit, mends=True, largest_body=LARGEST_BATCH_BODY,
    answers={200: None},
)  # fmt: skip
async def submit_result(call: Call[Submit, Nothing]) -> Answer:
    """Report how a task ended; artifacts that come along are kept first."""
    order = _finish(call, call.path["id"], call.body)
    try:
        await _attach(call, order.id, call.body)
        (given,) = await call.engine.leases.finishes(call.who.tenant, [order])
        if isinstance(given, Refused):
            raise given.error
    except (NotFound, Conflict) as refusal:
        raise refused(*await _why(call, refusal, order.id, unknown="task not found")) from None
    return answer(await encode.result(call, await call.engine.reads.job(call.who.tenant, given.id)))


@routes.add(
    "POST", f"{BASE}/tasks/batch/results", roles=["work"], body=SubmitMany, mends=True,
    largest_body=LARGEST_BATCH_BODY, answers={200: None},
)  # fmt: skip
async def submit_results(call: Call[SubmitMany, Nothing]) -> Answer:
    """Report how up to 100 tasks ended, each with its own answer."""
    items = call.body.results
    if len(items) > MOST_AT_ONCE:
        raise refused(400, f"batch size exceeds maximum of {MOST_AT_ONCE}")
    if not items:
        raise refused(400, "invalid body")
    return answer({"results": [await _submitted(call, item) for item in items]})


async def _submitted(call: Call[Any, Any], item: SubmitOne) -> dict[str, Any]:
    try:
        order = _finish(call, item.task_id, item)
        await _attach(call, order.id, item)
        (given,) = await call.engine.leases.finishes(call.who.tenant, [order])
        if isinstance(given, Refused):
            raise given.error
    except Said as said:
        return {"taskId": item.task_id, "error": said.document["error"]}
    except (NotFound, Conflict) as refusal:
        _, text = await _why(call, refusal, item.task_id, unknown="task not found")
        return {"taskId": item.task_id, "error": text}
    except Error as error:
        return {"taskId": item.task_id, "error": str(error)}
    job = await call.engine.reads.job(call.who.tenant, given.id)
    return {"taskId": item.task_id, "result": await encode.result(call, job)}


def _finish(call: Call[Any, Any], task_id: str, body: Submit) -> Finish:
    if body.status == "COMPLETED":
        return Complete(task_id, ANY_FENCE, _worker(call), kept(body.result), sanitized=call.sanitized)
    if body.status != "FAILED":
        raise refused(400, "invalid status (use COMPLETED or FAILED)")
    error, mended = wire.error_body(body.error or "failed")
    result = kept(body.result)
    return Fail(
        task_id, ANY_FENCE, _worker(call), error, retryable=False, sanitized=mended or call.sanitized,
        result=None if result == "null" else result,
    )  # fmt: skip


async def _attach(call: Call[Any, Any], task_id: str, body: Submit) -> None:
    """Keep what came along under the fence that the worker holds now; a result whose task is lost keeps nothing."""
    if not body.artifacts:
        return
    id, worker = wire.job_id(task_id), _worker(call)
    job = await call.engine.reads.job(call.who.tenant, id)
    if job.worker != worker:
        raise LeaseLost(id, job.fence)
    things = [artifact.thing() for artifact in body.artifacts]
    try:
        await call.engine.artifacts.attach(call.who.tenant, Holder(id, job.fence, worker), things)
    except Invalid as error:
        raise refused(400, str(error)) from None


async def _why(call: Call[Any, Any], refusal: Error, task_id: str, *, unknown: str) -> tuple[int, str]:
    """What is said to a worker that does not hold the task."""
    if isinstance(refusal, NotFound):
        return 404, unknown
    job = await call.engine.reads.job(call.who.tenant, wire.job_id(task_id))
    return (403, "not-owner") if job.status is Status.RUNNING else (409, "not-in-progress")


def check_commands(call: Call[Any, Any], commands: Sequence[str]) -> None:
    """Refuse commands that are none, or that are not for this worker."""
    allowed = None if call.who.policy is None else call.who.policy.types
    for command in commands:
        if not is_visible_name(command):
            raise refused(400, "invalid command")
        if allowed is not None and command not in allowed:
            raise refused(403, "event type not allowed")


def _ask(call: Call[Any, Any], commands: Sequence[str] | None, lease_seconds: int | None) -> ClaimAsk:
    who = call.who
    if commands is not None and len(commands) > MOST_COMMANDS:
        raise refused(400, f"commands exceed maximum of {MOST_COMMANDS}")
    check_commands(call, commands or ())
    ask = ClaimAsk(
        worker=_worker(call),
        types=frozenset(commands) if commands else None,
        capabilities=frozenset() if who.policy is None else who.policy.capabilities,
        affinity_keys=None,
        lease_seconds=_lease(lease_seconds),
    )
    return who.narrowed(ask)


def _worker(call: Call[Any, Any]) -> str:
    return auth.worker_name(call.who, None)


def _lease(seconds: int | None) -> float:
    asked = seconds if seconds is not None and seconds > 0 else LEASE_SECONDS
    return float(min(asked, wire.LIMITS.lease_seconds))


def _nothing() -> Answer:
    return Answer(204, media_type="")
