"""What goes into requests: orders and reports of the domain as the native API takes them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Raw

from interlock import wire
from interlock.domain import json_text
from interlock.domain.approval import RequestApproval
from interlock.domain.decide import AcknowledgeCancel, CompleteJob, FailJob, Finish, ReleaseJob
from interlock.domain.job import Checkpoint, Filter, Heartbeat
from interlock.domain.policy import ANY, ClaimFilter, Names
from interlock.domain.progress import Event, Step, fitted
from interlock.errors import Invalid
from interlock.wire import JobRequest

LARGEST_BODY: Final = 1024 * 1024 - 4096  # what every server takes, with room for what is around the items
LARGEST_TEXT: Final = 64 * 1024 * 1024
OUTCOMES: Final = {CompleteJob: "complete", FailJob: "fail", ReleaseJob: "release"}


def encoded(fields: Mapping[str, object]) -> bytes:
    """Encode a body; omit None, and reject numbers that JSON cannot represent."""
    given: dict[str, object] = {}
    for name, value in fields.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise Invalid(f"{name} must be a finite number", pointer=f"/{name}")
        if value is not None:
            given[name] = _words(value) if isinstance(value, str) else value
    return wire.encode_json(given, what="body")


def gathered(parts: Sequence[bytes]) -> Iterator[range]:
    """Items put together into as few bodies as their sizes allow, in their order."""
    start, size = 0, 0
    for i, part in enumerate(parts):
        if i > start and size + len(part) > LARGEST_BODY:
            yield range(start, i)
            start, size = i, 0
        size += len(part) + 1
    if parts:
        yield range(start, len(parts))


def job(request: JobRequest, key: str) -> bytes:
    """Encode a job with its idempotency key, so that a repeated call returns the same job."""
    json_text.check(bytes(request.payload), what="payload", limit=LARGEST_TEXT)
    fields: dict[str, Any] = {name: getattr(request, name) for name in request.__struct_fields__}
    if request.backoff is not None:
        fields["backoff"] = Raw(encoded(request.backoff))
    return encoded(
        fields | {"idempotency_key": key, "tags": request.tags or None, "requires": request.requires or None}
    )


def claim(ask: ClaimFilter, worker: str, wait_seconds: float) -> bytes:
    """Without capabilities it is left to the credential what a worker can do."""
    if ask.repositories is not None:
        raise Invalid("repositories are determined by the credential: omit them", pointer="/repositories")
    return encoded(
        {
            "worker": worker,
            "types": _names(ask.types),
            "capabilities": sorted(ask.capabilities) or None,
            "affinity_keys": [ANY] if ask.affinity_keys is None else sorted(ask.affinity_keys),
            "limit": ask.limit,
            "lease_seconds": ask.lease_seconds,
            "wait_seconds": wait_seconds,
            "claim_id": ask.claim_id,
        }
    )


def heartbeat(heartbeat: Heartbeat, worker: str) -> bytes:
    saved = heartbeat.checkpoint
    return encoded(
        {
            "id": heartbeat.id,
            "fence": heartbeat.fence,
            "worker": worker,
            "lease_seconds": heartbeat.lease_seconds,
            "events": [Raw(event(one)) for one in heartbeat.events] or None,
            "checkpoint": None
            if saved is None
            else Raw(encoded({"seq": saved.seq, "data": raw(saved.data, "checkpoint")})),
        }
    )


def finish(order: Finish, worker: str, *, alone: bool = False) -> bytes:
    """Encode a finish; for a single call, the path contains the job and the operation."""
    fields: dict[str, object] = {"fence": order.fence, "worker": worker}
    if not alone:
        fields |= {"id": order.id, "outcome": OUTCOMES[type(order)]}
    match order:
        case CompleteJob():
            fields |= {
                "result": raw(order.result, "result"),
                "result_summary": order.result_summary,
                "usage": raw(order.usage, "usage"),
            }
        case FailJob():
            fields |= {
                "error": raw(order.error, "error"),
                "retryable": order.retryable,
                "retry_after_seconds": order.retry_after_seconds,
            }
        case ReleaseJob():
            fields |= {
                "reason": order.reason,
                "run_at": None if order.run_at is None else wire.when(order.run_at),
                "delay_seconds": order.delay_seconds,
                "children": list(order.children) or None,
            }
        case AcknowledgeCancel():
            pass
    return encoded(fields)


def checkpoint(saved: Checkpoint, worker: str) -> bytes:
    data = raw(saved.data, "checkpoint")
    return encoded({"fence": saved.fence, "worker": worker, "seq": saved.seq, "data": data})


def step(step: Step, worker: str) -> bytes:
    return encoded(
        {
            "fence": step.fence,
            "worker": worker,
            "name": step.name,
            "occurrence": step.occurrence,
            "result": raw(step.result, "result"),
            "function": step.function,
        }
    )


def event(event: Event) -> bytes:
    """Encode an event. Shorten its message as the engine would, because over HTTP a longer one is rejected."""
    payload, message = raw(event.payload, "event"), fitted(event.message, event.payload, wire.LIMITS.event)
    at = None if event.at is None else wire.when(event.at)
    return encoded({"id": event.id, "level": str(event.level), "message": message, "payload": payload, "at": at})


def approval_request(approval: RequestApproval, worker: str) -> bytes:
    saved = approval.checkpoint
    return encoded(
        {
            "fence": approval.fence,
            "worker": worker,
            "prompt": approval.prompt,
            "details": raw(approval.details, "details"),
            "risk": approval.risk,
            "schema": raw(approval.schema, "schema"),
            "required": approval.required,
            "on_deny": str(approval.on_deny),
            "expires_in_seconds": approval.expires_in_seconds,
            "name": approval.name,
            "occurrence": approval.occurrence,
            "checkpoint": None
            if saved is None
            else Raw(encoded({"seq": saved.seq, "data": raw(saved.data, "checkpoint")})),
        }
    )


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
    """The same in a URL."""
    given = selection(filter).items()
    return [(name, str(one)) for name, value in given for one in (value if isinstance(value, list) else [value])]


def raw(value: str | None, what: str) -> Raw | None:
    """Return JSON text to embed in a body, after checking it: invalid text could change the rest of the body."""
    if value is None:
        return None
    json_text.sanitize(value, what=what, limit=LARGEST_TEXT)
    return Raw(value.encode(errors="backslashreplace"))  # the server sanitizes escaped lone surrogates


def _words(value: str) -> str | Raw:
    """Return text for a body; lone surrogates become escapes, which the server sanitizes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return Raw(json.dumps(value).encode())
    return value


def _names(names: Names | None) -> list[str] | None:
    return None if names is None else sorted(names)


def joined(name: str, parts: Sequence[bytes]) -> bytes:
    """A body that holds nothing but a list."""
    return b'{"%b":[%b]}' % (name.encode(), b",".join(parts))
