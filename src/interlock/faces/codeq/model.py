"""How a job looks as a task of codeQ: statuses, outcomes, artifact names and error documents."""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from hashlib import sha256
from itertools import count
from typing import Any, Final, NamedTuple

from interlock import wire
from interlock.api.adapters import AdapterError
from interlock.api.routes import RequestContext
from interlock.domain.artifact import Artifact
from interlock.domain.job import Job
from interlock.domain.json_text import is_visible_name, loads, members
from interlock.domain.lifecycle import TERMINAL, Location, Status
from interlock.domain.webhook import DeliveryStatus, Outcome, WebhookResponse
from interlock.domain.webhook_format import format_of
from interlock.engine.artifacts import MAX_PAGE_SIZE as MAX_PAGE
from interlock.wire.encode import raw

STATUSES: Final = {
    "PENDING": (Status.QUEUED, Status.RETRY, Status.WAITING_FOR_APPROVAL),
    "IN_PROGRESS": (Status.RUNNING,),
    "COMPLETED": (Status.SUCCEEDED,),
    "FAILED": (Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED),
}
READERS: Final = ("produce", "work", "read")
ADMINS: Final = ("admin", "operate")
NAME: Final = "codeq"  # of the adapter, and of its webhook format
BASE: Final = "/v1/codeq"
CLAIM_PATH: Final = f"{BASE}/tasks/claim"
MAX_ARTIFACTS: Final = 10_000
RESULT_ATTEMPTS: Final = 5
MAX_RESULT_DELAY_SECONDS: Final = 60.0

NACK: Final = "nack"  # the kind of an error that a worker gave no reason for

_DEAD: Final = {NACK: "MAX_ATTEMPTS", "lease_expired": "LEASE_EXPIRED"}
_MAX_STORED: Final = 190  # leaves room for a number
_NUMBERED: Final = re.compile(r"(.*) \[[0-9]+\]", re.DOTALL)
_STATUS: Final = {ours: theirs for theirs, several in STATUSES.items() for ours in several}


def reject(status: int, text: str) -> AdapterError:
    return AdapterError(status, {"error": text})


class Record(NamedTuple):
    """The outcome of a task; result is JSON text."""

    status: str
    result: str | None
    error: str | None
    artifacts: Sequence[dict[str, str]]


def status_of(status: Status) -> str:
    return _STATUS[status]


def error_of(job: Job) -> str | None:
    """The error of a task; as in codeQ only a FAILED one has an error."""
    if job.status is Status.CANCELLED:
        return "cancelled"
    if job.status not in STATUSES["FAILED"] or job.error is None:
        return None
    error = loads(job.error)
    return (_DEAD.get(error.get("kind")) if job.status is Status.DEAD_LETTER else None) or error["message"]


def stored_names(names: Sequence[str]) -> list[str]:
    """Valid, distinct names for the artifacts of one result; `sent_name` returns the names that were sent.

    A repeated name gets a number. So does one that looks numbered, and one that cannot be stored as it is.
    """
    stored: list[str] = []
    taken: set[str] = set()
    for name in names:
        found = name
        if not is_visible_name(name, limit=_MAX_STORED) or _NUMBERED.fullmatch(name) or name in taken:
            plain = "".join(c if c.isprintable() and c.isascii() else "_" for c in name).strip()[:_MAX_STORED]
            base = name if is_visible_name(name, limit=_MAX_STORED) else plain.strip() or "artifact"
            found = next(one for n in count(1) if (one := f"{base} [{n}]") not in taken)
        taken.add(found)
        stored.append(found)
    return stored


def sent_name(stored: str) -> str:
    """The name of an artifact as the worker sent it."""
    numbered = _NUMBERED.fullmatch(stored)
    return stored if numbered is None else numbered[1]


def record(job: Job, newest_first: Sequence[Artifact]) -> Record:
    """The outcome of a job with its artifacts."""
    result = job.result
    if result is None and job.error is not None:
        details = dict(members(job.error)).get("details")
        result = None if details == "null" else details
    return Record(status_of(job.status), result, error_of(job), [_link(one) for one in reversed(newest_first)])


def headers(secret: str, seconds: int, content: bytes) -> dict[str, str]:
    """The headers of a message: its time, and a signature over that time and the body."""
    signature = hmac.digest(secret.encode(), b"%d." % seconds + content, sha256)
    return {
        "content-type": "application/json",
        "x-codeq-timestamp": str(seconds),
        "x-codeq-signature": signature.hex(),
    }


def result_outcome(attempts: int, reply: WebhookResponse) -> Outcome:
    """The outcome of a reply to a result that was sent `attempts` times before: five attempts at most."""
    if reply.status_code is not None and 200 <= reply.status_code < 300:
        return Outcome(DeliveryStatus.DELIVERED)
    attempt = attempts + 1
    if attempt >= RESULT_ATTEMPTS:
        return Outcome(DeliveryStatus.DEAD)
    return Outcome(DeliveryStatus.FAILED, min(2.0 * 2 ** (attempt - 1), MAX_RESULT_DELAY_SECONDS))


def _link(found: Artifact) -> dict[str, str]:
    return {"name": sent_name(found.name), "url": found.url or f"{BASE}/tasks/{found.job_id}/artifacts/{found.id}"}


_LOCATION: Final = {
    Location.READY: "PENDING_LIST",
    Location.BLOCKED: "PENDING_LIST",
    Location.DELAYED: "DELAYED_ZSET",
    Location.IN_PROGRESS: "INPROG_SET",
    Location.DEAD_LETTER: "DLQ_SET",
    Location.NONE: "NONE",
}


async def encode_tasks(call: RequestContext[Any, Any], jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Encode jobs as tasks."""
    now = await call.engine.queries.now()
    return [encode_task(job, now=now) for job in jobs]


def encode_task(job: Job, *, now: int) -> dict[str, Any]:
    """A task; empty optional fields are omitted."""
    ended = job.status in TERMINAL
    fields: dict[str, Any] = {
        "id": job.id,
        "command": job.type,
        "payload": job.payload,  # JSON as a string: so codeQ sends it
        "priority": job.priority,
        "webhook": None if job.webhook is None else format_of(job.webhook)[1],
        "status": status_of(job.status),
        "lastKnownLocation": _LOCATION[job.location(now)],
        "workerId": job.worker,
        "leaseUntil": None if job.lease_expires_at is None else wire.when(job.lease_expires_at),
        "attempts": job.attempt if ended or job.status is Status.RUNNING else job.attempt - 1,
        "maxAttempts": job.max_attempts,
        "error": error_of(job),
        "resultKey": job.id if ended else None,
        "tenantId": job.tenant,
        "createdAt": wire.when(job.created_at),
        "updatedAt": wire.when(job.updated_at),
    }
    return {name: value for name, value in fields.items() if value is not None}


async def encode_result(call: RequestContext[Any, Any], job: Job) -> dict[str, Any]:
    """The outcome of a task with its artifacts; empty optional fields are omitted."""
    end = record(job, await _artifacts(call, job.id))
    fields: dict[str, Any] = {
        "taskId": job.id,
        "status": end.status,
        "result": raw(end.result),
        "error": end.error,
        "artifacts": end.artifacts or None,
        "completedAt": None if job.finished_at is None else wire.when(job.finished_at),
    }
    return {name: value for name, value in fields.items() if value is not None}


async def _artifacts(call: RequestContext[Any, Any], job_id: str) -> list[Artifact]:
    """All artifacts of a job, newest first."""
    found: list[Artifact] = []
    before: tuple[int, str] | None = None
    while True:
        page = await call.engine.artifacts.list(call.who.tenant, job_id, before=before, limit=MAX_PAGE)
        found += page
        if len(page) < MAX_PAGE:
            return found
        before = (page[-1].created_at, page[-1].id)
