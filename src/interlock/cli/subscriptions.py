"""`interlock subscriptions`: create, list, show, delete, renew, rotate, deliveries, redeliver."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from interlock import wire
from interlock.cli import ids, output
from interlock.cli.runner import Anywhere, run
from interlock.domain.principal import Principal
from interlock.domain.webhook import Delivery, DeliveryFilter, DeliveryStatus, Mode, Subscription
from interlock.engine.engine import Engine
from interlock.engine.webhooks import Created, SubscriptionRequest, delivery_to_dict, subscription_to_dict

app = App(name="subscriptions", help="Manage webhook subscriptions and inspect deliveries.")
NOTHING = Anywhere()
ExpiresIn = Annotated[float | None, Parameter(help="seconds until it expires; default: never")]
Limit = Annotated[int, Parameter(help="1 to 200")]


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
    common: Anywhere = NOTHING,
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

    async def command(engine: Engine, who: Principal) -> tuple[Created, int]:
        return await engine.webhooks.subscribe(who, request), await engine.queries.now()

    made, now = run(common, command)
    if common.json:
        encoded = subscription_to_dict(made.subscription, now=now)
        output.print_json(encoded | {"secret": made.secret, "replayed": made.replayed})
    else:
        output.print_line(f"{made.subscription.id} {made.secret or '(replayed)'}")


@app.default
@app.command(name="list")
def list_(
    *,
    limit: Limit = 50,
    before: Annotated[str | None, Parameter(help="only subscriptions older than this ID, to page on")] = None,
    common: Anywhere = NOTHING,
) -> None:
    """List subscriptions, newest first, without their secrets."""

    async def command(engine: Engine, who: Principal) -> tuple[list[Subscription], int]:
        last = None if before is None else await ids.subscription(engine, who, before)
        return await engine.webhooks.subscriptions(who, before=last, limit=limit), await engine.queries.now()

    found, now = run(common, command)
    if common.json:
        output.print_json({"items": [subscription_to_dict(one, now=now) for one in found]})
    elif not found:
        output.print_line("no subscriptions")
    else:
        output.table(
            ("id", "url", "events", "types", "group", "active", "expires"),
            (
                (s.id, s.url, " ".join(s.events), " ".join(s.types or ()), s.group_id,
                 "yes" if subscription_to_dict(s, now=now)["active"] else f"no: {s.ended_reason or 'expired'}",
                 None if s.expires_at is None else wire.when(s.expires_at)[:19] + "Z")
                for s in found
            ),
        )  # fmt: skip


@app.command
def show(subscription_id: str, *, common: Anywhere = NOTHING) -> None:
    """Show one subscription, without its secret."""

    async def command(engine: Engine, who: Principal) -> tuple[Subscription, int]:
        id = await ids.subscription(engine, who, subscription_id)
        return await engine.webhooks.subscription(who, id), await engine.queries.now()

    _print_result(common, *run(common, command))


@app.command
def delete(subscription_id: str, *, common: Anywhere = NOTHING) -> None:
    """Delete a subscription and its pending deliveries."""

    async def command(engine: Engine, who: Principal) -> str:
        id = await ids.subscription(engine, who, subscription_id)
        await engine.webhooks.unsubscribe(who, id)
        return id

    id = run(common, command)
    if common.json:
        output.print_json({"deleted": id})
    else:
        output.print_line(f"{id}: deleted")


@app.command
def renew(subscription_id: str, *, expires_in: ExpiresIn = None, common: Anywhere = NOTHING) -> None:
    """Extend a subscription, or re-enable a disabled one."""

    async def command(engine: Engine, who: Principal) -> tuple[Subscription, int]:
        id = await ids.subscription(engine, who, subscription_id)
        renewed = await engine.webhooks.renew(who, id, expires_in_seconds=expires_in)
        return renewed, await engine.queries.now()

    _print_result(common, *run(common, command))


@app.command
def rotate(subscription_id: str, *, common: Anywhere = NOTHING) -> None:
    """Create a new signing secret and print it (shown only once). For a day the old one signs too."""

    async def command(engine: Engine, who: Principal) -> str:
        return await engine.webhooks.rotate(who, await ids.subscription(engine, who, subscription_id))

    secret = run(common, command)
    if common.json:
        output.print_json({"secret": secret})
    else:
        output.print_line(secret)


@app.command
def deliveries(
    subscription_id: str | None = None,
    *,
    job: Annotated[str | None, Parameter(help="only deliveries about this job")] = None,
    status: Annotated[DeliveryStatus | None, Parameter(help="filter by status (default: any)")] = None,
    limit: Limit = 50,
    before: Annotated[str | None, Parameter(help="only deliveries older than this ID, to page on")] = None,
    common: Anywhere = NOTHING,
) -> None:
    """List deliveries, newest first: of one subscription, or of all."""

    async def command(engine: Engine, who: Principal) -> list[Delivery]:
        to = None if subscription_id is None else await ids.subscription(engine, who, subscription_id)
        about = None if job is None else await ids.job(engine, who, job, "job")
        if about is not None:
            await engine.queries.job(who.tenant, about)  # an unknown job is an error, not an empty list
        last = None if before is None else await ids.delivery(engine, who, before)
        return await engine.webhooks.deliveries(who, DeliveryFilter(to, about, status, last, limit))

    found = run(common, command)
    if common.json:
        output.print_json({"items": [delivery_to_dict(one) for one in found]})
    elif not found:
        output.print_line("no deliveries")
    else:
        output.table(
            ("id", "event", "job", "status", "attempts", "response", "error"),
            ((d.id, d.event, d.job_id, d.status, d.attempts, d.last_status_code, d.last_error) for d in found),
        )


@app.command
def redeliver(delivery_id: str, *, common: Anywhere = NOTHING) -> None:
    """Redeliver with the same ID and body. A running server sends it."""

    async def command(engine: Engine, who: Principal) -> Delivery:
        return await engine.webhooks.redeliver(who, await ids.delivery(engine, who, delivery_id))

    sent = run(common, command)
    if common.json:
        output.print_json(delivery_to_dict(sent))
    else:
        output.print_line(f"{sent.id}: {sent.status}")


def _print_result(common: Anywhere, found: Subscription, now: int) -> None:
    encoded = subscription_to_dict(found, now=now)
    if common.json:
        output.print_json(encoded)
    else:
        output.facts(encoded)
