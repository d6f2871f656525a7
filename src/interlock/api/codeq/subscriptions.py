"""Routes of subscriptions: webhooks that notify workers of ready tasks."""

from __future__ import annotations

from typing import Any, Final

from interlock import wire
from interlock.api.adapter import Lenient
from interlock.api.codeq import commands
from interlock.api.codeq.auth import reject
from interlock.api.codeq.model import BASE, NAME
from interlock.api.routes import Nothing, RequestContext, Response, RouteTable, respond
from interlock.domain.policy import ANY
from interlock.domain.webhook import QUEUE_READY, Mode, Subscription
from interlock.engine.webhooks import MAX_INTERVAL_SECONDS, MAX_LIFE_SECONDS, SubscriptionRequest
from interlock.errors import Invalid, NotFound

routes = RouteTable()

LIFE_SECONDS: Final = 300
MIN_INTERVAL_SECONDS: Final = 5
FANOUT: Final = "fanout"
MODES: Final = {FANOUT: Mode.BROADCAST, "group": Mode.GROUP, "hash": Mode.GROUP}
GROUP: Final = "codeq:"  # separates codeQ's groups from those of native subscriptions


class SubscribeRequest(Lenient, frozen=True, kw_only=True):
    """A webhook endpoint, its commands, its delivery mode and its minimum interval."""

    callback_url: str
    event_types: list[str] | None = None
    ttl_seconds: int | None = None
    delivery_mode: str | None = None
    group_id: str | None = None
    min_interval_seconds: int | None = None


class RenewRequest(Lenient, frozen=True, kw_only=True):
    """A subscription extension."""

    ttl_seconds: int | None = None


@routes.add("POST", f"{BASE}/workers/subscriptions", roles=["work"], body=SubscribeRequest, answers={200: None})
async def subscribe(call: RequestContext[SubscribeRequest, Nothing]) -> Response:
    """Create a subscription; the same request again extends it."""
    body = call.body
    mode = body.delivery_mode or FANOUT
    if mode not in MODES:
        raise reject(400, "invalid deliveryMode")
    if mode == "group" and not body.group_id:
        raise reject(400, "groupId is required")
    interval = MIN_INTERVAL_SECONDS if body.min_interval_seconds is None else max(body.min_interval_seconds, 0)
    request = SubscriptionRequest(
        url=body.callback_url,
        events=[QUEUE_READY],
        types=await _types(call, body.event_types),
        mode=MODES[mode],
        group_id=None if mode == FANOUT else GROUP + (body.group_id or mode),
        min_interval_seconds=min(interval, MAX_INTERVAL_SECONDS),
        expires_in_seconds=_life(body.ttl_seconds),
    )
    try:
        made = await call.engine.webhooks.call_for_work(call.who, request, NAME)
    except Invalid as error:
        raise reject(400, "invalid callback url" if error.pointer == "/url" else str(error)) from None
    return respond(_body(made))


@routes.add(
    "POST", f"{BASE}/workers/subscriptions/{{id}}/heartbeat", roles=["work"], body=RenewRequest, body_optional=True,
    answers={200: None},
)  # fmt: skip
async def renew_subscription(call: RequestContext[RenewRequest, Nothing]) -> Response:
    """Extend a subscription that has not expired."""
    seconds = _life(call.body.ttl_seconds)
    try:
        found = await call.engine.webhooks.keep_calling(call.who, call.path["id"], NAME, seconds=seconds)
    except NotFound:
        raise reject(404, "not-found") from None
    return respond(_body(found))


async def _types(call: RequestContext[Any, Any], asked: list[str] | None) -> list[str] | None:
    """The types to notify of: those of the request, which the credential must allow, or all that it allows.

    The types that differ from them only in case are looked up once: later ones need a new subscription.
    """
    if asked and ANY not in asked:
        commands.check_commands(call, asked)
    else:
        allowed = None if call.who.policy is None else call.who.policy.types
        if allowed is None:
            return None
        asked = sorted(allowed)
    await commands.refresh(call)
    return sorted(set().union(*commands.spellings(call, asked)))


def _life(seconds: int | None) -> float:
    asked = seconds if seconds is not None and seconds > 0 else LIFE_SECONDS
    return float(min(asked, MAX_LIFE_SECONDS))


def _body(subscription: Subscription) -> dict[str, str]:
    assert subscription.expires_at is not None
    return {"subscriptionId": subscription.id, "expiresAt": wire.when(subscription.expires_at)}
