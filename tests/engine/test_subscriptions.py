"""Subscriptions from being made to their end, on both engines."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.principal import Principal
from interlock.domain.webhook import DeliveryFilter, Mode
from interlock.engine.engine import Engine
from interlock.engine.webhooks import SubscriptionRequest, delivery_to_dict, subscription_to_dict
from interlock.errors import Forbidden, IdempotencyKeyReuse, Invalid, NotFound
from interlock.wire import job_request
from tests.engine.deliveries import EVERYTHING, enqueue, subscribe
from tests.support.receiver import Receiver
from tests.support.stores import ManualClock


async def test_a_secret_is_shown_once(desk: Engine, who: Principal, there: Receiver) -> None:
    fields = {"key": "k", "types": ["t"], "expires_in_seconds": 60}
    first = await subscribe(desk, who, there.url, **fields)
    assert first.secret is not None
    assert first.secret.startswith("whsec_")
    again = await subscribe(desk, who, there.url, **fields)
    assert again == (first.subscription, None, True)
    with pytest.raises(IdempotencyKeyReuse):
        await subscribe(desk, who, there.url, key="k")
    shown = subscription_to_dict(first.subscription, now=await desk.reads.now())
    assert shown["active"]
    assert first.secret not in repr([shown, await desk.webhooks.subscriptions(who)])


async def test_a_star_stands_for_every_type_and_for_itself_alone(desk: Engine, who: Principal, there: Receiver) -> None:
    made = await subscribe(desk, who, there.url, types=["*"])
    assert made.subscription.types is None
    await enqueue(desk, who)
    assert await desk.webhooks.deliveries(who, DeliveryFilter(subscription_id=made.subscription.id))
    with pytest.raises(Invalid) as caught:
        await subscribe(desk, who, there.url, types=["*", "t"])
    assert caught.value.pointer == "/types"


async def test_what_a_request_leaves_out_is_the_same_as_its_default_said(
    desk: Engine, who: Principal, there: Receiver
) -> None:
    first = await subscribe(desk, who, there.url, key="k")
    said: dict[str, Any] = {"mode": "broadcast", "min_interval_seconds": 0, "types": None, "group_id": None}
    assert await subscribe(desk, who, there.url, key="k", **said) == (first.subscription, None, True)
    asked = SubscriptionRequest(url=there.url, events=["job.queued"], mode=Mode.BROADCAST, key="k")
    assert (await desk.webhooks.subscribe(who, asked)).replayed
    with pytest.raises(IdempotencyKeyReuse):
        await subscribe(desk, who, there.url, key="k", min_interval_seconds=1)


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
async def test_a_request_is_checked(
    desk: Engine, who: Principal, there: Receiver, fields: dict[str, Any], pointer: str | None
) -> None:
    if pointer is None:
        assert await subscribe(desk, who, there.url, **fields)
        return
    with pytest.raises(Invalid) as caught:
        await subscribe(desk, who, there.url, **fields)
    assert caught.value.pointer == pointer
    assert await desk.webhooks.subscriptions(who) == []


@pytest.mark.parametrize("url", ["https://169.254.169.254/", "https://a.example:22/", "http://a.example/", "x"])
async def test_a_jobs_webhook_is_checked_too(desk: Engine, who: Principal, url: str) -> None:
    with pytest.raises(Invalid) as caught:
        await desk.jobs.enqueue(who, job_request({"type": "t", "webhook": url}))
    assert caught.value.pointer == "/webhook"


async def test_only_operators_may(desk: Engine, who: Principal, there: Receiver) -> None:
    created = await subscribe(desk, who, there.url)
    weak = who._replace(roles=frozenset({"read", "produce", "work", "approve"}))
    id = created.subscription.id
    for call in (
        subscribe(desk, weak, there.url),
        desk.webhooks.subscriptions(weak),
        desk.webhooks.subscription(weak, id),
        desk.webhooks.unsubscribe(weak, id),
        desk.webhooks.renew(weak, id),
        desk.webhooks.rotate(weak, id),
        desk.webhooks.rotate_job_secret(weak),
        desk.webhooks.deliveries(weak, EVERYTHING),
        desk.webhooks.redeliver(weak, id),
    ):
        with pytest.raises(Forbidden):
            await call


@pytest.mark.parametrize("id", ["nonsense", "0193a1b2-ffff-7fff-8fff-ffffffffffff"])
async def test_what_is_not_there_is_not_found(desk: Engine, who: Principal, id: str) -> None:
    for call, what in (
        (desk.webhooks.subscription(who, id), "subscription"),
        (desk.webhooks.unsubscribe(who, id), "subscription"),
        (desk.webhooks.renew(who, id), "subscription"),
        (desk.webhooks.rotate(who, id), "subscription"),
        (desk.webhooks.deliveries(who, DeliveryFilter(subscription_id=id)), "subscription"),
        (desk.webhooks.redeliver(who, id), "delivery"),
    ):
        with pytest.raises(NotFound, match=f"no {what} {id}"):
            await call


async def test_a_delivery_is_shown_with_times_people_can_read(desk: Engine, who: Principal, there: Receiver) -> None:
    await subscribe(desk, who, there.url)
    await enqueue(desk, who)
    (told,) = await desk.webhooks.deliveries(who, EVERYTHING)
    shown = delivery_to_dict(told)
    assert shown["created_at"] == shown["next_try_at"] == "2027-01-15T08:00:00.000000Z"
    assert (shown["status"], shown["settled_at"]) == ("pending", None)


async def test_what_ended_is_swept(desk: Engine, who: Principal, there: Receiver, clock: ManualClock) -> None:
    await subscribe(desk, who, there.url, expires_in_seconds=10)
    clock.advance(11 + 86_400)
    assert await desk.webhooks.sweep_subscriptions() == 1
    assert await desk.webhooks.subscriptions(who) == []
