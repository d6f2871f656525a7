"""codeQ's webhook for tasks that have ended, as real receivers see it."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

from tests.adapters.codeq_hooks import BASE, claim, create, genuine, subscribe
from tests.adapters.responses import json_of
from tests.api.rig import Api
from tests.support.receiver import Receiver, receiver
from tests.support.receiver import responds as answers
from tests.support.stores import ManualClock


async def test_a_result_is_sent_to_the_webhook_of_its_task(open_api: Api, there: Receiver) -> None:
    id = await create(open_api, webhook=there.url)
    assert json_of(await open_api.get(f"{BASE}/tasks/{id}"), 200)["webhook"] == there.url
    assert (await open_api.job(id))["webhook"] == there.url
    await claim(open_api)
    body = b'{"status":"COMPLETED","result":{"pages": 3.0},"artifacts":[{"name":"a","url":"https://example.org/a"}]}'
    record = json_of(await open_api.send(f"{BASE}/tasks/{id}/result", body), 200)
    assert await open_api.engine.sender.deliver_due() == 1
    (seen,) = there.seen
    assert genuine(seen) == {
        "taskId": id, "eventType": "render", "status": "COMPLETED", "result": {"pages": 3.0}, "error": "",
        "artifacts": [{"name": "a", "url": "https://example.org/a"}], "completedAt": record["completedAt"],
    }  # fmt: skip
    assert b'{"pages": 3.0}' in seen.body


async def test_every_terminal_status_is_sent(open_api: Api, there: Receiver, clock: ManualClock) -> None:
    async def ended(id: str) -> tuple[str, str, Any]:
        assert await open_api.engine.sender.deliver_due() == 1
        given = genuine(there.seen[-1])
        assert given["taskId"] == id
        return given["status"], given["error"], given["result"]

    failed = await create(open_api, webhook=there.url)
    await claim(open_api)
    many = f'{{"results":[{{"taskId":"{failed}","status":"FAILED","error":"broke","result":{{"n":1}}}}]}}'
    json_of(await open_api.send(f"{BASE}/tasks/batch/results", many.encode()), 200)
    assert await ended(failed) == ("FAILED", "broke", {"n": 1})

    nacked = await create(open_api, webhook=there.url, maxAttempts=1)
    await claim(open_api)
    json_of(await open_api.send(f"{BASE}/tasks/{nacked}/nack", b'{"reason":"busy"}'), 200)
    assert await ended(nacked) == ("FAILED", "busy", None)

    lost = await create(open_api, webhook=there.url, maxAttempts=1)
    await claim(open_api)
    clock.advance(301)
    await open_api.engine.maintenance.sweep()
    assert await ended(lost) == ("FAILED", "LEASE_EXPIRED", None)

    cancelled = await create(open_api, webhook=there.url)
    json_of(await open_api.send(f"/v1/jobs/{cancelled}/cancel", b"{}"), 200)
    assert await ended(cancelled) == ("FAILED", "cancelled", None)


async def test_a_result_is_attempted_five_times_with_growing_delays(
    open_api: Api, there: Receiver, clock: ManualClock
) -> None:
    there.answer = answers(410)
    id = await create(open_api, webhook=there.url)
    await claim(open_api)
    json_of(await open_api.send(f"{BASE}/tasks/{id}/result", b'{"status":"COMPLETED","result":{}}'), 200)
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
    json_of(await open_api.send(f"{BASE}/tasks/{id}/result", b'{"status":"COMPLETED","result":{}}'), 200)
    assert await open_api.engine.sender.deliver_due() == 1
    clock.advance(100)
    assert await open_api.engine.sender.deliver_due() == 0


async def test_the_result_of_a_deleted_task_is_still_sent(open_api: Api, there: Receiver, clock: ManualClock) -> None:
    await create(open_api, webhook=there.url)
    id = await claim(open_api)
    json_of(await open_api.send(f"{BASE}/tasks/{id}/result", b'{"status":"COMPLETED","result":{}}'), 200)
    clock.advance(86_401)
    assert json_of(await open_api.send(f"{BASE}/admin/tasks/cleanup", b"{}"), 200)["deleted"] == 1
    assert await open_api.engine.sender.deliver_due() == 1
    given = genuine(there.seen[0])
    assert (given["taskId"], given["status"], given["result"]) == (id, "COMPLETED", None)


async def test_the_trace_of_a_task_is_sent_with_its_result(open_api: Api, there: Receiver) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body = json.dumps({"command": "render", "payload": {}, "webhook": there.url}).encode()
    id = json_of(await open_api.send(f"{BASE}/tasks", body, traceparent=trace), 202)["id"]
    json_of(await open_api.send(f"/v1/jobs/{id}/cancel", b"{}"), 200)
    assert await open_api.engine.sender.deliver_due() == 1
    assert there.seen[0].headers["traceparent"] == trace


async def test_a_redriven_task_reports_to_the_same_webhook(open_api: Api, there: Receiver) -> None:
    first = await create(open_api, webhook=there.url)
    json_of(await open_api.send(f"/v1/jobs/{first}/cancel", b"{}"), 200)
    second = json_of(await open_api.post(f"{BASE}/tasks/{first}/requeue"), 202)
    assert second["webhook"] == there.url
    json_of(await open_api.send(f"/v1/jobs/{second['id']}/cancel", b"{}"), 200)
    assert await open_api.engine.sender.deliver_due() == 2
    assert {genuine(seen)["taskId"] for seen in there.seen} == {first, second["id"]}


async def test_a_native_job_is_sent_in_the_native_format(open_api: Api, there: Receiver) -> None:
    job = await open_api.enqueue(webhook=there.url)
    json_of(await open_api.send(f"/v1/jobs/{job['id']}/cancel", b"{}"), 200)
    assert await open_api.engine.sender.deliver_due() == 1
    (seen,) = there.seen
    assert "webhook-signature" in seen.headers
    assert "x-codeq-signature" not in seen.headers
    refused = await open_api.post("/v1/jobs", {"type": "t", "webhook": f"codeq+{there.url}"})
    assert refused.status_code == 422


async def test_receivers_that_disconnect_do_not_lose_a_call(open_api: Api, clock: ManualClock, there: Receiver) -> None:
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
