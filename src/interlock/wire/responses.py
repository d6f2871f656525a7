"""Response bodies of the native API, shared by the server (OpenAPI, encoding) and the HTTP client (decoding).

They accept unknown members, because members may be added. Those of a job are derived from the table of its fields. JSON
values are `Raw`: they keep their exact bytes.
"""

from __future__ import annotations

from datetime import datetime
from types import GenericAlias
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, defstruct

from interlock.domain.approval import ApprovalKind, ApprovalStatus, Decision
from interlock.domain.effect import EffectState
from interlock.domain.job import FIELDS, Field, Kind
from interlock.domain.lifecycle import Location, Status, Verb
from interlock.domain.progress import Level


class Shape(Struct, frozen=True, kw_only=True):
    """A response body."""


class Problem(Shape, frozen=True, kw_only=True):
    """An error, as an RFC 9457 problem document."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    errors: list[FieldError] | UnsetType = UNSET


class FieldError(Shape, frozen=True, kw_only=True):
    """An invalid field, by JSON pointer."""

    pointer: str
    code: str
    message: str


class Agent(Shape, frozen=True, kw_only=True):
    """The agent that a job runs for."""

    kind: str
    id: str


class Lease(Shape, frozen=True, kw_only=True):
    """The lease of a running job."""

    worker: str
    fence: int
    expires_at: datetime


class JobStatus(Shape, frozen=True, kw_only=True):
    """The status of a job that is not terminal."""

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
    metadata: Raw
    at: datetime
    hash: str


class HistoryPage(Shape, frozen=True, kw_only=True):
    """Transitions, oldest first."""

    items: list[HistoryRow]
    next_cursor: str | None


class Receipt(Shape, frozen=True, kw_only=True):
    """The result of a transition, read from its history row."""

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
    """A rejected item of a batch, and its error."""

    id: str
    error: Problem


class Receipts(Shape, frozen=True, kw_only=True):
    """One result per item, in request order."""

    items: list[Annotated[Any, Meta(extra={"any_of": (Receipt, ItemRejected)})]]


class Step(Shape, frozen=True, kw_only=True):
    """A saved step of a run."""

    seq: int
    name: str
    occurrence: int
    result: Raw
    function: str | None
    fence: int
    sanitized: bool
    at: datetime


class StepPage(Shape, frozen=True, kw_only=True):
    """Steps, oldest first."""

    items: list[Step]
    next_cursor: str | None


class Event(Shape, frozen=True, kw_only=True):
    """A progress message of a job; `at` is when its worker recorded it."""

    id: str
    seq: int
    job_id: str
    level: Level
    message: str
    payload: Raw
    sanitized: bool
    at: datetime
    received_at: datetime


class EventPage(Shape, frozen=True, kw_only=True):
    """Events, oldest first."""

    items: list[Event]
    next_cursor: str | None


class EmittedEvents(Shape, frozen=True, kw_only=True):
    """The sequence numbers of the new events."""

    seqs: list[int]


class Decided(Shape, frozen=True, kw_only=True):
    """A decision, for the worker that resumes the job."""

    id: str
    kind: ApprovalKind
    name: str | None
    occurrence: int
    decision: Decision
    status: ApprovalStatus
    prompt: str
    details: Raw
    schema: Raw
    comment: str | None
    data: Raw
    digest: str
    decided_at: datetime


class HeartbeatReply(Shape, frozen=True, kw_only=True):
    """The new lease expiry, why the run should stop, if it should, and the number of the last message."""

    id: str
    lease_expires_at: datetime
    cancel_requested: bool
    cancel_reason: str | None
    paused: bool
    budget_exceeded: bool
    messages: int


class HeartbeatReplies(Shape, frozen=True, kw_only=True):
    """One result per item, in request order."""

    items: list[Annotated[Any, Meta(extra={"any_of": (HeartbeatReply, ItemRejected)})]]


class Saved(Shape, frozen=True, kw_only=True):
    """The number of the stored checkpoint."""

    seq: int


class Effect(Shape, frozen=True, kw_only=True):
    """An effect of a job. `attempt` began it; `fence` is that of the lease that wrote it last, 0 if it was copied."""

    seq: int
    name: str
    occurrence: int
    key: str | None
    state: EffectState
    result: Raw
    sanitized: bool
    attempt: int
    fence: int
    started_at: datetime
    ended_at: datetime | None


class EffectPage(Shape, frozen=True, kw_only=True):
    """Effects in the order in which they first began."""

    items: list[Effect]
    next_cursor: str | None


class Message(Shape, frozen=True, kw_only=True, rename={"sender": "from"}):
    """A message in the inbox of a job."""

    id: str
    seq: int
    name: str | None
    topic: str | None
    payload: Raw
    sender: str
    at: datetime


class Published(Shape, frozen=True, kw_only=True):
    """The ID of a message to a topic, and how many waiting jobs got it."""

    id: str
    delivered: int


class MessagePage(Shape, frozen=True, kw_only=True):
    """Messages in the order of arrival."""

    items: list[Message]
    next_cursor: str | None


class Appended(Shape, frozen=True, kw_only=True):
    """The offset at which the stream continues."""

    next: int


class StreamInfo(Shape, frozen=True, kw_only=True):
    """A stream of a job: its number of chunks and bytes."""

    name: str
    chunks: int
    bytes: int
    updated_at: datetime


class StreamList(Shape, frozen=True, kw_only=True):
    """The streams of a job, by name."""

    items: list[StreamInfo]


class Chunk(Shape, frozen=True, kw_only=True, omit_defaults=True):
    """A chunk of a stream: `text`, or `base64` for other bytes, and the attempt and lease that wrote it."""

    offset: int
    attempt: int
    fence: int
    text: str | None = None
    base64: str | None = None
    at: datetime


class ChunkPage(Shape, frozen=True, kw_only=True):
    """Chunks in order. `next` is the `after` of the next page; `ended` is true if no chunk can follow."""

    items: list[Chunk]
    next: int
    ended: bool


class Artifact(Shape, frozen=True, kw_only=True):
    """A named file or link of a job."""

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
    """A bearer token, without its secret."""

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
    """A bearer token with its secret, which is shown only once."""

    token: str


class TokenPage(Shape, frozen=True, kw_only=True):
    """Tokens, newest first, including expired and revoked ones."""

    items: list[Token]
    next_cursor: str | None


class Me(Shape, frozen=True, kw_only=True):
    """The authenticated caller."""

    tenant: str
    actor: str
    roles: list[str]
    worker: str | None
    auth: bool


class Health(Shape, frozen=True, kw_only=True):
    """The liveness of the server."""

    status: str


class Readiness(Health, frozen=True, kw_only=True):
    """The readiness of the server, and the durability of acknowledged writes."""

    durability: Literal["full", "relaxed"]
    unreachable: list[str] | UnsetType = UNSET


class AwaitedMessage(Shape, frozen=True, kw_only=True, omit_defaults=True):
    """The message that a job waits for: of a name or to a topic, with a number above `after`."""

    name: str | None = None
    topic: str | None = None
    after: int


class Awaiting(Shape, frozen=True, kw_only=True, omit_defaults=True):
    """What a released job waits for: children that are not terminal yet, or a message."""

    children: list[str] | None = None
    message: AwaitedMessage | None = None


# Fields of a job that the response has under another name, or not at all.
_FOLDED: Final[dict[str, tuple[str, Any] | None]] = {
    "agent_kind": ("agent", Agent | None), "agent_id": None,
    "worker": ("lease", Lease | None), "fence": None, "lease_expires_at": None,
    "blocked": None, "awaiting": ("awaiting", Awaiting | None), "awaiting_message": None,
}  # fmt: skip
_DERIVED: Final[dict[str, list[tuple[str, Any]]]] = {
    "status": [("location", Location)],
    "max_attempts": [("retry_count", int)],
    "budget": [("budgets", tuple[str, ...]), ("budget_roots", tuple[str, ...])],
}
_TYPES: Final[dict[Kind, Any]] = {
    Kind.TEXT: str, Kind.INTEGER: int, Kind.SECONDS: float, Kind.BOOLEAN: bool, Kind.NAMES: tuple[str, ...],
    Kind.ID: str, Kind.STATUS: Status, Kind.TIME: datetime,
}  # fmt: skip


def _members(*, listed: bool) -> list[tuple[str, Any]]:
    """Return the members of a job and their types, in the order of the fields."""
    found: list[tuple[str, Any]] = []
    for name, field in FIELDS.items():
        if field.listed or not listed:
            member = _FOLDED[name] if name in _FOLDED else (name, _type(field))
            found += [*([] if member is None else [member]), *_DERIVED.get(name, ())]
    return found


def _type(field: Field) -> Any:
    if field.kind is Kind.JSON:
        documented = field.json if field.json is Any else field.json | None
        return Annotated[Raw, Meta(extra={"documented": documented})]
    return _TYPES[field.kind] | None if field.nullable else _TYPES[field.kind]


def _body(name: str, about: str, members: list[tuple[str, Any]], base: Any = Struct) -> Any:
    return defstruct(name, members, bases=(base,), gc=False, module=__name__, namespace={"__doc__": about})


def _list(kind: Any) -> Any:
    return GenericAlias(list, (kind,))


_CURSOR: Final = ("next_cursor", str | None)
Job: Any = _body("Job", "A job.", _members(listed=False))
ListedJob: Any = _body("ListedJob", "A job of a list, without its large members.", _members(listed=True))
EnqueuedJob: Any = _body("EnqueuedJob", "A job of a batch, and whether it already existed.", [("replayed", bool)], Job)
EnqueuedJobs: Any = _body("EnqueuedJobs", "The jobs of a batch, in request order.", [("jobs", _list(EnqueuedJob))])
JobPage: Any = _body(
    "JobPage", "Jobs, newest first, without their large members.", [("items", _list(ListedJob)), _CURSOR]
)
ClaimedJob: Any = _body(
    "ClaimedJob",
    "A leased job with its saved steps, its last decision, and all decisions, oldest first.",
    [("steps", list[Step]), ("approval", Decided | None), ("approvals", list[Decided])],
    Job,
)
Claimed: Any = _body("Claimed", "The leased jobs, highest priority first.", [("jobs", _list(ClaimedJob))])
