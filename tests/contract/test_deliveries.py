"""What becomes of events on their way: taken, tried, given back, sent again, and swept; and the subscriptions they go to."""

from __future__ import annotations

import asyncio

import pytest

from interlock.domain.webhook import (
    MOST_KEPT,
    MOST_SUBSCRIPTIONS,
    Delivery,
    DeliveryFilter,
    DeliveryStatus,
    NewSubscription,
    Outcome,
    Settlement,
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


async def test_what_is_taken_is_nobody_elses_until_its_lease_ends(desk: Desk) -> None:
    await listen(desk, "job.queued")
    await desk.add()
    (first,) = await take(desk)
    assert await take(desk) == []
    desk.clock.advance(LEASE)
    (second,) = await take(desk)
    assert second == first._replace(grab=first.grab + 1)
    assert not await settle(desk, first, OK)
    assert (await delivery(desk, first.id)).status is DeliveryStatus.PENDING
    assert await settle(desk, second, OK)
    assert not await settle(desk, second, AGAIN)
    assert (await delivery(desk, first.id)).status is DeliveryStatus.DELIVERED


async def test_takers_at_once_share_what_there_is(desk: Desk) -> None:
    await listen(desk, "job.queued")
    await desk.add_all([new_job() for _ in range(40)])
    taken = await asyncio.gather(*(take(desk, want=10) for _ in range(4)))
    ids = [d.id for part in taken for d in part]
    assert len(ids) == len(set(ids))
    ids += [d.id for d in await take(desk)]
    assert len(ids) == len(set(ids)) == 40


async def test_no_more_is_taken_of_a_channel_than_asked_for(desk: Desk) -> None:
    await listen(desk, "job.queued")
    await desk.add_all([new_job() for _ in range(5)])
    assert [len(await take(desk, want=2)) for _ in range(4)] == [2, 2, 1, 0]


async def test_what_is_given_back_was_not_tried(desk: Desk) -> None:
    await listen(desk, "job.queued")
    await desk.add()
    (told,) = await take(desk)
    await desk.store.outbox.give_back(desk.tenant, told.id, told.grab, 1.0)
    assert await take(desk) == []
    desk.clock.advance(1)
    (again,) = await take(desk)
    assert (again.id, again.attempts) == (told.id, 0)


async def test_a_delivery_shows_what_became_of_it(desk: Desk) -> None:
    mine = await listen(desk, "job.queued")
    job = await desk.add()
    started = desk.clock.now
    (told,) = await take(desk)
    desk.clock.advance(1)
    await settle(desk, told, AGAIN, 500)
    expected = Delivery(
        told.id, "job.queued", job, mine.id, DeliveryStatus.FAILED, 1, started, desk.after(60), desk.clock.now, 500,
        "why", None, 0,
    )  # fmt: skip
    assert await deliveries(desk, subscription_id=mine.id) == await deliveries(desk, job_id=job) == [expected]
    desk.clock.advance(60)
    (told,) = await take(desk)
    await settle(desk, told, DEAD, 503)
    (shown,) = await deliveries(desk, status=DeliveryStatus.DEAD)
    assert (shown.attempts, shown.next_try_at, shown.settled_at, shown.last_status_code) == (
        2, None, desk.clock.now, 503,
    )  # fmt: skip
    assert await deliveries(desk, status=DeliveryStatus.FAILED) == []


@pytest.mark.parametrize("outcome", [OK, AGAIN, DEAD])
async def test_anything_can_be_sent_again_as_it_was(desk: Desk, outcome: Outcome) -> None:
    await listen(desk, "job.queued", min_interval_seconds=5.0)
    await desk.add()
    (told,) = await take(desk)
    await settle(desk, told, outcome)
    again = await desk.store.outbox.redeliver(desk.tenant, told.id)
    assert again is not None
    assert (again.status, again.attempts, again.settled_at) == (DeliveryStatus.PENDING, 0, None)
    (sent,) = await take(desk)
    assert sent == told._replace(grab=sent.grab)


async def test_sending_again_beats_a_try_under_way(desk: Desk) -> None:
    await listen(desk, "job.queued")
    await desk.add()
    (told,) = await take(desk)
    await desk.store.outbox.redeliver(desk.tenant, told.id)
    assert not await settle(desk, told, DEAD)
    assert len(await take(desk)) == 1


async def test_a_receiver_that_is_gone_is_told_nothing_more(desk: Desk) -> None:
    mine = await listen(desk, "job.queued")
    other = await listen(desk, "job.queued")
    await desk.add_all([new_job(), new_job()])
    first = next(d for d in await take(desk, want=1) if d.subscription_id == mine.id)
    await settle(desk, first, GONE, 410)
    shown = await desk.store.outbox.subscription(desk.tenant, mine.id)
    assert shown is not None
    assert (shown.ended_at, shown.ended_reason) == (desk.clock.now, "gone")
    assert {d.status for d in await deliveries(desk, subscription_id=mine.id)} == {DeliveryStatus.DEAD}
    await desk.add()
    desk.clock.advance(LEASE)
    assert {d.subscription_id for d in await take(desk)} == {other.id}
    await desk.store.outbox.renew(desk.tenant, mine.id, None)
    await desk.add()
    assert mine.id in {d.subscription_id for d in await take(desk)}


async def test_failures_in_a_row_are_counted(desk: Desk) -> None:
    mine = await listen(desk, "job.queued")

    async def failures() -> int:
        shown = await desk.store.outbox.subscription(desk.tenant, mine.id)
        assert shown is not None
        return shown.failures

    await desk.add_all([new_job() for _ in range(20)])
    taken = await take(desk)
    for n, dispatch in enumerate(taken[:19], 1):
        await settle(desk, dispatch, AGAIN)
        assert await failures() == n
    await settle(desk, taken[19], OK)
    assert await failures() == 0


async def test_the_same_key_and_body_is_the_same_subscription(desk: Desk) -> None:
    new = NewSubscription(new_id(), "https://a.example/", ("job.queued",), "whsec_YQ==", key="k", body_sha256=b"one")
    outbox = desk.store.outbox
    first, replayed = await outbox.subscribe(desk.tenant, new)
    assert not replayed
    assert await outbox.subscribe(desk.tenant, new) == (first, False), "the very same call, repeated below us"
    assert await outbox.subscribe(desk.tenant, new._replace(id=new_id())) == (first, True)
    with pytest.raises(IdempotencyKeyReuse):
        await outbox.subscribe(desk.tenant, new._replace(id=new_id(), body_sha256=b"two"))
    assert await outbox.subscriptions(desk.tenant, limit=10) == [first]


async def test_a_tenant_has_so_many_subscriptions_and_no_more(desk: Desk) -> None:
    for _ in range(MOST_SUBSCRIPTIONS):
        await listen(desk, "job.queued")
    with pytest.raises(Invalid):
        await listen(desk, "job.queued")
    assert len(await desk.store.outbox.subscriptions(desk.tenant, limit=1000)) == MOST_SUBSCRIPTIONS


async def test_what_has_ended_takes_no_place_from_what_listens(desk: Desk) -> None:
    outbox = desk.store.outbox
    gone = await listen(desk, "job.queued")
    await desk.add()
    (dispatch,) = await take(desk)
    await settle(desk, dispatch, GONE, 410)
    old = [await listen(desk, "job.queued", expires_in_seconds=5.0) for _ in range(MOST_SUBSCRIPTIONS)]
    with pytest.raises(Invalid):
        await outbox.renew(desk.tenant, gone.id, None)
    desk.clock.advance(5)
    for _ in range(MOST_SUBSCRIPTIONS):
        await listen(desk, "job.queued")
    with pytest.raises(Invalid):
        await listen(desk, "job.queued")
    with pytest.raises(Invalid):
        await outbox.renew(desk.tenant, old[0].id, None)
    assert await outbox.subscription(desk.tenant, old[0].id) == old[0]
    last = (await outbox.subscriptions(desk.tenant, limit=1))[0]
    assert (await outbox.renew(desk.tenant, last.id, 60.0) or last).expires_at == desk.after(60)
    assert await outbox.unsubscribe(desk.tenant, last.id)
    assert (await outbox.renew(desk.tenant, old[0].id, None) or last).is_active(desk.clock.now)


async def test_those_that_ended_first_make_room_where_very_many_are_kept(desk: Desk) -> None:
    outbox = desk.store.outbox
    made: list[str] = []
    for n in range(MOST_KEPT):
        made.append((await listen(desk, "job.queued", expires_in_seconds=1.0)).id)
        if n % MOST_SUBSCRIPTIONS == MOST_SUBSCRIPTIONS - 1:
            desk.clock.advance(1)
    made.append((await listen(desk, "job.queued")).id)
    kept = {one.id for one in await outbox.subscriptions(desk.tenant, limit=2 * MOST_KEPT)}
    assert len(kept) == MOST_KEPT
    assert {*made} - kept <= {*made[:MOST_SUBSCRIPTIONS]}


async def test_lists_are_newest_first_and_paged(desk: Desk) -> None:
    outbox = desk.store.outbox
    subscriptions = [await listen(desk, "job.queued") for _ in range(5)]
    newest = await outbox.subscriptions(desk.tenant, limit=2)
    assert newest == subscriptions[:2:-1]
    assert await outbox.subscriptions(desk.tenant, before=newest[-1].id, limit=9) == subscriptions[2::-1]
    for n in range(5):
        await desk.add(type=f"t{n}")
        desk.clock.advance(1)
    mine = subscriptions[0].id
    whole = await deliveries(desk, subscription_id=mine)
    assert [d.created_at for d in whole] == sorted((d.created_at for d in whole), reverse=True)
    page = await deliveries(desk, subscription_id=mine, limit=2)
    assert page + await deliveries(desk, subscription_id=mine, before=page[-1].id) == whole
    assert len(whole) == 5


async def test_unsubscribing_takes_what_was_on_its_way_along(desk: Desk) -> None:
    mine, other = await listen(desk, "job.queued"), await listen(desk, "job.queued")
    await desk.add()
    assert await desk.store.outbox.unsubscribe(desk.tenant, mine.id)
    assert not await desk.store.outbox.unsubscribe(desk.tenant, mine.id)
    assert await desk.store.outbox.subscription(desk.tenant, mine.id) is None
    assert [d.subscription_id for d in await take(desk)] == [other.id]


async def test_what_has_ended_is_swept_after_a_while(desk: Desk) -> None:
    outbox = desk.store.outbox
    await listen(desk, "job.queued", expires_in_seconds=10.0)
    lasting = await listen(desk, "job.queued")
    await desk.add()
    taken = await take(desk)
    for dispatch in taken:
        await settle(desk, dispatch, OK)
    desk.clock.advance(69)
    await outbox.sweep_subscriptions(60.0, 1000)
    assert len(await outbox.subscriptions(desk.tenant, limit=10)) == 2
    desk.clock.advance(1)
    assert await outbox.sweep_subscriptions(60.0, 1000) >= 1
    assert await outbox.subscriptions(desk.tenant, limit=10) == [lasting]
    assert await outbox.forget_deliveries(71.0, 1000) == 0
    assert [d.status for d in await deliveries(desk)] == [DeliveryStatus.DELIVERED]
    assert await outbox.forget_deliveries(70.0, 1000) >= 1
    assert await deliveries(desk) == []


async def test_channels_come_in_turns_of_their_tenants(desk: Desk, neighbour: Desk) -> None:
    for _ in range(3):
        await listen(desk, "job.queued")
    await listen(neighbour, "job.queued")
    await desk.add_all([new_job() for _ in range(10)])
    desk.clock.advance(1)
    await neighbour.add()
    ours = (desk.tenant, neighbour.tenant)
    due = [channel.tenant for channel in await desk.store.outbox.due_channels(10_000) if channel.tenant in ours]
    assert due == [desk.tenant, neighbour.tenant, desk.tenant, desk.tenant]


async def test_a_foreign_subscription_or_delivery_is_like_an_unknown_one(desk: Desk, rival: Desk) -> None:
    outbox, tenant = desk.store.outbox, desk.tenant
    theirs = await listen(rival, "job.queued")
    await rival.add()
    (told,) = await take(rival)
    for id in (theirs.id, NEVER):
        assert await outbox.subscription(tenant, id) is None
        assert not await outbox.unsubscribe(tenant, id)
        assert await outbox.renew(tenant, id, 1.0) is None
        assert not await outbox.rotate(tenant, id, "whsec_ZXZpbA==", 0.0)
        assert await outbox.deliveries(tenant, DeliveryFilter(subscription_id=id)) == []
    assert await outbox.redeliver(tenant, told.id) is None
    assert not await outbox.settle(tenant, Settlement(told.id, told.grab, DEAD, None, None))
    await outbox.give_back(tenant, told.id, told.grab, 0.0)
    assert await outbox.take(tenant, [(told.channel, 9)], lease_seconds=LEASE, fresh_secret="whsec_YQ==") == []
    assert await deliveries(desk) == []
    assert await settle(rival, told, OK)
    assert (await outbox.subscription(rival.tenant, theirs.id)) == theirs


async def test_a_row_that_is_neither_due_nor_settled_is_refused(desk: Desk, door: Door) -> None:
    await listen(desk, "job.queued")
    await desk.add()
    (told,) = await take(desk)
    for change in ("next_try_at = null", "status = 'dead'", "status = 'lost'"):
        said = await refusal(door, f"update outbox set {change} where tenant = $1 and id = $2", desk.tenant, told.id)
        assert "check" in said.lower()
