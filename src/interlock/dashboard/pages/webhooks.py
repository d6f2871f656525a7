"""Webhook subscriptions and deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from interlock import wire
from interlock.dashboard.http import DAY, PageRequest, PageResponse, Pages, View, one_of, redirect, show
from interlock.domain.webhook import EVENTS, Delivery, DeliveryFilter, DeliveryStatus, Mode, Subscription
from interlock.errors import NotFound
from interlock.wire import subscription_request

pages = Pages()

PAGE_SIZE: Final = 50
FIELD_NAMES: Final = {"events": "event", "expires_in_seconds": "expires_in_days", "mode": "group_id"}


@pages.get("/webhooks", roles=["operate"])
async def webhooks(request: PageRequest) -> View | PageResponse:
    """List subscriptions."""
    return show("webhooks.html", **await _context(request), secret=None)


@pages.post("/webhooks", roles=["operate"], form_page=webhooks, field_names=FIELD_NAMES)
async def subscribe(request: PageRequest) -> View | PageResponse:
    """Create a subscription; its signing secret is displayed only in this response."""
    form = request.form
    types, group, days = (form.one("types") or "").split(), form.one("group_id"), form.number("expires_in_days")
    wanted = {
        "url": form.one("url") or "",
        "events": form.all("event"),
        "types": types or None,
        "mode": str(Mode.BROADCAST if group is None else Mode.GROUP),
        "group_id": group,
        "min_interval_seconds": form.number("min_interval_seconds") or 0.0,
        "expires_in_seconds": None if days is None else days * DAY,
        "key": form.one("key"),
    }
    made = await request.client.subscriptions.create(subscription_request(wanted))
    return show("webhooks.html", **await _context(request), secret=made.secret)


@pages.post("/webhooks/job-secret", roles=["operate"])
async def rotate_job_secret(request: PageRequest) -> View | PageResponse:
    """Rotate the signing secret of job webhooks."""
    secret = await request.client.subscriptions.rotate_job_secret()
    return show("webhooks.html", **await _context(request), secret=secret)


@pages.get("/webhooks/deliveries", roles=["operate"])
async def all_deliveries(request: PageRequest) -> View | PageResponse:
    """List all deliveries, those of job webhooks included."""
    return await _deliveries(request, None)


@pages.get("/webhooks/{id}", roles=["operate"])
async def deliveries(request: PageRequest) -> View | PageResponse:
    """List the deliveries of a subscription."""
    return await _deliveries(request, await request.client.subscriptions.get(request.path["id"]))


@pages.post("/webhooks/{id}/deliveries/{delivery_id}/redeliver", roles=["operate"])
async def redeliver(request: PageRequest) -> View | PageResponse:
    """Send a delivery again."""
    subscription = await request.client.subscriptions.get(request.path["id"])
    await request.client.subscriptions.redeliver(request.path["delivery_id"], subscription_id=subscription.id)
    return redirect(f"/webhooks/{subscription.id}", notice="redelivered")


@pages.post("/webhooks/deliveries/{delivery_id}/redeliver", roles=["operate"])
async def redeliver_any(request: PageRequest) -> View | PageResponse:
    """Send a delivery again, also one of a job webhook."""
    await request.client.subscriptions.redeliver(request.path["delivery_id"])
    return redirect("/webhooks/deliveries", notice="redelivered")


@pages.post("/webhooks/{id}/renew", roles=["operate"], form_page=deliveries, field_names=FIELD_NAMES)
async def renew(request: PageRequest) -> View | PageResponse:
    """Extend a subscription, or re-enable a disabled one."""
    days = request.form.number("expires_in_days")
    life = None if days is None else days * DAY
    renewed = await request.client.subscriptions.renew(request.path["id"], expires_in_seconds=life)
    return redirect(f"/webhooks/{renewed.id}", notice="renewed")


@pages.post("/webhooks/{id}/rotate", roles=["operate"])
async def rotate(request: PageRequest) -> View | PageResponse:
    """Rotate the signing secret, displayed only in this response; the old one stays valid for a day."""
    subscription = await request.client.subscriptions.get(request.path["id"])
    secret = await request.client.subscriptions.rotate(subscription.id)
    return await _deliveries(request, subscription, secret=secret)


@pages.post("/webhooks/{id}/unsubscribe", roles=["operate"])
async def unsubscribe(request: PageRequest) -> View | PageResponse:
    """Delete a subscription."""
    await request.client.subscriptions.delete(request.path["id"])
    return redirect("/webhooks", notice="unsubscribed")


async def _deliveries(request: PageRequest, subscription: Subscription | None, *, secret: str | None = None) -> View:
    wanted = request.query.one("status")
    filter = DeliveryFilter(
        subscription_id=subscription and subscription.id,
        status=None if wanted is None else one_of(DeliveryStatus, wanted, "status"),
        before=request.query.one("before"),
        limit=PAGE_SIZE + 1,
    )
    found = await request.client.subscriptions.deliveries(filter)
    listed, paging = request.query.page(found, PAGE_SIZE, before=lambda one: one.id)
    return show(
        "deliveries.html",
        subscription=subscription,
        list_path="/webhooks/deliveries" if subscription is None else f"/webhooks/{subscription.id}",
        deliveries=listed,
        subscriptions=set() if subscription else await _with_a_page(request, listed),
        paging=paging,
        wanted=wanted,
        choices=list(DeliveryStatus),
        secret=secret,
    )


async def _with_a_page(request: PageRequest, deliveries: Sequence[Delivery]) -> set[str]:
    """Return the subscriptions of these deliveries, without those of notification channels."""
    found = set[str]()
    for id in {one.subscription_id for one in deliveries} - {None}:
        with suppress(NotFound):
            found.add((await request.client.subscriptions.get(str(id))).id)
    return found


async def _context(request: PageRequest) -> dict[str, Any]:
    before = request.query.one("before")
    found = await request.client.subscriptions.list(before=before, limit=PAGE_SIZE + 1)
    listed, paging = request.query.page(found, PAGE_SIZE, before=lambda one: one.id)
    return {"subscriptions": listed, "paging": paging, "events": EVENTS, "key": wire.new_id()}
