"""Conversion and validation between JSON or Python values and domain values."""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec
import uuid_utils

from interlock.domain import json_text, policy, timestamps
from interlock.domain.job import DEFAULT_MAX_ATTEMPTS, MAX_ATTEMPTS, HistoryRow, NewJob
from interlock.domain.operator_log import LogRow
from interlock.domain.registry import NO_DEFAULTS, Defaults
from interlock.domain.retry import MAX_RETRY_AFTER_SECONDS, Backoff
from interlock.domain.webhook_url import Allowance, admitted
from interlock.errors import Error, Invalid, NotFound, TooLarge

T = TypeVar("T")
FIRST_INSTANT: Final = timestamps.micros(datetime.min.replace(tzinfo=UTC))
LAST_INSTANT: Final = timestamps.micros(datetime.max.replace(tzinfo=UTC))
REMARK_BYTES: Final = 8 * 1024
TAGS_BYTES: Final = 8 * 1024
MAX_DELAY_SECONDS: Final = 10 * 365 * 86_400
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
    batch: int = 1000
    lease_seconds: float = policy.MAX_LEASE_SECONDS
    claim: int = 100
    webhooks: Allowance = Allowance()


LIMITS: Final = Limits()


class AgentName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The agent that a job runs for."""

    kind: str
    id: str


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


_PLAIN: Final = msgspec.structs.astuple(JobRequest(type=""))[2:]  # a request with only type and payload


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to create a token. Without types or repositories any is allowed; without capabilities none is."""

    roles: list[str]
    description: str | None = None
    worker_id: str | None = None
    types: list[str] | None = None
    repositories: list[str] | None = None
    capabilities: list[str] | None = None
    expires_in_seconds: float | None = None
    key: str | None = None


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
) -> NewJob:
    """Validate a request and return a new job with an ID; fields that it does not set come from the defaults."""
    payload = (json_text.measured if judged else json_text.check)(
        bytes(request.payload), what="payload", limit=limits.payload
    )
    if defaults == NO_DEFAULTS and not requires and msgspec.structs.astuple(request)[2:] == _PLAIN:
        return NewJob(
            new_id(shard), name(request.type, "type"), payload, created_by=created_by, traceparent=traceparent
        )
    if request.run_at is not None and request.delay_seconds is not None:
        raise Invalid("give run_at or delay_seconds, not both", pointer="/delay_seconds")
    deadline = instant(request.deadline, "deadline")
    if deadline is not None and deadline <= now:
        raise Invalid("the deadline has passed already", pointer="/deadline")
    needs = tuple(sorted({*policy.names(request.requires, what="requires"), *requires}))
    affinity_key = _optional(request.affinity_key, "affinity_key")
    repository = None if request.repository is None else policy.repository(request.repository)
    policy.check_needs(request.type, needs, repository, affinity_key)
    return NewJob(
        id=new_id(shard),
        type=name(request.type, "type"),
        payload=payload,
        priority=whole(_first(request.priority, defaults.priority, 0), "priority", -1000, 1000),
        run_at=instant(request.run_at, "run_at"),
        delay_seconds=seconds(request.delay_seconds, "delay_seconds", 0, MAX_DELAY_SECONDS),
        deadline=deadline,
        timeout_seconds=seconds(
            _first(request.timeout_seconds, defaults.timeout_seconds), "timeout_seconds", 0.001, MAX_DELAY_SECONDS
        ),
        max_attempts=whole(
            _first(request.max_attempts, defaults.max_attempts, DEFAULT_MAX_ATTEMPTS), "max_attempts", 1, MAX_ATTEMPTS
        ),
        backoff=backoff(request.backoff),
        expiry_delay_seconds=seconds(request.expiry_delay_seconds, "expiry_delay_seconds", 0, MAX_RETRY_AFTER_SECONDS),
        headers=_headers(request.headers, limits),
        traceparent=_optional(request.traceparent, "traceparent") or traceparent,
        tags=tags(request.tags),
        agent_kind=None if request.agent is None else name(request.agent.kind, "agent/kind"),
        agent_id=None if request.agent is None else name(request.agent.id, "agent/id"),
        affinity_key=affinity_key,
        repository=repository,
        requires=needs,
        idempotency_key=_optional(request.idempotency_key, "idempotency_key"),
        body_sha256=None if request.idempotency_key is None else body_sha256(request),
        parent_id=None if request.parent_id is None else job_id(request.parent_id, "parent_id"),
        created_by=created_by,
        webhook=_webhook(request.webhook, limits),
        requested_by=_optional(request.requested_by, "requested_by"),
    )


def defaults(values: Mapping[str, Any] | None, limits: Limits = LIMITS) -> Defaults:
    """Validate the defaults of a type or agent, with the same rules as the fields of a job."""
    try:
        given = msgspec.convert(dict(values or {}), _Defaults)
    except msgspec.ValidationError as error:
        raise invalid(error).within("/defaults") from None
    try:
        attempts = given.max_attempts
        return Defaults(
            max_attempts=None if attempts is None else whole(attempts, "max_attempts", 1, MAX_ATTEMPTS),
            backoff=backoff(given.backoff),
            lease_seconds=seconds(given.lease_seconds, "lease_seconds", 1, limits.lease_seconds),
            timeout_seconds=seconds(given.timeout_seconds, "timeout_seconds", 0.001, MAX_DELAY_SECONDS),
            priority=None if given.priority is None else whole(given.priority, "priority", -1000, 1000),
        )
    except Invalid as error:
        raise error.within("/defaults") from None


class _Defaults(msgspec.Struct, forbid_unknown_fields=True):
    max_attempts: int | None = None
    backoff: dict[str, Any] | None = None
    lease_seconds: float | None = None
    timeout_seconds: float | None = None
    priority: int | None = None


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
        raise Invalid(f"{value!r} is not the id of a job", pointer=f"/{field}") from None


def encode_json(value: object, *, what: str) -> bytes:
    """Serialize Python values, or raise Invalid for values that JSON cannot represent."""
    try:
        try:
            return msgspec.json.encode(value)
        except ValueError:  # an integer that exceeds Python's int-to-str limit
            return json_text.dumps(msgspec.to_builtins(value, str_keys=True)).encode()
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
        raise Invalid(f"{what} cannot be written as JSON: {error}", pointer=f"/{what}") from None


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


def log_to_dict(row: LogRow) -> dict[str, Any]:
    """Serialize a row of the audit log."""
    return {
        "seq": row.seq,
        "actor": row.actor,
        "action": row.action,
        "object": row.object,
        "details": None if row.details is None else msgspec.Raw(row.details.encode()),
        "at": when(row.at),
        "hash": row.hash.hex(),
    }


def history_to_dict(row: HistoryRow) -> dict[str, Any]:
    """Serialize a history row."""
    return {
        "version": row.version,
        "from": row.from_status,
        "to": row.to_status,
        "verb": row.verb,
        "actor": row.actor,
        "attempt": row.attempt,
        "fence": row.fence,
        "reason": row.reason,
        "metadata": None if row.metadata is None else msgspec.Raw(row.metadata.encode()),
        "at": when(row.at),
        "hash": row.hash.hex(),
    }


def error_to_dict(error: Error) -> dict[str, Any]:
    """Serialize an error."""
    encoded: dict[str, Any] = {"code": error.code, "detail": str(error)}
    if isinstance(error, Invalid) and error.pointer:
        encoded["errors"] = [{"pointer": p, "code": error.code, "message": message} for p, message in error.faults]
    return encoded


def _headers(value: Mapping[str, str] | None, limits: Limits) -> str | None:
    if value is None:
        return None
    return json_text.check(encode_json(value, what="headers"), what="headers", limit=limits.headers)


def _first(*values: T | None) -> T:
    """Return the first value that is not None, or the last value."""
    return next((value for value in values if value is not None), values[-1])  # type: ignore[return-value]


def _webhook(value: str | None, limits: Limits) -> str | None:
    if value is not None:
        admitted(value, limits.webhooks, "webhook")
    return value


def _optional(value: str | None, field: str) -> str | None:
    return None if value is None else name(value, field)


def check_batch(items: Sequence[object], limits: Limits = LIMITS, *, field: str = "items") -> None:
    if not 1 <= len(items) <= limits.batch:
        raise Invalid(f"a batch has 1 to {limits.batch} items, not {len(items)}", pointer=f"/{field}")
