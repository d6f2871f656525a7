"""codeQ's two webhooks, as real receivers see them: work that is there, and tasks that have ended."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from interlock.api.options import Options
from interlock.domain.destination import Allowance
from interlock.engine.destination import Outside
from interlock.storage.contract import Store
from interlock.storage.objects.directory import Directory
from interlock.wire import Limits
from tests.api.rig import Api, serving
from tests.faces.words import NEVER, RFC3339, says, told
from tests.support.postgres import Postgres
from tests.support.receiver import Receiver, Seen, receiver
from tests.support.receiver import says as answers
from tests.support.stores import ManualClock

BASE = "/v1/codeq"
SUBSCRIPTIONS = f"{BASE}/workers/subscriptions"
HERE = Allowance.of(["127.0.0.0/8"])
SECRET = "the secret that receivers of codeQ know"


@pytest.fixture(autouse=True)
async def nothing_is_due(engine: str, place: str, postgres: Postgres) -> None:
    """What is due is delivered, whosever it is, so nothing may be left of the tests before."""
    if engine == "postgres":
        owner = await asyncpg.connect(postgres.dsn(place))
        await owner.execute("truncate interlock.outbox, interlock.subscription")
        await owner.close()


@pytest.fixture
async def open_api(store: Store, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Api]:
    """Auth is off, and webhooks may reach this machine."""
    async with serving(
        store, clock, Options(tenant=f"hooks-{tmp_path.name}", faces=["codeq"]),
        objects=Directory(tmp_path / "artifacts"), limits=Limits(webhooks=HERE),
        outside=Outside(HERE, deadline_seconds=30.0), codeq_secret=SECRET,
    ) as served:  # fmt: skip
        yield served


@pytest.fixture
async def closed_api(store: Store, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Api]:
    """Auth is on, and webhooks may reach this machine; there is no secret of codeQ's."""
    async with serving(
        store, clock, Options(auth=True, tenant=f"hooks-{tmp_path.name}", faces=["codeq"]),
        limits=Limits(webhooks=HERE), outside=Outside(HERE, deadline_seconds=30.0),
    ) as served:  # fmt: skip
        yield served


@pytest.fixture
async def there() -> AsyncIterator[Receiver]:
    async with receiver() as made:
        yield made


async def create(api: Api, command: str = "render", **more: Any) -> str:
    body = json.dumps({"command": command, "payload": {}, **more}).encode()
    return str(told(await api.send(f"{BASE}/tasks", body), 202)["id"])


async def claim(api: Api) -> str:
    return str(told(await api.send(f"{BASE}/tasks/claim", b"{}"), 200)["id"])


async def subscribe(api: Api, url: str, more: str = "") -> dict[str, Any]:
    body = f'{{"callbackUrl":"{url}","minIntervalSeconds":0{more}}}'
    made: dict[str, Any] = told(await api.send(SUBSCRIPTIONS, body.encode()), 200)
    return made


def genuine(seen: Seen, secret: str = SECRET) -> Any:
    """The body of a request whose signature is right, checked the way codeQ tells receivers to."""
    stamp = seen.headers["x-codeq-timestamp"]
    assert stamp.isdigit()
    expected = hmac.new(secret.encode(), f"{stamp}.".encode() + seen.body, hashlib.sha256).hexdigest()
    assert seen.headers["x-codeq-signature"] == expected
    assert seen.headers["content-type"] == "application/json"
    return json.loads(seen.body)


async def test_a_worker_is_told_when_there_is_something_to_claim(open_api: Api, there: Receiver) -> None:
    made = await subscribe(open_api, there.url, ',"eventTypes":["render"]')
    assert set(made) == {"subscriptionId", "expiresAt"}
    assert RFC3339.fullmatch(made["expiresAt"])
    await create(open_api, "other")
    await create(open_api, "render")
    assert await open_api.engine.sender.deliver_due() == 1
    (seen,) = there.seen
    assert seen.line.startswith("POST /hook ")
    said = genuine(seen)
    assert RFC3339.fullmatch(said.pop("sentAt"))
    assert said.pop("notificationId").startswith("ntf-")
    assert said == {
        "eventType": "render", "available": True, "queueDepth": 1, "claimUrl": "/v1/codeq/tasks/claim",
    }  # fmt: skip
    assert not [name for name in seen.headers if name.startswith("webhook-")]


async def test_delayed_work_is_told_of_when_its_time_comes_and_nobody_claims(
    open_api: Api, there: Receiver, clock: ManualClock
) -> None:
    await subscribe(open_api, there.url, ',"ttlSeconds":1000000')
    await create(open_api, delaySeconds=200_000)
    assert await open_api.engine.sender.deliver_due() == 0
    clock.advance(200_000)
    assert await open_api.engine.sender.deliver_due() == 1
    assert genuine(there.seen[0])["queueDepth"] == 1


async def test_a_task_that_was_handed_back_is_told_of_again(open_api: Api, there: Receiver, clock: ManualClock) -> None:
    await subscribe(open_api, there.url)
    id = await create(open_api)
    await open_api.engine.sender.deliver_due()
    await claim(open_api)
    clock.advance(1)
    told(await open_api.post(f"{BASE}/tasks/{id}/abandon"), 200)
    assert await open_api.engine.sender.deliver_due() == 1
    assert len({genuine(seen)["notificationId"] for seen in there.seen}) == 2


async def test_everybody_is_told_unless_they_are_a_group(open_api: Api, there: Receiver) -> None:
    await subscribe(open_api, there.url)
    await subscribe(open_api, f"{there.url}/two", ',"deliveryMode":"fanout"')
    await create(open_api)
    assert await open_api.engine.sender.deliver_due() == 2
    assert len({seen.line for seen in there.seen}) == 2


@pytest.mark.parametrize("mode", ["group", "hash"])
async def test_a_group_is_told_one_member_after_the_other(
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


async def test_tasks_that_come_together_call_every_member_once(open_api: Api, there: Receiver) -> None:
    for member in ("a", "b", "c"):
        body = f'{{"callbackUrl":"{there.url}/{member}","deliveryMode":"group","groupId":"pool"}}'
        told(await open_api.send(SUBSCRIPTIONS, body.encode()), 200)
    for _ in range(5):
        open_api.clock.advance(0.001)
        await create(open_api)
        await open_api.engine.sender.deliver_due()
    assert sorted(seen.line.split()[1] for seen in there.seen) == ["/hook/a", "/hook/b", "/hook/c"]


async def test_a_member_that_fails_is_passed_over(open_api: Api, there: Receiver, clock: ManualClock) -> None:
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


async def test_a_group_of_codeq_and_one_of_our_own_are_two(open_api: Api, there: Receiver) -> None:
    await subscribe(open_api, f"{there.url}/codeq", ',"deliveryMode":"group","groupId":"pool"')
    body = {"url": f"{there.url}/own", "events": ["queue.ready"], "mode": "group", "group_id": "pool"}
    open_api.ok(await open_api.post("/v1/subscriptions", body), 201)
    await create(open_api)
    assert await open_api.engine.sender.deliver_due() == 2
    for seen in there.seen:
        assert ("x-codeq-signature" in seen.headers) is (" /hook/codeq " in seen.line)
        assert ("webhook-signature" in seen.headers) is (" /hook/own " in seen.line)


async def test_calls_keep_five_seconds_apart_unless_said_otherwise(
    open_api: Api, there: Receiver, clock: ManualClock
) -> None:
    told(await open_api.send(SUBSCRIPTIONS, f'{{"callbackUrl":"{there.url}"}}'.encode()), 200)
    for _ in range(3):
        await create(open_api)
        await open_api.engine.sender.deliver_due()
        clock.advance(1)
    assert len(there.seen) == 1
    clock.advance(2)
    await open_api.engine.sender.deliver_due()
    assert len(there.seen) == 2  # one for all that came meanwhile


async def test_a_subscription_lives_five_minutes_unless_it_is_renewed(
    open_api: Api, there: Receiver, clock: ManualClock
) -> None:
    made = await subscribe(open_api, there.url)
    heartbeat = f"{SUBSCRIPTIONS}/{made['subscriptionId']}/heartbeat"
    clock.advance(299)
    renewed = told(await open_api.send(heartbeat, b""), 200)
    assert renewed["subscriptionId"] == made["subscriptionId"]
    assert renewed["expiresAt"] > made["expiresAt"]
    clock.advance(299)
    await create(open_api)
    assert await open_api.engine.sender.deliver_due() == 1
    told(await open_api.send(heartbeat, b'{"ttlSeconds":10}'), 200)
    clock.advance(10)
    await create(open_api)
    assert await open_api.engine.sender.deliver_due() == 0
    says(await open_api.send(heartbeat, b"{}"), 404, b'{"error":"not-found"}')
    for unknown in (NEVER, "nonsense"):
        says(await open_api.send(f"{SUBSCRIPTIONS}/{unknown}/heartbeat", b"{}"), 404, b'{"error":"not-found"}')


async def test_the_same_request_again_goes_on_with_the_same_subscription(
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


async def test_what_cannot_be_subscribed_to_is_refused(open_api: Api) -> None:
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
        says(await open_api.send(SUBSCRIPTIONS, body.encode()), 400, f'{{"error":"{text}"}}'.encode())


async def test_a_worker_subscribes_to_its_own_commands_and_renews_its_own_subscription(
    closed_api: Api, there: Receiver
) -> None:
    producer = await closed_api.as_role("produce")
    one = await closed_api.as_role("work", worker_id="one", types=["render"])
    two = await closed_api.as_role("work", worker_id="two")
    says(await producer.send(SUBSCRIPTIONS, b'{"callbackUrl":"x"}'), 403, b'{"error":"missing scope"}')
    foreign = f'{{"callbackUrl":"{there.url}","eventTypes":["render","paint"]}}'.encode()
    says(await one.send(SUBSCRIPTIONS, foreign), 403, b'{"error":"event type not allowed"}')
    made = await subscribe(one, there.url)
    heartbeat = f"{SUBSCRIPTIONS}/{made['subscriptionId']}/heartbeat"
    says(await two.send(heartbeat, b"{}"), 404, b'{"error":"not-found"}')
    told(await one.send(heartbeat, b"{}"), 200)
    await create(producer, "paint")
    assert await closed_api.engine.sender.deliver_due() == 0
    await create(producer, "render")
    assert await closed_api.engine.sender.deliver_due() == 1


async def test_a_tenant_hears_nothing_of_another(closed_api: Api, there: Receiver) -> None:
    worker = await closed_api.as_role("work", worker_id="w")
    await subscribe(worker, there.url)
    foreign = await closed_api.as_role("produce", tenant=f"{closed_api.tenant}-other")
    await create(foreign)
    assert await closed_api.engine.sender.deliver_due() == 0


async def test_without_a_secret_of_codeq_the_one_of_the_tenant_signs(closed_api: Api, there: Receiver) -> None:
    both = await closed_api.as_role("work", "produce", worker_id="w")
    await create(both, webhook=there.url)
    id = await claim(both)
    told(await both.send(f"{BASE}/tasks/{id}/result", b'{"status":"COMPLETED"}'), 200)
    operator = await closed_api.as_role("operate")
    who = await closed_api.engine.tokens.authenticate(str(operator.token))
    secret = await closed_api.engine.webhooks.rotate_job_secret(who)
    assert await closed_api.engine.sender.deliver_due() == 1
    assert genuine(there.seen[0], secret)["taskId"] == id


async def test_a_result_is_sent_to_the_webhook_of_its_task(open_api: Api, there: Receiver) -> None:
    id = await create(open_api, webhook=there.url)
    assert told(await open_api.get(f"{BASE}/tasks/{id}"), 200)["webhook"] == there.url
    assert (await open_api.job(id))["webhook"] == there.url
    await claim(open_api)
    body = b'{"status":"COMPLETED","result":{"pages": 3.0},"artifacts":[{"name":"a","url":"https://example.org/a"}]}'
    record = told(await open_api.send(f"{BASE}/tasks/{id}/result", body), 200)
    assert await open_api.engine.sender.deliver_due() == 1
    (seen,) = there.seen
    assert genuine(seen) == {
        "taskId": id, "eventType": "render", "status": "COMPLETED", "result": {"pages": 3.0}, "error": "",
        "artifacts": [{"name": "a", "url": "https://example.org/a"}], "completedAt": record["completedAt"],
    }  # fmt: skip
    assert b'{"pages": 3.0}' in seen.body


async def test_every_end_is_sent(open_api: Api, there: Receiver, clock: ManualClock) -> None:
    async def ended(id: str) -> tuple[str, str, Any]:
        assert await open_api.engine.sender.deliver_due() == 1
        said = genuine(there.seen[-1])
        assert said["taskId"] == id
        return said["status"], said["error"], said["result"]

    failed = await create(open_api, webhook=there.url)
    await claim(open_api)
    many = f'{{"results":[{{"taskId":"{failed}","status":"FAILED","error":"broke","result":{{"n":1}}}}]}}'
    told(await open_api.send(f"{BASE}/tasks/batch/results", many.encode()), 200)
    assert await ended(failed) == ("FAILED", "broke", {"n": 1})

    nacked = await create(open_api, webhook=there.url, maxAttempts=1)
    await claim(open_api)
    told(await open_api.send(f"{BASE}/tasks/{nacked}/nack", b'{"reason":"busy"}'), 200)
    assert await ended(nacked) == ("FAILED", "busy", None)

    lost = await create(open_api, webhook=there.url, maxAttempts=1)
    await claim(open_api)
    clock.advance(301)
    await open_api.engine.upkeep.sweep()
    status, error, _ = await ended(lost)
    assert status == "FAILED"
    assert error

    cancelled = await create(open_api, webhook=there.url)
    told(await open_api.send(f"/v1/jobs/{cancelled}/cancel", b"{}"), 200)
    assert await ended(cancelled) == ("FAILED", "cancelled", None)


async def test_a_result_is_tried_five_times_with_growing_delays(
    open_api: Api, there: Receiver, clock: ManualClock
) -> None:
    there.answer = answers(410)
    id = await create(open_api, webhook=there.url)
    await claim(open_api)
    told(await open_api.send(f"{BASE}/tasks/{id}/result", b'{"status":"COMPLETED"}'), 200)
    for delay in (2, 4, 8, 16):
        assert await open_api.engine.sender.deliver_due() == 1
        clock.advance(delay - 1)
        assert await open_api.engine.sender.deliver_due() == 0
        clock.advance(1)
    assert await open_api.engine.sender.deliver_due() == 1
    clock.advance(1_000_000)
    assert await open_api.engine.sender.deliver_due() == 0
    assert len(there.seen) == 5
    assert len({seen.body for seen in there.seen}) == 1


async def test_any_2xx_is_enough(open_api: Api, there: Receiver, clock: ManualClock) -> None:
    there.answer = answers(299)
    await create(open_api, webhook=there.url)
    id = await claim(open_api)
    told(await open_api.send(f"{BASE}/tasks/{id}/result", b'{"status":"COMPLETED"}'), 200)
    assert await open_api.engine.sender.deliver_due() == 1
    clock.advance(100)
    assert await open_api.engine.sender.deliver_due() == 0


async def test_a_result_of_a_task_that_was_cleaned_up_meanwhile_is_still_told(
    open_api: Api, there: Receiver, clock: ManualClock
) -> None:
    await create(open_api, webhook=there.url)
    id = await claim(open_api)
    told(await open_api.send(f"{BASE}/tasks/{id}/result", b'{"status":"COMPLETED","result":1}'), 200)
    clock.advance(1)
    assert told(await open_api.send(f"{BASE}/admin/tasks/cleanup", b"{}"), 200)["deleted"] == 1
    assert await open_api.engine.sender.deliver_due() == 1
    said = genuine(there.seen[0])
    assert (said["taskId"], said["status"], said["result"]) == (id, "COMPLETED", None)


async def test_the_trace_of_a_task_goes_along(open_api: Api, there: Receiver) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body = json.dumps({"command": "render", "payload": {}, "webhook": there.url}).encode()
    id = told(await open_api.send(f"{BASE}/tasks", body, traceparent=trace), 202)["id"]
    told(await open_api.send(f"/v1/jobs/{id}/cancel", b"{}"), 200)
    assert await open_api.engine.sender.deliver_due() == 1
    assert there.seen[0].headers["traceparent"] == trace


async def test_a_task_that_is_done_again_reports_as_the_first_did(open_api: Api, there: Receiver) -> None:
    first = await create(open_api, webhook=there.url)
    told(await open_api.send(f"/v1/jobs/{first}/cancel", b"{}"), 200)
    second = told(await open_api.post(f"{BASE}/tasks/{first}/requeue"), 202)
    assert second["webhook"] == there.url
    told(await open_api.send(f"/v1/jobs/{second['id']}/cancel", b"{}"), 200)
    assert await open_api.engine.sender.deliver_due() == 2
    assert {genuine(seen)["taskId"] for seen in there.seen} == {first, second["id"]}


async def test_a_job_of_the_native_api_is_told_in_our_own_words(open_api: Api, there: Receiver) -> None:
    job = await open_api.enqueue(webhook=there.url)
    told(await open_api.send(f"/v1/jobs/{job['id']}/cancel", b"{}"), 200)
    assert await open_api.engine.sender.deliver_due() == 1
    (seen,) = there.seen
    assert "webhook-signature" in seen.headers
    assert "x-codeq-signature" not in seen.headers
    refused = await open_api.post("/v1/jobs", {"type": "t", "webhook": f"codeq+{there.url}"})
    assert refused.status_code == 422


async def test_several_receivers_that_hang_up_do_not_lose_a_call(
    open_api: Api, clock: ManualClock, there: Receiver
) -> None:
    async with AsyncExitStack() as stack:
        away = [await stack.enter_async_context(receiver()) for _ in range(2)]
        for one in away:
            one.answer = answers(503)
            await subscribe(open_api, one.url)
        await create(open_api)
        assert await open_api.engine.sender.deliver_due() == 2
        for one in away:
            one.answer = answers(200)
        clock.advance(3600)
        assert await open_api.engine.sender.deliver_due() == 2
        for one in away:
            first, second = map(genuine, one.seen)
            assert first["notificationId"] == second["notificationId"]
