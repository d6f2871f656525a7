"""`interlock subscriptions`: create, list, show, delete, renew, rotate, deliveries, redeliver."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from interlock.cli import ids, output
from interlock.cli.runner import ANYWHERE, Anywhere, ExpiresIn, Limit, run, timed
from interlock.client.port import Client
from interlock.domain.webhook import Delivery, DeliveryFilter, DeliveryStatus, Mode, Subscription
from interlock.wire import SubscriptionRequest
from interlock.wire.encode import delivery_to_dict, subscription_to_dict

app = App(name="subscriptions", help="Manage webhook subscriptions and inspect deliveries.")


@app.command
def create(
    url: str,
    *,
    event: Annotated[
        tuple[str, ...], Parameter(help="job.succeeded, queue.ready, approval.requested …; may be repeated")
    ],
    type: Annotated[tuple[str, ...], Parameter(help="only jobs of this type; may be repeated; default: all")] = (),
    group: Annotated[str | None, Parameter(help="deliver to one member of this group, round-robin")] = None,
    min_interval: Annotated[float, Parameter(help="minimum seconds between deliveries; bursts are coalesced")] = 0.0,
    expires_in: ExpiresIn = None,
    key: Annotated[str | None, Parameter(help="idempotency key: a repeated call returns the same subscription")] = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """Create a subscription and print its signing secret (shown only once)."""
    request = SubscriptionRequest(
        url=url,
        events=list(event),
        types=list(type) or None,
        mode=Mode.BROADCAST if group is None else Mode.GROUP,
        group_id=group,
        min_interval_seconds=min_interval,
        expires_in_seconds=expires_in,
        key=key,
    )
    made, now = timed(common, lambda client: client.subscriptions.create(request))
    encoded = subscription_to_dict(made.subscription, now=now) | {"secret": made.secret, "replayed": made.replayed}
    common.show(encoded, f"{made.subscription.id} {made.secret or '(replayed)'}")


@app.default
@app.command(name="list")
def list_(
    *,
    limit: Limit = 50,
    before: Annotated[str | None, Parameter(help="only subscriptions older than this ID, to page on")] = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """List subscriptions, newest first, without their secrets."""

    async def command(client: Client) -> list[Subscription]:
        last = None if before is None else await ids.subscription(client, before)
        return await client.subscriptions.list(before=last, limit=limit)

    found, now = timed(common, command)
    common.show_list(
        "subscriptions",
        found,
        lambda one: subscription_to_dict(one, now=now),
        ("id", "url", "events", "types", "group", "active", "expires"),
        lambda s: (
            s.id, s.url, " ".join(s.events), " ".join(s.types or ()), s.group_id,
            "yes" if s.is_active(now) else f"no: {s.ended_reason or 'expired'}", output.time(s.expires_at),
        ),
    )  # fmt: skip


@app.command
def show(subscription_id: str, *, common: Anywhere = ANYWHERE) -> None:
    """Show one subscription, without its secret."""

    async def command(client: Client) -> Subscription:
        return await client.subscriptions.get(await ids.subscription(client, subscription_id))

    found, now = timed(common, command)
    common.show_facts(subscription_to_dict(found, now=now))


@app.command
def delete(subscription_id: str, *, common: Anywhere = ANYWHERE) -> None:
    """Delete a subscription and its pending deliveries."""

    async def command(client: Client) -> str:
        id = await ids.subscription(client, subscription_id)
        await client.subscriptions.delete(id)
        return id

    id = run(common, command)
    common.show({"deleted": id}, f"{id}: deleted")


@app.command
def renew(subscription_id: str, *, expires_in: ExpiresIn = None, common: Anywhere = ANYWHERE) -> None:
    """Extend a subscription, or re-enable a disabled one."""

    async def command(client: Client) -> Subscription:
        id = await ids.subscription(client, subscription_id)
        return await client.subscriptions.renew(id, expires_in_seconds=expires_in)

    renewed, now = timed(common, command)
    common.show_facts(subscription_to_dict(renewed, now=now))


@app.command
def rotate(subscription_id: str, *, common: Anywhere = ANYWHERE) -> None:
    """Create a new signing secret and print it (shown only once). For one day, both sign."""

    async def command(client: Client) -> str:
        return await client.subscriptions.rotate(await ids.subscription(client, subscription_id))

    secret = run(common, command)
    common.show({"secret": secret}, secret)


@app.command
def deliveries(
    subscription_id: str | None = None,
    *,
    job: Annotated[str | None, Parameter(help="only deliveries about this job")] = None,
    status: Annotated[DeliveryStatus | None, Parameter(help="filter by status (default: any)")] = None,
    limit: Limit = 50,
    before: Annotated[str | None, Parameter(help="only deliveries older than this ID, to page on")] = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """List deliveries, newest first: of one subscription, or of all."""

    async def command(client: Client) -> list[Delivery]:
        to = None if subscription_id is None else await ids.subscription(client, subscription_id)
        about = None if job is None else await ids.job(client, job, "job")
        if about is not None:
            await client.jobs.get(about)  # an unknown job is an error, not an empty list
        last = None if before is None else await ids.delivery(client, before)
        return await client.subscriptions.deliveries(DeliveryFilter(to, about, status, last, limit))

    common.show_list(
        "deliveries",
        run(common, command),
        delivery_to_dict,
        ("id", "event", "job", "status", "attempts", "response", "error"),
        lambda d: (d.id, d.event, d.job_id, d.status, d.attempts, d.last_status_code, d.last_error),
    )


@app.command
def redeliver(delivery_id: str, *, common: Anywhere = ANYWHERE) -> None:
    """Redeliver with the same ID and body. A running server sends it."""

    async def command(client: Client) -> Delivery:
        return await client.subscriptions.redeliver(await ids.delivery(client, delivery_id))

    sent = run(common, command)
    common.show(delivery_to_dict(sent), f"{sent.id}: {sent.status}")
