"""Webhook values: subscriptions, deliveries, signatures, and the retry schedule of deliveries."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, NamedTuple

from interlock.domain.lifecycle import Status
from interlock.errors import Invalid

QUEUE_READY: Final = "queue.ready"
APPROVAL_REQUESTED: Final = "approval.requested"
APPROVAL_DECIDED: Final = "approval.decided"
EVENTS: Final = (*(f"job.{status}" for status in Status), QUEUE_READY, APPROVAL_REQUESTED, APPROVAL_DECIDED)

SECRET_PREFIX: Final = "whsec_"
SECRET_BYTES: Final = 32
TOLERANCE_SECONDS: Final = 300

# Delays between attempts; the last attempt is about two days after the first.
DELAYS_SECONDS: Final = (5, 30, 120, 600, 1800, 7200, 18_000, 36_000, 50_400, 50_400)
JITTER: Final = 0.2
MAX_RETRY_AFTER_SECONDS: Final = 3600.0
GONE: Final = 410
MAX_SUBSCRIPTIONS: Final = 200  # active ones: every transition checks each of them
MAX_KEPT: Final = 1000  # including disabled ones, which are kept for a while so that they can be renewed


class Mode(StrEnum):
    """Delivery to every subscription, or to one of its group, round-robin."""

    BROADCAST = "broadcast"
    GROUP = "group"


class DeliveryStatus(StrEnum):
    """The status of a delivery: not attempted, delivered, to be retried, or given up."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    DEAD = "dead"


class NewSubscription(NamedTuple):
    """A validated subscription to create."""

    id: str
    url: str
    events: tuple[str, ...]
    secret: str
    types: tuple[str, ...] | None = None  # None means all
    mode: Mode = Mode.BROADCAST
    group_id: str | None = None
    min_interval_seconds: float = 0.0
    expires_in_seconds: float | None = None
    created_by: str = "user:local"
    key: str | None = None
    body_sha256: bytes | None = None

    @property
    def channel(self) -> str:
        """The delivery queue of the subscription, or of its group."""
        return f"group:{self.group_id}" if self.mode is Mode.GROUP else f"subscription:{self.id}"


class Subscription(NamedTuple):
    """A stored subscription, without its secret."""

    id: str
    url: str
    events: tuple[str, ...]
    types: tuple[str, ...] | None
    mode: Mode
    group_id: str | None
    min_interval_seconds: float
    expires_at: int | None
    ended_at: int | None
    ended_reason: str | None
    failures: int
    created_at: int
    created_by: str

    def is_active(self, now: int) -> bool:
        """Return whether new events are delivered to it."""
        return self.ended_at is None and (self.expires_at is None or self.expires_at > now)


class CreatedSubscription(NamedTuple):
    """A subscription with its secret, which is shown only once; None if the call was replayed."""

    subscription: Subscription
    secret: str | None
    replayed: bool


class Subscribed(NamedTuple):
    """The result of a subscribe: the subscription, and whether it already existed."""

    subscription: Subscription
    replayed: bool


class Delivery(NamedTuple):
    """One event for one subscription or job webhook, with the status of its attempts."""

    id: str
    event: str
    job_id: str | None  # None: of a budget that no unfinished job names
    subscription_id: str | None
    status: DeliveryStatus
    attempts: int
    created_at: int
    next_try_at: int | None
    last_tried_at: int | None
    last_status_code: int | None
    last_error: str | None
    settled_at: int | None
    folded: int


class Dispatch(NamedTuple):
    """A delivery claimed by a sender; `grab` is the fencing token of that claim.

    That of a budget without an unfinished job has an empty job ID, type and status.
    """

    id: str
    grab: int
    channel: str
    attempts: int
    event: str
    at: int
    job_id: str
    type: str
    status: str
    previous: str | None
    attempt: int
    version: int
    agent_kind: str | None
    agent_id: str | None
    tags: Sequence[str]
    approval_id: str | None
    budget: str | None
    folded: int
    subscription_id: str | None
    url: str
    secrets: Sequence[str]


class WebhookResponse(NamedTuple):
    """The response of a receiver: a status code, or the reason why there is none."""

    status_code: int | None = None
    error: str | None = None
    retry_after_seconds: float | None = None


class Outcome(NamedTuple):
    """The status of a delivery after an attempt."""

    status: DeliveryStatus
    delay_seconds: float | None = None
    ends_subscription: bool = False


class DeliveryResult(NamedTuple):
    """The result of an attempt, as stored."""

    id: str
    grab: int
    outcome: Outcome
    status_code: int | None
    error: str | None


class Channel(NamedTuple):
    """A delivery queue with due deliveries; found across tenants."""

    tenant: str
    channel: str


class DeliveryFilter(NamedTuple):
    """A filter and page of deliveries."""

    subscription_id: str | None = None
    job_id: str | None = None
    status: DeliveryStatus | None = None
    before: str | None = None
    limit: int = 50
    id: str | None = None


def too_many_subscriptions() -> Invalid:
    return Invalid(f"a tenant has at most {MAX_SUBSCRIPTIONS} active subscriptions; delete one first")


def check_events(events: Sequence[str]) -> tuple[str, ...]:
    """Return the event names, or raise Invalid for an unknown or repeated one."""
    for i, event in enumerate(events):
        if event not in EVENTS:
            raise Invalid(f"{event!r} is not an event; there are {', '.join(EVENTS)}", pointer=f"/events/{i}")
    if not events or len(set(events)) != len(events):
        raise Invalid("events must name at least one event, and none twice", pointer="/events")
    return tuple(events)


def body(dispatch: Dispatch, timestamp: str) -> bytes:
    """Return the body to send. It must not depend on mutable state: a retry sends the same body with the same ID."""
    agent = None if dispatch.agent_kind is None else {"kind": dispatch.agent_kind, "id": dispatch.agent_id}
    data: dict[str, Any] = {
        "job_id": dispatch.job_id,
        "type": dispatch.type,
        "status": dispatch.status,
        "previous_status": dispatch.previous,
        "attempt": dispatch.attempt,
        "version": dispatch.version,
        "agent": agent,
        "tags": list(dispatch.tags),
    }
    if dispatch.approval_id is not None:
        data["approval_id"] = dispatch.approval_id
    if dispatch.folded:
        data["folded"] = dispatch.folded
    message = {"id": dispatch.id, "type": dispatch.event, "timestamp": timestamp, "data": data}
    return json.dumps(message, separators=(",", ":")).encode()


def secret_of(key: bytes) -> str:
    """Encode a signing key as a secret for users."""
    return SECRET_PREFIX + base64.b64encode(key).decode()


def sign(secret: str, id: str, seconds: int, content: bytes) -> str:
    """Return the signature over ID, timestamp and body."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    return "v1," + base64.b64encode(hmac.digest(key, f"{id}.{seconds}.".encode() + content, sha256)).decode()


def headers(secrets: Sequence[str], id: str, seconds: int, content: bytes) -> dict[str, str]:
    """Return the headers of a message, with one signature per active secret."""
    return {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(sign(secret, id, seconds, content) for secret in secrets),
    }


def verify(secret: str, headers: Mapping[str, str], content: bytes, *, now_seconds: float) -> bool:
    """Return whether a received message is authentic and at most five minutes off, in constant time."""
    lower = {name.lower(): value for name, value in headers.items()}
    id, sent, given = (lower.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
    if not (id and sent.isascii() and sent.isdigit() and len(sent) <= 12):
        return False
    if abs(now_seconds - int(sent)) > TOLERANCE_SECONDS:
        return False
    try:
        expected = sign(secret, id, int(sent), content).encode()
    except (binascii.Error, ValueError):
        return False
    return any(hmac.compare_digest(expected, one.encode()) for one in given.split(" "))


def outcome(attempts: int, reply: WebhookResponse, chance: float) -> Outcome:
    """Return the outcome of an attempt that followed `attempts` earlier ones; chance is a random number from 0 to 1."""
    if reply.status_code is not None and 200 <= reply.status_code < 300:
        return Outcome(DeliveryStatus.DELIVERED)
    if reply.status_code == GONE:
        return Outcome(DeliveryStatus.DEAD, ends_subscription=True)
    if attempts >= len(DELAYS_SECONDS):
        return Outcome(DeliveryStatus.DEAD)
    delay = DELAYS_SECONDS[attempts] * (1 - JITTER + 2 * JITTER * chance)
    asked = min(reply.retry_after_seconds or 0.0, MAX_RETRY_AFTER_SECONDS)
    return Outcome(DeliveryStatus.FAILED, max(delay, asked))


def fault_of(reply: WebhookResponse) -> str | None:
    """Return why an attempt failed, as a fixed code: text from the receiver is untrusted and not stored."""
    code = reply.status_code
    if code is None or reply.error is not None:
        return reply.error
    if 200 <= code < 300:
        return None
    return "redirect_refused" if 300 <= code < 400 else "gone" if code == GONE else "refused_by_receiver"
