"""Conversion and validation between JSON or Python values and domain values."""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import uuid_utils

from interlock.domain import json_text, policy, timestamps
from interlock.domain import limits as flow_limits
from interlock.domain.budget import PREFIX, Period
from interlock.domain.job import FIELDS, Field, Filter, Kind, NewJob
from interlock.domain.job import MAX_DELAY_SECONDS as MAX_DELAY_SECONDS
from interlock.domain.lifecycle import Status
from interlock.domain.limits import Limit
from interlock.domain.registry import NO_DEFAULTS, Defaults
from interlock.domain.retry import Backoff
from interlock.domain.webhook import Mode
from interlock.domain.webhook_url import Allowance, admitted
from interlock.errors import Error, Invalid, NotFound, TooLarge

FIRST_INSTANT: Final = timestamps.micros(datetime.min.replace(tzinfo=UTC))
LAST_INSTANT: Final = timestamps.micros(datetime.max.replace(tzinfo=UTC))
REMARK_BYTES: Final = 8 * 1024
TAGS_BYTES: Final = 8 * 1024
when: Final = timestamps.when


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of values, in bytes unless the name has another unit; `batch` and `claim` are counts."""

    payload: int = 256 * 1024
    result: int = 256 * 1024
    checkpoint: int = 1024 * 1024
    error: int = 16 * 1024
    step: int = 256 * 1024
    event: int = 8 * 1024
    headers: int = 8 * 1024
    artifact: int = 50 * 1024 * 1024
    artifacts_of_tenant: int | None = None
    streams: int = 64 * 1024 * 1024  # of one job
    batch: int = 1000
    lease_seconds: float = policy.MAX_LEASE_SECONDS
    claim: int = 100
    webhooks: Allowance = Allowance()


LIMITS: Final = Limits()
NO_LIMITS: Final[Mapping[str, Limit]] = {}


class AgentName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The agent that a job runs for."""

    kind: str
    id: str


class LimitUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A limit that a job names. The key may be a template over the payload, such as `{customer}`."""

    name: str
    key: str | None = None
    cost: dict[str, float] | None = None


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request to enqueue a job. Payload is JSON text, stored byte for byte."""

    type: str
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    priority: int | None = None
    run_at: datetime | None = None
    delay_seconds: float | None = None
    deadline: datetime | None = None
    timeout_seconds: float | None = None
    max_attempts: int | None = None
    backoff: dict[str, Any] | None = None
    expiry_delay_seconds: float | None = None
    headers: dict[str, str] | None = None
    traceparent: str | None = None
    tags: list[str] = []
    agent: AgentName | None = None
    affinity_key: str | None = None
    repository: str | None = None
    requires: list[str] = []
    idempotency_key: str | None = None
    webhook: str | None = None
    parent_id: str | None = None
    requested_by: str | None = None
    limits: list[LimitUse] | None = None
    budgets: list[str] | None = None
    budget: dict[str, float] | None = None


class EncodedRequest(JobRequest, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request of this process, which has just encoded its payload: the text needs no check."""


_PLAIN: Final = msgspec.structs.astuple(JobRequest(type=""))[2:]  # a request with only type and payload


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to create a token. Absent types or repositories mean any; absent capabilities mean none."""

    roles: list[str]
    description: str | None = None
    worker_id: str | None = None
    types: list[str] | None = None
    repositories: list[str] | None = None
    capabilities: list[str] | None = None
    expires_in_seconds: float | None = None
    key: str | None = None


class SubscriptionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request to create a subscription. Absent types, or `*`, mean all types."""

    url: str
    events: list[str]
    types: list[str] | None = None
    mode: str = Mode.BROADCAST
    group_id: str | None = None
    min_interval_seconds: float = 0.0
    expires_in_seconds: float | None = None
    key: str | None = None


def subscription_request(values: Mapping[str, Any]) -> SubscriptionRequest:
    """Build a request from Python values."""
    try:
        return msgspec.convert(dict(values), SubscriptionRequest)
    except msgspec.ValidationError as error:
        raise invalid(error) from None


def job_request(values: Mapping[str, Any]) -> JobRequest:
    """Build a request from Python values; payload may be any JSON-like value."""
    fields = dict(values)
    if "payload" in fields:
        fields["payload"] = msgspec.Raw(encode_json(fields["payload"], what="payload"))
    try:
        return msgspec.convert(fields, JobRequest, from_attributes=False)
    except msgspec.ValidationError as error:
        raise invalid(error) from None


def new_job(
    request: JobRequest,
    *,
    created_by: str,
    now: int,
    limits: Limits = LIMITS,
    defaults: Defaults = NO_DEFAULTS,
    requires: Sequence[str] = (),
    traceparent: str | None = None,
    shard: int = 0,
    judged: bool = False,
    known_limits: Mapping[str, Limit] = NO_LIMITS,
) -> NewJob:
    """Validate a request and return a new job with an ID; fields that it does not set come from the defaults."""
    payload = (json_text.measured if judged or type(request) is EncodedRequest else json_text.check)(
        bytes(request.payload), what="payload", limit=limits.payload
    )
    if defaults == NO_DEFAULTS and not requires and msgspec.structs.astuple(request)[2:] == _PLAIN:
        return NewJob(
            new_id(shard), name(request.type, "type"), payload, created_by=created_by, traceparent=traceparent
        )
    values = _checked(request, limits)
    if "run_at" in values and "delay_seconds" in values:
        raise Invalid("give run_at or delay_seconds, not both", pointer="/delay_seconds")
    if values.get("deadline", now + 1) <= now:
        raise Invalid("the deadline is in the past", pointer="/deadline")
    needs = tuple(sorted({*values["requires"], *requires}))
    policy.check_needs(request.type, needs, values.get("repository"), values.get("affinity_key"))
    for inherited in ("priority", "timeout_seconds", "max_attempts"):  # backoff and lease are inherited by each run
        if inherited not in values and (default := getattr(defaults, inherited)) is not None:
            values[inherited] = default
    named = request.limits if request.limits is not None else defaults.limits
    budgets = request.budgets if request.budgets is not None else defaults.budgets
    if named or budgets:
        uses = [msgspec.to_builtins(one) for one in named or ()]
        values["limits"] = flow_limits.resolve(uses, known_limits, payload, budgets or ())
    if traceparent is not None:
        values.setdefault("traceparent", traceparent)
    if request.idempotency_key is not None:
        values["body_sha256"] = body_sha256(request)
    return NewJob(new_id(shard), **values | {"payload": payload, "created_by": created_by, "requires": needs})


def _checked(request: JobRequest, limits: Limits) -> dict[str, Any]:
    """Return the fields of a new job that a request sets, without the payload."""
    given = zip(JobRequest.__struct_fields__, msgspec.structs.astuple(request), strict=True)
    values = {field: value for field, value in given if value is not None}
    del values["payload"]
    values.pop("limits", None)  # resolved below, with the limits of the tenant
    values.pop("budgets", None)
    agent = values.pop("agent", None)
    checked = {field: _CHECKS[field](value, limits) for field, value in values.items()}
    if agent is not None:
        checked |= {"agent_kind": name(agent.kind, "agent/kind"), "agent_id": name(agent.id, "agent/id")}
    return checked


def job_value(field: str, value: Any, limits: Limits = LIMITS) -> Any:
    """Validate the value of one field of a job and return it as the domain holds it; None stays None."""
    return None if value is None else _CHECKS[field](value, limits)


def job_filter(
    *,
    status: Sequence[Status] = (),
    agent: str | None = None,
    stale_seconds: float | None = None,
    parent: str | None = None,
    tag: Sequence[str] = (),
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    **plain: Any,
) -> Filter:
    """Validate the filter of a list of jobs; `plain` has the members that need no conversion."""
    return Filter(
        statuses=tuple(status),
        agent=None if agent is None else agent_of(agent),
        stale_seconds=seconds(stale_seconds, "stale_seconds", 0, MAX_DELAY_SECONDS),
        parent_id=None if parent is None else job_id(parent, "parent"),
        tags=tuple(tag),
        created_after=instant(created_after, "created_after"),
        created_before=instant(created_before, "created_before"),
        **plain,
    )


def agent_of(text: str) -> tuple[str, str]:
    """Parse the name of an agent, KIND/ID."""
    kind, slash, id = text.partition("/")
    if not slash:
        raise Invalid(f"agent is {text!r}: expected KIND/ID, such as planner/7", pointer="/agent")
    return kind, id


def defaults(values: Mapping[str, Any] | None, limits: Limits = LIMITS) -> Defaults:
    """Validate the defaults of a type or agent, with the same rules as the fields of a job."""
    try:
        given = msgspec.structs.asdict(msgspec.convert(dict(values or {}), _Defaults))
    except msgspec.ValidationError as error:
        raise invalid(error).within("/defaults") from None
    try:
        lease = seconds(given.pop("lease_seconds"), "lease_seconds", 1, limits.lease_seconds)
        uses, budgets = given.pop("limits"), given.pop("budgets")
        limits_ = None if uses is None else tuple(msgspec.to_builtins(use) for use in uses)
        checked = {field: job_value(field, value) for field, value in given.items()}
        return Defaults(lease_seconds=lease, limits=limits_, budgets=budgets, **checked)
    except Invalid as error:
        raise error.within("/defaults") from None


class _Defaults(msgspec.Struct, forbid_unknown_fields=True):
    max_attempts: int | None = None
    backoff: dict[str, Any] | None = None
    lease_seconds: float | None = None
    timeout_seconds: float | None = None
    priority: int | None = None
    limits: list[LimitUse] | None = None
    budgets: list[str] | None = None


def backoff(value: Mapping[str, Any] | None) -> str | None:
    """Validate a backoff policy and return it as the stored JSON text."""
    if value is None:
        return None
    if unknown := sorted(value.keys() - set(Backoff._fields)):
        raise Invalid(f"backoff has unknown fields: {', '.join(unknown)}", pointer=f"/backoff/{unknown[0]}")
    return Backoff(**value).check().to_text()


def tags(values: Sequence[str]) -> tuple[str, ...]:
    """Validate tags. Their total size is limited because every list of jobs contains them."""
    given = policy.names(values, what="tags")
    if (size := sum(len(tag.encode()) for tag in given)) > TAGS_BYTES:
        raise Invalid(f"tags are {size} bytes: the limit is {TAGS_BYTES}", pointer="/tags")
    return given


def needs(type: str, requires: Sequence[str]) -> tuple[str, ...]:
    """Validate the capabilities that every job of a type requires."""
    given = policy.names(requires, what="requires")
    policy.check_needs(type, given)
    return given


def body_sha256(request: JobRequest) -> bytes:
    """Return the SHA-256 of the fields as sent, without the idempotency key."""
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(request, idempotency_key=None))).digest()


def new_id(shard: int = 0) -> str:
    """Return a UUIDv7 whose ten bits after the variant are the number of the shard that created it."""
    json_text = str(uuid_utils.uuid7())
    return f"{json_text[:19]}{8 | shard >> 8:x}{shard & 0xFF:02x}{json_text[22:]}"


def job_id(value: str, field: str = "id") -> str:
    """Return the canonical form of an ID. A malformed one raises NotFound, or Invalid in a field of a request."""
    try:
        return str(uuid_utils.UUID(value))
    except (ValueError, TypeError, AttributeError):
        if field == "id":
            raise NotFound(value) from None
        raise Invalid(f"{value!r} is not a job ID", pointer=f"/{field}") from None


def encode_json(value: object, *, what: str) -> bytes:
    """Serialize Python values, or raise Invalid for values that JSON cannot represent."""
    try:
        try:
            return msgspec.json.encode(value)
        except ValueError:  # an integer that exceeds Python's int-to-str limit
            return json_text.dumps(msgspec.to_builtins(value, str_keys=True)).encode()
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
        raise Invalid(f"{what} cannot be serialized as JSON: {error}", pointer=f"/{what}") from None


def json_object(text_: str, *, what: str) -> dict[str, Any]:
    """Parse a JSON object from the command line or a form."""
    try:
        return msgspec.json.decode(text_, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise Invalid(f"{what} must be a JSON object: {error}", pointer=f"/{what}") from None


def error_body(
    message: str, *, kind: str | None = None, details: object = None, limit: int = LIMITS.error
) -> tuple[str, bool]:
    """Return the error of a worker as stored and whether it was sanitized; truncate the message to the limit.

    A message of up to an eighth of the limit is never truncated: details are too large if they leave less space.
    """
    plain, sanitized = json_text.sanitize_text(message)
    room = limit - len(limited_error("", kind=kind, details=details))
    given = limited_error(_cut(plain, max(room, limit // 8)), kind=kind, details=details)
    stored, more = json_text.sanitize(given, what="error", limit=limit)
    return stored, sanitized or more


def limited_error(message: str, *, kind: str | None = None, details: object = None) -> bytes:
    """Serialize an error of any size."""
    body: dict[str, object] = {"message": message}
    if kind is not None:
        body["kind"] = json_text.sanitize_text(kind)[0][:200]
    if details is not None:
        body["details"] = details
    return encode_json(body, what="error")


def _cut(message: str, room: int) -> str:
    """Truncate a text to `room` bytes of JSON, with an ellipsis if it was longer."""

    def size(length: int) -> int:
        return len(encode_json(message[:length], what="error")) - 2

    message = message[: room + 1]
    if size(len(message)) <= room:
        return message
    return message[: bisect_right(range(len(message)), room - len("…".encode()), key=size) - 1] + "…"


def remark(value: str | None, field: str) -> str | None:
    """Sanitize free text. Invalid characters are replaced; only text that is too long is rejected."""
    if value is None:
        return None
    sanitized = json_text.sanitize_text(value)[0].replace("\x00", "\ufffd")
    if (size := len(sanitized.encode())) > REMARK_BYTES:
        raise TooLarge(field, size, REMARK_BYTES)
    return sanitized


def reason(value: str | None, field: str = "reason") -> str | None:
    """Sanitize an optional free text; return None for a blank one."""
    return None if value is None or json_text.is_blank(value) else remark(value, field)


def name(value: str, field: str) -> str:
    if not json_text.is_visible_name(value):
        raise Invalid(f"{field} must be {json_text.NAME_RULE}", pointer=f"/{field}")
    return value


def whole(value: int, field: str, low: int, high: int) -> int:
    if not low <= value <= high:
        raise Invalid(f"{field} must be from {low} to {high}", pointer=f"/{field}")
    return value


def seconds(value: float | None, field: str, low: float, high: float) -> float | None:
    if value is None:
        return None
    if not math.isfinite(value) or not low <= value <= high:
        raise Invalid(f"{field} must be from {low} to {high} seconds", pointer=f"/{field}")
    return float(value)


def instant(value: datetime | None, field: str) -> int | None:
    """Convert a time with an offset to microseconds since 1970."""
    if value is None:
        return None
    if value.tzinfo is None:
        raise Invalid(f"{field} needs an offset, such as 2027-01-31T12:00:00Z", pointer=f"/{field}")
    micros = timestamps.micros(value)
    if not FIRST_INSTANT <= micros <= LAST_INSTANT:
        raise Invalid(f"{field} is outside the years 1 to 9999 in UTC", pointer=f"/{field}")
    return micros


def invalid(error: msgspec.ValidationError) -> Invalid:
    """Convert a validation error of msgspec, with its path as a JSON pointer."""
    message, _, path = str(error).partition(" - at `$")
    # For an entry of a map, msgspec reports only `[...]`, so the pointer refers to the map itself.
    path = path.rstrip("`").partition("[...]")[0].strip(".")
    pointer = "/" + path.replace(".", "/").replace("[", "/").replace("]", "") if path else ""
    return Invalid(message, pointer=pointer.replace("//", "/"))


def error_to_dict(error: Error) -> dict[str, Any]:
    """Serialize an error."""
    encoded: dict[str, Any] = {"code": error.code, "detail": str(error)}
    if isinstance(error, Invalid) and error.pointer:
        encoded["errors"] = [{"pointer": p, "code": error.code, "message": message} for p, message in error.faults]
    return encoded


def _headers(value: Mapping[str, str], limits: Limits) -> str:
    return json_text.check(encode_json(value, what="headers"), what="headers", limit=limits.headers)


def _budget(value: Mapping[str, float]) -> str:
    try:
        units = flow_limits.check(Limit(PREFIX, units=value, budget=Period())).units
    except Invalid as error:
        _, _, unit = error.pointer.partition("/amount/")
        raise Invalid(str(error), pointer=f"/budget/{unit}" if unit else "/budget") from None
    return json.dumps(dict(units), separators=(",", ":"))


def _webhook(value: str, limits: Limits) -> str:
    admitted(value, limits.webhooks, "webhook")
    return value


def check_batch(items: Sequence[object], limits: Limits = LIMITS, *, field: str = "items") -> None:
    if not 1 <= len(items) <= limits.batch:
        raise Invalid(f"a batch has 1 to {limits.batch} items, not {len(items)}", pointer=f"/{field}")


def _check_of(field: Field) -> Callable[[Any, Limits], Any]:
    """Return the validation of a field by its kind."""
    low, high = field.bounds or (0, 0)
    match field.kind:
        case Kind.INTEGER:
            return lambda value, _: whole(value, field.name, int(low), int(high))
        case Kind.SECONDS:
            return lambda value, _: seconds(value, field.name, low, high)
        case Kind.TIME:
            return lambda value, _: instant(value, field.name)
        case Kind.ID:
            return lambda value, _: job_id(value, field.name)
        case _:
            return lambda value, _: name(value, field.name)


_CHECKS: Final[Mapping[str, Callable[[Any, Limits], Any]]] = {
    **{field.name: _check_of(field) for field in FIELDS.values()},
    "delay_seconds": lambda value, _: seconds(value, "delay_seconds", 0, MAX_DELAY_SECONDS),
    "payload": lambda value, limits: json_text.check(value, what="payload", limit=limits.payload),
    "headers": _headers,
    "backoff": lambda value, _: backoff(value),
    "tags": lambda value, _: tags(value),
    "requires": lambda value, _: policy.names(value, what="requires"),
    "repository": lambda value, _: policy.repository(value),
    "webhook": _webhook,
    "budget": lambda value, _: _budget(value),
}
