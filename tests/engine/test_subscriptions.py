"""Subscriptions from being made to their end, on both engines."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.principal import Principal
from interlock.domain.webhook import DeliveryFilter, Mode
from interlock.engine.engine import Engine
from interlock.errors import Forbidden, IdempotencyKeyReuse, Invalid, NotFound
from interlock.wire import SubscriptionRequest, job_request
from interlock.wire.encode import delivery_to_dict, subscription_to_dict
from tests.engine.deliveries import EVERYTHING, enqueue, subscribe
from tests.support.receiver import Receiver
from tests.support.stores import ManualClock


async def test_a_secret_is_shown_once(queue: Engine, who: Principal, there: Receiver) -> None:
    fields = {"key": "k", "types": ["t"], "expires_in_seconds": 60}
    first = await subscribe(queue, who, there.url, **fields)
    assert first.secret is not None
    assert first.secret.startswith("whsec_")
    again = await subscribe(queue, who, there.url, **fields)
    assert again == (first.subscription, None, True)
    with pytest.raises(IdempotencyKeyReuse):
        await subscribe(queue, who, there.url, key="k")
    encoded = subscription_to_dict(first.subscription, now=await queue.queries.now())
    assert encoded["active"]
    assert first.secret not in repr([encoded, await queue.webhooks.subscriptions(who)])


async def test_a_star_means_every_type_and_stands_alone(queue: Engine, who: Principal, there: Receiver) -> None:
    made = await subscribe(queue, who, there.url, types=["*"])
    assert made.subscription.types is None
    await enqueue(queue, who)
    assert await queue.webhooks.deliveries(who, DeliveryFilter(subscription_id=made.subscription.id))
    with pytest.raises(Invalid) as caught:
        await subscribe(queue, who, there.url, types=["*", "t"])
    assert caught.value.pointer == "/types"


async def test_an_omitted_field_equals_its_default(queue: Engine, who: Principal, there: Receiver) -> None:
    first = await subscribe(queue, who, there.url, key="k")
    given: dict[str, Any] = {"mode": "broadcast", "min_interval_seconds": 0, "types": None, "group_id": None}
    assert await subscribe(queue, who, there.url, key="k", **given) == (first.subscription, None, True)
    asked = SubscriptionRequest(url=there.url, events=["job.queued"], mode=Mode.BROADCAST, key="k")
    assert (await queue.webhooks.subscribe(who, asked)).replayed
    with pytest.raises(IdempotencyKeyReuse):
        await subscribe(queue, who, there.url, key="k", min_interval_seconds=1)


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"events": []}, "/events"),
        ({"events": ["job.done"]}, "/events/0"),
        ({"mode": "hash"}, "/mode"),
        ({"mode": "group"}, "/group_id"),
        ({"group_id": "g"}, "/group_id"),
        ({"mode": "group", "group_id": ""}, "/group_id"),
        ({"min_interval_seconds": -1}, "/min_interval_seconds"),
        ({"min_interval_seconds": 86_401}, "/min_interval_seconds"),
        ({"expires_in_seconds": 0}, "/expires_in_seconds"),
        ({"key": "a\nb"}, "/key"),
        ({"url": "https://127.0.0.1/"}, None),
        ({"url": "https://10.0.0.1/"}, "/url"),
        ({"url": "http://a.example/"}, "/url"),
        ({"secret": "whsec_mine"}, ""),
        ({"tenant": "other"}, ""),
    ],
)
async def test_a_subscription_is_validated(
    queue: Engine, who: Principal, there: Receiver, fields: dict[str, Any], pointer: str | None
) -> None:
    if pointer is None:
        assert await subscribe(queue, who, there.url, **fields)
        return
    with pytest.raises(Invalid) as caught:
        await subscribe(queue, who, there.url, **fields)
    assert caught.value.pointer == pointer
    assert await queue.webhooks.subscriptions(who) == []


@pytest.mark.parametrize("url", ["https://169.254.169.254/", "https://a.example:22/", "http://a.example/", "x"])
async def test_the_webhook_of_a_job_is_validated_too(queue: Engine, who: Principal, url: str) -> None:
    with pytest.raises(Invalid) as caught:
        await queue.jobs.enqueue(who, job_request({"type": "t", "webhook": url}))
    assert caught.value.pointer == "/webhook"


async def test_only_operators_may_manage_subscriptions(queue: Engine, who: Principal, there: Receiver) -> None:
    created = await subscribe(queue, who, there.url)
    weak = who._replace(roles=frozenset({"read", "produce", "work", "approve"}))
    id = created.subscription.id
    for call in (
        subscribe(queue, weak, there.url),
        queue.webhooks.subscriptions(weak),
        queue.webhooks.subscription(weak, id),
        queue.webhooks.unsubscribe(weak, id),
        queue.webhooks.renew(weak, id),
        queue.webhooks.rotate(weak, id),
        queue.webhooks.rotate_job_secret(weak),
        queue.webhooks.deliveries(weak, EVERYTHING),
        queue.webhooks.redeliver(weak, id),
    ):
        with pytest.raises(Forbidden):
            await call


@pytest.mark.parametrize("id", ["nonsense", "0193a1b2-ffff-7fff-8fff-ffffffffffff"])
async def test_an_unknown_subscription_is_not_found(queue: Engine, who: Principal, id: str) -> None:
    for call, what in (
        (queue.webhooks.subscription(who, id), "subscription"),
        (queue.webhooks.unsubscribe(who, id), "subscription"),
        (queue.webhooks.renew(who, id), "subscription"),
        (queue.webhooks.rotate(who, id), "subscription"),
        (queue.webhooks.deliveries(who, DeliveryFilter(subscription_id=id)), "subscription"),
        (queue.webhooks.redeliver(who, id), "delivery"),
    ):
        with pytest.raises(NotFound, match=f"no {what} {id}"):
            await call


async def test_a_delivery_is_returned_with_readable_times(queue: Engine, who: Principal, there: Receiver) -> None:
    await subscribe(queue, who, there.url)
    await enqueue(queue, who)
    (reported,) = await queue.webhooks.deliveries(who, EVERYTHING)
    encoded = delivery_to_dict(reported)
    assert encoded["created_at"] == encoded["next_try_at"] == "2027-01-15T08:00:00.000000Z"
    assert (encoded["status"], encoded["settled_at"]) == ("pending", None)


async def test_disabled_subscriptions_are_deleted(
    queue: Engine, who: Principal, there: Receiver, clock: ManualClock
) -> None:
    await subscribe(queue, who, there.url, expires_in_seconds=10)
    clock.advance(11 + 86_400)
    assert await queue.webhooks.sweep_subscriptions() == 1
    assert await queue.webhooks.subscriptions(who) == []
