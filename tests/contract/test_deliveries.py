"""Deliveries: claimed, sent, released, retried and swept; and the subscriptions they belong to."""

from __future__ import annotations

import asyncio

import pytest

from interlock.domain.webhook import (
    MAX_KEPT,
    MAX_SUBSCRIPTIONS,
    Delivery,
    DeliveryFilter,
    DeliveryResult,
    DeliveryStatus,
    NewSubscription,
    Outcome,
)  # fmt: skip
from interlock.errors import IdempotencyKeyReuse, Invalid
from tests.contract.builders import NEVER, TenantQueue, new_id, new_job
from tests.contract.connections import SqlConnection, rejection
from tests.contract.webhooks import (
    AGAIN,
    DEAD,
    GONE,
    LEASE,
    OK,
    deliveries,
    delivery,
    listen,
    settle,
    take,
)  # fmt: skip


async def test_a_leased_delivery_is_exclusive_until_its_lease_expires(queue: TenantQueue) -> None:
    await listen(queue, "job.queued")
    await queue.add()
    (first,) = await take(queue)
    assert await take(queue) == []
    queue.clock.advance(LEASE)
    (second,) = await take(queue)
    assert second == first._replace(grab=first.grab + 1)
    assert not await settle(queue, first, OK)
    assert (await delivery(queue, first.id)).status is DeliveryStatus.PENDING
    assert await settle(queue, second, OK)
    assert not await settle(queue, second, AGAIN)
    assert (await delivery(queue, first.id)).status is DeliveryStatus.DELIVERED


async def test_concurrent_senders_share_the_deliveries(queue: TenantQueue) -> None:
    await listen(queue, "job.queued")
    await queue.add_all([new_job() for _ in range(40)])
    taken = await asyncio.gather(*(take(queue, want=10) for _ in range(4)))
    ids = [d.id for part in taken for d in part]
    assert len(ids) == len(set(ids))
    ids += [d.id for d in await take(queue)]
    assert len(ids) == len(set(ids)) == 40


async def test_no_more_deliveries_of_a_channel_are_leased_than_requested(queue: TenantQueue) -> None:
    await listen(queue, "job.queued")
    await queue.add_all([new_job() for _ in range(5)])
    assert [len(await take(queue, want=2)) for _ in range(4)] == [2, 2, 1, 0]


async def test_a_released_delivery_uses_no_attempt(queue: TenantQueue) -> None:
    await listen(queue, "job.queued")
    await queue.add()
    (reported,) = await take(queue)
    await queue.store.outbox.give_back(queue.tenant, reported.id, reported.grab, 1.0)
    assert await take(queue) == []
    queue.clock.advance(1)
    (again,) = await take(queue)
    assert (again.id, again.attempts) == (reported.id, 0)


async def test_a_delivery_shows_its_outcome(queue: TenantQueue) -> None:
    mine = await listen(queue, "job.queued")
    job = await queue.add()
    started = queue.clock.now
    (reported,) = await take(queue)
    queue.clock.advance(1)
    await settle(queue, reported, AGAIN, 500)
    expected = Delivery(
        reported.id, "job.queued", job, mine.id, DeliveryStatus.FAILED, 1, started, queue.after(60), queue.clock.now, 500,
        "why", None, 0,
    )  # fmt: skip
    assert await deliveries(queue, subscription_id=mine.id) == await deliveries(queue, job_id=job) == [expected]
    queue.clock.advance(60)
    (reported,) = await take(queue)
    await settle(queue, reported, DEAD, 503)
    (encoded,) = await deliveries(queue, status=DeliveryStatus.DEAD)
    assert (encoded.attempts, encoded.next_try_at, encoded.settled_at, encoded.last_status_code) == (
        2, None, queue.clock.now, 503,
    )  # fmt: skip
    assert await deliveries(queue, status=DeliveryStatus.FAILED) == []


@pytest.mark.parametrize("outcome", [OK, AGAIN, DEAD])
async def test_any_delivery_can_be_sent_again_unchanged(queue: TenantQueue, outcome: Outcome) -> None:
    await listen(queue, "job.queued", min_interval_seconds=5.0)
    await queue.add()
    (reported,) = await take(queue)
    await settle(queue, reported, outcome)
    again = await queue.store.outbox.redeliver(queue.tenant, reported.id)
    assert again is not None
    assert (again.status, again.attempts, again.settled_at) == (DeliveryStatus.PENDING, 0, None)
    (sent,) = await take(queue)
    assert sent == reported._replace(grab=sent.grab)


async def test_sending_again_overrides_an_attempt_in_progress(queue: TenantQueue) -> None:
    await listen(queue, "job.queued")
    await queue.add()
    (reported,) = await take(queue)
    await queue.store.outbox.redeliver(queue.tenant, reported.id)
    assert not await settle(queue, reported, DEAD)
    assert len(await take(queue)) == 1


async def test_a_gone_receiver_gets_no_more_deliveries(queue: TenantQueue) -> None:
    mine = await listen(queue, "job.queued")
    other = await listen(queue, "job.queued")
    await queue.add_all([new_job(), new_job()])
    first = next(d for d in await take(queue, want=1) if d.subscription_id == mine.id)
    await settle(queue, first, GONE, 410)
    encoded = await queue.store.outbox.subscription(queue.tenant, mine.id)
    assert encoded is not None
    assert (encoded.ended_at, encoded.ended_reason) == (queue.clock.now, "gone")
    assert {d.status for d in await deliveries(queue, subscription_id=mine.id)} == {DeliveryStatus.DEAD}
    await queue.add()
    queue.clock.advance(LEASE)
    assert {d.subscription_id for d in await take(queue)} == {other.id}
    await queue.store.outbox.renew(queue.tenant, mine.id, None)
    await queue.add()
    assert mine.id in {d.subscription_id for d in await take(queue)}


async def test_consecutive_failures_are_counted(queue: TenantQueue) -> None:
    mine = await listen(queue, "job.queued")

    async def failures() -> int:
        encoded = await queue.store.outbox.subscription(queue.tenant, mine.id)
        assert encoded is not None
        return encoded.failures

    await queue.add_all([new_job() for _ in range(20)])
    taken = await take(queue)
    for n, dispatch in enumerate(taken[:19], 1):
        await settle(queue, dispatch, AGAIN)
        assert await failures() == n
    await settle(queue, taken[19], OK)
    assert await failures() == 0


async def test_the_same_key_and_body_return_the_same_subscription(queue: TenantQueue) -> None:
    new = NewSubscription(new_id(), "https://a.example/", ("job.queued",), "whsec_YQ==", key="k", body_sha256=b"one")
    outbox = queue.store.outbox
    first, replayed = await outbox.subscribe(queue.tenant, new)
    assert not replayed
    assert await outbox.subscribe(queue.tenant, new) == (first, False), "the very same call, repeated below us"
    assert await outbox.subscribe(queue.tenant, new._replace(id=new_id())) == (first, True)
    with pytest.raises(IdempotencyKeyReuse):
        await outbox.subscribe(queue.tenant, new._replace(id=new_id(), body_sha256=b"two"))
    assert await outbox.subscriptions(queue.tenant, limit=10) == [first]


async def test_the_number_of_subscriptions_of_a_tenant_is_limited(queue: TenantQueue) -> None:
    for _ in range(MAX_SUBSCRIPTIONS):
        await listen(queue, "job.queued")
    with pytest.raises(Invalid):
        await listen(queue, "job.queued")
    assert len(await queue.store.outbox.subscriptions(queue.tenant, limit=1000)) == MAX_SUBSCRIPTIONS


async def test_disabled_subscriptions_do_not_count_towards_the_limit(queue: TenantQueue) -> None:
    outbox = queue.store.outbox
    gone = await listen(queue, "job.queued")
    await queue.add()
    (dispatch,) = await take(queue)
    await settle(queue, dispatch, GONE, 410)
    old = [await listen(queue, "job.queued", expires_in_seconds=5.0) for _ in range(MAX_SUBSCRIPTIONS)]
    with pytest.raises(Invalid):
        await outbox.renew(queue.tenant, gone.id, None)
    queue.clock.advance(5)
    for _ in range(MAX_SUBSCRIPTIONS):
        await listen(queue, "job.queued")
    with pytest.raises(Invalid):
        await listen(queue, "job.queued")
    with pytest.raises(Invalid):
        await outbox.renew(queue.tenant, old[0].id, None)
    assert await outbox.subscription(queue.tenant, old[0].id) == old[0]
    last = (await outbox.subscriptions(queue.tenant, limit=1))[0]
    assert (await outbox.renew(queue.tenant, last.id, 60.0) or last).expires_at == queue.after(60)
    assert await outbox.unsubscribe(queue.tenant, last.id)
    assert (await outbox.renew(queue.tenant, old[0].id, None) or last).is_active(queue.clock.now)


async def test_the_oldest_disabled_subscriptions_are_deleted_at_the_upper_limit(queue: TenantQueue) -> None:
    outbox = queue.store.outbox
    made: list[str] = []
    for n in range(MAX_KEPT):
        made.append((await listen(queue, "job.queued", expires_in_seconds=1.0)).id)
        if n % MAX_SUBSCRIPTIONS == MAX_SUBSCRIPTIONS - 1:
            queue.clock.advance(1)
    made.append((await listen(queue, "job.queued")).id)
    kept = {one.id for one in await outbox.subscriptions(queue.tenant, limit=2 * MAX_KEPT)}
    assert len(kept) == MAX_KEPT
    assert {*made} - kept <= {*made[:MAX_SUBSCRIPTIONS]}


async def test_lists_are_newest_first_and_paged(queue: TenantQueue) -> None:
    outbox = queue.store.outbox
    subscriptions = [await listen(queue, "job.queued") for _ in range(5)]
    newest = await outbox.subscriptions(queue.tenant, limit=2)
    assert newest == subscriptions[:2:-1]
    assert await outbox.subscriptions(queue.tenant, before=newest[-1].id, limit=9) == subscriptions[2::-1]
    for n in range(5):
        await queue.add(type=f"t{n}")
        queue.clock.advance(1)
    mine = subscriptions[0].id
    whole = await deliveries(queue, subscription_id=mine)
    assert [d.created_at for d in whole] == sorted((d.created_at for d in whole), reverse=True)
    page = await deliveries(queue, subscription_id=mine, limit=2)
    assert page + await deliveries(queue, subscription_id=mine, before=page[-1].id) == whole
    assert len(whole) == 5


async def test_unsubscribing_deletes_pending_deliveries(queue: TenantQueue) -> None:
    mine, other = await listen(queue, "job.queued"), await listen(queue, "job.queued")
    await queue.add()
    assert await queue.store.outbox.unsubscribe(queue.tenant, mine.id)
    assert not await queue.store.outbox.unsubscribe(queue.tenant, mine.id)
    assert await queue.store.outbox.subscription(queue.tenant, mine.id) is None
    assert [d.subscription_id for d in await take(queue)] == [other.id]


async def test_disabled_subscriptions_are_deleted_after_a_while(queue: TenantQueue) -> None:
    outbox = queue.store.outbox
    await listen(queue, "job.queued", expires_in_seconds=10.0)
    lasting = await listen(queue, "job.queued")
    await queue.add()
    taken = await take(queue)
    for dispatch in taken:
        await settle(queue, dispatch, OK)
    queue.clock.advance(69)
    await outbox.sweep_subscriptions(60.0, 1000)
    assert len(await outbox.subscriptions(queue.tenant, limit=10)) == 2
    queue.clock.advance(1)
    while await outbox.sweep_subscriptions(60.0, 1000):  # what other tests have left comes first
        pass
    assert await outbox.subscriptions(queue.tenant, limit=10) == [lasting]
    assert await outbox.forget_deliveries(71.0, 1000) == 0
    assert [d.status for d in await deliveries(queue)] == [DeliveryStatus.DELIVERED]
    assert await outbox.forget_deliveries(70.0, 1000) >= 1
    assert await deliveries(queue) == []


async def test_channels_are_served_round_robin_by_tenant(queue: TenantQueue, neighbour: TenantQueue) -> None:
    for _ in range(3):
        await listen(queue, "job.queued")
    await listen(neighbour, "job.queued")
    await queue.add_all([new_job() for _ in range(10)])
    queue.clock.advance(1)
    await neighbour.add()
    ours = (queue.tenant, neighbour.tenant)
    due = [channel.tenant for channel in await queue.store.outbox.due_channels(10_000) if channel.tenant in ours]
    assert due == [queue.tenant, neighbour.tenant, queue.tenant, queue.tenant]


async def test_a_foreign_subscription_or_delivery_is_treated_like_an_unknown_one(
    queue: TenantQueue, rival: TenantQueue
) -> None:
    outbox, tenant = queue.store.outbox, queue.tenant
    theirs = await listen(rival, "job.queued")
    await rival.add()
    (reported,) = await take(rival)
    for id in (theirs.id, NEVER):
        assert await outbox.subscription(tenant, id) is None
        assert not await outbox.unsubscribe(tenant, id)
        assert await outbox.renew(tenant, id, 1.0) is None
        assert not await outbox.rotate(tenant, id, "whsec_ZXZpbA==", 0.0)
        assert await outbox.deliveries(tenant, DeliveryFilter(subscription_id=id)) == []
    assert await outbox.redeliver(tenant, reported.id) is None
    assert not await outbox.settle(tenant, DeliveryResult(reported.id, reported.grab, DEAD, None, None))
    await outbox.give_back(tenant, reported.id, reported.grab, 0.0)
    assert await outbox.take(tenant, [(reported.channel, 9)], lease_seconds=LEASE, fresh_secret="whsec_YQ==") == []
    assert await deliveries(queue) == []
    assert await settle(rival, reported, OK)
    assert (await outbox.subscription(rival.tenant, theirs.id)) == theirs


async def test_a_row_that_is_neither_due_nor_completed_is_rejected(queue: TenantQueue, sql: SqlConnection) -> None:
    await listen(queue, "job.queued")
    await queue.add()
    (reported,) = await take(queue)
    for change in ("next_try_at = null", "status = 'dead'", "status = 'lost'"):
        given = await rejection(
            sql, f"update outbox set {change} where tenant = $1 and id = $2", queue.tenant, reported.id
        )
        assert "check" in given.lower()
