"""Requests and responses of the native API: domain values to JSON and back, and errors as the engine raises them."""

from __future__ import annotations

import json
import math
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import NoneType
from typing import Any, Final, Generic, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Raw, Struct, defstruct

from interlock import errors, wire
from interlock.client.port import LeasedJob
from interlock.domain import json_text
from interlock.domain.approval import Approval, ApprovalKind, OnDeny, Vote
from interlock.domain.artifact import Artifact
from interlock.domain.budget import TREE, BudgetState, OnExceed
from interlock.domain.channel import Address, ChannelTest, Kind, NotificationChannel
from interlock.domain.decide import CompleteJob, FailJob, ReleaseJob
from interlock.domain.effect import Effect
from interlock.domain.explain import Reason, Why
from interlock.domain.job import Filter, HeartbeatReply, HistoryRow, Job, Receipt
from interlock.domain.limits import BucketState, Limit, LimitState
from interlock.domain.message import AwaitMessage, Message
from interlock.domain.operator_log import LogRow
from interlock.domain.policy import ANY, ClaimFilter
from interlock.domain.progress import Event, EventRow, StepRow, fitted
from interlock.domain.registry import Agent, Defaults, JobType, QueueStats
from interlock.domain.schedule import Schedule
from interlock.domain.stream import Chunk, NewChunk, StreamInfo
from interlock.domain.token import Token
from interlock.domain.usage_totals import UsageTotal
from interlock.domain.webhook import Delivery, Subscription
from interlock.domain.worker_presence import Presence
from interlock.errors import Error, Fatal, FieldError, Invalid, Malformed, Unavailable
from interlock.wire import JobRequest, responses
from interlock.wire.budgets import BudgetShape, JobBudgetShape
from interlock.wire.channels import ChannelShape, ChannelTestShape
from interlock.wire.job import job_of, listed_job_of, text
from interlock.wire.limits import BucketShape, LimitShape, Rate
from interlock.wire.usage_totals import UsageTotalShape

T = TypeVar("T")
LARGEST_BODY: Final = 1024 * 1024 - 4096  # accepted by every server, with room for the members around the items
LARGEST_TEXT: Final = 64 * 1024 * 1024
UNSENT: Final = frozenset(
    {"id", "sanitized", "verb", "approval_id", "opened_by"}
)  # fields of a command that the server already knows
OUTCOMES: Final = {CompleteJob: "complete", FailJob: "fail", ReleaseJob: "release"}


# Requests


def encoded(fields: Mapping[str, object]) -> bytes:
    """Encode a body; omit None, and reject numbers that JSON cannot represent."""
    given: dict[str, object] = {}
    for name, value in fields.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise Invalid(f"{name} must be a finite number", pointer=f"/{name}")
        if value is not None:
            given[name] = _encodable(value) if isinstance(value, str) else value
    return wire.encode_json(given, what="body")


def gathered(parts: Sequence[bytes]) -> Iterator[range]:
    """Yield ranges of items that fit into one body, in order."""
    start, size = 0, 0
    for i, part in enumerate(parts):
        if i > start and size + len(part) > LARGEST_BODY:
            yield range(start, i)
            start, size = i, 0
        size += len(part) + 1
    if parts:
        yield range(start, len(parts))


def job_body(request: JobRequest, key: str) -> bytes:
    """Encode a job with its idempotency key, so that a repeated call returns the same job."""
    json_text.check(bytes(request.payload), what="payload", limit=LARGEST_TEXT)
    fields: dict[str, Any] = {name: getattr(request, name) for name in request.__struct_fields__}
    if request.backoff is not None:
        fields["backoff"] = Raw(encoded(request.backoff))
    return encoded(
        fields | {"idempotency_key": key, "tags": request.tags or None, "requires": request.requires or None}
    )


def claim_body(ask: ClaimFilter, worker: str, wait_seconds: float) -> bytes:
    """Encode a claim. Without capabilities, those of the credential apply."""
    if ask.repositories is not None:
        raise Invalid("repositories are determined by the credential: omit them", pointer="/repositories")
    return encoded(
        {
            "worker": worker,
            "types": None if ask.types is None else sorted(ask.types),
            "capabilities": sorted(ask.capabilities) or None,
            "affinity_keys": [ANY] if ask.affinity_keys is None else sorted(ask.affinity_keys),
            "limit": ask.limit,
            "lease_seconds": ask.lease_seconds,
            "wait_seconds": wait_seconds,
            "claim_id": ask.claim_id,
        }
    )


def order_body(order: Any, worker: str, **more: object) -> bytes:
    """Encode a command of a lease holder by its field names; the job is in the path or in `more`."""
    fields = {name: _encodable_field(name, value) for name, value in order._asdict().items() if name not in UNSENT}
    if fields.get("kind") == ApprovalKind.QUESTION:  # has one answer: the server rejects both members
        del fields["required"], fields["on_deny"]
    return encoded(fields | {"worker": worker} | more)


def _encodable_field(name: str, value: Any) -> object:
    match name:
        case "result" | "usage" | "error" | "details" | "schema":
            return raw(value, name)
        case "data":
            return raw(value, "checkpoint")
        case "run_at":
            return None if value is None else wire.when(value)
        case "checkpoint" if value is not None:
            return Raw(encoded({"seq": value.seq, "data": raw(value.data, "checkpoint")}))
        case "message" if isinstance(value, AwaitMessage):
            return value.to_dict()
        case "events":
            return [Raw(event_body(one)) for one in value] or None
        case _:
            return value if value != () else None


def event_body(event: Event) -> bytes:
    """Encode an event. Shorten its message as the engine would, because over HTTP a longer one is rejected."""
    payload, message = raw(event.payload, "event"), fitted(event.message, event.payload, wire.LIMITS.event)
    at = None if event.at is None else wire.when(event.at)
    return encoded({"id": event.id, "level": str(event.level), "message": message, "payload": payload, "at": at})


def chunk_body(chunk: NewChunk) -> dict[str, str]:
    return {"text": chunk.data.decode()} if chunk.is_text else {"base64": b64encode(chunk.data).decode()}


def selection(filter: Filter) -> dict[str, object]:
    """Return the filter as members of a request; a cursor carries the position in the list."""
    given: dict[str, object] = {
        "status": [str(one) for one in filter.statuses] or None,
        "tag": list(filter.tags) or None,
        "type": filter.type,
        "agent": None if filter.agent is None else "/".join(filter.agent),
        "worker": filter.worker,
        "stale_seconds": filter.stale_seconds,
        "parent": filter.parent_id,
        "created_after": None if filter.created_after is None else wire.when(filter.created_after),
        "created_before": None if filter.created_before is None else wire.when(filter.created_before),
    }
    return {name: value for name, value in given.items() if value is not None}


def query(filter: Filter) -> list[tuple[str, str]]:
    """Return the filter as a URL query."""
    given = selection(filter).items()
    return [(name, str(one)) for name, value in given for one in (value if isinstance(value, list) else [value])]


def raw(value: str | None, what: str) -> Raw | None:
    """Return JSON text to embed in a body, after checking it: invalid text could change the rest of the body."""
    if value is None:
        return None
    json_text.sanitize(value, what=what, limit=LARGEST_TEXT)
    return Raw(value.encode(errors="backslashreplace"))  # the server sanitizes escaped lone surrogates


def _encodable(value: str) -> str | Raw:
    """Return text for a body; lone surrogates become escapes, which the server sanitizes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return Raw(json.dumps(value).encode())
    return value


def joined(name: str, parts: Sequence[bytes]) -> bytes:
    """Return a body that contains only a list."""
    return b'{"%b":[%b]}' % (name.encode(), b",".join(parts))


# Responses


class Enqueued(Struct):
    id: str
    seq: int
    replayed: bool = False


class EnqueuedBatch(Struct):
    jobs: list[Enqueued]


class Page(Struct):
    items: list[Raw]
    next_cursor: str | None = None


class ItemError(Struct):
    error: dict[str, Any] | None = None


class BulkResult(Struct):
    matched: int
    done: int
    more: bool
    refused: list[dict[str, Any]]
    next_cursor: str | None


class Verified(Struct):
    jobs: int
    rows: int
    first_bad: str | None
    next_cursor: str | None


def read(body: bytes | Raw, kind: type[T]) -> T:
    """Decode a response; another format means that it does not come from an Interlock server."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise Error(f"cannot decode the response of the server: {error}") from None


def member(body: bytes, name: str, kind: type[T]) -> T:
    """Return one member of a response."""
    try:
        return read(read(body, dict[str, Raw])[name], kind)
    except KeyError:
        raise Error(f"cannot decode the response of the server: it has no member {name}") from None


class Reader(Generic[T]):
    """Decodes one kind of value. The response has its fields by name, except those in `instead`.

    Times become microseconds and JSON its exact text. Without a `body`, the format of the response follows from the
    types of the fields, with `json` for those that are JSON and `members` for what else it has.
    """

    def __init__(
        self,
        kind: Callable[..., T],
        body: Any = None,
        /,
        *,
        json: Sequence[str] = (),
        members: Mapping[str, Any] | None = None,
        **instead: Callable[[Any], object],
    ) -> None:
        self._kind, self._instead = kind, instead
        hints = get_type_hints(kind)
        self._names = [name for name in hints if name not in instead]
        if body is not None and (missing := {*self._names} - {*body.__struct_fields__}):
            raise TypeError(f"{body.__name__} lacks fields of {kind.__name__}: {sorted(missing)}")
        fields = {name: _wire_type(name, hints[name], json) for name in self._names} | dict(members or {})
        self._body: Any = body or defstruct(
            f"{kind.__name__}Body",
            [_member(name, type) for name, type in fields.items()],
            kw_only=True,
        )

    def __call__(self, given: bytes | Raw) -> T:
        return self.of(read(given, self._body))

    def of(self, body: Any) -> T:
        plain = {name: _plain(getattr(body, name)) for name in self._names}
        return self._kind(**plain, **{name: value(body) for name, value in self._instead.items()})


def _member(name: str, type: Any) -> tuple[str, Any] | tuple[str, Any, Any]:
    """Return a member of a body; a nullable one may also be absent."""
    if type is Raw:
        return name, type, Raw(b"null")
    return (name, type, None) if NoneType in get_args(type) else (name, type)


def _wire_type(name: str, hint: Any, json: Sequence[str]) -> Any:
    if name in json:
        return Raw
    if name == "at" or name.endswith("_at"):
        return datetime | None if NoneType in get_args(hint) else datetime
    return hint


def _plain(value: Any) -> Any:
    if isinstance(value, Raw):
        return text(value)
    if isinstance(value, list):
        return tuple(value)
    return micros(value) if isinstance(value, datetime) else value


def micros(value: datetime | None) -> int | None:
    return wire.instant(value, "at")


def job(body: bytes | Raw) -> Job:
    return job_of(read(body, responses.Job))


def listed_job(body: bytes | Raw) -> Job:
    """Decode an item of a list; fields that lists omit are None."""
    return listed_job_of(read(body, responses.ListedJob))


def leased_jobs(body: bytes) -> list[LeasedJob]:
    return [
        LeasedJob(
            job_of(one),
            [step.of(row)._replace(job_id=one.id) for row in one.steps],
            [_decided(row, one) for row in one.approvals],
        )
        for one in read(body, responses.Claimed).jobs
    ]


def _decided(row: responses.Decided, of: Any) -> Approval:
    """Convert a decision. Voters and other members that a worker does not receive stay empty."""
    return Approval(
        tenant=of.tenant, id=row.id, job_id=of.id, fence=0, status=row.status, prompt=row.prompt,
        details=text(row.details), risk=None, schema=text(row.schema), digest=row.digest, required=1,
        kind=row.kind, name=row.name, occurrence=row.occurrence, on_deny=OnDeny.FAIL, opened_by="", opened_at=0,
        expires_at=0,
        closed_by=None, closed_at=micros(row.decided_at), comment=row.comment, data=text(row.data),
        token_sha256=None, link_created_by=None, link_created_at=None, votes=(),
    )  # fmt: skip


def _oldest(age: float | None) -> int | None:
    """Convert the age that a server reports to a time, by the clock of this machine."""
    return None if age is None else round((time.time() - age) * 1_000_000)


def _asks(worker: str, asks: Sequence[Mapping[str, Sequence[str] | None]]) -> tuple[ClaimFilter, ...]:
    found = [{name: None if some is None else frozenset(some) for name, some in ask.items()} for ask in asks]
    return tuple(
        ClaimFilter(
            worker, one.get("types"), one.get("repositories"), one.get("capabilities") or frozenset(),
            one.get("affinity_keys"),
        )
        for one in found
    )  # fmt: skip


def _rate_of(row: LimitShape) -> Rate:
    return row.rate or Rate(units={})


event: Final = Reader(EventRow, responses.Event)
message: Final = Reader(Message, responses.Message)
effect: Final = Reader(Effect, responses.Effect)
chunk: Final = Reader(
    Chunk,
    responses.Chunk,
    is_text=lambda row: row.text is not None,
    data=lambda row: b64decode(row.base64) if row.text is None else row.text.encode(),
)
stream: Final = Reader(StreamInfo, responses.StreamInfo)
receipt: Final = Reader(Receipt, responses.Receipt)
heartbeat_reply: Final = Reader(HeartbeatReply, responses.HeartbeatReply)
step: Final = Reader(
    StepRow,
    responses.Step,
    job_id=lambda _: "",
    result=lambda row: bytes(row.result).decode(),  # null is a value
)
history: Final = Reader(
    HistoryRow,
    responses.HistoryRow,
    job_id=lambda _: "",
    from_status=lambda row: row.from_,
    to_status=lambda row: row.to,
    hash=lambda row: bytes.fromhex(row.hash),
)
queue: Final = Reader(
    QueueStats,
    members={"oldest_ready_seconds": float | None},
    oldest_ready_at=lambda row: _oldest(row.oldest_ready_seconds),
)
vote: Final = Reader(Vote, members={"by": str}, voter=lambda row: row.by)
approval: Final = Reader(
    Approval,
    json=("details", "schema", "data"),
    members={"votes": list[Raw], "link_minted_by": str | None, "link_minted_at": datetime | None},
    tenant=lambda _: "",
    fence=lambda _: 0,
    token_sha256=lambda _: None,
    votes=lambda row: tuple(map(vote, row.votes)),
    link_created_by=lambda row: row.link_minted_by,
    link_created_at=lambda row: micros(row.link_minted_at),
)
_defaults: Final = Reader(Defaults, json=("backoff",))
agent: Final = Reader(
    Agent,
    members={"defaults": Raw, "backoff": Raw},
    defaults=lambda row: _defaults(row.defaults)._replace(backoff=_plain(row.backoff)),
)
job_type: Final = Reader(
    JobType, json=("schema",), members={"defaults": Raw}, defaults=lambda row: _defaults(row.defaults)
)
token: Final = Reader(Token, responses.Token)
subscription: Final = Reader(Subscription)
delivery: Final = Reader(Delivery)
artifact: Final = Reader(
    Artifact,
    responses.Artifact,
    fence=lambda _: 0,
    worker=lambda _: "",
    key=lambda _: None,
    sha256=lambda row: None if row.sha256 is None else bytes.fromhex(row.sha256),
    url=lambda row: row.url if row.sha256 is None else None,
)
presence: Final = Reader(
    Presence,
    members={"asks": list[dict[str, list[str] | None]], "jobs": tuple[str, ...]},
    asks=lambda row: _asks(row.name, row.asks),
    job_ids=lambda row: row.jobs,
)
schedule: Final = Reader(Schedule, json=("job",))
bucket: Final = Reader(BucketState, BucketShape)
_state: Final = Reader(BucketState, LimitShape, key=lambda _: "")
_limit: Final = Reader(
    Limit,
    LimitShape,
    units=lambda row: _rate_of(row).units,
    per_seconds=lambda row: _rate_of(row).per_seconds,
    burst=lambda row: _rate_of(row).burst or {},
    budget=lambda _: None,
)
limit: Final = Reader(LimitState, LimitShape, limit=_limit.of, state=_state.of, reserved=lambda _: {})
budget: Final = Reader(BudgetState, BudgetShape)
job_budget: Final = Reader(
    BudgetState,
    JobBudgetShape,
    name=lambda row: TREE + row.root_id,
    per=lambda _: None,
    timezone=lambda _: "UTC",
    on_exceed=lambda _: OnExceed.PAUSE,
    resets_at=lambda _: None,
)
_address: Final = Reader(Address, ChannelShape)
channel: Final = Reader(
    NotificationChannel,
    ChannelShape,
    kind=lambda row: Kind(row.kind),
    address=_address.of,
    failures=lambda row: row.consecutive_failures,
)
channel_test: Final = Reader(ChannelTest, ChannelTestShape)
usage_total: Final = Reader(
    UsageTotal,
    UsageTotalShape,
    type=lambda row: row.type or None,
    agent=lambda row: (row.agent.kind, row.agent.id) if row.agent else None,
    day=lambda row: row.day or None,
    tree=lambda row: row.tree or None,
)
log_row: Final = Reader(LogRow, json=("details",), members={"hash": str}, hash=lambda row: bytes.fromhex(row.hash))
_reason: Final = Reader(Reason)


def why(body: bytes) -> Why:
    return Why(_reason(body), tuple(map(_reason, member(body, "also", list[Raw]))))


# Errors

# Attributes of each class, with defaults for those that neither the response nor the request contains.
_FACTS: Final[Mapping[type[Error], Mapping[str, object]]] = {
    errors.FreshSignInRequired: {"risk": "", "seconds": 0},
    errors.NotFound: {"id": "", "resource": "job"},
    errors.LeaseLost: {"job_id": "", "fence": 0},
    errors.AlreadyFinished: {"job_id": "", "how": ""},
    errors.NotRunning: {"job_id": "", "fence": 0},
    errors.BrokenJob: {"job_id": ""},
    errors.CheckpointConflict: {"job_id": "", "seq": 0, "current": 0},
    errors.StreamConflict: {"job_id": "", "stream": "", "offset": 0, "next": 0},
    errors.MessageConflict: {"job_id": "", "message_id": ""},
    errors.TopicConflict: {"topic": "", "message_id": ""},
    errors.EffectConflict: {"job_id": "", "effect": "", "occurrence": 0, "state": ""},
    errors.LimitReached: {"job_id": "", "what": "", "limit": 0},
    errors.CancelRequested: {"job_id": ""},
    errors.NoCancelRequested: {"job_id": ""},
    errors.TokenExists: {"key": "", "token_id": ""},
    errors.WouldDeadlock: {"job_id": "", "child_id": ""},
    errors.ParentNotActive: {"job_id": ""},
    errors.NotEditable: {"job_id": ""},
    errors.NotTerminal: {"job_id": "", "state": ""},
    errors.NotFailed: {"job_id": "", "state": ""},
    errors.AlreadyDecided: {"approval_id": "", "how": ""},
    errors.DigestMismatch: {"approval_id": ""},
    errors.Gone: {"approval_id": ""},
    errors.PreconditionFailed: {"job_id": "", "expected": 0, "version": 0},
    errors.AgentInUse: {"kind": "", "id": ""},
    errors.LimitInUse: {"name": ""},
    errors.TooLarge: {"what": "", "size": 0, "limit": 0},
    errors.IdempotencyKeyReuse: {"key": "", "job_id": "", "what": "job"},
    errors.UnknownType: {"job_type": ""},
    errors.UnknownAgent: {"kind": "", "id": ""},
    errors.Unsatisfiable: {"size": 0},
    errors.ArtifactLost: {"artifact_id": ""},
}
_KINDS: Final = {  # errors without their own code never leave the server under their own class
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, Error) and "code" in vars(kind)
}
_NOT_NOW: Final = frozenset({408, 425, 429, 502, 503, 504})
# Members of every problem document. They are never attributes of an error, even where the names are equal.
_FRAME: Final = frozenset({"type", "title", "status", "code", "detail", "errors"})


def problem(body: bytes) -> dict[str, Any]:
    """Decode a problem document; return an empty one if a proxy responded in another format."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def rebuilt(document: Mapping[str, Any], status: int, known: Mapping[str, object]) -> Error:
    """Rebuild the error of a problem document; attributes that it lacks come from the request."""
    kind = _KINDS.get(str(document.get("code")), Unavailable if status in _NOT_NOW else Error)
    if kind is errors.InUse:  # one code, told apart by its members
        kind = next((one for one in (errors.AgentInUse, errors.LimitInUse) if {*_FACTS[one]} <= {*document}), kind)
    if issubclass(kind, Fatal):
        kind = Unavailable  # only that server must stop; after a restart, or on another one, the call can succeed
    detail = str(document.get("detail") or f"the server answered with status {status}")
    error = kind.__new__(kind, detail)
    faults = tuple(_faults(document))
    if isinstance(error, Invalid):
        error.faults = faults or (FieldError("", detail),)
    elif faults or isinstance(error, Malformed):
        error.pointer = faults[0].pointer if faults else ""
    details = {name: value for name, value in document.items() if name not in _FRAME}
    if isinstance(error, errors.NotFound):  # the ID of a missing job has its own member
        id = details.get("id", details.get("job_id", known.get("job_id", "")))
        details |= {"id": id, "resource": details.get("what", "job")}
    for name, blank in _facts(kind).items():
        setattr(error, name, details.get(name, known.get(name, blank)))
    return error


def is_passing(status: int) -> bool:
    """Return whether a status is temporary, as opposed to caused by the request."""
    return status in _NOT_NOW


def _facts(kind: type[Error]) -> Mapping[str, object]:
    return next((_FACTS[base] for base in kind.__mro__ if base in _FACTS), {})


def _faults(document: Mapping[str, Any]) -> list[FieldError]:
    given = document.get("errors")
    if not isinstance(given, list):
        return []
    return [
        FieldError(str(one.get("pointer", "")), str(one.get("message", ""))) for one in given if isinstance(one, dict)
    ]
