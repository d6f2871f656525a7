"""Webhook subscriptions and their deliveries."""

from __future__ import annotations

from datetime import datetime

import msgspec

from interlock.api.native.pagination import Page, cursor_position, page
from interlock.api.routes import Nothing, Request, RequestContext, Response, RouteTable, respond
from interlock.domain.webhook import DeliveryFilter, DeliveryStatus, Mode
from interlock.wire import SubscriptionRequest, responses
from interlock.wire.encode import delivery_to_dict, subscription_to_dict

routes = RouteTable()


class RenewRequest(Request, frozen=True, kw_only=True):
    """The new lifetime; absent means without expiry."""

    expires_in_seconds: float | None = None


class DeliveryQuery(Page, frozen=True, kw_only=True):
    """Filter for a list of deliveries."""

    status: DeliveryStatus | None = None


class SubscriptionShape(responses.Shape, frozen=True, kw_only=True):
    """A webhook subscription, without its signing secret."""

    id: str
    url: str
    events: list[str]
    types: list[str] | None
    mode: Mode
    group_id: str | None
    min_interval_seconds: float
    expires_at: datetime | None
    ended_at: datetime | None
    ended_reason: str | None
    failures: int
    active: bool
    created_at: datetime
    created_by: str


class NewSubscription(SubscriptionShape, frozen=True, kw_only=True):
    """A webhook subscription with its signing secret, which is shown only once: null if the call is repeated."""

    secret: str | None


class SubscriptionPage(responses.Shape, frozen=True, kw_only=True):
    """Subscriptions, newest first."""

    items: list[SubscriptionShape]
    next_cursor: str | None


class Secret(responses.Shape, frozen=True, kw_only=True):
    """A new signing secret, shown only once."""

    secret: str


class DeliveryShape(responses.Shape, frozen=True, kw_only=True):
    """One event for one subscription, with its attempts."""

    id: str
    event: str
    job_id: str
    subscription_id: str | None
    status: DeliveryStatus
    attempts: int
    created_at: datetime
    next_try_at: datetime | None
    last_tried_at: datetime | None
    last_status_code: int | None
    last_error: str | None
    settled_at: datetime | None
    folded: int


class DeliveryPage(responses.Shape, frozen=True, kw_only=True):
    """Deliveries, newest first."""

    items: list[DeliveryShape]
    next_cursor: str | None


@routes.add(
    "POST", "/v1/subscriptions", roles=["operate"], body=SubscriptionRequest, headers=["Idempotency-Key"],
    answers={201: NewSubscription, 200: NewSubscription},
)  # fmt: skip
async def subscribe(call: RequestContext[SubscriptionRequest, Nothing]) -> Response:
    """Create a subscription. The response contains the signing secret, which is shown only once."""
    request = msgspec.structs.replace(call.body, key=call.headers.idempotency_key(call.body.key))
    made = await call.engine.webhooks.subscribe(call.who, request)
    now = await call.engine.queries.now()
    given = subscription_to_dict(made.subscription, now=now) | {"secret": made.secret}
    if made.replayed:
        return respond(given, 200, headers={"idempotent-replay": "true"})
    return respond(given, 201, headers={"location": f"/v1/subscriptions/{made.subscription.id}"})


@routes.add("GET", "/v1/subscriptions", roles=["operate"], query=Page, answers={200: SubscriptionPage})
async def list_subscriptions(call: RequestContext[None, Page]) -> Response:
    """List subscriptions, newest first, without their signing secrets."""
    at = cursor_position(call, "subscriptions")
    before = None if at is None else str(at[0])
    found = await call.engine.webhooks.subscriptions(call.who, before=before, limit=call.query.limit)
    now = await call.engine.queries.now()
    items = [subscription_to_dict(one, now=now) for one in found]
    end: list[int | str] = [one.id for one in found[-1:]]
    return page(call, "subscriptions", items, more=len(found) == call.query.limit, end=end)


@routes.add("GET", "/v1/subscriptions/{subscription_id}", roles=["operate"], answers={200: SubscriptionShape})
async def get_subscription(call: RequestContext[None, Nothing]) -> Response:
    """Return a subscription, without its signing secret."""
    found = await call.engine.webhooks.subscription(call.who, call.path["subscription_id"])
    return respond(subscription_to_dict(found, now=await call.engine.queries.now()))


@routes.add("DELETE", "/v1/subscriptions/{subscription_id}", roles=["operate"], answers={204: None})
async def unsubscribe(call: RequestContext[None, Nothing]) -> Response:
    """Delete a subscription and its pending deliveries."""
    await call.engine.webhooks.unsubscribe(call.who, call.path["subscription_id"])
    return Response(204, media_type="")


@routes.add(
    "POST", "/v1/subscriptions/{subscription_id}/renew", roles=["operate"], body=RenewRequest, body_optional=True,
    answers={200: SubscriptionShape},
)  # fmt: skip
async def renew_subscription(call: RequestContext[RenewRequest, Nothing]) -> Response:
    """Extend a subscription, or re-enable a disabled one."""
    found = await call.engine.webhooks.renew(
        call.who, call.path["subscription_id"], expires_in_seconds=call.body.expires_in_seconds
    )
    return respond(subscription_to_dict(found, now=await call.engine.queries.now()))


@routes.add(
    "POST", "/v1/subscriptions/{subscription_id}/rotate", roles=["operate"], body=Nothing, body_optional=True,
    answers={200: Secret},
)  # fmt: skip
async def rotate_secret(call: RequestContext[Nothing, Nothing]) -> Response:
    """Create a new signing secret. For one day, deliveries are signed with both secrets."""
    return respond({"secret": await call.engine.webhooks.rotate(call.who, call.path["subscription_id"])})


@routes.add(
    "GET", "/v1/subscriptions/{subscription_id}/deliveries", roles=["operate"], query=DeliveryQuery,
    answers={200: DeliveryPage},
)  # fmt: skip
async def list_deliveries(call: RequestContext[None, DeliveryQuery]) -> Response:
    """List the deliveries of a subscription, newest first."""
    id = call.path["subscription_id"]
    at = cursor_position(call, f"deliveries {id}")
    filter = DeliveryFilter(
        subscription_id=id, status=call.query.status, before=None if at is None else str(at[0]), limit=call.query.limit
    )
    found = await call.engine.webhooks.deliveries(call.who, filter)
    end: list[int | str] = [one.id for one in found[-1:]]
    return page(
        call, f"deliveries {id}", [delivery_to_dict(one) for one in found], more=len(found) == call.query.limit, end=end
    )


@routes.add(
    "POST", "/v1/subscriptions/{subscription_id}/deliveries/{delivery_id}/redeliver", roles=["operate"], body=Nothing,
    body_optional=True, answers={200: DeliveryShape},
)  # fmt: skip
async def redeliver(call: RequestContext[Nothing, Nothing]) -> Response:
    """Send a delivery again, with the same ID and body."""
    found = await call.engine.webhooks.redeliver(
        call.who, call.path["delivery_id"], subscription_id=call.path["subscription_id"]
    )
    return respond(delivery_to_dict(found))
