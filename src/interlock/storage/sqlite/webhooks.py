"""Subscriptions and the outbox on SQLite."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from interlock.domain import operator_log
from interlock.domain.lifecycle import TERMINAL
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
from interlock.errors import Error, IdempotencyKeyReuse
from interlock.storage.sql_files import load
from interlock.storage.sqlite import log
from interlock.storage.sqlite.connection import Connection

_SQL: Final = load("interlock.storage.sqlite", "webhooks.sql")
_TAGS: Final = Dispatch._fields.index("tags")
_AFTER_ALL: Final = "g"  # sorts after every ID
T = TypeVar("T")


def add_deliveries(connection: Connection, tenant: str, moves: Iterable[tuple[int, str | None, str]]) -> None:
    """Write outbox rows for transitions (seq, from, to) if there are subscribers. Requires their rows to be written."""
    ((listeners, own),) = connection.rows(_SQL["any_subscriber"], {"tenant": tenant})
    if listeners or own:
        delivery_facts = [(tenant, seq, origin, to) for seq, origin, to in moves if listeners or to in TERMINAL]
        connection.db.executemany(_SQL["deliver"], delivery_facts)


class Run(Protocol):
    """Runs an operation or a query on a connection."""

    def __call__(self, verb: Callable[[Connection], T], /) -> Awaitable[T]: ...


class SQLiteOutbox:
    """Subscriptions and their deliveries."""

    def __init__(self, write: Run, read: Run) -> None:
        self._write, self._read = write, read

    async def subscribe(self, tenant: str, new: NewSubscription) -> Subscribed:
        def write(c: Connection) -> Subscribed | Error:
            made = _subscribe(c, tenant, new)
            if isinstance(made, Subscribed) and not made.replayed:
                log.append(c, tenant, operator_log.subscribe(new))
            return made

        answer = await self._write(write)
        if isinstance(answer, Error):
            raise answer
        return answer

    async def subscriptions(self, tenant: str, *, before: str | None = None, limit: int) -> list[Subscription]:
        return await self._read(lambda c: _subscriptions(c, tenant, before=before, limit=limit))

    async def subscription(self, tenant: str, id: str) -> Subscription | None:
        return await self._read(lambda c: next(iter(_subscriptions(c, tenant, id=id)), None))

    async def unsubscribe(self, tenant: str, id: str, *, actor: str | None = None) -> bool:
        def write(c: Connection) -> bool:
            gone = _unsubscribe(c, tenant, id)
            if gone and actor is not None:
                log.append(c, tenant, operator_log.unsubscribe(actor, id))
            return gone

        return await self._write(write)

    async def renew(
        self, tenant: str, id: str, expires_in_seconds: float | None, *, actor: str | None = None
    ) -> Subscription | None:
        def write(c: Connection) -> Subscription | Error | None:
            renewed = _renew(c, tenant, id, expires_in_seconds)
            if isinstance(renewed, Subscription) and actor is not None:
                log.append(c, tenant, operator_log.renew(actor, id, expires_in_seconds))
            return renewed

        answer = await self._write(write)
        if isinstance(answer, Error):
            raise answer
        return answer

    async def rotate(
        self, tenant: str, id: str | None, secret: str, keep_seconds: float, *, actor: str | None = None
    ) -> bool:
        def write(c: Connection) -> bool:
            facts = {"tenant": tenant, "secret": secret, "until": _later(c, keep_seconds)}
            if id is None:
                c.db.execute(_SQL["rotate_job_secret"], facts)
            elif not c.rows(_SQL["rotate"], facts | {"id": id}):
                return False
            if actor is not None:
                log.append(c, tenant, operator_log.rotate(actor, id, keep_seconds))
            return True

        return await self._write(write)

    async def deliveries(self, tenant: str, filter: DeliveryFilter) -> list[Delivery]:
        def read(c: Connection) -> list[Delivery]:
            channel = None
            if filter.subscription_id is not None:
                found = c.rows(_SQL["channel"], {"tenant": tenant, "id": filter.subscription_id})
                if not found:
                    return []
                ((channel,),) = found
            return _deliveries(c, tenant, **filter._asdict() | {"channel": channel})

        return await self._read(read)

    async def redeliver(self, tenant: str, id: str) -> Delivery | None:
        def write(c: Connection) -> Delivery | None:
            c.rows(_SQL["redeliver"], {"tenant": tenant, "id": id, "now": c.now})
            return next(iter(_deliveries(c, tenant, id=id)), None)

        return await self._write(write)

    async def due_channels(self, limit: int) -> list[Channel]:
        def read(c: Connection) -> list[Channel]:
            return [Channel._make(row) for row in c.rows(_SQL["due_channels"], {"now": c.read_clock(), "limit": limit})]

        return await self._read(read)

    async def take(
        self, tenant: str, wants: Sequence[tuple[str, int]], *, lease_seconds: float, fresh_secret: str
    ) -> list[Dispatch]:
        return await self._write(lambda c: _take(c, tenant, wants, round(lease_seconds * SECOND), fresh_secret))

    async def give_back(self, tenant: str, id: str, grab: int, delay_seconds: float) -> None:
        def write(c: Connection) -> None:
            facts = {"tenant": tenant, "id": id, "grab": grab, "next_try_at": _later(c, delay_seconds)}
            c.db.execute(_SQL["give_back"], facts)

        await self._write(write)

    async def settle(self, tenant: str, settlement: DeliveryResult) -> bool:
        return await self._write(lambda c: _settle(c, tenant, settlement))

    async def sweep_subscriptions(self, older_than_seconds: float, limit: int) -> int:
        def write(c: Connection) -> int:
            old = c.rows(_SQL["old_subscriptions"], {"before": _later(c, -older_than_seconds), "limit": limit})
            return sum([_unsubscribe(c, tenant, id) for tenant, id in old])

        return await self._write(write)

    async def forget_deliveries(self, older_than_seconds: float, limit: int) -> int:
        def write(c: Connection) -> int:
            c.db.execute(_SQL["forget_deliveries"], {"before": _later(c, -older_than_seconds), "limit": limit})
            return c.db.changes()

        return await self._write(write)


def _later(connection: Connection, seconds: float | None) -> int | None:
    return None if seconds is None else connection.now + round(seconds * SECOND)


def _subscribe(connection: Connection, tenant: str, new: NewSubscription) -> Subscribed | Error:
    """Create a subscription. Return errors instead of raising: nothing needs a rollback."""
    found = connection.rows(_SQL["by_key"], {"tenant": tenant, "key": new.key})
    if found and found[0][0] != new.id:
        ((id, body),) = found
        if body != new.body_sha256:
            return IdempotencyKeyReuse(str(new.key), id, what="subscription")
        return Subscribed(_subscriptions(connection, tenant, id=id)[0], True)
    active, kept = _counted(connection, tenant)
    if active >= MAX_SUBSCRIPTIONS and not found:
        return too_many_subscriptions()
    if kept >= MAX_KEPT:
        ((longest_ended,),) = connection.rows(_SQL["longest_ended"], {"tenant": tenant, "now": connection.now})
        _unsubscribe(connection, tenant, longest_ended)
    facts = new._asdict() | {
        "tenant": tenant,
        "channel": new.channel,
        "events": json.dumps(new.events),
        "types": None if new.types is None else json.dumps(new.types),
        "now": connection.now,
        "expires_at": _later(connection, new.expires_in_seconds),
    }
    connection.db.execute(_SQL["subscribe"], facts)
    return Subscribed(_subscriptions(connection, tenant, id=new.id)[0], False)


def _renew(
    connection: Connection, tenant: str, id: str, expires_in_seconds: float | None
) -> Subscription | Error | None:
    """Extend a subscription. Re-enabling a disabled one counts against the limit, like a new one."""
    for found in _subscriptions(connection, tenant, id=id):
        if not found.is_active(connection.now) and _counted(connection, tenant)[0] >= MAX_SUBSCRIPTIONS:
            return too_many_subscriptions()
    connection.rows(_SQL["renew"], {"tenant": tenant, "id": id, "expires_at": _later(connection, expires_in_seconds)})
    return next(iter(_subscriptions(connection, tenant, id=id)), None)


def _counted(connection: Connection, tenant: str) -> tuple[int, int]:
    """Return the number of active and of all subscriptions."""
    ((active, kept),) = connection.rows(_SQL["count_subscriptions"], {"tenant": tenant, "now": connection.now})
    return active, kept


def _subscriptions(
    connection: Connection, tenant: str, *, id: str | None = None, before: str | None = None, limit: int = 1
) -> list[Subscription]:
    rows = connection.rows(_SQL["subscriptions"], {"tenant": tenant, "id": id, "before": before, "limit": limit})
    return [
        Subscription(id, url, tuple(json.loads(events)), types and tuple(json.loads(types)), Mode(mode), *rest)
        for id, url, events, types, mode, *rest in rows
    ]


def _unsubscribe(connection: Connection, tenant: str, id: str) -> bool:
    gone = connection.rows(_SQL["unsubscribe"], {"tenant": tenant, "id": id})
    for (channel,) in gone:
        connection.db.execute(_SQL["close_channel"], {"tenant": tenant, "channel": channel})
        connection.db.execute(_SQL["forget_throttle"], {"tenant": tenant, "id": id})
    return bool(gone)


def _deliveries(connection: Connection, tenant: str, **facts: Any) -> list[Delivery]:
    nothing = {"channel": None, "job_id": None, "id": None, "status": None, "before": None, "limit": 1}
    facts = nothing | {"tenant": tenant} | facts
    facts["before"] = facts["before"] or _AFTER_ALL
    # One statement per filter: an optional condition would keep SQLite from using an index.
    which = " AND ".join(f"{name} = :{name}" for name in ("id", "channel", "job_id") if facts[name] is not None)
    rows = connection.rows(_SQL["deliveries"].replace("{which}", which or "1"), facts)
    return [Delivery._make((*row[:4], DeliveryStatus(row[4]), *row[5:])) for row in rows]


def _take(
    connection: Connection, tenant: str, wants: Sequence[tuple[str, int]], lease: int, fresh_secret: str
) -> list[Dispatch]:
    taken: list[Dispatch] = []
    for channel, want in wants:
        facts = {"tenant": tenant, "channel": channel, "now": connection.now}
        connection.db.execute(_SQL["drop_vain_calls"], facts)
        ((interval,),) = connection.rows(_SQL["interval"], facts)
        if interval > 0:
            _fold(connection, facts)
        for row in connection.rows(_SQL["due"], facts | {"folds": interval > 0, "want": want}):
            receiver = _receiver(connection, facts, row, fresh_secret)
            if receiver is None:
                connection.db.execute(_SQL["no_subscriber"], facts | {"id": row[0]})
                continue
            subscription_id, url, *secrets = receiver
            connection.db.execute(_SQL["take"], (row[1], connection.now + lease, subscription_id, tenant, row[0]))
            values = [*row[:-1], subscription_id, url, [secret for secret in secrets if secret is not None]]
            values[_TAGS] = tuple(json.loads(values[_TAGS]))
            taken.append(Dispatch._make(values))
    return taken


def _fold(connection: Connection, facts: dict[str, Any]) -> None:
    """Release the newest event per unthrottled receiver and coalesce the others; if there is none, postpone all."""
    now = connection.now
    for event, type in connection.rows(_SQL["bursts"], facts):
        kind = facts | {"event": event, "type": type}
        quiet = [until for (until,) in connection.rows(_SQL["quiet"], kind)]
        if quiet and min(quiet) > now:
            connection.db.execute(_SQL["postpone"], kind | {"quiet_until": min(quiet)})
            continue
        ((before,),) = connection.rows(_SQL["let_go_before"], kind)
        room = sum(until <= now for until in quiet) - before if quiet else 1
        go = [id for (id,) in connection.rows(_SQL["newest"], kind | {"room": max(room, 0)})]
        for id in go:
            connection.db.execute(_SQL["let_go"], {"tenant": facts["tenant"], "id": id, "others": 0})
        if go:
            connection.db.execute(_SQL["fold"], kind)
            others = connection.db.changes()
            connection.db.execute(_SQL["let_go"], {"tenant": facts["tenant"], "id": go[0], "others": others})


def _receiver(
    connection: Connection, facts: dict[str, Any], row: tuple[Any, ...], fresh_secret: str
) -> tuple[Any, ...] | None:
    """Return ID, URL and secrets of the receiver. The tenant's secret signs deliveries to a job's own webhook."""
    if (url := row[-1]) is not None:
        connection.db.execute(_SQL["first_job_secret"], {"tenant": facts["tenant"], "secret": fresh_secret})
        ((secret, previous),) = connection.rows(_SQL["job_secret"], facts)
        return None, url, secret, previous
    delivery_facts = facts | {"attempts": row[3], "event": row[4], "at": row[5], "type": row[7]}
    found = connection.rows(_SQL["receiver"], delivery_facts)
    if not found:
        return None
    delivery_facts["id"] = found[0][0]
    connection.db.execute(_SQL["next_commit_seq"], delivery_facts)
    connection.db.execute(_SQL["keep_quiet"], delivery_facts)
    return found[0]


def _settle(connection: Connection, tenant: str, settlement: DeliveryResult) -> bool:
    """Record the outcome of a delivery attempt; return False if its lease was lost."""
    now = connection.now
    facts: dict[str, Any] = {"tenant": tenant, "id": settlement.id, "grab": settlement.grab, "now": now}
    current = connection.rows(_SQL["leased"], facts)
    if not current:
        return False
    channel, subscription_id, event, type, at = current[0]
    outcome = settlement.outcome
    status, delay = outcome.status, outcome.delay_seconds
    receiver = {"tenant": tenant, "id": subscription_id, "channel": channel, "now": now}
    if status is DeliveryStatus.DELIVERED:
        connection.db.execute(_SQL["answered"], receiver)
    else:
        connection.db.execute(_SQL["failed"], receiver)
        ((passed_on,),) = connection.rows(_SQL["awake"], receiver | {"event": event, "type": type, "at": at})
        if passed_on and (delay is not None or outcome.ends_subscription):
            status, delay = DeliveryStatus.FAILED, 0.0
    connection.db.execute(_SQL["settle"], facts | {
        "status": status, "next_try_at": _later(connection, delay), "status_code": settlement.status_code,
        "error": settlement.error,
    })  # fmt: skip
    if outcome.ends_subscription:
        connection.db.execute(_SQL["end_subscription"], receiver)
        connection.db.execute(_SQL["end_deliveries"], receiver)
    return True
