"""Public values: frozen, with `datetime`, `timedelta`, decoded JSON and enums.

`value_of` builds them from the values of the client, by the types of their fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from interlock.domain import retry, schedule
from interlock.domain.approval import ApprovalKind, ApprovalStatus, Decision, OnDeny
from interlock.domain.effect import EffectState
from interlock.domain.explain import ReasonCode
from interlock.domain.job_tree import shares_of
from interlock.domain.lifecycle import TERMINAL, Location, Status, Verb, locate
from interlock.domain.progress import Level
from interlock.domain.schedule import CatchUp, Overlap
from interlock.domain.timestamps import EPOCH, micros
from interlock.domain.webhook import DeliveryStatus, Mode
from interlock.sdk import serialization

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Backoff:
    """How the delay before a retry grows with the attempts, up to `max`."""

    kind: Literal["fixed", "linear", "exponential", "full_jitter", "equal_jitter"] = "full_jitter"
    base: float | timedelta = 1.0
    max: float | timedelta = 300.0
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        self._policy().check()

    def delay(self, attempt: int, chance: float) -> timedelta:
        """Return the delay after this attempt, counted from 1; `chance` is a random number from 0 to 1."""
        return timedelta(microseconds=self._policy().delay(attempt, chance))

    def to_json(self) -> dict[str, Any]:
        """Return the policy as in a job request."""
        return self._policy()._asdict()

    def _policy(self) -> retry.Backoff:
        return retry.Backoff(self.kind, _seconds(self.base), _seconds(self.max), self.multiplier)


@dataclass(frozen=True, slots=True)
class Cron:
    """When a task is enqueued by a schedule: a cron expression of five fields in a time zone."""

    expression: str
    _: KW_ONLY
    timezone: str = "UTC"
    overlap: Overlap | Literal["allow", "skip", "cancel"] = "allow"
    catch_up: CatchUp | Literal["none", "last", "all"] = "none"
    jitter: float | timedelta = 0
    starts_at: datetime | None = None
    ends_at: datetime | None = None

    def __post_init__(self) -> None:
        starts, ends = (None if at is None else micros(at) for at in (self.starts_at, self.ends_at))
        schedule.check(schedule.Timing(self.expression, None, self.timezone, starts, ends), created_at=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The state of a job when it was read. In lists, payload, result, error and checkpoint are None."""

    tenant: str
    id: str
    seq: int
    type: str
    status: Status
    priority: int
    payload: Any
    headers: dict[str, str] | None
    traceparent: str | None
    tags: tuple[str, ...]
    agent: tuple[str, str] | None
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
    timeout: timedelta | None
    backoff: Backoff | None
    expiry_delay: timedelta | None
    limits: tuple[dict[str, Any], ...] | None
    budget: dict[str, float] | None
    budgets: tuple[str, ...]
    budget_roots: tuple[str, ...]
    attempt: int
    max_attempts: int
    worker: str | None
    fence: int
    lease_expires_at: datetime | None
    heartbeat_at: datetime | None
    approval_id: str | None
    awaiting: tuple[str, ...]
    awaiting_message: Any
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    checkpoint: Any
    checkpoint_seq: int | None
    usage: dict[str, float] | None
    result: Any
    result_summary: str | None
    error: dict[str, Any] | None
    sanitized: bool
    version: int
    releases: int
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    run_started_at: datetime | None
    finished_at: datetime | None
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    blocked: bool

    @property
    def is_terminal(self) -> bool:
        """Whether the job has succeeded, failed, or been cancelled."""
        return self.status in TERMINAL

    def location(self, now: datetime | None = None) -> Location:
        """Return where the job is now, or at a time: ready, delayed, blocked, in progress, dead letter or none."""
        run_at, at = micros(self.run_at), micros(datetime.now(UTC) if now is None else now)
        awaits = bool(self.awaiting) or (self.awaiting_message is not None and run_at > at)
        return locate(self.status, run_at=run_at, now=at, awaits=awaits, blocked=self.blocked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message in the inbox of a job, numbered from 1 in the order of arrival. One to a topic has no name."""

    seq: int
    id: str
    name: str | None
    topic: str | None
    payload: Any
    sender: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The ID of a message to a topic, and how many waiting jobs got it."""

    id: str
    delivered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A recorded external side effect of a job. `attempt` began it; `started` without that run: outcome unknown.

    `fence` is that of the lease that wrote it last, 0 if a redrive copied it.
    """

    seq: int
    name: str
    occurrence: int
    key: str | None
    state: EffectState
    result: Any
    sanitized: bool
    attempt: int
    fence: int
    started_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The result of a transition of a job."""

    id: str
    fence: int
    status: Status
    attempt: int
    version: int
    run_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    """One transition of a job, as stored; the hash is hexadecimal."""

    job_id: str
    version: int
    from_status: Status | None
    to_status: Status
    verb: Verb
    actor: str
    attempt: int
    fence: int
    reason: str | None
    metadata: dict[str, Any] | None
    at: datetime
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A progress event of a job: recorded by the worker `at`, stored by the server at `received_at`."""

    job_id: str
    seq: int
    id: str
    level: Level
    message: str
    payload: Any
    at: datetime
    received_at: datetime
    sanitized: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A saved step of a job."""

    job_id: str
    seq: int
    name: str
    occurrence: int
    result: Any
    function: str | None
    fence: int
    at: datetime
    sanitized: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A stream of a job: its number of chunks and bytes."""

    name: str
    chunks: int
    bytes: int
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A chunk of a stream. `attempt` and `fence` name the run that wrote it."""

    offset: int
    attempt: int
    fence: int
    is_text: bool
    data: bytes
    at: datetime

    @property
    def text(self) -> str:
        """The data as text; bytes that are not UTF-8 are replaced."""
        return self.data.decode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One reason why a job does not run."""

    code: ReasonCode
    message: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Why(Reason):
    """The decisive reason why a job does not run, and those that would remain without it."""

    other_reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """The result of an action on many jobs; `rejected` has the message for each job that was not changed.

    With `more`, call it again with `before=next_before`.
    """

    matched: int
    done: int
    more: bool
    next_before: int | None
    rejected: dict[str, str]
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneResult:
    """How many jobs were deleted; with `more`, call it again with `after=next_after`."""

    deleted: int
    more: bool
    next_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """The vote of one principal on an approval."""

    voter: str
    decision: Decision
    comment: str | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """An approval that a job requested, and its decision."""

    id: str
    job_id: str
    status: ApprovalStatus
    prompt: str
    details: Any
    risk: str | None
    schema: dict[str, Any] | None
    digest: str
    required: int
    on_deny: OnDeny
    kind: ApprovalKind
    name: str | None
    occurrence: int
    requested_by: str
    requested_at: datetime
    expires_at: datetime
    closed_by: str | None
    closed_at: datetime | None
    comment: str | None
    data: Any
    link_created_by: str | None
    link_created_at: datetime | None
    votes: tuple[Vote, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalLink:
    """A new approval link; its token is shown only once."""

    approval: Approval
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """Job counts of one type, rates per minute, and its pause."""

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
    oldest_ready_at: datetime | None
    enqueued_per_minute: float
    started_per_minute: float
    succeeded_per_minute: float
    failed_per_minute: float
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Defaults of a type or an agent for options that a job does not set.

    Each of `limits` is a name, or name, key and cost. An empty list names none.
    """

    max_attempts: int | None = None
    backoff: Backoff | None = None
    lease: float | timedelta | None = None
    timeout: float | timedelta | None = None
    priority: int | None = None
    limits: Sequence[str | Mapping[str, Any]] | None = None
    budgets: Sequence[str] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the options that are set, as in a request."""
        found = {
            "max_attempts": self.max_attempts,
            "backoff": None if self.backoff is None else self.backoff.to_json(),
            "lease_seconds": None if self.lease is None else _seconds(self.lease),
            "timeout_seconds": None if self.timeout is None else _seconds(self.timeout),
            "priority": self.priority,
            "limits": None if self.limits is None else [_limit_use(one) for one in self.limits],
            "budgets": None if self.budgets is None else [*self.budgets],
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """An entity that jobs run for; `implicit` if a job created it."""

    kind: str
    id: str
    max_concurrency: int | None
    strict: bool
    defaults: Defaults
    implicit: bool
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class JobType:
    """A registered type: the JSON Schema of its payload, the capabilities that workers need, and defaults."""

    name: str
    schema: dict[str, Any] | None
    requires: tuple[str, ...]
    defaults: Defaults
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule, its next tick, and the result of its last tick."""

    name: str
    cron: str | None
    every: timedelta | None
    timezone: str
    starts_at: datetime | None
    ends_at: datetime | None
    job: dict[str, Any]
    overlap: Overlap
    catch_up: CatchUp
    jitter: timedelta
    next_at: datetime | None
    last_at: datetime | None
    last_job_id: str | None
    last_error: str | None
    paused_at: datetime | None
    paused_by: str | None
    version: int
    created_at: datetime
    created_by: str
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A bearer token, without its secret; None for types or repositories means any."""

    tenant: str
    id: str
    description: str | None
    roles: tuple[str, ...]
    worker_id: str | None
    types: tuple[str, ...] | None
    repositories: tuple[str, ...] | None
    capabilities: tuple[str, ...]
    idempotency_key: str | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedToken:
    """A new token and its secret, which is shown only once."""

    token: Token
    secret: str

    def __repr__(self) -> str:
        return f"CreatedToken({self.token.id!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A webhook subscription, without its secret; None for types means all."""

    id: str
    url: str
    events: tuple[str, ...]
    types: tuple[str, ...] | None
    mode: Mode
    group_id: str | None
    min_interval: timedelta
    expires_at: datetime | None
    disabled_at: datetime | None
    disabled_reason: str | None
    consecutive_failures: int
    created_at: datetime
    created_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit and its state; with keys, `used` and `waiting` are sums, and `available` is empty.

    `rate` has the amount of each unit in each period `per`, `burst` the largest amount at one time.
    With `fair`, keys are served by their `weights`, one after another; 1 for a key without one.
    """

    name: str
    concurrency: int | None
    rate: dict[str, float]
    per: timedelta
    burst: dict[str, float]
    keyed: bool
    fair: bool
    weights: dict[str, float]
    used: int
    available: dict[str, float]
    waiting: int
    held_until: datetime | None
    hold_reason: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitKey:
    """The state of one key of a limit."""

    key: str
    used: int
    available: dict[str, float]
    waiting: int
    held_until: datetime | None
    hold_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A budget and what its jobs have spent and reserved in the current period; available is below 0 if overspent."""

    name: str
    amount: dict[str, float]
    per: str | None
    timezone: str
    on_exceed: str
    spent: dict[str, float]
    reserved: dict[str, float]
    available: dict[str, float]
    running: int
    waiting: int
    resets_at: datetime | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotal:
    """The usage of the jobs of one type, agent, day in UTC, or tree with this root; the other members are None."""

    type: str | None
    agent: tuple[str, str] | None
    day: str | None
    tree: str | None
    jobs: int
    usage: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationChannel:
    """A notification channel, without its secrets; None for types or tags means all."""

    name: str
    kind: str
    host: str
    recipients: tuple[str, ...]
    events: tuple[str, ...]
    types: tuple[str, ...] | None
    tags: tuple[str, ...] | None
    min_risk: str | None
    min_interval: timedelta
    consecutive_failures: int
    disabled_at: datetime | None
    created_at: datetime
    created_by: str
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelTest:
    """The result of a test message: an HTTP or SMTP status code, and why it was not delivered."""

    delivered: bool
    status_code: int | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedSubscription:
    """A subscription with its secret, which is shown only once; None if the call was replayed."""

    subscription: Subscription
    secret: str | None
    replayed: bool

    def __repr__(self) -> str:
        return f"CreatedSubscription({self.subscription.id!r}, replayed={self.replayed})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One event for one subscription or job webhook, and its attempts."""

    id: str
    event: str
    job_id: str | None
    subscription_id: str | None
    status: DeliveryStatus
    attempts: int
    created_at: datetime
    next_attempt_at: datetime | None
    last_attempt_at: datetime | None
    last_status_code: int | None
    last_error: str | None
    completed_at: datetime | None
    coalesced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file of a job with size, SHA-256 and content type, or a link with a URL."""

    job_id: str
    id: str
    name: str
    size: int | None
    sha256: str | None
    content_type: str | None
    url: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a worker claims; None means any."""

    types: tuple[str, ...] | None
    repositories: tuple[str, ...] | None
    capabilities: tuple[str, ...]
    affinity_keys: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPresence:
    """A worker that polled lately or holds leases; the times are None if only its leases are known."""

    name: str
    claims: tuple[Claims, ...]
    first_seen_at: datetime | None
    last_seen_at: datetime | None
    running: int
    job_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainVerification:
    """The result of verifying hash chains; `next` continues, and is None at the end."""

    jobs: int
    rows: int
    first_bad: str | None
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One row of the audit log; the hash is hexadecimal."""

    seq: int
    actor: str
    action: str
    object: str
    details: dict[str, Any] | None
    at: datetime
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The authenticated caller: its tenant, its name in the history, its roles, and its worker name if it has one."""

    tenant: str
    actor: str
    roles: frozenset[str]
    worker: str | None


def value_of(kind: type[V], given: Any) -> V:
    """Convert a value of the client to the public value of this kind."""
    plan: Any = _plan
    return kind(**{name: convert(given) for name, convert in plan(kind)})


def _limit_use(given: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(given, str):
        return {"name": given}
    return {member: value for member, value in given.items() if value is not None}


def _limits_of(text: str | None) -> tuple[dict[str, Any], ...] | None:
    return None if text is None else tuple(serialization.decode(text))


def time_of(at: int) -> datetime:
    """Convert microseconds since 1970."""
    return EPOCH + timedelta(microseconds=at)


Convert = Callable[[Any], Any]
# Public fields that the client has under another name; durations have the suffix `_seconds` there.
_SOURCES: Final[Mapping[str, str]] = {
    "Approval.requested_at": "opened_at",
    "Approval.requested_by": "opened_by",
    "BulkResult.next_before": "before_seq",
    "PruneResult.next_after": "last_seq",
    "CreatedToken.secret": "text",
    "Delivery.coalesced": "folded",
    "Delivery.completed_at": "settled_at",
    "Delivery.last_attempt_at": "last_tried_at",
    "Delivery.next_attempt_at": "next_try_at",
    "NotificationChannel.consecutive_failures": "failures",
    "Reason.code": "clause",
    "Subscription.consecutive_failures": "failures",
    "Subscription.disabled_at": "ended_at",
    "Subscription.disabled_reason": "ended_reason",
    "Token.idempotency_key": "key",
    "WorkerPresence.claims": "asks",
}
_DIFFERENT: Final[Mapping[str, Convert]] = {
    "BulkResult.rejected": lambda bulk: {id: str(error) for id, error in bulk.refused},
    "Defaults.budgets": lambda found: None if found.budgets is None else tuple(found.budgets),
    "Defaults.limits": lambda found: None if found.limits is None else tuple(map(_limit_use, found.limits)),
    "Budget.on_exceed": lambda one: str(one.on_exceed),
    "Budget.per": lambda one: None if one.per is None else str(one.per),
    "NotificationChannel.host": lambda one: one.address.host,
    "NotificationChannel.kind": lambda one: str(one.kind),
    "NotificationChannel.recipients": lambda one: tuple(one.address.recipients),
    "Job.limits": lambda job: _limits_of(shares_of(job.limits).limits),
    "Job.budgets": lambda job: shares_of(job.limits).budgets,
    "Job.budget_roots": lambda job: shares_of(job.limits).budget_roots,
    "Job.agent": lambda job: None if job.agent_kind is None else (job.agent_kind, job.agent_id),
    "Schedule.next_at": lambda one: None if one.paused_at is not None or one.next_at is None else time_of(one.next_at),
    "Why.code": lambda why: why.reason.clause,
    "Why.details": lambda why: dict(why.reason.details),
    "Why.message": lambda why: why.reason.message,
    "Why.other_reasons": lambda why: tuple(value_of(Reason, one) for one in why.also),
}


@cache
def _plan(kind: Any) -> tuple[tuple[str, Convert], ...]:
    hints = get_type_hints(kind)
    return tuple((field.name, _converter(kind.__name__, field.name, hints[field.name])) for field in fields(kind))


def _converter(kind: str, name: str, hint: Any) -> Convert:
    place = f"{kind}.{name}"
    if place in _DIFFERENT:
        return _DIFFERENT[place]
    kinds = [one for one in get_args(hint) if one is not NoneType] if NoneType in get_args(hint) else [hint]
    convert = _by_type(kinds)
    source = _SOURCES.get(place, f"{name}_seconds" if timedelta in kinds else name)

    def read(given: Any) -> Any:
        value = getattr(given, source)
        return None if value is None else convert(value)

    return read


def _by_type(kinds: list[Any]) -> Convert:
    if timedelta in kinds:
        return lambda value: timedelta(seconds=value)
    (kind,) = kinds
    if kind is datetime:
        return time_of
    if kind is Backoff:
        return _backoff_of
    if kind is Any or get_origin(kind) is dict:
        return lambda value: serialization.decode(value) if isinstance(value, str) else dict(value)
    if kind is str:
        return lambda value: value.hex() if isinstance(value, bytes) else value
    if get_origin(kind) is tuple:
        item = _by_type([get_args(kind)[0]])
        return lambda values: tuple(map(item, _listed(values)))
    if is_dataclass(kind):
        nested: Any = kind
        return lambda value: value_of(nested, value)
    return lambda value: value


def _listed(values: Any) -> Any:
    """Return a list of values that is stored as JSON, as a set or as it is."""
    if isinstance(values, str):
        return serialization.decode(values)
    return sorted(values) if isinstance(values, frozenset) else values


def _backoff_of(text: str) -> Backoff:
    found = json.loads(text)
    return Backoff(found["kind"], found["base_seconds"], found["max_seconds"], found["multiplier"])


def _seconds(span: float | timedelta) -> float:
    return span.total_seconds() if isinstance(span, timedelta) else span
