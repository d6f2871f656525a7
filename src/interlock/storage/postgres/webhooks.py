"""Subscriptions and the outbox on PostgreSQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Sequence
from typing import Any, Final, Protocol

import asyncpg

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
    Mode,
    NewSubscription,
    Subscribed,
    Subscription,
    too_many_subscriptions,
)  # fmt: skip
from interlock.errors import IdempotencyKeyReuse
from interlock.storage.postgres.connection import call
from interlock.storage.postgres.log import logged

_SECRETS: Final = len(Dispatch._fields) - 1


class Fetch(Protocol):
    """Runs one statement on the store."""

    def __call__(self, statement: str, *values: Any, repeatable: bool = True) -> Awaitable[list[asyncpg.Record]]: ...


class PostgresOutbox:
    """Subscriptions and their pending deliveries."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    async def subscribe(self, tenant: str, new: NewSubscription) -> Subscribed:
        rows = await self._fetch(*logged(
            operator_log.subscribe(new), call("subscribe", 16), tenant, new.id, new.channel, new.url, list(new.events),
            None if new.types is None else list(new.types), str(new.mode), new.group_id, new.min_interval_seconds,
            new.expires_in_seconds, new.secret, new.created_by, new.key, new.body_sha256, MAX_SUBSCRIPTIONS,
            MAX_KEPT, when="d.id = $2",
        ))  # fmt: skip
        found = {row[0]: row[1] for row in rows}
        if not found:
            raise too_many_subscriptions()
        id = new.id if new.id in found else next(iter(found))
        if found[id] != new.body_sha256:
            raise IdempotencyKeyReuse(str(new.key), id, what="subscription")
        (subscription,) = await self._subscriptions(tenant, id=id)
        return Subscribed(subscription, id != new.id)

    async def subscriptions(self, tenant: str, *, before: str | None = None, limit: int) -> list[Subscription]:
        return await self._subscriptions(tenant, before=before, limit=limit)

    async def subscription(self, tenant: str, id: str) -> Subscription | None:
        return next(iter(await self._subscriptions(tenant, id=id)), None)

    async def _subscriptions(
        self, tenant: str, *, id: str | None = None, before: str | None = None, limit: int = 1
    ) -> list[Subscription]:
        rows = await self._fetch(call("subscriptions", 4), tenant, id, before, limit)
        return [
            Subscription(id, url, tuple(events), types and tuple(types), Mode(mode), *rest)
            for id, url, events, types, mode, *rest in rows
        ]

    async def unsubscribe(self, tenant: str, id: str, *, actor: str | None = None) -> bool:
        entry = None if actor is None else operator_log.unsubscribe(actor, id)
        statement = "select interlock.unsubscribe($1, $2) as gone"
        ((gone, *_),) = await self._fetch(*logged(entry, statement, tenant, id, when="d.gone"), repeatable=False)
        return bool(gone)

    async def renew(
        self, tenant: str, id: str, expires_in_seconds: float | None, *, actor: str | None = None
    ) -> Subscription | None:
        entry = None if actor is None else operator_log.renew(actor, id, expires_in_seconds)
        statement = "select interlock.renew_subscription($1, $2, $3, $4) as renewed"
        ((renewed, *_),) = await self._fetch(
            *logged(entry, statement, tenant, id, expires_in_seconds, MAX_SUBSCRIPTIONS, when="d.renewed")
        )
        found = await self.subscription(tenant, id)
        if found is not None and not renewed:
            raise too_many_subscriptions()
        return found

    async def rotate(
        self, tenant: str, id: str | None, secret: str, keep_seconds: float, *, actor: str | None = None
    ) -> bool:
        entry = None if actor is None else operator_log.rotate(actor, id, keep_seconds)
        statement = "select interlock.rotate_secret($1, $2, $3, $4) as rotated"
        ((found, *_),) = await self._fetch(
            *logged(entry, statement, tenant, id, secret, keep_seconds, when="d.rotated")
        )
        return bool(found)

    async def deliveries(self, tenant: str, filter: DeliveryFilter) -> list[Delivery]:
        f = filter
        status = None if f.status is None else str(f.status)
        return await self._deliveries(tenant, f.id, f.subscription_id, f.job_id, status, f.before, f.limit)

    async def _deliveries(self, tenant: str, *facts: Any) -> list[Delivery]:
        rows = await self._fetch(call("deliveries", 7), tenant, *facts)
        return [Delivery._make((*row[:4], DeliveryStatus(row[4]), *row[5:])) for row in map(tuple, rows)]

    async def redeliver(self, tenant: str, id: str) -> Delivery | None:
        await self._fetch("select interlock.redeliver($1, $2)", tenant, id)
        return next(iter(await self._deliveries(tenant, id, None, None, None, None, 1)), None)

    async def due_channels(self, limit: int) -> list[Channel]:
        statement = "select tenant, channel from interlock.due_channels(interlock.clock(), $1)"
        return [Channel(*row) for row in await self._fetch(statement, limit)]

    async def take(
        self, tenant: str, wants: Sequence[tuple[str, int]], *, lease_seconds: float, fresh_secret: str
    ) -> list[Dispatch]:
        channels, most = [channel for channel, _ in wants], [want for _, want in wants]
        rows = await self._fetch(call("take_deliveries", 5), tenant, channels, most, lease_seconds, fresh_secret)
        return [
            Dispatch._make((*row[:_SECRETS], [secret for secret in row[_SECRETS:] if secret is not None]))
            for row in map(tuple, rows)
        ]

    async def give_back(self, tenant: str, id: str, grab: int, delay_seconds: float) -> None:
        await self._fetch("select interlock.give_back_delivery($1, $2, $3, $4)", tenant, id, grab, delay_seconds)

    async def settle(self, tenant: str, settlement: DeliveryResult) -> bool:
        s = settlement
        ((current,),) = await self._fetch(
            "select interlock.settle_delivery($1, $2, $3, $4, $5, $6, $7, $8)", tenant, s.id, s.grab,
            str(s.outcome.status), s.outcome.delay_seconds, s.outcome.ends_subscription, s.status_code, s.error,
        )  # fmt: skip
        return bool(current)

    async def sweep_subscriptions(self, older_than_seconds: float, limit: int) -> int:
        old = await self._old("old_subscriptions", older_than_seconds, limit)
        return sum([await self.unsubscribe(tenant, id) for tenant, ids in old.items() for id in ids])

    async def forget_deliveries(self, older_than_seconds: float, limit: int) -> int:
        gone = 0
        for tenant, ids in (await self._old("old_deliveries", older_than_seconds, limit)).items():
            ((count,),) = await self._fetch("select interlock.forget_deliveries($1, $2)", tenant, ids)
            gone += count
        return gone

    async def _old(self, function: str, older_than_seconds: float, limit: int) -> dict[str, list[str]]:
        ((now,),) = await self._fetch("select interlock.clock()")
        rows = await self._fetch(call(function, 2), now - round(older_than_seconds * SECOND), limit)
        found: dict[str, list[str]] = defaultdict(list)
        for tenant, id in rows:
            found[tenant].append(id)
        return found
