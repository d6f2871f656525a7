"""Statuses, outcomes and artifact names of codeQ, and how its webhooks are signed and retried."""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from hashlib import sha256
from itertools import count
from typing import Final, NamedTuple

from interlock.domain.artifact import Artifact
from interlock.domain.job import Job
from interlock.domain.json_text import is_visible_name, loads, members
from interlock.domain.lifecycle import Status
from interlock.domain.webhook import DeliveryStatus, Outcome, WebhookResponse

STATUSES: Final = {
    "PENDING": (Status.QUEUED, Status.RETRY, Status.WAITING_FOR_APPROVAL),
    "IN_PROGRESS": (Status.RUNNING,),
    "COMPLETED": (Status.SUCCEEDED,),
    "FAILED": (Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED),
}
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
