"""Webhooks as values: who listens to what, what is told and how it is signed, and what becomes of a failed try."""

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

# After the first try; the last one is about two days after it.
DELAYS_SECONDS: Final = (5, 30, 120, 600, 1800, 7200, 18_000, 36_000, 50_400, 50_400)
JITTER: Final = 0.2
MAX_RETRY_AFTER_SECONDS: Final = 3600.0
GONE: Final = 410
MAX_SUBSCRIPTIONS: Final = 200  # that have not ended: each is looked at whenever a job moves
MAX_KEPT: Final = 1000  # with those that have: they are kept for a while, so that they can be renewed


class Mode(StrEnum):
    """Whether every subscription gets an event, or one of its group in turn."""

    BROADCAST = "broadcast"
    GROUP = "group"


class DeliveryStatus(StrEnum):
    """Not tried yet, told, to be tried again, given up."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    DEAD = "dead"


class NewSubscription(NamedTuple):
    """A subscription to be made, checked and complete."""

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
        """Its own queue of deliveries, or that of its group."""
        return f"group:{self.group_id}" if self.mode is Mode.GROUP else f"subscription:{self.id}"


class Subscription(NamedTuple):
    """A webhook listener as it is shown; its secret is not."""

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
        """Whether events are still put on their way to it."""
        return self.ended_at is None and (self.expires_at is None or self.expires_at > now)


class Subscribed(NamedTuple):
    """The answer to a subscribe: what there is now, and whether it was there before."""

    subscription: Subscription
    replayed: bool


class Delivery(NamedTuple):
    """One event on its way to one receiver, as operators see it."""

    id: str
    event: str
    job_id: str
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
    """A delivery in the hands of a sender, who proves by `grab` that it still is."""

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
    folded: int
    subscription_id: str | None
    url: str
    secrets: Sequence[str]


class WebhookResponse(NamedTuple):
    """What came back from a receiver: a status code, or the reason why there is none."""

    status_code: int | None = None
    error: str | None = None
    retry_after_seconds: float | None = None


class Outcome(NamedTuple):
    """What becomes of a delivery after a try."""

    status: DeliveryStatus
    delay_seconds: float | None = None
    ends_subscription: bool = False


class DeliveryResult(NamedTuple):
    """The end of a try, as it is written down."""

    id: str
    grab: int
    outcome: Outcome
    status_code: int | None
    error: str | None


class Channel(NamedTuple):
    """A queue of deliveries with something due, found across tenants."""

    tenant: str
    channel: str


class DeliveryFilter(NamedTuple):
    """Which deliveries a list shows."""

    subscription_id: str | None = None
    job_id: str | None = None
    status: DeliveryStatus | None = None
    before: str | None = None
    limit: int = 50
    id: str | None = None


def too_many_subscriptions() -> Invalid:
    return Invalid(f"a tenant has at most {MAX_SUBSCRIPTIONS} active subscriptions; delete one first")


def check_events(events: Sequence[str]) -> tuple[str, ...]:
    """The events listened to, each named once."""
    for i, event in enumerate(events):
        if event not in EVENTS:
            raise Invalid(f"{event!r} is not an event; there are {', '.join(EVENTS)}", pointer=f"/events/{i}")
    if not events or len(set(events)) != len(events):
        raise Invalid("events must name at least one event, and none twice", pointer="/events")
    return tuple(events)


def body(dispatch: Dispatch, timestamp: str) -> bytes:
    """The text that is sent. A receiver may get it again under the same id, so it depends on nothing that changes."""
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
    """A signing key as people copy it."""
    return SECRET_PREFIX + base64.b64encode(key).decode()


def sign(secret: str, id: str, seconds: int, content: bytes) -> str:
    """The signature of one message by one secret, over id, time and body."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    return "v1," + base64.b64encode(hmac.digest(key, f"{id}.{seconds}.".encode() + content, sha256)).decode()


def headers(secrets: Sequence[str], id: str, seconds: int, content: bytes) -> dict[str, str]:
    """What goes with a message; one signature for each secret that is active."""
    return {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(sign(secret, id, seconds, content) for secret in secrets),
    }


def verify(secret: str, headers: Mapping[str, str], content: bytes, *, now_seconds: float) -> bool:
    """For receivers: whether a message is ours and at most five minutes off; compares in constant time."""
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
    """What becomes of a delivery that was tried `attempts` times before this reply; chance is from 0 to 1."""
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
    """Why a try failed, in a word of ours: nothing that a receiver says is repeated."""
    code = reply.status_code
    if code is None or reply.error is not None:
        return reply.error
    if 200 <= code < 300:
        return None
    return "redirect_refused" if 300 <= code < 400 else "gone" if code == GONE else "refused_by_receiver"
