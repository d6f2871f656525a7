"""Webhook subscriptions and deliveries."""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

import msgspec

from interlock import wire
from interlock.domain import token, webhook
from interlock.domain.principal import Principal
from interlock.domain.webhook import CreatedSubscription, Delivery, DeliveryFilter, Mode, NewSubscription, Subscription
from interlock.domain.webhook_format import address, format_of
from interlock.engine.maintenance import repeat_until_empty
from interlock.engine.outbound_http import OutboundClient
from interlock.errors import Invalid, NotFound
from interlock.storage.contract import Store
from interlock.wire import SubscriptionRequest

MAX_PAGE_SIZE: Final = 200
MAX_INTERVAL_SECONDS: Final = 86_400.0
MAX_LIFE_SECONDS: Final = 10 * 365 * 86_400.0
OLD_SECRET_SECONDS: Final = 86_400.0
ENDED_KEPT_SECONDS: Final = 86_400.0
DELIVERIES_KEPT_SECONDS: Final = 7 * 86_400.0
BATCH_SIZE: Final = 500
SWEEP_EVERY_SECONDS: Final = 60.0


class Webhooks:
    """Subscriptions and deliveries of one tenant, for its operators."""

    def __init__(self, store: Store, outside: OutboundClient) -> None:
        self._outbox = store.outbox
        self._now = store.now
        self._outside = outside

    async def subscribe(self, who: Principal, request: SubscriptionRequest) -> CreatedSubscription:
        """Create a subscription; the same idempotency key with the same request returns the existing one."""
        who.need("operate")
        secret = _new_secret()
        new = _checked(request, secret, who.actor)
        await self._outside.admit(request.url, owner=who.tenant)
        subscription, replayed = await self._outbox.subscribe(who.tenant, new)
        return CreatedSubscription(subscription, None if replayed else secret, replayed)

    async def subscriptions(self, who: Principal, *, before: str | None = None, limit: int = 50) -> list[Subscription]:
        """List subscriptions, newest first."""
        who.need("operate")
        before = None if before is None else wire.job_id(before, "before")
        return await self._outbox.subscriptions(who.tenant, before=before, limit=_page(limit))

    async def subscription(self, who: Principal, id: str) -> Subscription:
        who.need("operate")
        return _found(await self._outbox.subscription(who.tenant, _id(id)), id)

    async def unsubscribe(self, who: Principal, id: str) -> None:
        """Delete a subscription and its pending deliveries."""
        who.need("operate")
        if not await self._outbox.unsubscribe(who.tenant, _id(id), actor=who.actor):
            raise NotFound(id, resource="subscription")

    async def renew(self, who: Principal, id: str, *, expires_in_seconds: float | None = None) -> Subscription:
        """Extend a subscription, for a time or indefinitely; re-enable a disabled one."""
        who.need("operate")
        life = wire.seconds(expires_in_seconds, "expires_in_seconds", 1, MAX_LIFE_SECONDS)
        return _found(await self._outbox.renew(who.tenant, _id(id), life, actor=who.actor), id)

    async def rotate(self, who: Principal, id: str, *, keep_seconds: float = OLD_SECRET_SECONDS) -> str:
        """Create a new secret, shown only once; the previous one signs as well for keep_seconds."""
        who.need("operate")
        return await self._rotate(who, _id(id), keep_seconds)

    async def rotate_job_secret(self, who: Principal, *, keep_seconds: float = OLD_SECRET_SECONDS) -> str:
        """Create a new secret for the webhooks of individual jobs, shown only once."""
        who.need("operate")
        return await self._rotate(who, None, keep_seconds)

    async def _rotate(self, who: Principal, id: str | None, keep_seconds: float) -> str:
        keep = wire.seconds(keep_seconds, "keep_seconds", 0, 30 * 86_400.0)
        secret = _new_secret()
        if not await self._outbox.rotate(who.tenant, id, secret, keep or 0.0, actor=who.actor):
            raise NotFound(str(id), resource="subscription")
        return secret

    async def call_for_work(self, who: Principal, request: SubscriptionRequest, webhook_format: str) -> Subscription:
        """Notify a worker of available jobs; the same request again renews the existing subscription."""
        who.need("work")
        await self._outside.admit(request.url, owner=who.tenant)
        url = address(webhook_format, request.url)
        named = hashlib.sha256(f"{who.actor}\n{url}\n".encode() + _sent(request, life=False)).hexdigest()
        request = msgspec.structs.replace(
            request, url=url, events=[webhook.QUEUE_READY], key=f"{webhook_format} {named}"
        )
        new = _checked(request, _new_secret(), who.actor)._replace(body_sha256=bytes.fromhex(named))
        subscription, replayed = await self._outbox.subscribe(who.tenant, new)
        if not replayed:
            return subscription
        return _found(await self._outbox.renew(who.tenant, subscription.id, new.expires_in_seconds), subscription.id)

    async def keep_calling(self, who: Principal, id: str, webhook_format: str, *, seconds: float) -> Subscription:
        """Extend a worker's active subscription; other callers cannot see it."""
        who.need("work")
        life = wire.seconds(seconds, "expires_in_seconds", 1, MAX_LIFE_SECONDS)
        found = _found(await self._outbox.subscription(who.tenant, _id(id)), id)
        ours = found.created_by == who.actor and format_of(found.url)[0] == webhook_format
        if not ours or not found.is_active(await self._now()):
            raise NotFound(id, resource="subscription")
        return _found(await self._outbox.renew(who.tenant, found.id, life), id)

    async def deliveries(self, who: Principal, filter: DeliveryFilter) -> list[Delivery]:
        """List deliveries, newest first: of a subscription (or its group), of a job, or all."""
        who.need("operate")
        _page(filter.limit)
        if filter.subscription_id is not None:
            filter = filter._replace(subscription_id=(await self.subscription(who, filter.subscription_id)).id)
        if filter.job_id is not None:
            filter = filter._replace(job_id=wire.job_id(filter.job_id))
        if filter.before is not None:
            filter = filter._replace(before=wire.job_id(filter.before, "before"))
        return await self._outbox.deliveries(who.tenant, filter)

    async def redeliver(self, who: Principal, id: str, *, subscription_id: str | None = None) -> Delivery:
        """Send a delivery again with the same ID and body, whether it succeeded or not.

        With `subscription_id`, only if the deliveries of that subscription include it.
        """
        who.need("operate")
        id = _id(id, what="delivery")
        if subscription_id is not None:
            listed = DeliveryFilter(subscription_id=subscription_id, id=id, limit=1)
            if not await self.deliveries(who, listed):
                raise NotFound(id, resource="delivery")
        found = await self._outbox.redeliver(who.tenant, id)
        if found is None:
            raise NotFound(id, resource="delivery")
        return found

    async def sweep_subscriptions(self) -> int:
        """Delete subscriptions that ended a day ago and deliveries completed a week ago; a maintenance task."""
        expired = await repeat_until_empty(lambda: self._outbox.sweep_subscriptions(ENDED_KEPT_SECONDS, BATCH_SIZE))
        return expired + await repeat_until_empty(
            lambda: self._outbox.forget_deliveries(DELIVERIES_KEPT_SECONDS, BATCH_SIZE)
        )


def _new_secret() -> str:
    return webhook.secret_of(secrets.token_bytes(webhook.SECRET_BYTES))


def _checked(request: SubscriptionRequest, secret: str, actor: str) -> NewSubscription:
    if request.mode not in tuple(Mode):
        raise Invalid(f"mode must be {' or '.join(Mode)}", pointer="/mode")
    mode = Mode(request.mode)
    if (mode is Mode.GROUP) != (request.group_id is not None):
        raise Invalid("group_id belongs to mode group, and that to it", pointer="/group_id")
    return NewSubscription(
        id=wire.new_id(),
        url=request.url,
        events=webhook.check_events(request.events),
        secret=secret,
        types=token.types(request.types),
        mode=mode,
        group_id=None if request.group_id is None else wire.name(request.group_id, "group_id"),
        min_interval_seconds=wire.seconds(request.min_interval_seconds, "min_interval_seconds", 0, MAX_INTERVAL_SECONDS)
        or 0.0,
        expires_in_seconds=wire.seconds(request.expires_in_seconds, "expires_in_seconds", 1, MAX_LIFE_SECONDS),
        created_by=actor,
        key=None if request.key is None else wire.name(request.key, "key"),
        body_sha256=None if request.key is None else hashlib.sha256(_sent(request)).digest(),
    )


def _sent(request: SubscriptionRequest, *, life: bool = True) -> bytes:
    """Encode what is compared for a repeated idempotency key: all but the key and, without `life`, the lifetime.

    Absent members are encoded as their defaults, so that it does not matter whether the caller or the server fills them
    in.
    """
    seconds = request.expires_in_seconds if life else None
    same = msgspec.structs.asdict(request) | {
        "key": None,
        "mode": str(request.mode),
        "min_interval_seconds": float(request.min_interval_seconds),
        "expires_in_seconds": None if seconds is None else float(seconds),
    }
    return msgspec.json.encode(same, order="sorted")


def _id(id: str, *, what: str = "subscription") -> str:
    """Normalize an ID; treat an invalid one as unknown."""
    try:
        return wire.job_id(id)
    except NotFound:
        raise NotFound(id, resource=what) from None


def _found(subscription: Subscription | None, id: str) -> Subscription:
    if subscription is None:
        raise NotFound(id, resource="subscription")
    return subscription


def _page(limit: int) -> int:
    return wire.whole(limit, "limit", 1, MAX_PAGE_SIZE)
