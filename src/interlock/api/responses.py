"""Response schemas for the OpenAPI document. They are open, because members may be added."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from interlock.domain.approval import ApprovalStatus, Decision
from interlock.domain.lifecycle import Location, Status, Verb


class Shape(Struct, frozen=True, kw_only=True):
    """The base of all answers."""


class Problem(Shape, frozen=True, kw_only=True):
    """Why something was refused (RFC 9457)."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    errors: list[FieldError] | UnsetType = UNSET


class FieldError(Shape, frozen=True, kw_only=True):
    """One field that is wrong, by JSON pointer."""

    pointer: str
    code: str
    message: str


class Agent(Shape, frozen=True, kw_only=True):
    """Whom a job is for."""

    kind: str
    id: str


class Lease(Shape, frozen=True, kw_only=True):
    """Who holds a job, until when, and the number that proves it."""

    worker: str
    fence: int
    expires_at: datetime


class ListedJob(Shape, frozen=True, kw_only=True):
    """A job of a list, without what may be large."""

    id: str
    seq: int
    tenant: str
    type: str
    status: Status
    location: Location
    priority: int
    headers: dict[str, str] | None
    traceparent: str | None
    tags: list[str]
    agent: Agent | None
    affinity_key: str | None
    repository: str | None
    requires: list[str]
    idempotency_key: str | None
    webhook: str | None
    parent_id: str | None
    redrive_of: str | None
    created_by: str
    requested_by: str | None
    run_at: datetime
    deadline: datetime | None
    timeout_seconds: float | None
    backoff: dict[str, Any] | None
    expiry_delay_seconds: float | None
    attempt: int
    max_attempts: int
    retry_count: int
    lease: Lease | None
    approval_id: str | None
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    checkpoint_seq: int | None
    usage: dict[str, float] | None
    result_summary: str | None
    sanitized: bool
    version: int
    releases: int
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    run_started_at: datetime | None
    heartbeat_at: datetime | None
    finished_at: datetime | None


class Job(ListedJob, frozen=True, kw_only=True):
    """A job as it is now."""

    payload: Any
    awaiting: list[str]
    checkpoint: Any
    result: Any
    error: dict[str, Any] | None


class EnqueuedJob(Job, frozen=True, kw_only=True):
    """A job of a batch, and whether it was there before."""

    replayed: bool


class EnqueuedJobs(Shape, frozen=True, kw_only=True):
    """The jobs of a batch, in the order they were sent."""

    jobs: list[EnqueuedJob]


class JobPage(Shape, frozen=True, kw_only=True):
    """Jobs, newest first, without payload, result, checkpoint, error and the children they wait for."""

    items: list[ListedJob]
    next_cursor: str | None


class JobStatus(Shape, frozen=True, kw_only=True):
    """How far a job is that has not ended yet."""

    id: str
    status: Status
    location: Location


class HistoryRow(Shape, frozen=True, kw_only=True, rename={"from_": "from"}):
    """One transition of a job."""

    version: int
    from_: Status | None
    to: Status
    verb: Verb
    actor: str
    attempt: int
    fence: int
    reason: str | None
    metadata: Any
    at: datetime
    hash: str


class HistoryPage(Shape, frozen=True, kw_only=True):
    """Transitions, oldest first."""

    items: list[HistoryRow]
    next_cursor: str | None


class Receipt(Shape, frozen=True, kw_only=True):
    """What a change did to a job, read from the history row it wrote."""

    id: str
    fence: int
    status: Status
    attempt: int
    version: int
    run_at: datetime | None
    finished_at: datetime | None


class CancelReceipt(Receipt, frozen=True, kw_only=True):
    """The receipt of a cancel; with `cascade` it contains the number of descendants reached."""

    descendants: int | UnsetType = UNSET


class ItemRejected(Shape, frozen=True, kw_only=True):
    """An item of a batch that was not done, and why."""

    id: str
    error: Problem


class Receipts(Shape, frozen=True, kw_only=True):
    """One answer for each item, in the order they were sent."""

    items: list[Annotated[Any, Meta(extra={"any_of": (Receipt, ItemRejected)})]]


class Step(Shape, frozen=True, kw_only=True):
    """The kept result of a part of a run."""

    seq: int
    name: str
    occurrence: int
    result: Any
    function: str | None
    fence: int
    sanitized: bool
    at: datetime


class StepPage(Shape, frozen=True, kw_only=True):
    """Steps, oldest first."""

    items: list[Step]
    next_cursor: str | None


class Event(Shape, frozen=True, kw_only=True):
    """A message about the progress of a job; `at` is when its worker recorded it."""

    id: str
    seq: int
    job_id: str
    level: Literal["info", "warn", "error"]
    message: str
    payload: Any
    sanitized: bool
    at: datetime
    received_at: datetime


class EventPage(Shape, frozen=True, kw_only=True):
    """Events, oldest first."""

    items: list[Event]
    next_cursor: str | None


class EmittedEvents(Shape, frozen=True, kw_only=True):
    """The numbers that events have got."""

    seqs: list[int]


class Decided(Shape, frozen=True, kw_only=True):
    """The decision on a job, for the worker that resumes it."""

    id: str
    name: str | None
    occurrence: int
    decision: Decision
    status: ApprovalStatus
    prompt: str
    details: Any
    schema: Any
    comment: str | None
    data: Any
    digest: str
    decided_at: datetime


class ClaimedJob(Job, frozen=True, kw_only=True):
    """A job with its lease, its steps, the last decision it waited for, and all decisions, oldest first."""

    steps: list[Step]
    approval: Decided | None
    approvals: list[Decided]


class Claimed(Shape, frozen=True, kw_only=True):
    """The jobs that were granted, the best first."""

    jobs: list[ClaimedJob]


class HeartbeatReply(Shape, frozen=True, kw_only=True):
    """When the lease expires now, and whether a cancel was requested."""

    id: str
    lease_expires_at: datetime
    cancel_requested: bool
    cancel_reason: str | None
    paused: bool


class HeartbeatReplies(Shape, frozen=True, kw_only=True):
    """One answer for each item, in the order they were sent."""

    items: list[Annotated[Any, Meta(extra={"any_of": (HeartbeatReply, ItemRejected)})]]


class Saved(Shape, frozen=True, kw_only=True):
    """The number of the checkpoint that is kept."""

    seq: int


class Artifact(Shape, frozen=True, kw_only=True):
    """A named file of a job, or a link."""

    id: str
    job_id: str
    name: str
    size: int | None
    sha256: str | None
    content_type: str | None
    url: str
    created_at: datetime


class ArtifactPage(Shape, frozen=True, kw_only=True):
    """Artifacts, newest first."""

    items: list[Artifact]
    next_cursor: str | None


class Token(Shape, frozen=True, kw_only=True):
    """A bearer token, without its text."""

    id: str
    tenant: str
    description: str | None
    roles: list[str]
    worker_id: str | None
    types: list[str] | None
    repositories: list[str] | None
    capabilities: list[str]
    key: str | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


class NewToken(Token, frozen=True, kw_only=True):
    """A bearer token with its text, the only time it is shown."""

    token: str


class TokenPage(Shape, frozen=True, kw_only=True):
    """Tokens, newest first, those that have ended among them."""

    items: list[Token]
    next_cursor: str | None


class Me(Shape, frozen=True, kw_only=True):
    """Who is calling."""

    tenant: str
    actor: str
    roles: list[str]
    worker: str | None
    auth: bool


class Health(Shape, frozen=True, kw_only=True):
    """Whether the service is there."""

    status: str


class Readiness(Health, frozen=True, kw_only=True):
    """Whether requests should be sent here, and whether what is answered survives a crash."""

    durability: Literal["full", "relaxed"]
    unreachable: list[str] | UnsetType = UNSET
