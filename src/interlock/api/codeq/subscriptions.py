"""Workers that want to be called when there is something to claim."""

from __future__ import annotations

from typing import Any, Final

from interlock import wire
from interlock.api.codeq.auth import refused
from interlock.api.codeq.worker_routes import check_commands
from interlock.api.face import Lenient
from interlock.api.routes import Answer, Call, Nothing, Routes, answer
from interlock.domain.codeq import BASE
from interlock.domain.dialect import Dialect
from interlock.domain.policy import ANY
from interlock.domain.webhook import QUEUE_READY, Mode, Subscription
from interlock.engine.webhooks import LONGEST_INTERVAL_SECONDS, LONGEST_LIFE_SECONDS, SubscriptionRequest
from interlock.errors import Invalid, NotFound

routes = Routes()

LIFE_SECONDS: Final = 300
MIN_INTERVAL_SECONDS: Final = 5
FANOUT: Final = "fanout"
MODES: Final = {FANOUT: Mode.BROADCAST, "group": Mode.GROUP, "hash": Mode.GROUP}
GROUP: Final = "codeq:"  # keeps codeQ's groups apart from those of native subscriptions


class Subscribe(Lenient, frozen=True, kw_only=True):
    """Where to call, of what, how many of those who listen, and how often at most."""

    callback_url: str
    event_types: list[str] | None = None
    ttl_seconds: int | None = None
    delivery_mode: str | None = None
    group_id: str | None = None
    min_interval_seconds: int | None = None


class Renew(Lenient, frozen=True, kw_only=True):
    """How much longer to go on."""

    ttl_seconds: int | None = None


@routes.add("POST", f"{BASE}/workers/subscriptions", roles=["work"], body=Subscribe, answers={200: None})
async def subscribe(call: Call[Subscribe, Nothing]) -> Answer:
    """Call this worker when there is work for it; the same request again only goes on."""
    body = call.body
    mode = body.delivery_mode or FANOUT
    if mode not in MODES:
        raise refused(400, "invalid deliveryMode")
    if mode == "group" and not body.group_id:
        raise refused(400, "groupId is required")
    interval = MIN_INTERVAL_SECONDS if body.min_interval_seconds is None else max(body.min_interval_seconds, 0)
    request = SubscriptionRequest(
        url=body.callback_url,
        events=[QUEUE_READY],
        types=_types(call, body.event_types),
        mode=MODES[mode],
        group_id=None if mode == FANOUT else GROUP + (body.group_id or mode),
        min_interval_seconds=min(interval, LONGEST_INTERVAL_SECONDS),
        expires_in_seconds=_life(body.ttl_seconds),
    )
    try:
        made = await call.engine.webhooks.call_for_work(call.who, request, Dialect.CODEQ)
    except Invalid as error:
        raise refused(400, "invalid callback url" if error.pointer == "/url" else str(error)) from None
    return answer(_shown(made))


@routes.add(
    "POST", f"{BASE}/workers/subscriptions/{{id}}/heartbeat", roles=["work"], body=Renew, body_optional=True,
    answers={200: None},
)  # fmt: skip
async def renew_subscription(call: Call[Renew, Nothing]) -> Answer:
    """Go on calling this worker, if it is not too late."""
    seconds = _life(call.body.ttl_seconds)
    try:
        found = await call.engine.webhooks.keep_calling(call.who, call.path["id"], Dialect.CODEQ, seconds=seconds)
    except NotFound:
        raise refused(404, "not-found") from None
    return answer(_shown(found))


def _types(call: Call[Any, Any], asked: list[str] | None) -> list[str] | None:
    """The commands to be told of: those asked for, which the credential must allow, or all that it allows."""
    if asked and ANY not in asked:
        check_commands(call, asked)
        return sorted(set(asked))
    allowed = None if call.who.policy is None else call.who.policy.types
    return None if allowed is None else sorted(allowed)


def _life(seconds: int | None) -> float:
    asked = seconds if seconds is not None and seconds > 0 else LIFE_SECONDS
    return float(min(asked, LONGEST_LIFE_SECONDS))


def _shown(subscription: Subscription) -> dict[str, str]:
    assert subscription.expires_at is not None
    return {"subscriptionId": subscription.id, "expiresAt": wire.when(subscription.expires_at)}
