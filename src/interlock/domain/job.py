"""The job record, and the inputs and results of operations on it.

Times are whole microseconds since 1970, UTC. Fields named as JSON hold exact JSON text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from interlock.domain.lifecycle import FINISHES, Location, Status, Verb, locate
from interlock.domain.progress import Event
from interlock.errors import Error

MAX_ATTEMPTS: Final = 100
DEFAULT_MAX_ATTEMPTS: Final = 3
MAX_RELEASES: Final = 1000
# Matches any fence of the worker, for protocols without fences. No lease has this value.
ANY_FENCE: Final = -(2**62)


class Job(NamedTuple):
    """The current state of a job. In lists payload, result, checkpoint and error details are None."""

    tenant: str
    id: str
    seq: int
    type: str
    status: Status
    priority: int
    payload: str | None  # JSON
    headers: str | None  # JSON map
    traceparent: str | None
    tags: Sequence[str]
    agent_kind: str | None
    agent_id: str | None
    affinity_key: str | None
    repository: str | None
    requires: Sequence[str]
    idempotency_key: str | None
    webhook: str | None
    parent_id: str | None
    redrive_of: str | None
    created_by: str
    requested_by: str | None
    run_at: int
    deadline: int | None
    timeout_seconds: float | None
    backoff: str | None  # JSON
    expiry_delay_seconds: float | None
    attempt: int
    max_attempts: int
    worker: str | None
    fence: int
    lease_expires_at: int | None
    heartbeat_at: int | None
    approval_id: str | None
    awaiting: Sequence[str]
    cancel_requested_at: int | None
    cancel_reason: str | None
    checkpoint: str | None  # JSON
    checkpoint_seq: int | None
    usage: str | None  # JSON
    result: str | None  # JSON
    result_summary: str | None
    error: str | None  # JSON
    sanitized: bool
    version: int
    releases: int
    created_at: int
    updated_at: int
    started_at: int | None
    run_started_at: int | None
    finished_at: int | None
    blocked: bool  # has no concurrency slot of its agent

    def location(self, now: int) -> Location:
        return locate(self.status, run_at=self.run_at, now=now, awaits=bool(self.awaiting), blocked=self.blocked)

    @property
    def retry_count(self) -> int:
        return self.attempt - 1


class NewJob(NamedTuple):
    """A validated job to enqueue."""

    id: str
    type: str
    payload: str = "{}"  # JSON
    priority: int = 0
    run_at: int | None = None  # None means now
    delay_seconds: float | None = None
    deadline: int | None = None
    timeout_seconds: float | None = None
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    backoff: str | None = None  # JSON
    expiry_delay_seconds: float | None = None
    headers: str | None = None  # JSON map
    traceparent: str | None = None
    tags: tuple[str, ...] = ()
    agent_kind: str | None = None
    agent_id: str | None = None
    affinity_key: str | None = None
    repository: str | None = None
    requires: tuple[str, ...] = ()
    idempotency_key: str | None = None
    body_sha256: bytes | None = None
    webhook: str | None = None
    parent_id: str | None = None
    redrive_of: str | None = None
    created_by: str = "user:local"
    requested_by: str | None = None
    fault: Error | None = None  # why it is rejected, unless its idempotency key matches an existing job

    def created(self, tenant: str, enqueued: Enqueued) -> Job | None:
        """Return the job as enqueued, or None if only the database knows its state."""
        if enqueued.at is None or self.agent_kind is not None or self.delay_seconds is not None:
            return None
        # Positional, because keyword arguments would cost more than the rest of an enqueue.
        return Job._make((
            tenant, self.id, enqueued.seq, self.type, Status.QUEUED, self.priority, self.payload, self.headers,
            self.traceparent, self.tags, None, None, self.affinity_key, self.repository, self.requires,
            self.idempotency_key, self.webhook, self.parent_id, self.redrive_of, self.created_by, self.requested_by,
            enqueued.at if self.run_at is None else self.run_at, self.deadline, self.timeout_seconds, self.backoff,
            self.expiry_delay_seconds, 1, self.max_attempts, None, 0, None, None, None, (), None, None, None, None,
            None, None, None, None, False, 1, 0, enqueued.at, enqueued.at, None, None, None, False,
        ))  # fmt: skip


class Enqueued(NamedTuple):
    """The result of an enqueue: the job, and whether it already existed."""

    id: str
    seq: int
    replayed: bool
    at: int | None = None  # when a new job was enqueued


class Added(NamedTuple):
    """An enqueued job in its current state, and whether it already existed."""

    job: Job
    replayed: bool


class Checkpoint(NamedTuple):
    """A checkpoint to save by the lease holder; its `seq` must be newer than the stored one."""

    id: str
    fence: int
    worker: str
    seq: int
    data: str  # JSON
    sanitized: bool = False


class Heartbeat(NamedTuple):
    """Extend a lease; without lease_seconds, by its original duration."""

    id: str
    fence: int
    worker: str
    lease_seconds: float | None = None
    checkpoint: Checkpoint | None = None
    events: tuple[Event, ...] = ()


class HeartbeatReply(NamedTuple):
    """The reply to a heartbeat: the lease expiry, and whether cancellation was requested or the queue is paused."""

    id: str
    lease_expires_at: int
    cancel_requested: bool
    cancel_reason: str | None
    paused: bool


class LeaseState(NamedTuple):
    """The lease holder of a job, and whether cancellation was requested; no worker if it is not running."""

    id: str
    fence: int
    worker: str | None
    cancel_requested: bool


class Receipt(NamedTuple):
    """The result of a transition, read from its history row."""

    id: str
    fence: int
    status: Status
    attempt: int
    version: int
    run_at: int | None
    finished_at: int | None


class HistoryRow(NamedTuple):
    """One transition, as stored."""

    job_id: str
    version: int
    from_status: Status | None
    to_status: Status
    verb: Verb
    actor: str
    attempt: int
    fence: int
    reason: str | None
    metadata: str | None  # JSON
    at: int
    hash: bytes

    @property
    def ended_by_worker(self) -> bool:
        return self.verb in FINISHES


class Rejected(NamedTuple):
    """One rejected item of a batch."""

    error: Error


class Filter(NamedTuple):
    """A filter and page of jobs."""

    statuses: tuple[Status, ...] = ()
    type: str | None = None
    agent: tuple[str, str] | None = None
    worker: str | None = None
    stale_seconds: float | None = None
    parent_id: str | None = None
    tags: tuple[str, ...] = ()
    created_after: int | None = None
    created_before: int | None = None
    before_seq: int | None = None
    limit: int = 50
