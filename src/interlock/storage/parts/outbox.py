"""Subscriptions, and the outbox: deliveries that wait to be sent, leased by senders and settled with their results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from interlock.domain import operator_log
from interlock.domain.retry import SECOND
from interlock.domain.webhook import (
    MAX_KEPT,
    MAX_SUBSCRIPTIONS,
    Channel,
    Delivery,
    DeliveryFilter,
    DeliveryResult,
    DeliveryStatus,
    Dispatch,
    NewSubscription,
    Subscribed,
    Subscription,
    too_many_subscriptions,
)  # fmt: skip
from interlock.errors import IdempotencyKeyReuse
from interlock.storage.dialect import (
    NEWEST,
    Database,
    Row,
    Steps,
    Transaction,
    by_tenant,
    columns,
    names,
    reader,
    statements,
)

SQL: Final = statements(
    "outbox",
    subscription=columns(Subscription, "s."),
    delivery=columns(Delivery, "o.", created_at="o.at", folded="coalesce(o.folded, 0)"),
)
_subscription: Final = reader(Subscription)
_delivery: Final = reader(Delivery)
_TAGS: Final = Dispatch._fields.index("tags")
_REST_SECONDS: Final = 5  # of a failing receiver, doubled each time
_MAX_REST_SECONDS: Final = 600


class StoredOutbox:
    """Stores subscriptions and deliveries; see the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def subscribe(self, tenant: str, new: NewSubscription) -> Subscribed:
        return await self._database.write(tenant, lambda tx: _subscribe(tx, new))

    async def subscriptions(self, tenant: str, *, before: str | None = None, limit: int) -> list[Subscription]:
        rows = await self._database.rows(tenant, SQL["subscriptions"], before=before or NEWEST[1], limit=limit)
        return [*map(_subscription, rows)]

    async def subscription(self, tenant: str, id: str) -> Subscription | None:
        rows = await self._database.rows(tenant, SQL["subscription_by_id"], id=id)
        return _subscription(rows[0]) if rows else None

    async def unsubscribe(self, tenant: str, id: str, *, actor: str | None = None) -> bool:
        def body(tx: Transaction) -> Steps[bool]:
            if actor is not None and (yield from _get(tx, id)) is None:
                return False
            gone = yield from delete_subscription(tx, id)
            if gone and actor is not None:
                yield from tx.log(operator_log.unsubscribe(actor, id))
            return gone

        return await self._database.write(tenant, body, repeatable=False)

    async def renew(
        self, tenant: str, id: str, expires_in_seconds: float | None, *, actor: str | None = None
    ) -> Subscription | None:
        def body(tx: Transaction) -> Steps[Subscription | None]:
            found = yield from _get(tx, id)
            if found is None:
                return None
            # Re-enabling a disabled one counts against the limit, like a new one.
            if not found.is_active(tx.now) and (yield from _counted(tx))[0] >= MAX_SUBSCRIPTIONS:
                raise too_many_subscriptions()
            yield from tx.run(SQL["renew"], id=id, expires_at=_later(tx, expires_in_seconds))
            if actor is not None:
                yield from tx.log(operator_log.renew(actor, id, expires_in_seconds))
            return (yield from _get(tx, id))

        return await self._database.write(tenant, body)

    async def rotate(
        self, tenant: str, id: str | None, secret: str, keep_seconds: float, *, actor: str | None = None
    ) -> bool:
        def body(tx: Transaction) -> Steps[bool]:
            until = _later(tx, keep_seconds)
            if id is None:
                yield from tx.run(SQL["rotate_job_secret"], secret=secret, until=until)
            elif (yield from _get(tx, id)) is None or not (
                yield from tx.run(SQL["rotate"], id=id, secret=secret, until=until)
            ):
                return False
            if actor is not None:
                yield from tx.log(operator_log.rotate(actor, id, keep_seconds))
            return True

        return await self._database.write(tenant, body)

    async def deliveries(self, tenant: str, filter: DeliveryFilter) -> list[Delivery]:
        values = filter._asdict() | {"before": filter.before or NEWEST[1], "channel": None}
        statement = SQL["deliveries"]
        if filter.subscription_id is not None:
            found = await self._database.rows(tenant, SQL["channel"], id=filter.subscription_id)
            if not found:
                return []
            statement, values["channel"] = SQL["deliveries_of_channel"], found[0][0]
        if filter.job_id is not None:
            statement = SQL["deliveries_of_job"]
        if filter.id is not None:
            statement = SQL["delivery_by_id"]
        return [*map(_delivery, await self._database.rows(tenant, statement, **values))]

    async def redeliver(self, tenant: str, id: str) -> Delivery | None:
        await self._database.write(tenant, lambda tx: tx.run(SQL["redeliver"], id=id))
        return next(iter(await self.deliveries(tenant, DeliveryFilter(id=id, limit=1))), None)

    async def due_channels(self, limit: int) -> list[Channel]:
        return [Channel(*row) for row in await self._database.rows(None, SQL["due_channels"], limit=limit)]

    async def take(
        self, tenant: str, wants: Sequence[tuple[str, int]], *, lease_seconds: float, fresh_secret: str
    ) -> list[Dispatch]:
        def body(tx: Transaction) -> Steps[list[Dispatch]]:
            taken: list[Dispatch] = []
            for channel, want in sorted(wants):
                taken += yield from _take(tx, channel, want, lease_seconds, fresh_secret)
            return taken

        return await self._database.write(tenant, body)

    async def give_back(self, tenant: str, id: str, grab: int, delay_seconds: float) -> None:
        await self._database.write(
            tenant, lambda tx: tx.run(SQL["give_back"], id=id, grab=grab, next_try_at=_later(tx, delay_seconds))
        )

    async def settle(self, tenant: str, settlement: DeliveryResult) -> bool:
        return await self._database.write(tenant, lambda tx: _settle(tx, settlement))

    async def sweep_subscriptions(self, older_than_seconds: float, limit: int) -> int:
        before = await self._database.now() - round(older_than_seconds * SECOND)
        gone = 0
        for tenant, id in await self._database.rows(None, SQL["old_subscriptions"], before=before, limit=limit):
            gone += await self.unsubscribe(tenant, id)
        return gone

    async def forget_deliveries(self, older_than_seconds: float, limit: int) -> int:
        before = await self._database.now() - round(older_than_seconds * SECOND)
        old = await self._database.rows(None, SQL["old_deliveries"], before=before, limit=limit)
        gone = 0
        for tenant, ids in by_tenant(old).items():
            gone += await self._database.write(tenant, partial(Transaction.run, statement=SQL["forget"], ids=ids))
        return gone


def _later(tx: Transaction, seconds: float | None) -> int | None:
    return None if seconds is None else tx.now + round(seconds * SECOND)


def _subscribe(tx: Transaction, new: NewSubscription) -> Steps[Subscribed]:
    """Create a subscription unless its ID or key exists; at the storage limit, delete the one that ended first."""
    existing = yield from tx.rows(SQL["existing"], id=new.id, key=new.key)
    if not existing:
        active, kept = yield from _counted(tx)
        if active >= MAX_SUBSCRIPTIONS:
            raise too_many_subscriptions()
        if kept >= MAX_KEPT:
            ((longest_ended,),) = yield from tx.rows(SQL["longest_ended"])
            yield from delete_subscription(tx, longest_ended)
        expires_at = _later(tx, new.expires_in_seconds)
        if (yield from tx.run(SQL["subscribe"], **new._asdict(), channel=new.channel, expires_at=expires_at)):
            yield from tx.log(operator_log.subscribe(new))
        existing = yield from tx.rows(SQL["existing"], id=new.id, key=new.key)
    bodies = {id: body for id, body in existing}  # noqa: C416 - rows are not pairs to a type checker
    id = new.id if new.id in bodies else next(iter(bodies))
    if bodies[id] != new.body_sha256:
        raise IdempotencyKeyReuse(str(new.key), id, what="subscription")
    subscription = yield from _get(tx, id)
    assert subscription is not None
    return Subscribed(subscription, id != new.id)


def _counted(tx: Transaction) -> Steps[tuple[int, int]]:
    """Return the number of active and of all subscriptions."""
    ((active, kept),) = yield from tx.rows(SQL["count_subscriptions"])
    return active, kept


def _get(tx: Transaction, id: str) -> Steps[Subscription | None]:
    row = yield from tx.one(SQL["subscription_by_id"], id=id)
    return None if row is None else _subscription(row)


def delete_subscription(tx: Transaction, id: str) -> Steps[bool]:
    """Delete a subscription; with the last one of a channel, also delete its deliveries."""
    row = yield from tx.one(SQL["unsubscribe"], id=id)
    if row is None:
        return False
    yield from tx.run(SQL["forget_throttle"], channel=f"subscription:{id}")
    yield from tx.run(SQL["close_channel"], channel=row[0])
    yield from tx.run(SQL["close_throttle"], channel=row[0])
    return True


def _take(tx: Transaction, channel: str, want: int, lease_seconds: float, fresh_secret: str) -> Steps[list[Dispatch]]:
    """Lease due deliveries of a channel; they are due again when the lease expires."""
    taken: list[Dispatch] = []
    yield from tx.run(SQL["drop_vain_calls"], channel=channel)
    ((interval,),) = yield from tx.rows(SQL["interval"], channel=channel)
    if interval > 0:
        yield from _fold(tx, channel)
    for row in (yield from tx.rows(SQL["due"], channel=channel, folds=interval > 0, want=want)):
        receiver = yield from _receiver(tx, channel, row, fresh_secret)
        if receiver is None:
            yield from tx.run(SQL["no_subscriber"], id=row[0])
            continue
        subscription_id, url, *secrets = receiver
        until = _later(tx, lease_seconds)
        yield from tx.run(SQL["take"], id=row[0], grab=row[1], next_try_at=until, subscription_id=subscription_id)
        values = [*row[:-1], subscription_id, url, [secret for secret in secrets if secret is not None]]
        values[_TAGS] = names(values[_TAGS])
        taken.append(Dispatch._make(values))
    return taken


def _fold(tx: Transaction, channel: str) -> Steps[None]:
    """Release the newest event per unthrottled receiver and coalesce the others; if there is none, postpone all."""
    for event, type in (yield from tx.rows(SQL["bursts"], channel=channel)):
        kind: dict[str, Any] = {"channel": channel, "event": event, "type": type}
        yield from tx.run(SQL["lock_burst"], **kind)  # two senders do not coalesce one burst twice
        # Receivers that are not backing off, or all of them if every one is.
        receivers = yield from tx.rows(SQL["quiet"], **kind, at=tx.now)
        all_rest = all(rests for _, rests in receivers)
        quiet = [until for until, rests in receivers if bool(rests) == all_rest]
        if quiet and min(quiet) > tx.now:
            yield from tx.run(SQL["postpone"], **kind, quiet_until=min(quiet))
            continue
        ((before,),) = yield from tx.rows(SQL["let_go_before"], **kind)
        room = sum(until <= tx.now for until in quiet) - before if quiet else 1
        go = [id for (id,) in (yield from tx.rows(SQL["newest"], **kind, room=max(room, 0)))]
        for id in go:
            yield from tx.run(SQL["let_go"], id=id, others=0)
        if go:
            others = yield from tx.run(SQL["fold"], **kind)
            yield from tx.run(SQL["let_go"], id=go[0], others=others)


def _receiver(tx: Transaction, channel: str, row: Row, fresh_secret: str) -> Steps[Row | None]:
    """Return ID, URL and secrets of the receiver. The tenant's secret signs deliveries to a job's own webhook."""
    if (url := row[-1]) is not None:
        yield from tx.run(SQL["first_job_secret"], secret=fresh_secret)
        ((secret, previous),) = yield from tx.rows(SQL["job_secret"])
        return None, url, secret, previous
    values = {"channel": channel, "event": row[4], "at": row[5], "type": row[7]}
    found = yield from tx.one(SQL["receiver"], **values)
    if found is not None:
        yield from tx.run(SQL["next_turn"], channel=channel, id=found[0])
        yield from tx.run(SQL["keep_quiet"], id=found[0], event=row[4], type=row[7], attempts=row[3])
    return found


def _settle(tx: Transaction, settlement: DeliveryResult) -> Steps[bool]:
    """Record the outcome of a delivery attempt; return False if its lease was lost."""
    leased = yield from tx.one(SQL["leased"], id=settlement.id, grab=settlement.grab)
    if leased is None:
        return False
    channel, subscription_id, event, type, at = leased
    outcome = settlement.outcome
    status, delay = outcome.status, outcome.delay_seconds
    if status is DeliveryStatus.DELIVERED:
        yield from tx.run(SQL["answered"], id=subscription_id)
    else:
        yield from _rest(tx, subscription_id)
        ((passed_on,),) = yield from tx.rows(
            SQL["awake"], id=subscription_id, channel=channel, event=event, type=type, at=at
        )
        if passed_on and (delay is not None or outcome.ends_subscription):
            status, delay = DeliveryStatus.FAILED, 0.0
    yield from tx.run(
        SQL["settle"], id=settlement.id, status=status, next_try_at=_later(tx, delay),
        settled_at=tx.now if delay is None else None, status_code=settlement.status_code, error=settlement.error,
    )  # fmt: skip
    if outcome.ends_subscription:
        yield from tx.run(SQL["end_subscription"], id=subscription_id)
        yield from tx.run(SQL["end_deliveries"], channel=channel)
    return True


def _rest(tx: Transaction, id: str | None) -> Steps[None]:
    """Back off from a failing receiver, longer each time."""
    row = yield from tx.one(SQL["failures"], id=id)
    if row is not None:
        seconds = min(_REST_SECONDS << min(row[0], 10), _MAX_REST_SECONDS)
        yield from tx.run(SQL["failed"], id=id, failures=row[0] + 1, resting_until=_later(tx, seconds))
