"""codeQ's webhook for work that is there, as real receivers see it."""

from __future__ import annotations

import pytest

from tests.adapters.codeq_hooks import BASE, SUBSCRIPTIONS, claim, create, genuine, subscribe
from tests.adapters.responses import NEVER, RFC3339, assert_response, json_of
from tests.api.rig import Api
from tests.support.receiver import Receiver, receiver
from tests.support.receiver import responds as answers
from tests.support.stores import ManualClock


async def test_a_worker_is_notified_when_a_task_can_be_claimed(open_api: Api, there: Receiver) -> None:
    made = await subscribe(open_api, there.url, ',"eventTypes":["render"]')
    assert set(made) == {"subscriptionId", "expiresAt"}
    assert RFC3339.fullmatch(made["expiresAt"])
    await create(open_api, "other")
    await create(open_api, "render")
    assert await open_api.engine.sender.deliver_due() == 1
    (seen,) = there.seen
    assert seen.line.startswith("POST /hook ")
    given = genuine(seen)
    assert RFC3339.fullmatch(given.pop("sentAt"))
    assert given.pop("notificationId").startswith("ntf-")
    assert given == {
        "eventType": "render", "available": True, "queueDepth": 1, "claimUrl": "/v1/codeq/tasks/claim",
    }  # fmt: skip
    assert not [name for name in seen.headers if name.startswith("webhook-")]


async def test_delayed_work_is_notified_once_due_without_a_claim(
    open_api: Api, there: Receiver, clock: ManualClock
) -> None:
    await subscribe(open_api, there.url, ',"ttlSeconds":1000000')
    await create(open_api, delaySeconds=200_000)
    assert await open_api.engine.sender.deliver_due() == 0
    clock.advance(200_000)
    assert await open_api.engine.sender.deliver_due() == 1
    assert genuine(there.seen[0])["queueDepth"] == 1


async def test_a_released_task_is_notified_again(open_api: Api, there: Receiver, clock: ManualClock) -> None:
    await subscribe(open_api, there.url)
    id = await create(open_api)
    await open_api.engine.sender.deliver_due()
    await claim(open_api)
    clock.advance(1)
    json_of(await open_api.post(f"{BASE}/tasks/{id}/abandon"), 200)
    assert await open_api.engine.sender.deliver_due() == 1
    assert len({genuine(seen)["notificationId"] for seen in there.seen}) == 2


async def test_all_subscribers_are_notified_unless_they_are_a_group(open_api: Api, there: Receiver) -> None:
    await subscribe(open_api, there.url)
    await subscribe(open_api, f"{there.url}/two", ',"deliveryMode":"fanout"')
    await create(open_api)
    assert await open_api.engine.sender.deliver_due() == 2
    assert len({seen.line for seen in there.seen}) == 2


@pytest.mark.parametrize("mode", ["group", "hash"])
async def test_a_group_notifies_its_members_one_after_another(
    open_api: Api, there: Receiver, clock: ManualClock, mode: str
) -> None:
    for member in ("a", "b", "c"):
        await subscribe(open_api, f"{there.url}/{member}", f',"deliveryMode":"{mode}","groupId":"pool"')
    for _ in range(6):
        await create(open_api)
        assert await open_api.engine.sender.deliver_due() == 1
        clock.advance(1)
    order = [seen.line.split()[1].removeprefix("/hook/") for seen in there.seen]
    assert sorted(order[:3]) == ["a", "b", "c"]
    assert order[3:] == order[:3]


async def test_tasks_enqueued_together_call_every_member_once(open_api: Api, there: Receiver) -> None:
    for member in ("a", "b", "c"):
        body = f'{{"callbackUrl":"{there.url}/{member}","deliveryMode":"group","groupId":"pool"}}'
        json_of(await open_api.send(SUBSCRIPTIONS, body.encode()), 200)
    for _ in range(5):
        open_api.clock.advance(0.001)
        await create(open_api)
        await open_api.engine.sender.deliver_due()
    assert sorted(seen.line.split()[1] for seen in there.seen) == ["/hook/a", "/hook/b", "/hook/c"]


async def test_a_failing_member_is_skipped(open_api: Api, there: Receiver, clock: ManualClock) -> None:
    async with receiver() as dead:
        dead.answer = answers(500)
        for url in (dead.url, there.url):
            await subscribe(open_api, url, ',"deliveryMode":"group","groupId":"pool"')
        for _ in range(4):
            await create(open_api)
            await open_api.engine.sender.deliver_due()
            clock.advance(1)
    assert len(there.seen) == 4
    assert len({genuine(seen)["notificationId"] for seen in there.seen}) == 4


async def test_a_codeq_group_and_a_native_group_are_separate(open_api: Api, there: Receiver) -> None:
    await subscribe(open_api, f"{there.url}/codeq", ',"deliveryMode":"group","groupId":"pool"')
    body = {"url": f"{there.url}/own", "events": ["queue.ready"], "mode": "group", "group_id": "pool"}
    open_api.ok(await open_api.post("/v1/subscriptions", body), 201)
    await create(open_api)
    assert await open_api.engine.sender.deliver_due() == 2
    for seen in there.seen:
        assert ("x-codeq-signature" in seen.headers) is (" /hook/codeq " in seen.line)
        assert ("webhook-signature" in seen.headers) is (" /hook/own " in seen.line)


async def test_calls_are_five_seconds_apart_by_default(open_api: Api, there: Receiver, clock: ManualClock) -> None:
    json_of(await open_api.send(SUBSCRIPTIONS, f'{{"callbackUrl":"{there.url}"}}'.encode()), 200)
    for _ in range(3):
        await create(open_api)
        await open_api.engine.sender.deliver_due()
        clock.advance(1)
    assert len(there.seen) == 1
    clock.advance(2)
    await open_api.engine.sender.deliver_due()
    assert len(there.seen) == 2  # one for all that came meanwhile


async def test_a_subscription_lives_five_minutes_unless_renewed(
    open_api: Api, there: Receiver, clock: ManualClock
) -> None:
    made = await subscribe(open_api, there.url)
    heartbeat = f"{SUBSCRIPTIONS}/{made['subscriptionId']}/heartbeat"
    clock.advance(299)
    renewed = json_of(await open_api.send(heartbeat, b""), 200)
    assert renewed["subscriptionId"] == made["subscriptionId"]
    assert renewed["expiresAt"] > made["expiresAt"]
    clock.advance(299)
    await create(open_api)
    assert await open_api.engine.sender.deliver_due() == 1
    json_of(await open_api.send(heartbeat, b'{"ttlSeconds":10}'), 200)
    clock.advance(10)
    await create(open_api)
    assert await open_api.engine.sender.deliver_due() == 0
    assert_response(await open_api.send(heartbeat, b"{}"), 404, b'{"error":"not-found"}')
    for unknown in (NEVER, "nonsense"):
        assert_response(
            await open_api.send(f"{SUBSCRIPTIONS}/{unknown}/heartbeat", b"{}"), 404, b'{"error":"not-found"}'
        )


async def test_a_repeated_request_renews_the_same_subscription(
    open_api: Api, there: Receiver, clock: ManualClock
) -> None:
    first = await subscribe(open_api, there.url)
    clock.advance(1000)
    again = await subscribe(open_api, there.url, ',"ttlSeconds":60')
    assert again["subscriptionId"] == first["subscriptionId"]
    other = await subscribe(open_api, there.url, ',"eventTypes":["render"]')
    assert other["subscriptionId"] != first["subscriptionId"]
    await create(open_api, "paint")
    assert await open_api.engine.sender.deliver_due() == 1


async def test_an_invalid_subscription_is_rejected(open_api: Api) -> None:
    good = "https://hooks.example.org/x"
    for body, text in (
        ("{", "invalid body"),
        ("{}", "invalid body"),
        ('{"callbackUrl":""}', "invalid callback url"),
        ('{"callbackUrl":"ftp://example.org/x"}', "invalid callback url"),
        ('{"callbackUrl":"nonsense"}', "invalid callback url"),
        ('{"callbackUrl":"https://10.0.0.1/x"}', "invalid callback url"),
        ('{"callbackUrl":"codeq+https://example.org/x"}', "invalid callback url"),
        (f'{{"callbackUrl":"{good}","deliveryMode":"some"}}', "invalid deliveryMode"),
        (f'{{"callbackUrl":"{good}","deliveryMode":"group"}}', "groupId is required"),
        (f'{{"callbackUrl":"{good}","deliveryMode":"group","groupId":""}}', "groupId is required"),
    ):
        assert_response(await open_api.send(SUBSCRIPTIONS, body.encode()), 400, f'{{"error":"{text}"}}'.encode())


async def test_a_worker_subscribes_to_its_own_commands_and_renews_its_own_subscription(
    closed_api: Api, there: Receiver
) -> None:
    producer = await closed_api.as_role("produce")
    one = await closed_api.as_role("work", worker_id="one", types=["render"])
    two = await closed_api.as_role("work", worker_id="two")
    assert_response(await producer.send(SUBSCRIPTIONS, b'{"callbackUrl":"x"}'), 403, b'{"error":"missing scope"}')
    foreign = f'{{"callbackUrl":"{there.url}","eventTypes":["render","paint"]}}'.encode()
    assert_response(await one.send(SUBSCRIPTIONS, foreign), 403, b'{"error":"event type not allowed"}')
    made = await subscribe(one, there.url)
    heartbeat = f"{SUBSCRIPTIONS}/{made['subscriptionId']}/heartbeat"
    assert_response(await two.send(heartbeat, b"{}"), 404, b'{"error":"not-found"}')
    json_of(await one.send(heartbeat, b"{}"), 200)
    await create(producer, "paint")
    assert await closed_api.engine.sender.deliver_due() == 0
    await create(producer, "render")
    assert await closed_api.engine.sender.deliver_due() == 1


async def test_a_tenant_receives_no_events_of_another(closed_api: Api, there: Receiver) -> None:
    worker = await closed_api.as_role("work", worker_id="w")
    await subscribe(worker, there.url)
    foreign = await closed_api.as_role("produce", tenant=f"{closed_api.tenant}-other")
    await create(foreign)
    assert await closed_api.engine.sender.deliver_due() == 0


async def test_without_a_codeq_secret_the_secret_of_the_tenant_signs(closed_api: Api, there: Receiver) -> None:
    both = await closed_api.as_role("work", "produce", worker_id="w")
    await create(both, webhook=there.url)
    id = await claim(both)
    json_of(await both.send(f"{BASE}/tasks/{id}/result", b'{"status":"COMPLETED","result":{}}'), 200)
    operator = await closed_api.as_role("operate")
    who = await closed_api.engine.tokens.authenticate(str(operator.token))
    secret = await closed_api.engine.webhooks.rotate_job_secret(who)
    assert await closed_api.engine.sender.deliver_due() == 1
    assert genuine(there.seen[0], secret)["taskId"] == id
