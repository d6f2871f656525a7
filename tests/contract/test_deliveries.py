"""What becomes of events on their way: taken, tried, given back, sent again, and swept; and the subscriptions they go to."""

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
from tests.contract.builders import NEVER, Desk, new_id, new_job
from tests.contract.connections import Door, refusal
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


async def test_what_is_taken_is_nobody_elses_until_its_lease_ends(remote: Desk) -> None:
    await listen(remote, "job.queued")
    await remote.add()
    (first,) = await take(remote)
    assert await take(remote) == []
    remote.clock.advance(LEASE)
    (second,) = await take(remote)
    assert second == first._replace(grab=first.grab + 1)
    assert not await settle(remote, first, OK)
    assert (await delivery(remote, first.id)).status is DeliveryStatus.PENDING
    assert await settle(remote, second, OK)
    assert not await settle(remote, second, AGAIN)
    assert (await delivery(remote, first.id)).status is DeliveryStatus.DELIVERED


async def test_takers_at_once_share_what_there_is(remote: Desk) -> None:
    await listen(remote, "job.queued")
    await remote.add_all([new_job() for _ in range(40)])
    taken = await asyncio.gather(*(take(remote, want=10) for _ in range(4)))
    ids = [d.id for part in taken for d in part]
    assert len(ids) == len(set(ids))
    ids += [d.id for d in await take(remote)]
    assert len(ids) == len(set(ids)) == 40


async def test_no_more_is_taken_of_a_channel_than_asked_for(remote: Desk) -> None:
    await listen(remote, "job.queued")
    await remote.add_all([new_job() for _ in range(5)])
    assert [len(await take(remote, want=2)) for _ in range(4)] == [2, 2, 1, 0]


async def test_what_is_given_back_was_not_tried(remote: Desk) -> None:
    await listen(remote, "job.queued")
    await remote.add()
    (reported,) = await take(remote)
    await remote.store.outbox.give_back(remote.tenant, reported.id, reported.grab, 1.0)
    assert await take(remote) == []
    remote.clock.advance(1)
    (again,) = await take(remote)
    assert (again.id, again.attempts) == (reported.id, 0)


async def test_a_delivery_shows_what_became_of_it(remote: Desk) -> None:
    mine = await listen(remote, "job.queued")
    job = await remote.add()
    started = remote.clock.now
    (reported,) = await take(remote)
    remote.clock.advance(1)
    await settle(remote, reported, AGAIN, 500)
    expected = Delivery(
        reported.id, "job.queued", job, mine.id, DeliveryStatus.FAILED, 1, started, remote.after(60), remote.clock.now, 500,
        "why", None, 0,
    )  # fmt: skip
    assert await deliveries(remote, subscription_id=mine.id) == await deliveries(remote, job_id=job) == [expected]
    remote.clock.advance(60)
    (reported,) = await take(remote)
    await settle(remote, reported, DEAD, 503)
    (encoded,) = await deliveries(remote, status=DeliveryStatus.DEAD)
    assert (encoded.attempts, encoded.next_try_at, encoded.settled_at, encoded.last_status_code) == (
        2, None, remote.clock.now, 503,
    )  # fmt: skip
    assert await deliveries(remote, status=DeliveryStatus.FAILED) == []


@pytest.mark.parametrize("outcome", [OK, AGAIN, DEAD])
async def test_anything_can_be_sent_again_as_it_was(remote: Desk, outcome: Outcome) -> None:
    await listen(remote, "job.queued", min_interval_seconds=5.0)
    await remote.add()
    (reported,) = await take(remote)
    await settle(remote, reported, outcome)
    again = await remote.store.outbox.redeliver(remote.tenant, reported.id)
    assert again is not None
    assert (again.status, again.attempts, again.settled_at) == (DeliveryStatus.PENDING, 0, None)
    (sent,) = await take(remote)
    assert sent == reported._replace(grab=sent.grab)


async def test_sending_again_beats_a_try_under_way(remote: Desk) -> None:
    await listen(remote, "job.queued")
    await remote.add()
    (reported,) = await take(remote)
    await remote.store.outbox.redeliver(remote.tenant, reported.id)
    assert not await settle(remote, reported, DEAD)
    assert len(await take(remote)) == 1


async def test_a_receiver_that_is_gone_is_told_nothing_more(remote: Desk) -> None:
    mine = await listen(remote, "job.queued")
    other = await listen(remote, "job.queued")
    await remote.add_all([new_job(), new_job()])
    first = next(d for d in await take(remote, want=1) if d.subscription_id == mine.id)
    await settle(remote, first, GONE, 410)
    encoded = await remote.store.outbox.subscription(remote.tenant, mine.id)
    assert encoded is not None
    assert (encoded.ended_at, encoded.ended_reason) == (remote.clock.now, "gone")
    assert {d.status for d in await deliveries(remote, subscription_id=mine.id)} == {DeliveryStatus.DEAD}
    await remote.add()
    remote.clock.advance(LEASE)
    assert {d.subscription_id for d in await take(remote)} == {other.id}
    await remote.store.outbox.renew(remote.tenant, mine.id, None)
    await remote.add()
    assert mine.id in {d.subscription_id for d in await take(remote)}


async def test_failures_in_a_row_are_counted(remote: Desk) -> None:
    mine = await listen(remote, "job.queued")

    async def failures() -> int:
        encoded = await remote.store.outbox.subscription(remote.tenant, mine.id)
        assert encoded is not None
        return encoded.failures

    await remote.add_all([new_job() for _ in range(20)])
    taken = await take(remote)
    for n, dispatch in enumerate(taken[:19], 1):
        await settle(remote, dispatch, AGAIN)
        assert await failures() == n
    await settle(remote, taken[19], OK)
    assert await failures() == 0


async def test_the_same_key_and_body_is_the_same_subscription(remote: Desk) -> None:
    new = NewSubscription(new_id(), "https://a.example/", ("job.queued",), "whsec_YQ==", key="k", body_sha256=b"one")
    outbox = remote.store.outbox
    first, replayed = await outbox.subscribe(remote.tenant, new)
    assert not replayed
    assert await outbox.subscribe(remote.tenant, new) == (first, False), "the very same call, repeated below us"
    assert await outbox.subscribe(remote.tenant, new._replace(id=new_id())) == (first, True)
    with pytest.raises(IdempotencyKeyReuse):
        await outbox.subscribe(remote.tenant, new._replace(id=new_id(), body_sha256=b"two"))
    assert await outbox.subscriptions(remote.tenant, limit=10) == [first]


async def test_a_tenant_has_so_many_subscriptions_and_no_more(remote: Desk) -> None:
    for _ in range(MAX_SUBSCRIPTIONS):
        await listen(remote, "job.queued")
    with pytest.raises(Invalid):
        await listen(remote, "job.queued")
    assert len(await remote.store.outbox.subscriptions(remote.tenant, limit=1000)) == MAX_SUBSCRIPTIONS


async def test_what_has_ended_takes_no_place_from_what_listens(remote: Desk) -> None:
    outbox = remote.store.outbox
    gone = await listen(remote, "job.queued")
    await remote.add()
    (dispatch,) = await take(remote)
    await settle(remote, dispatch, GONE, 410)
    old = [await listen(remote, "job.queued", expires_in_seconds=5.0) for _ in range(MAX_SUBSCRIPTIONS)]
    with pytest.raises(Invalid):
        await outbox.renew(remote.tenant, gone.id, None)
    remote.clock.advance(5)
    for _ in range(MAX_SUBSCRIPTIONS):
        await listen(remote, "job.queued")
    with pytest.raises(Invalid):
        await listen(remote, "job.queued")
    with pytest.raises(Invalid):
        await outbox.renew(remote.tenant, old[0].id, None)
    assert await outbox.subscription(remote.tenant, old[0].id) == old[0]
    last = (await outbox.subscriptions(remote.tenant, limit=1))[0]
    assert (await outbox.renew(remote.tenant, last.id, 60.0) or last).expires_at == remote.after(60)
    assert await outbox.unsubscribe(remote.tenant, last.id)
    assert (await outbox.renew(remote.tenant, old[0].id, None) or last).is_active(remote.clock.now)


async def test_those_that_ended_first_make_room_where_very_many_are_kept(remote: Desk) -> None:
    outbox = remote.store.outbox
    made: list[str] = []
    for n in range(MAX_KEPT):
        made.append((await listen(remote, "job.queued", expires_in_seconds=1.0)).id)
        if n % MAX_SUBSCRIPTIONS == MAX_SUBSCRIPTIONS - 1:
            remote.clock.advance(1)
    made.append((await listen(remote, "job.queued")).id)
    kept = {one.id for one in await outbox.subscriptions(remote.tenant, limit=2 * MAX_KEPT)}
    assert len(kept) == MAX_KEPT
    assert {*made} - kept <= {*made[:MAX_SUBSCRIPTIONS]}


async def test_lists_are_newest_first_and_paged(remote: Desk) -> None:
    outbox = remote.store.outbox
    subscriptions = [await listen(remote, "job.queued") for _ in range(5)]
    newest = await outbox.subscriptions(remote.tenant, limit=2)
    assert newest == subscriptions[:2:-1]
    assert await outbox.subscriptions(remote.tenant, before=newest[-1].id, limit=9) == subscriptions[2::-1]
    for n in range(5):
        await remote.add(type=f"t{n}")
        remote.clock.advance(1)
    mine = subscriptions[0].id
    whole = await deliveries(remote, subscription_id=mine)
    assert [d.created_at for d in whole] == sorted((d.created_at for d in whole), reverse=True)
    page = await deliveries(remote, subscription_id=mine, limit=2)
    assert page + await deliveries(remote, subscription_id=mine, before=page[-1].id) == whole
    assert len(whole) == 5


async def test_unsubscribing_takes_what_was_on_its_way_along(remote: Desk) -> None:
    mine, other = await listen(remote, "job.queued"), await listen(remote, "job.queued")
    await remote.add()
    assert await remote.store.outbox.unsubscribe(remote.tenant, mine.id)
    assert not await remote.store.outbox.unsubscribe(remote.tenant, mine.id)
    assert await remote.store.outbox.subscription(remote.tenant, mine.id) is None
    assert [d.subscription_id for d in await take(remote)] == [other.id]


async def test_what_has_ended_is_swept_after_a_while(remote: Desk) -> None:
    outbox = remote.store.outbox
    await listen(remote, "job.queued", expires_in_seconds=10.0)
    lasting = await listen(remote, "job.queued")
    await remote.add()
    taken = await take(remote)
    for dispatch in taken:
        await settle(remote, dispatch, OK)
    remote.clock.advance(69)
    await outbox.sweep_subscriptions(60.0, 1000)
    assert len(await outbox.subscriptions(remote.tenant, limit=10)) == 2
    remote.clock.advance(1)
    while await outbox.sweep_subscriptions(60.0, 1000):  # what other tests have left comes first
        pass
    assert await outbox.subscriptions(remote.tenant, limit=10) == [lasting]
    assert await outbox.forget_deliveries(71.0, 1000) == 0
    assert [d.status for d in await deliveries(remote)] == [DeliveryStatus.DELIVERED]
    assert await outbox.forget_deliveries(70.0, 1000) >= 1
    assert await deliveries(remote) == []


async def test_channels_come_in_turns_of_their_tenants(remote: Desk, neighbour: Desk) -> None:
    for _ in range(3):
        await listen(remote, "job.queued")
    await listen(neighbour, "job.queued")
    await remote.add_all([new_job() for _ in range(10)])
    remote.clock.advance(1)
    await neighbour.add()
    ours = (remote.tenant, neighbour.tenant)
    due = [channel.tenant for channel in await remote.store.outbox.due_channels(10_000) if channel.tenant in ours]
    assert due == [remote.tenant, neighbour.tenant, remote.tenant, remote.tenant]


async def test_a_foreign_subscription_or_delivery_is_like_an_unknown_one(remote: Desk, rival: Desk) -> None:
    outbox, tenant = remote.store.outbox, remote.tenant
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
    assert await deliveries(remote) == []
    assert await settle(rival, reported, OK)
    assert (await outbox.subscription(rival.tenant, theirs.id)) == theirs


async def test_a_row_that_is_neither_due_nor_settled_is_refused(remote: Desk, adapter: Door) -> None:
    await listen(remote, "job.queued")
    await remote.add()
    (reported,) = await take(remote)
    for change in ("next_try_at = null", "status = 'dead'", "status = 'lost'"):
        given = await refusal(
            adapter, f"update outbox set {change} where tenant = $1 and id = $2", remote.tenant, reported.id
        )
        assert "check" in given.lower()
