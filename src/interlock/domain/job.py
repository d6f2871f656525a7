"""The job record: one table of its fields, and the inputs and results of operations on it.

`Job` is the table: each field has its Python type and a `Field` with everything else that other modules need to know.
Wire structs (`wire.job`), column lists (`storage.job_columns`) and constructors are derived from `FIELDS`.

Times are whole microseconds since 1970, UTC. Fields of kind JSON hold exact JSON text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from operator import itemgetter
from typing import Annotated, Any, Final, NamedTuple, get_args, get_type_hints

from interlock.domain.lifecycle import FINISHES, Location, Status, Verb, locate
from interlock.domain.progress import Event
from interlock.domain.retry import MAX_RETRY_AFTER_SECONDS, SECOND
from interlock.errors import Error

MAX_ATTEMPTS: Final = 100
DEFAULT_MAX_ATTEMPTS: Final = 3
MAX_RELEASES: Final = 1000
MAX_DELAY_SECONDS: Final = 10 * 365 * 86_400
# Matches any fence of the worker, for protocols without fences. No lease has this value.
ANY_FENCE: Final = -(2**62)


class Kind(Enum):
    """The values of a field: how they are encoded, stored and digested."""

    TEXT = "text"
    INTEGER = "integer"
    SECONDS = "seconds"
    BOOLEAN = "boolean"
    NAMES = "names"  # a list of texts
    ID = "id"  # of a job or approval
    STATUS = "status"
    TIME = "time"
    JSON = "json"  # exact JSON text


class Stored(Enum):
    """Where a field is stored. PostgreSQL has one table for the first three."""

    JOB = "job"
    BODY = "body"  # SQLite: job_body, which never changes
    RESULT = "result"  # SQLite: job_result
    VIEW = "view"  # computed by job_view of each engine


class Field(NamedTuple):
    """Facts about one field of a job."""

    about: str
    kind: Kind = Kind.TEXT
    stored: Stored = Stored.JOB
    json: Any = Any  # the type of a JSON value
    listed: bool = True  # lists of jobs contain it
    bounds: tuple[float, float] | None = None
    initial: object = None  # its value after an enqueue, if NewJob does not have it
    redriven: bool = False  # a redrive copies it
    editable: bool = False
    name: str = ""  # set by `_table`
    nullable: bool = False  # set by `_table`


_Int: Final = Kind.INTEGER
_BODY: Final = Stored.BODY


class Job(NamedTuple):
    """The current state of a job. In lists the JSON fields that are not listed are None."""

    tenant: Annotated[str, Field("owner of the job")]
    id: Annotated[str, Field("UUIDv7 that identifies the job", Kind.ID)]
    seq: Annotated[int, Field("order of arrival within the tenant", _Int)]
    type: Annotated[str, Field("task that runs the job; names its queue", stored=_BODY, redriven=True)]
    status: Annotated[Status, Field("state of the job", Kind.STATUS, initial=Status.QUEUED)]
    priority: Annotated[
        int, Field("higher first, -1000 to 1000", _Int, bounds=(-1000, 1000), redriven=True, editable=True)
    ]
    payload: Annotated[
        str | None, Field("any JSON value for the worker", Kind.JSON, _BODY, listed=False, redriven=True)
    ]
    headers: Annotated[
        str | None, Field("strings by name for the worker", Kind.JSON, _BODY, dict[str, str], redriven=True)
    ]
    traceparent: Annotated[str | None, Field("W3C trace context", stored=_BODY, redriven=True)]
    tags: Annotated[Sequence[str], Field("labels to filter lists by", Kind.NAMES, redriven=True, editable=True)]
    agent_kind: Annotated[str | None, Field("kind of the agent that the job runs for", stored=_BODY, redriven=True)]
    agent_id: Annotated[str | None, Field("ID of the agent that the job runs for", stored=_BODY, redriven=True)]
    affinity_key: Annotated[
        str | None, Field("only workers that name this key claim the job", stored=_BODY, redriven=True)
    ]
    repository: Annotated[
        str | None, Field("only workers that may use this repository claim the job", stored=_BODY, redriven=True)
    ]
    requires: Annotated[Sequence[str], Field("capabilities that a worker needs", Kind.NAMES, _BODY, redriven=True)]
    idempotency_key: Annotated[str | None, Field("a repeated enqueue with this key returns this job", stored=_BODY)]
    webhook: Annotated[str | None, Field("URL that receives the terminal event", stored=_BODY, redriven=True)]
    parent_id: Annotated[str | None, Field("job that created this one as its child", Kind.ID, _BODY, redriven=True)]
    redrive_of: Annotated[str | None, Field("terminal job that this one redrives", Kind.ID, _BODY)]
    created_by: Annotated[str, Field("principal that enqueued the job", stored=_BODY)]
    requested_by: Annotated[str | None, Field("free text of the producer, never verified", stored=_BODY, redriven=True)]
    run_at: Annotated[int, Field("earliest start of the next run", Kind.TIME, editable=True)]
    deadline: Annotated[int | None, Field("no run starts after this time", Kind.TIME, editable=True)]
    timeout_seconds: Annotated[
        float | None,
        Field("longest time of one run", Kind.SECONDS, bounds=(0.001, MAX_DELAY_SECONDS), redriven=True),
    ]
    backoff: Annotated[str | None, Field("delay between attempts", Kind.JSON, _BODY, dict[str, Any], redriven=True)]
    expiry_delay_seconds: Annotated[
        float | None,
        Field(
            "delay before the next attempt after a lease expired",
            Kind.SECONDS, _BODY, bounds=(0, MAX_RETRY_AFTER_SECONDS), redriven=True,
        ),
    ]  # fmt: skip
    limits: Annotated[
        str | None,
        Field("limits that a run reserves: name, key and cost", Kind.JSON, _BODY, list[dict[str, Any]], redriven=True),
    ]
    budget: Annotated[
        str | None,
        Field("what the job and its descendants may use, by unit", Kind.JSON, _BODY, dict[str, float], redriven=True),
    ]
    attempt: Annotated[int, Field("current attempt", _Int, initial=1)]
    max_attempts: Annotated[
        int, Field("maximum number of attempts", _Int, bounds=(1, MAX_ATTEMPTS), redriven=True, editable=True)
    ]
    worker: Annotated[str | None, Field("worker that holds the lease")]
    fence: Annotated[int, Field("number of the newest lease", _Int, initial=0)]
    lease_expires_at: Annotated[int | None, Field("end of the lease", Kind.TIME, Stored.VIEW)]
    heartbeat_at: Annotated[int | None, Field("time of the last heartbeat", Kind.TIME, Stored.VIEW)]
    approval_id: Annotated[str | None, Field("pending approval", Kind.ID)]
    awaiting: Annotated[
        Sequence[str],
        Field("children that the next run waits for", Kind.NAMES, Stored.VIEW, listed=False, initial=()),
    ]
    awaiting_message: Annotated[
        str | None, Field("JSON: the message that the next run waits for, and its number", stored=Stored.VIEW)
    ]
    cancel_requested_at: Annotated[int | None, Field("time of the cancel request", Kind.TIME)]
    cancel_reason: Annotated[str | None, Field("reason of the cancel request")]
    checkpoint: Annotated[str | None, Field("saved progress value", Kind.JSON, Stored.VIEW, listed=False)]
    checkpoint_seq: Annotated[int | None, Field("number of the checkpoint", _Int, Stored.VIEW)]
    usage: Annotated[
        str | None, Field("numbers by name, such as tokens or cost", Kind.JSON, Stored.RESULT, dict[str, float])
    ]
    result: Annotated[str | None, Field("JSON value that the job returned", Kind.JSON, Stored.RESULT, listed=False)]
    result_summary: Annotated[str | None, Field("result in one line", stored=Stored.RESULT)]
    error: Annotated[
        str | None, Field("error of the last failed attempt", Kind.JSON, json=dict[str, Any], listed=False)
    ]
    sanitized: Annotated[bool, Field("whether invalid Unicode was replaced", Kind.BOOLEAN, Stored.VIEW, initial=False)]
    version: Annotated[int, Field("rises with every transition and edit", _Int, initial=1)]
    releases: Annotated[int, Field("releases that were due immediately", _Int, initial=0)]
    created_at: Annotated[int, Field("time of the enqueue", Kind.TIME, _BODY)]
    updated_at: Annotated[int, Field("time of the last change", Kind.TIME, Stored.VIEW)]
    started_at: Annotated[int | None, Field("start of the first run", Kind.TIME)]
    run_started_at: Annotated[int | None, Field("start of the newest run", Kind.TIME)]
    finished_at: Annotated[int | None, Field("time when the job became terminal", Kind.TIME)]
    acknowledged_at: Annotated[int | None, Field("time at which its failure was acknowledged", Kind.TIME)]
    acknowledged_by: Annotated[str | None, Field("principal that acknowledged its failure")]
    blocked: Annotated[
        bool, Field("whether it lacks a concurrency slot of its agent", Kind.BOOLEAN, Stored.VIEW, initial=False)
    ]

    def location(self, now: int) -> Location:
        awaits = bool(self.awaiting) or (self.awaiting_message is not None and self.run_at > now)
        return locate(self.status, run_at=self.run_at, now=now, awaits=awaits, blocked=self.blocked)

    @property
    def runs_first(self) -> bool:
        """Whether this lease is its first and it starts without progress of another job."""
        return self.version == 2 and self.redrive_of is None


def _table() -> dict[str, Field]:
    found: dict[str, Field] = {}
    for name, hint in get_type_hints(Job, include_extras=True).items():
        kind, field = get_args(hint)
        found[name] = field._replace(name=name, nullable=type(None) in get_args(kind))
    return found


FIELDS: Final[Mapping[str, Field]] = _table()


def kind_of(name: str) -> Kind | None:
    """Return the kind of a field, or None for `body_sha256`, an option that is not part of the record."""
    return FIELDS[name].kind if name in FIELDS else None


def job_maker(names: Sequence[str], rest: Mapping[str, object]) -> Callable[[tuple[Any, ...]], Job]:
    """Return a function that builds a job from the values of `names`, in that order; `rest` has the other fields."""
    given = (*names, *rest)
    if sorted(given) != sorted(Job._fields):
        raise TypeError(f"a job needs each field once: {sorted({*given} ^ {*Job._fields})}")
    arrange, others, count = itemgetter(*map(given.index, Job._fields)), tuple(rest.values()), len(names)

    def make(values: tuple[Any, ...]) -> Job:
        if len(values) != count:
            raise TypeError(f"{len(values)} values for {count} fields of a job")
        return tuple.__new__(Job, arrange(values + others))  # as many values as there are fields

    return make


class NewJob(NamedTuple):
    """A validated job to enqueue. The fields from `type` on, without the payload and times, are its options."""

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
    limits: str | None = None  # JSON
    budget: str | None = None  # JSON
    fault: Error | None = None  # why it is rejected, unless its idempotency key matches an existing job
    key_lifetime_seconds: float | None = None  # of its idempotency key; None means as long as the job exists

    def created(self, tenant: str, enqueued: Enqueued) -> Job | None:
        """Return the job as enqueued, or None if only the database knows its state."""
        at = enqueued.at
        if at is None or self.agent_kind is not None or self.delay_seconds is not None:
            return None
        job = self if enqueued.limits is None else self._replace(limits=enqueued.limits)
        return _created((*_new_values(job), tenant, enqueued.seq, at if self.run_at is None else self.run_at, at, at))


# Fields of a new job that are stored with it or choose when it is due; `run_at` needs the clock of the database.
_SAME: Final = tuple(name for name in NewJob._fields if name in FIELDS and name != "run_at")
_PLACED: Final = ("tenant", "seq", "run_at", "created_at", "updated_at")
INITIAL: Final = {name: f.initial for name, f in FIELDS.items() if name not in (*_SAME, *_PLACED)}
_new_values: Final = itemgetter(*map(NewJob._fields.index, _SAME))
_created: Final = job_maker((*_SAME, *_PLACED), INITIAL)
# The options of a job in digest order: all of NewJob but its ID, payload and start. They change only by an edit.
OPTIONS: Final = tuple(
    name
    for name in NewJob._fields
    if name not in ("id", "payload", "run_at", "delay_seconds", "fault", "key_lifetime_seconds")
)
REDRIVEN: Final = tuple(name for name, f in FIELDS.items() if f.redriven)
EDITABLE: Final = tuple(name for name, f in FIELDS.items() if f.editable)
UNLISTED: Final = frozenset(name for name, f in FIELDS.items() if not f.listed)


class Enqueued(NamedTuple):
    """The result of an enqueue: the job, and whether it already existed."""

    id: str
    seq: int
    replayed: bool
    at: int | None = None  # when a new job was enqueued
    limits: str | None = None  # JSON; of a new job in a tree with a budget


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
    usage: str | None = None  # JSON: what the run has used so far


class HeartbeatReply(NamedTuple):
    """The reply to a heartbeat: the lease expiry, and why the run should stop, if it should.

    `messages` is the number of the last message in the inbox, 0 without any.
    """

    id: str
    lease_expires_at: int
    cancel_requested: bool
    cancel_reason: str | None
    paused: bool
    budget_exceeded: bool = False
    messages: int = 0


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


SEARCHED_JOBS: Final = 5_000  # the newest ones, for a text
SEARCHED_CHARS: Final = 16 * 1024  # of each payload and error


class TextSearch(NamedTuple):
    """A search for a text in the newest `jobs`, in the first `chars` characters of each payload and error."""

    text: str
    json: str  # the text as it is spelled within a JSON string
    jobs: int
    chars: int
    limit: int

    def matches(self, job: Job) -> bool:
        """Return whether the text is in a job, regardless of the case of ASCII letters."""
        wanted, spelled = _lower(self.text), _lower(self.json)
        return (
            any(spelled in _lower(one[: self.chars]) for one in (job.payload, job.error) if one is not None)
            or any(wanted in _lower(tag) for tag in job.tags)
            or wanted in _lower(job.requested_by or "")
        )


def _lower(text: str) -> str:
    return text.translate(_LOWER)


_LOWER: Final = {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


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

    @property
    def is_empty(self) -> bool:
        """Return whether it selects all jobs."""
        return self._replace(before_seq=None, limit=0) == Filter(limit=0)

    def matches(self, job: Job, now: int) -> bool:
        """Return whether a job has these values, as a list in a store selects it."""
        seen_at = job.run_started_at if job.heartbeat_at is None else job.heartbeat_at
        silent_for = None if self.stale_seconds is None else now - round(self.stale_seconds * SECOND)
        return (
            (not self.statuses or job.status in self.statuses)
            and self.type in (None, job.type)
            and self.agent in (None, (job.agent_kind, job.agent_id))
            and self.worker in (None, job.worker)
            and self.parent_id in (None, job.parent_id)
            and set(self.tags) <= set(job.tags)
            and (self.created_after is None or job.created_at >= self.created_after)
            and (self.created_before is None or job.created_at < self.created_before)
            and (silent_for is None or (job.status is Status.RUNNING and seen_at is not None and seen_at <= silent_for))
        )
