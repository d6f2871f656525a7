"""The client protocol: all operations, in groups. Implemented in process (`local`) and over HTTP (`http`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack

from interlock.domain.approval import Approval, ApprovalFilter, ApprovalLink, Decision, RequestApproval
from interlock.domain.artifact import Artifact, Download, File, Holder, Link
from interlock.domain.audit import HistoryExport, VerifiedPart
from interlock.domain.budget import BudgetState
from interlock.domain.channel import ChannelTest, NotificationChannel
from interlock.domain.decide import Finish
from interlock.domain.effect import BeginEffect, Effect, SettleEffect
from interlock.domain.explain import Why
from interlock.domain.job import (
    Checkpoint,
    Enqueued,
    Filter,
    Heartbeat,
    HeartbeatReply,
    HistoryRow,
    Job,
    Receipt,
    Rejected,
)
from interlock.domain.limits import BucketState, LimitState
from interlock.domain.message import Message, Published
from interlock.domain.operations import START, Action, Bulk, Cascade, Pruned
from interlock.domain.operator_log import LogRow
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.domain.progress import EventRow, Report, Step, StepRow
from interlock.domain.registry import Agent, JobType, QueueStats
from interlock.domain.schedule import Schedule
from interlock.domain.stream import Append, Chunk, StreamInfo
from interlock.domain.token import CreatedToken, Token
from interlock.domain.usage_totals import By, Key, UsageTotal
from interlock.domain.webhook import CreatedSubscription, Delivery, DeliveryFilter, Subscription
from interlock.domain.worker_presence import Presence
from interlock.wire import AgentName, EncodedRequest, JobRequest, SubscriptionRequest, TokenRequest, error_body
from interlock.wire.budgets import BudgetRequest as BudgetRequest
from interlock.wire.channels import ChannelRequest
from interlock.wire.limits import LimitRequest as LimitRequest
from interlock.wire.limits import Rate as Rate
from interlock.wire.schedule import ScheduleRequest

__all__ = [
    "AgentName",
    "ChannelRequest",
    "Client",
    "EncodedRequest",
    "JobRequest",
    "LeasedJob",
    "ScheduleRequest",
    "SubscriptionRequest",
    "TokenRequest",
    "error_body",
]


class LeasedJob(NamedTuple):
    """A leased job with the steps and decided approvals of its earlier runs."""

    job: Job
    steps: Sequence[StepRow] = ()
    approvals: Sequence[Approval] = ()  # decided ones, oldest first


class Edits(TypedDict, total=False):
    """The fields of a waiting job that can be changed; None leaves a field unchanged."""

    priority: int | None
    run_at: datetime | None
    deadline: datetime | None
    drop_deadline: bool
    max_attempts: int | None
    tags: Sequence[str] | None


class Changes(TypedDict, total=False):
    """The fields in which a redriven job may differ from the original; None keeps the original value."""

    priority: int | None
    run_at: datetime | None
    delay_seconds: float | None
    max_attempts: int | None
    tags: Sequence[str] | None
    payload: bytes | None


class Jobs(Protocol):
    """Operations on jobs by producers and operators."""

    async def enqueue(self, requests: Sequence[JobRequest], *, within: object = None) -> list[Enqueued]:
        """Enqueue all jobs or none; with `within`, as part of the caller's open PostgreSQL transaction."""
        ...

    async def get(self, job_id: str) -> Job: ...

    async def search(self, text: str, *, limit: int = 50, filter: Filter | None = None) -> list[Job]:
        """Find jobs by ID, its last 8 or more characters, or idempotency key, then by text, each newest first.

        Text is found in payload, error, tags and the name of the requester, in the newest 5000 jobs.
        """
        ...

    async def attention(
        self, *, before_seq: int | None = None, limit: int = 50, filter: Filter | None = None, search: str | None = None
    ) -> list[Job]:
        """List jobs that need attention, newest first: unacknowledged failures, and due jobs without a worker."""
        ...

    async def wait(self, job_id: str, *, seconds: float) -> Job:
        """Return the job once it is terminal, or its current state after that time."""
        ...

    async def edit(self, job_id: str, **edits: Unpack[Edits]) -> Receipt: ...

    async def run_now(self, job_id: str) -> Receipt:
        """Make a queued or retrying job due."""
        ...

    async def budget(self, job_id: str) -> BudgetState:
        """Return the budget of the tree that a job belongs to."""
        ...

    async def raise_budget(self, job_id: str, amount: Mapping[str, float]) -> BudgetState:
        """Add to the budget of the tree that a job belongs to."""
        ...

    async def usage(
        self, by: By | str = By.TYPE, *, since: datetime | None = None, until: datetime | None = None,
        after: Key | None = None, limit: int = 50,
    ) -> list[UsageTotal]:  # fmt: skip
        """Sum the usage of finished jobs by type, agent, day or tree."""
        ...

    async def acknowledge(self, job_id: str, *, comment: str | None = None) -> Receipt:
        """End the need for attention of a failed or dead-letter job."""
        ...

    async def cancel(self, job_id: str, *, reason: str | None = None, force: bool = False) -> Receipt: ...

    async def cancel_tree(self, job_id: str, *, reason: str | None = None, force: bool = False) -> Cascade:
        """Cancel a job and all its descendants."""
        ...

    async def revoke(self, job_id: str, *, reason: str | None = None) -> Receipt:
        """End the current lease as if it had expired."""
        ...

    async def redrive(
        self,
        job_id: str,
        *,
        start_from: str = START,
        idempotency_key: str | None = None,
        **changes: Unpack[Changes],
    ) -> Enqueued:
        """Create a new job from a terminal one: from the start, from its checkpoint, or after a named step."""
        ...

    async def bulk(
        self,
        action: Action,
        *,
        ids: Sequence[str] | None = None,
        filter: Filter | None = None,
        dry_run: bool = False,
        reason: str | None = None,
        force: bool = False,
    ) -> Bulk:
        """Cancel, redrive or acknowledge many jobs; `reason` is the comment of an acknowledgement.

        To continue with a filter, pass the `before_seq` of the last result.
        """
        ...

    async def prune(self, days: float, *, limit: int = 1000, dry_run: bool = False, after_seq: int = 0) -> Pruned:
        """Delete jobs that finished more than `days` ago, with all their data."""
        ...

    async def why(self, job_id: str) -> Why:
        """Explain why a job does not run."""
        ...

    async def history(self, job_id: str) -> list[HistoryRow]: ...

    async def children(self, job_id: str) -> list[Job]:
        """List the children of a job, oldest first, without payloads."""
        ...

    async def steps(self, job_id: str, *, after: int = 0, limit: int | None = None) -> list[StepRow]:
        """List steps with a number above `after`, oldest first; without a limit, all of them."""
        ...

    async def events(self, job_id: str, *, after: int = 0, limit: int = 200) -> list[EventRow]:
        """List events with a number above `after`, oldest first."""
        ...

    async def send(self, job_id: str, name: str, payload: str | None = None, *, id: str | None = None) -> Message:
        """Send a message with a JSON payload; with the ID of an earlier message to the job, return that one."""
        ...

    async def messages(
        self, job_id: str, *, name: str | None = None, topic: str | None = None, after: int = 0, limit: int = 200
    ) -> list[Message]:
        """List the messages of a job with a number above `after`, oldest first."""
        ...

    async def publish(
        self, topic: str, payload: str | None = None, *, id: str | None = None, retain_seconds: float = 0
    ) -> Published:
        """Send a message to all jobs that wait for a topic, and to those that begin to wait within that time."""
        ...

    def tail(self, job_id: str, *, after: int = 0) -> AsyncGenerator[EventRow, None]:
        """Follow the events of a job, each once, until it is terminal."""
        ...

    async def streams(self, job_id: str) -> list[StreamInfo]:
        """List the streams of a job by name."""
        ...

    async def chunks(self, job_id: str, name: str, *, after: int = -1, limit: int = 200) -> list[Chunk]:
        """List chunks of a stream with an offset above `after`, in order."""
        ...

    async def effects(self, job_id: str, *, after: int = 0, limit: int = 200) -> list[Effect]:
        """List the effects of a job with a number above `after`, in the order in which they began."""
        ...

    def stream(self, job_id: str, name: str, *, after: int = -1) -> AsyncGenerator[Chunk, None]:
        """Follow the chunks of a stream, each once, until the job is terminal."""
        ...

    def follow(self) -> AsyncIterator[EventRow]:
        """Follow new events of all jobs indefinitely."""
        ...

    async def list(self, filter: Filter) -> list[Job]:
        """List jobs, newest first, without payloads."""
        ...


class Work(Protocol):
    """Operations of workers. In a batch, each item has its own result."""

    most_per_claim: int
    """How many jobs one claim may ask for."""

    async def claim(self, ask: ClaimFilter, *, wait_seconds: float = 0.0) -> list[LeasedJob]:
        """Lease up to ask.limit jobs; wait that long for the first. A repeated claim_id returns the same jobs."""
        ...

    async def heartbeats(self, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatReply | Rejected]: ...

    async def interrupted(self, leases: Sequence[tuple[str, int]], *, wait_seconds: float = 0.0) -> list[str]:
        """Return the IDs of those leased jobs (by ID and fence) that must stop, waiting that long for the first."""
        ...

    async def finishes(self, orders: Sequence[Finish]) -> list[Receipt | Rejected]: ...

    async def checkpoint(self, checkpoint: Checkpoint) -> int: ...

    async def save_step(self, step: Step) -> StepRow:
        """Save a step and return the stored one: the first with this name and occurrence."""
        ...

    async def add_events(self, reports: Sequence[Report]) -> list[tuple[int, ...] | Rejected]:
        """Append events and return the sequence numbers of each item."""
        ...

    async def append(self, append: Append) -> int:
        """Append chunks to a stream and return its next offset; the same append again changes nothing."""
        ...

    async def begin_effect(self, order: BeginEffect) -> Effect:
        """Record that an effect begins; one that has begun or is done is returned as it is."""
        ...

    async def settle_effect(self, order: SettleEffect) -> Effect:
        """Record the outcome of an effect; the same outcome again changes nothing."""
        ...

    async def request_approval(self, approval: RequestApproval) -> Receipt:
        """Request an approval, which ends the lease and suspends the job. The engine assigns the approval ID."""
        ...

    async def attach(self, holder: Holder, thing: File | Link) -> str:
        """Store a complete file or a link and return its ID; an artifact with the same name is replaced."""
        ...


class Approvals(Protocol):
    """Approvals that jobs request."""

    async def get(self, approval_id: str) -> Approval: ...

    async def decide(
        self,
        approval_id: str,
        decision: Decision,
        *,
        comment: str | None = None,
        data: str | bytes | None = None,
        digest: str | None = None,
    ) -> Approval:
        """Vote as the caller; with `digest`, fail if the request has a different one."""
        ...

    async def create_link(self, approval_id: str) -> ApprovalLink:
        """Create an approval link, which needs no other credential; it replaces the previous one."""
        ...

    async def list(self, filter: ApprovalFilter) -> list[Approval]:
        """Newest first."""
        ...


class Queues(Protocol):
    """Job counts by type, and pausing a type."""

    async def get(self, type: str) -> QueueStats: ...

    async def pause(self, type: str, *, reason: str | None = None) -> None: ...

    async def resume(self, type: str) -> None: ...

    async def list(self, *, after: str = "", limit: int = 50) -> list[QueueStats]:
        """List queues by type."""
        ...


class Schedules(Protocol):
    """Schedules, which enqueue jobs at given times."""

    async def get(self, name: str) -> Schedule: ...

    async def set(self, name: str, request: ScheduleRequest) -> Schedule:
        """Create or update a schedule; an update keeps its last tick."""
        ...

    async def delete(self, name: str) -> None: ...

    async def pause(self, name: str) -> Schedule: ...

    async def resume(self, name: str) -> Schedule: ...

    async def run(self, name: str) -> Job:
        """Enqueue the job of a schedule now; its ticks do not change."""
        ...

    async def preview(self, name: str, n: int = 10) -> list[int]:
        """Return the next ticks."""
        ...

    async def list(self, *, after: str = "", limit: int = 50) -> list[Schedule]:
        """List schedules by name."""
        ...


class FlowLimits(Protocol):
    """Limits on concurrency and rates, which jobs name."""

    async def get(self, name: str) -> LimitState: ...

    async def set(self, name: str, request: LimitRequest) -> LimitState:
        """Create or update a limit."""
        ...

    async def delete(self, name: str) -> None: ...

    async def hold(
        self, name: str, until: datetime, *, key: str | None = None, reason: str | None = None
    ) -> LimitState:
        """Lease no job that names the limit until a time."""
        ...

    async def release(self, name: str, *, key: str | None = None) -> LimitState:
        """End a hold."""
        ...

    async def keys(self, name: str, *, after: str = "", limit: int = 50) -> list[BucketState]:
        """List the keys of a limit."""
        ...

    async def list(self, *, after: str = "", limit: int = 50) -> list[LimitState]:
        """List limits by name."""
        ...


class Channels(Protocol):
    """Notification channels, without their secrets."""

    async def get(self, name: str) -> NotificationChannel: ...

    async def set(self, name: str, request: ChannelRequest) -> NotificationChannel:
        """Create or replace a channel."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a channel and its pending messages."""
        ...

    async def list(self, *, after: str = "", limit: int = 50) -> list[NotificationChannel]:
        """List channels by name."""
        ...

    async def test(self, name: str) -> ChannelTest:
        """Send a test message immediately."""
        ...


class Budgets(Protocol):
    """Amounts that jobs may use in total or per period."""

    async def get(self, name: str) -> BudgetState: ...

    async def set(self, name: str, request: BudgetRequest) -> BudgetState:
        """Create or update a budget."""
        ...

    async def raise_by(self, name: str, amount: Mapping[str, float]) -> BudgetState:
        """Add to the amount of a budget."""
        ...

    async def delete(self, name: str) -> None: ...

    async def list(self, *, after: str = "", limit: int = 50) -> list[BudgetState]:
        """List budgets by name."""
        ...


class Agents(Protocol):
    """The entities that jobs run for."""

    async def get(self, kind: str, id: str) -> Agent: ...

    async def set(
        self,
        kind: str,
        id: str,
        *,
        max_concurrency: int | None = None,
        strict: bool = False,
        defaults: Mapping[str, Any] | None = None,
    ) -> Agent:
        """Register or update an agent; a lower limit takes effect as its jobs finish."""
        ...

    async def delete(self, kind: str, id: str) -> None: ...

    async def list(self, *, after: tuple[str, str] = ("", ""), limit: int = 50) -> list[Agent]:
        """List agents by kind and ID."""
        ...


class Types(Protocol):
    """Registered types."""

    async def get(self, name: str) -> JobType: ...

    async def set(
        self,
        name: str,
        *,
        schema: str | None = None,
        requires: Sequence[str] = (),
        defaults: Mapping[str, Any] | None = None,
    ) -> JobType:
        """Register or update a type; the schema is JSON text."""
        ...

    async def delete(self, name: str) -> None: ...

    async def list(self) -> list[JobType]: ...


class Tokens(Protocol):
    """Credentials of the tenant."""

    async def create(self, request: TokenRequest) -> CreatedToken: ...

    async def revoke(self, token_id: str) -> Token: ...

    async def list(self, *, before: str | None = None, limit: int = 50) -> list[Token]:
        """Newest first."""
        ...


class Subscriptions(Protocol):
    """Webhook subscriptions and their deliveries."""

    async def create(self, request: SubscriptionRequest) -> CreatedSubscription: ...

    async def get(self, id: str) -> Subscription: ...

    async def delete(self, id: str) -> None: ...

    async def renew(self, id: str, *, expires_in_seconds: float | None = None) -> Subscription: ...

    async def rotate(self, id: str) -> str:
        """Create a new signing secret, shown only once; for one day, deliveries are signed with both."""
        ...

    async def deliveries(self, filter: DeliveryFilter) -> list[Delivery]:
        """Newest first."""
        ...

    async def redeliver(self, id: str) -> Delivery:
        """Send a delivery again with the same ID and body."""
        ...

    async def list(self, *, before: str | None = None, limit: int = 50) -> list[Subscription]:
        """Newest first."""
        ...


class Artifacts(Protocol):
    """Files and links of jobs."""

    async def get(self, job_id: str, artifact_id: str) -> Artifact: ...

    async def read(self, job_id: str, artifact_id: str) -> Download:
        """Return the bytes of a file, verified against its hash."""
        ...

    async def list(self, job_id: str, *, before: tuple[int, str] | None = None, limit: int = 50) -> list[Artifact]:
        """List artifacts, newest first; `before` is the time and ID of the last one on the previous page."""
        ...


class Workers(Protocol):
    """Workers that polled lately or hold leases."""

    async def list(self, *, after: str = "", limit: int = 50) -> list[Presence]:
        """List workers by name."""
        ...


class Audit(Protocol):
    """History of the tenant: its hash chains, and the audit log of operator actions."""

    async def verify(self, *, after: str | None = None, jobs: int | None = None) -> VerifiedPart:
        """Verify the chains of up to `jobs` jobs, starting after the previous part."""
        ...

    async def head(self) -> str:
        """Return one hash over all chain heads."""
        ...

    async def log(self, *, after: int = 0, limit: int = 50) -> list[LogRow]:
        """List operator actions, oldest first."""
        ...

    def export(self, *, after: int = 0) -> AsyncIterator[list[HistoryExport]]:
        """Yield every history in order of arrival, a few jobs at a time."""
        ...


class Client(Protocol):
    """All operations, in groups, for one tenant and caller. Every client raises the same errors."""

    @property
    def jobs(self) -> Jobs: ...
    @property
    def work(self) -> Work: ...
    @property
    def approvals(self) -> Approvals: ...
    @property
    def queues(self) -> Queues: ...
    @property
    def agents(self) -> Agents: ...
    @property
    def schedules(self) -> Schedules: ...
    @property
    def limits(self) -> FlowLimits: ...
    @property
    def budgets(self) -> Budgets: ...
    @property
    def channels(self) -> Channels: ...
    @property
    def types(self) -> Types: ...
    @property
    def tokens(self) -> Tokens: ...
    @property
    def subscriptions(self) -> Subscriptions: ...
    @property
    def artifacts(self) -> Artifacts: ...
    @property
    def workers(self) -> Workers: ...
    @property
    def audit(self) -> Audit: ...

    async def me(self) -> Principal:
        """Return the authenticated caller."""
        ...

    async def now(self) -> int:
        """Return the time that decides whether jobs are due."""
        ...

    def start_maintenance(self) -> None:
        """Run maintenance in the background, unless a server does it for this client."""
        ...

    async def close(self) -> None: ...
