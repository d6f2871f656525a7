"""Delivering the outbox to real receivers, on both engines."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from standardwebhooks.webhooks import Webhook

from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.domain.webhook import DELAYS_SECONDS, DeliveryFilter, DeliveryStatus
from interlock.engine.engine import Engine
from interlock.engine.outbound_http import OutboundClient
from interlock.engine.webhook_sender import LEASE_SECONDS, Pace, Sender
from interlock.storage.contract import Store
from interlock.wire import Limits
from tests.engine.deliveries import EVERYTHING, HERE, after, enqueue, statuses, subscribe
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.receiver import Receiver, Seen, hang, receiver, responds
from tests.support.stores import ManualClock


async def test_a_delivery_is_signed_by_the_standard(queue: Engine, who: Principal, there: Receiver) -> None:
    created = await subscribe(queue, who, there.url)
    assert created.secret is not None
    (job,) = await enqueue(queue, who, tags=["x"])
    assert await queue.sender.deliver_due() == 1
    (seen,) = there.seen
    message = Webhook(created.secret).verify(seen.body, seen.headers)
    assert message["id"] == seen.headers["webhook-id"]
    assert (message["type"], message["data"]["job_id"], message["data"]["tags"]) == ("job.queued", job, ["x"])
    assert seen.headers["content-type"] == "application/json"
    assert await statuses(queue, who) == [(DeliveryStatus.DELIVERED, 1, None)]
    assert await queue.sender.deliver_due() == 0


async def test_during_a_rotation_both_secrets_sign(queue: Engine, who: Principal, there: Receiver) -> None:
    created = await subscribe(queue, who, there.url)
    new = await queue.webhooks.rotate(who, created.subscription.id)
    await enqueue(queue, who)
    await queue.sender.deliver_due()
    (seen,) = there.seen
    for secret in (str(created.secret), new):
        Webhook(secret).verify(seen.body, seen.headers)


async def test_the_webhook_of_a_job_gets_its_terminal_event(queue: Engine, who: Principal, there: Receiver) -> None:
    secret = await queue.webhooks.rotate_job_secret(who)
    await enqueue(queue, who, webhook=there.url)
    (job,) = await queue.leases.claim(who.tenant, ClaimFilter("w"))
    assert await queue.sender.deliver_due() == 0
    await queue.jobs.cancel(who, job.id, force=True)
    await queue.sender.deliver_due()
    (seen,) = there.seen
    message = Webhook(secret).verify(seen.body, seen.headers)
    assert (message["type"], message["data"]["status"]) == ("job.cancelled", "cancelled")
    (reported,) = await queue.webhooks.deliveries(who, DeliveryFilter(job_id=job.id))
    assert reported.status is DeliveryStatus.DELIVERED


async def test_no_body_contains_payload_checkpoint_or_result(queue: Engine, who: Principal, there: Receiver) -> None:
    await subscribe(queue, who, there.url, events=["job.queued", "job.running", "job.cancelled"])
    await enqueue(
        queue, who, payload={"planted": "hush"}, headers={"h": "hush"}, requested_by="hush", webhook=there.url
    )
    (job,) = await queue.leases.claim(who.tenant, ClaimFilter("w"))
    await queue.jobs.cancel(who, job.id, reason="hush", force=True)
    await queue.sender.deliver_due()
    assert len(there.seen) == 4
    assert not any(b"hush" in seen.body for seen in there.seen)


@pytest.mark.parametrize(
    ("status", "error"), [(500, "refused_by_receiver"), (404, "refused_by_receiver"), (302, "redirect_refused")]
)
async def test_a_failed_delivery_is_retried_with_the_same_id_and_body(
    queue: Engine, who: Principal, there: Receiver, clock: ManualClock, status: int, error: str
) -> None:
    created = await subscribe(queue, who, there.url)
    await enqueue(queue, who)
    there.answer = responds(status, f"location: {there.url}\r\n")
    await queue.sender.deliver_due()
    assert await statuses(queue, who) == [(DeliveryStatus.FAILED, 1, error)]
    assert await queue.sender.deliver_due() == 0
    there.answer = responds(204)
    clock.advance(DELAYS_SECONDS[0] * 1.2)
    await queue.sender.deliver_due()
    assert await statuses(queue, who) == [(DeliveryStatus.DELIVERED, 2, None)]
    first, second = there.seen
    assert (first.headers["webhook-id"], first.body) == (second.headers["webhook-id"], second.body)
    Webhook(str(created.secret)).verify(second.body, second.headers)


async def test_a_delivery_is_dead_after_its_last_attempt_and_can_be_sent_again(
    queue: Engine, who: Principal, there: Receiver, clock: ManualClock
) -> None:
    await subscribe(queue, who, there.url)
    await enqueue(queue, who)
    there.answer = responds(500)
    for delay in (*DELAYS_SECONDS, 0):
        assert await queue.sender.deliver_due() == 1
        clock.advance(delay * 1.2)
    assert await statuses(queue, who) == [(DeliveryStatus.DEAD, len(DELAYS_SECONDS) + 1, "refused_by_receiver")]
    assert await queue.sender.deliver_due() == 0
    there.answer = responds(200)
    await queue.webhooks.redeliver(who, there.ids[0])
    await queue.sender.deliver_due()
    assert await statuses(queue, who) == [(DeliveryStatus.DELIVERED, 1, None)]
    assert len(set(there.ids)) == len({seen.body for seen in there.seen}) == 1


async def test_a_receiver_that_is_down_for_an_hour_misses_nothing(
    queue: Engine, who: Principal, clock: ManualClock
) -> None:
    async with receiver() as gone:
        pass
    await subscribe(queue, who, gone.url)
    jobs = await enqueue(queue, who, 20)
    for _ in range(60):
        await queue.sender.deliver_due()
        clock.advance(60)
    assert {error for _, _, error in await statuses(queue, who)} == {"cannot_connect"}
    async with receiver(port=gone.port) as back:
        clock.advance(7200 * 1.2)
        await queue.sender.deliver_due()
        assert sorted(json.loads(seen.body)["data"]["job_id"] for seen in back.seen) == sorted(jobs)
    assert {status for status, _, _ in await statuses(queue, who)} == {DeliveryStatus.DELIVERED}


async def test_a_name_that_now_resolves_to_an_internal_address_gets_nothing(
    store: Store, who: Principal, there: Receiver
) -> None:
    answers = [["8.8.8.8"], ["127.0.0.1"]]

    async def resolve(_host: str, _port: int) -> list[str]:
        return answers.pop(0)

    outside = OutboundClient(resolve=resolve)
    queue = Engine(store, outside=outside)
    await subscribe(queue, who, "https://hooks.example/")
    await enqueue(queue, who)
    await queue.sender.deliver_due()
    assert await statuses(queue, who) == [(DeliveryStatus.FAILED, 1, "destination_refused")]
    assert there.connections == 0
    await outside.close()


async def test_a_receiver_that_returns_410_gets_no_more_deliveries(
    queue: Engine, who: Principal, there: Receiver
) -> None:
    created = await subscribe(queue, who, there.url)
    await enqueue(queue, who, 50)
    there.answer = responds(410)
    await queue.sender.deliver_due()
    assert len(there.seen) <= Pace().channel
    assert {status for status, _, _ in await statuses(queue, who)} == {DeliveryStatus.DEAD}
    encoded = await queue.webhooks.subscription(who, created.subscription.id)
    assert encoded.ended_reason == "gone"
    await enqueue(queue, who)
    assert await queue.sender.deliver_due() == 0


async def test_a_hanging_receiver_delays_no_other(queue: Engine, who: Principal, there: Receiver) -> None:
    async with receiver() as stuck:
        stuck.answer = hang
        await subscribe(queue, who, stuck.url)
        await subscribe(queue, who, there.url)
        await enqueue(queue, who, 40)
        queue.sender.start()
        await after(lambda: len(there.seen) == 40 and stuck.under_way > 0)
        assert stuck.most_at_once <= Pace().channel


async def test_a_flood_of_one_tenant_leaves_the_others_their_share(
    queue: Engine, who: Principal, there: Receiver
) -> None:
    """Thirty receivers of one tenant hang, each with its own backlog; eight tenants have one event each."""
    async with AsyncExitStack() as stack:
        for n in range(2, 32):
            stuck = await stack.enter_async_context(receiver(host=f"127.0.0.{n}"))
            stuck.answer = hang
            await subscribe(queue, who, stuck.url)
        await enqueue(queue, who, 10)
        queue.sender.start()
        others = [who._replace(tenant=f"other-{n}") for n in range(8)]
        for other in others:
            await subscribe(queue, other, there.url)
            await enqueue(queue, other, 1)
        await after(lambda: len(there.seen) == len(others))


async def test_the_oldest_backlogs_do_not_delay_a_new_one(store: Store, there: Receiver, who: Principal) -> None:
    """Tenants are served round-robin, regardless of how many others wait and how many events they have."""
    queue = Engine(store, Limits(webhooks=HERE), outside=OutboundClient(HERE, deadline_seconds=RETRY_SECONDS))
    sender = Sender(store, queue.outside, pace=Pace(total=1))
    backlogs = [who._replace(tenant=f"old-{n}") for n in range(6)]
    for tenant in (*backlogs, who):
        await subscribe(queue, tenant, there.url)
        await enqueue(queue, tenant, 5 if tenant is not who else 1)
    (mine,) = await queue.webhooks.deliveries(who, EVERYTHING)
    await sender.deliver_due()
    assert there.ids.index(mine.id) <= len(backlogs)
    assert len(there.ids) == 31
    await queue.outside.close()


async def test_one_host_gets_at_most_its_share_of_concurrent_requests(
    store: Store, there: Receiver, who: Principal, clock: ManualClock
) -> None:
    queue = Engine(store, Limits(webhooks=HERE), outside=OutboundClient(HERE, deadline_seconds=RETRY_SECONDS))
    # The clock below may run far while a busy machine sends one request: nothing is due again for that.
    sender = Sender(store, queue.outside, pace=Pace(total=64, tenant=64, host=3, channel=4), lease_seconds=1e6)
    go = asyncio.Event()

    async def wait(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        await responds(200)(seen, writer)

    there.answer = wait
    for _ in range(5):
        await subscribe(queue, who, there.url)
    await enqueue(queue, who, 4)
    sender.start()
    await after(lambda: there.under_way == 3)
    go.set()

    async def all_sent() -> bool:
        clock.advance(1)  # those that found the host busy come back a second later
        return len(there.ids) == 20

    await eventually(all_sent)
    await sender.stop()
    assert (there.most_at_once, len(there.ids)) == (3, 20)
    await queue.outside.close()


async def test_two_senders_send_everything_once(store: Store, there: Receiver, who: Principal) -> None:
    queue = Engine(store, Limits(webhooks=HERE), outside=OutboundClient(HERE, deadline_seconds=RETRY_SECONDS))
    other = Sender(store, queue.outside)
    await subscribe(queue, who, there.url)
    await enqueue(queue, who, 100)
    tried = await asyncio.gather(queue.sender.deliver_due(), other.deliver_due())
    assert len(there.ids) == len(set(there.ids)) == sum(tried) == 100
    await queue.outside.close()


async def test_the_deliveries_of_a_stopped_sender_are_sent_by_another(
    store: Store, there: Receiver, who: Principal, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.engine.webhook_sender.LAST_WORDS_SECONDS", 0.01)
    queue = Engine(store, Limits(webhooks=HERE), outside=OutboundClient(HERE, deadline_seconds=RETRY_SECONDS))
    await subscribe(queue, who, there.url)
    await enqueue(queue, who, 3)
    there.answer = hang
    queue.sender.start()
    await after(lambda: len(there.seen) == 3)
    await queue.sender.stop()
    there.answer = responds(200)
    assert await queue.sender.deliver_due() == 0
    clock.advance(LEASE_SECONDS)
    assert await queue.sender.deliver_due() == 3
    assert sorted(there.ids[:3]) == sorted(there.ids[3:])
    await queue.outside.close()


async def test_deliveries_in_progress_when_a_sender_stops_may_finish(
    queue: Engine, there: Receiver, who: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.engine.webhook_sender.LAST_WORDS_SECONDS", RETRY_SECONDS)
    go = asyncio.Event()

    async def wait(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        await responds(200)(seen, writer)

    there.answer = wait
    await subscribe(queue, who, there.url)
    await enqueue(queue, who)
    queue.sender.start()
    await after(lambda: there.under_way == 1)
    stopping = asyncio.create_task(queue.sender.stop())
    go.set()
    await stopping
    assert await statuses(queue, who) == [(DeliveryStatus.DELIVERED, 1, None)]
