"""Decoding of responses of the native API into domain values; JSON of jobs keeps its exact bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from interlock import wire
from interlock.client.protocol import LeasedJob
from interlock.domain.approval import Approval, ApprovalStatus, OnDeny
from interlock.domain.job import HeartbeatReply, HistoryRow, Job, Receipt
from interlock.domain.lifecycle import Location, Status, Verb
from interlock.domain.progress import EventRow, Level, StepRow
from interlock.domain.registry import QueueStats
from interlock.errors import Error

T = TypeVar("T")
NULL: Final = b"null"
_LEFT_OUT: Final = Raw(NULL)  # of a list


class AgentPart(Struct):
    kind: str
    id: str


class LeasePart(Struct):
    worker: str
    fence: int
    expires_at: datetime


class StepShape(Struct):
    seq: int
    name: str
    occurrence: int
    result: Raw
    function: str | None
    fence: int
    at: datetime
    sanitized: bool


class DecisionShape(Struct):
    id: str
    name: str | None
    occurrence: int
    status: ApprovalStatus
    prompt: str
    details: Raw
    schema: Raw
    comment: str | None
    data: Raw
    digest: str
    decided_at: datetime | None


class JobShape(Struct, kw_only=True):
    tenant: str
    id: str
    seq: int
    type: str
    status: Status
    location: Location
    priority: int
    payload: Raw = _LEFT_OUT
    headers: Raw
    traceparent: str | None
    tags: tuple[str, ...]
    agent: AgentPart | None
    affinity_key: str | None
    repository: str | None
    requires: tuple[str, ...]
    idempotency_key: str | None
    webhook: str | None
    parent_id: str | None
    redrive_of: str | None
    created_by: str
    requested_by: str | None
    run_at: datetime
    deadline: datetime | None
    timeout_seconds: float | None
    backoff: Raw
    expiry_delay_seconds: float | None
    attempt: int
    max_attempts: int
    lease: LeasePart | None
    heartbeat_at: datetime | None
    approval_id: str | None
    awaiting: tuple[str, ...] = ()
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    checkpoint: Raw = _LEFT_OUT
    checkpoint_seq: int | None
    usage: Raw
    result: Raw = _LEFT_OUT
    result_summary: str | None
    error: Raw = _LEFT_OUT
    sanitized: bool
    version: int
    releases: int
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    run_started_at: datetime | None
    finished_at: datetime | None


class EnqueuedShape(Struct):
    id: str
    seq: int
    replayed: bool = False


class EnqueuedShapes(Struct):
    jobs: list[EnqueuedShape]


class LeasedJobShape(JobShape):
    steps: list[StepShape] = []
    approvals: tuple[DecisionShape, ...] = ()


class LeasedJobsShape(Struct):
    jobs: list[LeasedJobShape]


class ReceiptShape(Struct):
    id: str
    fence: int
    status: Status
    attempt: int
    version: int
    run_at: datetime | None
    finished_at: datetime | None


class OpenedShape(Struct):
    receipt: ReceiptShape


class HeartbeatReplyShape(Struct):
    id: str
    lease_expires_at: datetime
    cancel_requested: bool
    cancel_reason: str | None
    paused: bool


class HistoryShape(Struct, rename={"from_status": "from", "to_status": "to"}):
    version: int
    from_status: Status | None
    to_status: Status
    verb: Verb
    actor: str
    attempt: int
    fence: int
    reason: str | None
    metadata: Raw
    at: datetime
    hash: str


class EventShape(Struct):
    job_id: str
    seq: int
    id: str
    level: Level
    message: str
    payload: Raw
    at: datetime
    received_at: datetime
    sanitized: bool


class QueueShape(Struct):
    type: str
    ready: int
    delayed: int
    blocked: int
    in_progress: int
    waiting_for_approval: int
    dead_letter: int
    succeeded: int
    failed: int
    cancelled: int
    enqueued_per_minute: float
    started_per_minute: float
    succeeded_per_minute: float
    failed_per_minute: float
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    oldest_ready_seconds: float | None = None


class MeShape(Struct):
    worker: str | None = None
    roles: tuple[str, ...] = ()


class InterruptedShape(Struct):
    ids: list[str]


class SavedShape(Struct):
    seq: int


class EmittedShape(Struct):
    seqs: tuple[int, ...]


class NamedShape(Struct):
    id: str


class PageShape(Struct):
    items: list[Raw]
    next_cursor: str | None = None


class ItemsShape(Struct):
    items: list[Raw]


class RefusedShape(Struct):
    error: dict[str, Any] | None = None


def read(body: bytes | Raw, kind: type[T]) -> T:
    """Decode a response; another format means that it does not come from an Interlock server."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise Error(f"cannot decode the response of the server: {error}") from None


def job(shape: JobShape, *, listed: bool = False) -> Job:
    """Convert a job. Lists omit large members and the awaited jobs; elsewhere a null is the job's own value."""
    agent, lease = shape.agent, shape.lease
    waits = shape.status in (Status.QUEUED, Status.RETRY)
    given: dict[str, object] = {
        "agent_kind": None if agent is None else agent.kind,
        "agent_id": None if agent is None else agent.id,
        "worker": None if lease is None else lease.worker,
        "fence": 0 if lease is None else lease.fence,  # useful only to the lease holder
        "lease_expires_at": None if lease is None else micros(lease.expires_at),
        "blocked": waits and shape.location is Location.BLOCKED and not shape.awaiting,
    }
    if not listed:
        given["payload"] = bytes(shape.payload).decode()
        if shape.checkpoint_seq is not None:
            given["checkpoint"] = bytes(shape.checkpoint).decode()
    return _filled(Job, shape, given)


def leased_job(shape: LeasedJobShape) -> LeasedJob:
    steps = [step(one, shape.id) for one in shape.steps]
    return LeasedJob(job(shape), steps, [_decided(one, shape) for one in shape.approvals])


def step(shape: StepShape, job_id: str) -> StepRow:
    return _filled(StepRow, shape, {"job_id": job_id, "result": bytes(shape.result).decode()})


def event(shape: EventShape) -> EventRow:
    return _filled(EventRow, shape, {})


def receipt(shape: ReceiptShape) -> Receipt:
    return _filled(Receipt, shape, {})


def heartbeat_reply(shape: HeartbeatReplyShape) -> HeartbeatReply:
    return _filled(HeartbeatReply, shape, {})


def history(shape: HistoryShape, job_id: str) -> HistoryRow:
    return _filled(HistoryRow, shape, {"job_id": job_id, "hash": bytes.fromhex(shape.hash)})


def queue(shape: QueueShape) -> QueueStats:
    """Convert queue statistics. The server reports an age, which becomes a time by the clock of this machine."""
    age = shape.oldest_ready_seconds
    oldest = None if age is None else round((time.time() - age) * 1_000_000)
    return _filled(QueueStats, shape, {"oldest_ready_at": oldest})


def micros(value: datetime) -> int:
    found = wire.instant(value, "at")
    assert found is not None
    return found


def _decided(shape: DecisionShape, of: JobShape) -> Approval:
    """Convert a decision. Voters and other members that a worker does not receive stay empty."""
    closed_at = None if shape.decided_at is None else micros(shape.decided_at)
    return Approval(
        tenant=of.tenant, id=shape.id, job_id=of.id, fence=0, status=shape.status, prompt=shape.prompt,
        details=text(shape.details), risk=None, schema=text(shape.schema), digest=shape.digest, required=1,
        name=shape.name, occurrence=shape.occurrence, on_deny=OnDeny.FAIL, opened_by="", opened_at=0, expires_at=0,
        closed_by=None, closed_at=closed_at,
        comment=shape.comment, data=text(shape.data), token_sha256=None, link_created_by=None, link_created_at=None,
        votes=(),
    )  # fmt: skip


def text(value: Raw) -> str | None:
    """JSON as it was kept; a null stands for nothing."""
    raw = bytes(value)
    return None if raw == NULL else raw.decode()


def _filled(kind: Callable[..., T], shape: Struct, given: Mapping[str, object]) -> T:
    fields: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    return kind(**{name: given[name] if name in given else _plain(getattr(shape, name)) for name in fields})


def _plain(value: Any) -> Any:
    if isinstance(value, Raw):
        return text(value)
    return micros(value) if isinstance(value, datetime) else value
