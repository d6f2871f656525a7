"""Notification channels, each with a subscription that queues its deliveries in the outbox."""

from __future__ import annotations

import json
from typing import Final

from interlock.domain import channel, operator_log
from interlock.domain.channel import Credentials, Kind, NewChannel, NotificationChannel, Target
from interlock.errors import Invalid
from interlock.storage.dialect import Database, Steps, Transaction, columns, reader, statements
from interlock.storage.parts import outbox

# The sweep of subscriptions deletes that of a channel which has been disabled for a while.
SQL: Final = statements(
    "channels",
    columns=columns(
        NotificationChannel, "c.", failures="coalesce(s.failures, 0)",
        disabled_at="CASE WHEN s.id IS NULL THEN c.updated_at ELSE s.ended_at END",
    ),
)  # fmt: skip
_channel: Final = reader(NotificationChannel, address=channel.address_of)


class StoredChannels:
    """Stores channels; see the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(self, tenant: str, new: NewChannel) -> NotificationChannel:
        return await self._database.write(tenant, lambda tx: _set(tx, new))

    async def get(self, tenant: str, name: str) -> NotificationChannel | None:
        rows = await self._database.rows(tenant, SQL["get"], name=name)
        return _channel(rows[0]) if rows else None

    async def page(self, tenant: str, *, after: str = "", limit: int = 50) -> list[NotificationChannel]:
        return [*map(_channel, await self._database.rows(tenant, SQL["page"], after=after, limit=limit))]

    async def delete(self, tenant: str, name: str, *, actor: str) -> bool:
        def body(tx: Transaction) -> Steps[bool]:
            row = yield from tx.one(SQL["subscription"], name=name)
            if row is None:
                return False
            yield from tx.run(SQL["delete"], name=name)
            yield from outbox.delete_subscription(tx, row[0])
            yield from tx.log(operator_log.delete_channel(actor, name))
            return True

        return await self._database.write(tenant, body)

    async def target(self, tenant: str, name: str) -> Target | None:
        rows = await self._database.rows(tenant, SQL["target"], name=name)
        if not rows:
            return None
        kind, address, credentials = rows[0]
        return Target(Kind(kind), channel.address_of(address), Credentials(**json.loads(credentials)))


def _set(tx: Transaction, new: NewChannel) -> Steps[NotificationChannel]:
    row = yield from tx.one(SQL["subscription"], name=new.name)
    if row is None:
        ((count,),) = yield from tx.rows(SQL["count"])
        if count >= channel.MAX_CHANNELS:
            raise Invalid(f"a tenant has at most {channel.MAX_CHANNELS} channels; delete one first")
    values = new._asdict() | {
        "subscription_id": new.subscription_id if row is None else row[0],
        "address": channel.to_text(new.address),
        "credentials": channel.to_text(new.credentials),
        "ignored_risks": channel.ignored_risks(new.min_risk),
    }
    queue = f"subscription:{values['subscription_id']}"
    yield from tx.run(SQL["subscribe"], **values, queue=queue, url=channel.URL_PREFIX + new.name)
    yield from tx.run(SQL["set"], **values)
    yield from tx.log(operator_log.set_channel(new))
    kept = yield from tx.one(SQL["get"], name=new.name)
    assert kept is not None
    return _channel(kept)
