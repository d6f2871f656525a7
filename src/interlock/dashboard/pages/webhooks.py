"""Webhooks: who is told of what, and what became of telling them."""

from __future__ import annotations

from typing import Any, Final

from interlock import wire
from interlock.dashboard.web import DAY, Ask, Pages, Reply, View, go, one_of, show
from interlock.domain.webhook import EVENTS, DeliveryFilter, DeliveryStatus, Mode, Subscription
from interlock.engine.webhooks import subscription_request

pages = Pages()

AT_ONCE: Final = 50


@pages.get("/webhooks", roles=["operate"])
async def webhooks(ask: Ask) -> View | Reply:
    """List subscriptions."""
    return show("webhooks.html", **await _shown(ask), secret=None)


@pages.post("/webhooks", roles=["operate"])
async def subscribe(ask: Ask) -> View | Reply:
    """Begin to tell somebody; the secret is shown in this answer and never again."""
    form = ask.form
    types, group, days = (form.one("types") or "").split(), form.one("group_id"), form.number("expires_in_days")
    wishes = {
        "url": form.one("url") or "",
        "events": form.all("event"),
        "types": types or None,
        "mode": str(Mode.BROADCAST if group is None else Mode.GROUP),
        "group_id": group,
        "min_interval_seconds": form.number("min_interval_seconds") or 0.0,
        "expires_in_seconds": None if days is None else days * DAY,
        "key": form.one("key"),
    }
    made = await ask.engine.webhooks.subscribe(ask.who, subscription_request(wishes))
    return show("webhooks.html", **await _shown(ask), secret=made.secret)


@pages.post("/webhooks/job-secret", roles=["operate"])
async def rotate_job_secret(ask: Ask) -> View | Reply:
    """Make a new secret for the webhooks that jobs bring themselves."""
    secret = await ask.engine.webhooks.rotate_job_secret(ask.who)
    return show("webhooks.html", **await _shown(ask), secret=secret)


@pages.get("/webhooks/deliveries", roles=["operate"])
async def all_deliveries(ask: Ask) -> View | Reply:
    """List what anybody was told, also by the webhooks that jobs bring themselves."""
    return await _deliveries(ask, None)


@pages.get("/webhooks/{id}", roles=["operate"])
async def deliveries(ask: Ask) -> View | Reply:
    """List what a subscription was told."""
    return await _deliveries(ask, await ask.engine.webhooks.subscription(ask.who, ask.path["id"]))


@pages.post("/webhooks/{id}/deliveries/{delivery_id}/redeliver", roles=["operate"])
async def redeliver(ask: Ask) -> View | Reply:
    """Send a delivery again."""
    subscription = await ask.engine.webhooks.subscription(ask.who, ask.path["id"])
    await ask.engine.webhooks.redeliver(ask.who, ask.path["delivery_id"], subscription_id=subscription.id)
    return go(f"/webhooks/{subscription.id}", said="redelivered")


@pages.post("/webhooks/deliveries/{delivery_id}/redeliver", roles=["operate"])
async def redeliver_any(ask: Ask) -> View | Reply:
    """Send again what need not be of a subscription."""
    await ask.engine.webhooks.redeliver(ask.who, ask.path["delivery_id"])
    return go("/webhooks/deliveries", said="redelivered")


@pages.post("/webhooks/{id}/renew", roles=["operate"])
async def renew(ask: Ask) -> View | Reply:
    """Go on telling them, for some days or without end."""
    days = ask.form.number("expires_in_days")
    life = None if days is None else days * DAY
    renewed = await ask.engine.webhooks.renew(ask.who, ask.path["id"], expires_in_seconds=life)
    return go(f"/webhooks/{renewed.id}", said="renewed")


@pages.post("/webhooks/{id}/rotate", roles=["operate"])
async def rotate(ask: Ask) -> View | Reply:
    """Make a new secret, shown in this answer and never again; the old one signs too for a day."""
    subscription = await ask.engine.webhooks.subscription(ask.who, ask.path["id"])
    secret = await ask.engine.webhooks.rotate(ask.who, subscription.id)
    return await _deliveries(ask, subscription, secret=secret)


@pages.post("/webhooks/{id}/unsubscribe", roles=["operate"])
async def unsubscribe(ask: Ask) -> View | Reply:
    """Tell them no more."""
    await ask.engine.webhooks.unsubscribe(ask.who, ask.path["id"])
    return go("/webhooks", said="unsubscribed")


async def _deliveries(ask: Ask, subscription: Subscription | None, *, secret: str | None = None) -> View:
    wanted = ask.query.one("status")
    filter = DeliveryFilter(
        subscription_id=subscription and subscription.id,
        status=None if wanted is None else one_of(DeliveryStatus, wanted, "status"),
        before=ask.query.one("before"),
        limit=AT_ONCE + 1,
    )
    found = await ask.engine.webhooks.deliveries(ask.who, filter)
    next = {"before": found[AT_ONCE - 1].id} if len(found) > AT_ONCE else None
    return show(
        "deliveries.html",
        subscription=subscription,
        list_path="/webhooks/deliveries" if subscription is None else f"/webhooks/{subscription.id}",
        deliveries=found[:AT_ONCE],
        turns=ask.query.turns("before", next=next),
        wanted=wanted,
        choices=list(DeliveryStatus),
        secret=secret,
    )


async def _shown(ask: Ask) -> dict[str, Any]:
    before = ask.query.one("before")
    found = await ask.engine.webhooks.subscriptions(ask.who, before=before, limit=AT_ONCE + 1)
    next = {"before": found[AT_ONCE - 1].id} if len(found) > AT_ONCE else None
    turns = ask.query.turns("before", next=next)
    return {"subscriptions": found[:AT_ONCE], "turns": turns, "events": EVENTS, "key": wire.new_id()}
