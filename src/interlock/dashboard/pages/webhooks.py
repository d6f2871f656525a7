"""Webhooks: who is told of what, and what became of telling them."""

from __future__ import annotations

from typing import Any, Final

from interlock.dashboard.web import Ask, Pages, Reply, View, go, show
from interlock.domain.webhook import EVENTS, DeliveryFilter
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
    types = (ask.form.one("types") or "").split()
    request = {"url": ask.form.one("url") or "", "events": ask.form.all("event"), "key": ask.form.one("key")}
    made = await ask.engine.webhooks.subscribe(
        ask.who, subscription_request(request | ({"types": types} if types else {}))
    )
    return show("webhooks.html", **await _shown(ask), secret=made.secret)


@pages.get("/webhooks/{id}", roles=["operate"])
async def deliveries(ask: Ask) -> View | Reply:
    """List what a subscription was told."""
    subscription = await ask.engine.webhooks.subscription(ask.who, ask.path["id"])
    filter = DeliveryFilter(subscription_id=subscription.id, before=ask.query.one("before"), limit=AT_ONCE + 1)
    found = await ask.engine.webhooks.deliveries(ask.who, filter)
    older = ask.query.encoded(before=found[AT_ONCE - 1].id) if len(found) > AT_ONCE else None
    return show("deliveries.html", subscription=subscription, deliveries=found[:AT_ONCE], older=older)


@pages.post("/webhooks/{id}/deliveries/{delivery_id}/redeliver", roles=["operate"])
async def redeliver(ask: Ask) -> View | Reply:
    """Send a delivery again."""
    await ask.engine.webhooks.redeliver(ask.who, ask.path["delivery_id"])
    subscription = await ask.engine.webhooks.subscription(ask.who, ask.path["id"])
    return go(f"/webhooks/{subscription.id}", said="redelivered")


@pages.post("/webhooks/{id}/unsubscribe", roles=["operate"])
async def unsubscribe(ask: Ask) -> View | Reply:
    """Tell them no more."""
    await ask.engine.webhooks.unsubscribe(ask.who, ask.path["id"])
    return go("/webhooks", said="unsubscribed")


async def _shown(ask: Ask) -> dict[str, Any]:
    before = ask.query.one("before")
    found = await ask.engine.webhooks.subscriptions(ask.who, before=before, limit=AT_ONCE + 1)
    older = ask.query.encoded(before=found[AT_ONCE - 1].id) if len(found) > AT_ONCE else None
    return {"subscriptions": found[:AT_ONCE], "older": older, "events": EVENTS}
