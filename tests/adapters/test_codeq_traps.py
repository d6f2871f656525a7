"""Faults of codeQ itself: its promises to users, tested through the adapter."""

from __future__ import annotations

import json

from interlock.domain.principal import Principal, local
from interlock.wire import job_request
from tests.adapters.responses import assert_response, json_of
from tests.api.rig import Api
from tests.support.stores import ManualClock

BASE = "/v1/codeq"
MANY = 100_000
BATCH_SIZE = 1000


async def create(api: Api, command: str, **more: object) -> str:
    body = json.dumps({"command": command, "payload": {}, **more}).encode()
    return str(json_of(await api.send(f"{BASE}/tasks", body), 202)["id"])


async def test_more_than_a_hundred_thousand_pending_tasks_of_one_command_stay_visible(api: Api) -> None:
    first = await create(api, "flood")
    who: Principal = local(api.tenant)
    for _ in range(MANY // BATCH_SIZE):
        await api.engine.jobs.enqueue_batch(who, [job_request({"type": "flood"})] * BATCH_SIZE)
    last = await create(api, "flood", priority=1)
    for id in (first, last):
        task = json_of(await api.get(f"{BASE}/tasks/{id}"), 200)
        assert (task["status"], task["lastKnownLocation"]) == ("PENDING", "PENDING_LIST")
    counted = json_of(await api.get(f"{BASE}/admin/queues/flood"), 200)
    assert counted == {"command": "flood", "ready": MANY + 2, "delayed": 0, "inProgress": 0, "dlq": 0}
    assert json_of(await api.get(f"{BASE}/admin/tasks?status=PENDING&limit=1"), 200)[0]["id"] == last
    for id in (last, first):
        assert json_of(await api.send(f"{BASE}/tasks/claim", b'{"commands":["flood"]}'), 200)["id"] == id


async def test_max_attempts_counts_every_run(api: Api, clock: ManualClock) -> None:
    id = await create(api, "hard", maxAttempts=4)
    for run, end in ((1, "nack"), (2, "expiry"), (3, "abandon"), (3, "expiry"), (4, "nack")):
        task = json_of(await api.send(f"{BASE}/tasks/claim", b'{"leaseSeconds":10}'), 200)
        assert (task["id"], task["attempts"]) == (id, run)
        if end == "expiry":
            clock.advance(11)
            await api.engine.maintenance.sweep()
            assert_response(await api.send(f"{BASE}/tasks/{id}/heartbeat", b"{}"), 403, b'{"error":"not-owner"}')
        else:
            json_of(await api.send(f"{BASE}/tasks/{id}/{end}", b""), 200)
        clock.advance(1000)
    assert (await api.send(f"{BASE}/tasks/claim", b"{}")).status_code == 204
    dead = json_of(await api.get(f"{BASE}/tasks/{id}"), 200)
    assert (dead["status"], dead["lastKnownLocation"], dead["attempts"]) == ("FAILED", "DLQ_SET", 4)


async def test_a_single_attempt_is_a_single_run(api: Api) -> None:
    id = await create(api, "once", maxAttempts=1)
    json_of(await api.send(f"{BASE}/tasks/claim", b"{}"), 200)
    assert_response(await api.send(f"{BASE}/tasks/{id}/nack", b"{}"), 200, b'{"status":"dlq","delaySeconds":0}')


async def test_delayed_work_counts_as_ready_once_due_without_a_claim(api: Api, clock: ManualClock) -> None:
    id = await create(api, "later", delaySeconds=90_000)
    delayed = b'{"command":"later","ready":0,"delayed":1,"inProgress":0,"dlq":0}'
    assert_response(await api.get(f"{BASE}/admin/queues/later"), 200, delayed)
    clock.advance(90_000)
    ready = b'{"command":"later","ready":1,"delayed":0,"inProgress":0,"dlq":0}'
    assert_response(await api.get(f"{BASE}/admin/queues/later"), 200, ready)
    assert json_of(await api.get(f"{BASE}/tasks/{id}"), 200)["lastKnownLocation"] == "PENDING_LIST"


async def test_a_worker_that_lost_its_task_changes_nothing_by_uploading(guarded: Api, clock: ManualClock) -> None:
    one = await guarded.as_role("work", "produce", worker_id="one")
    two = await guarded.as_role("work", worker_id="two")
    id = await create(one, "shared")
    json_of(await one.send(f"{BASE}/tasks/claim", b'{"leaseSeconds":10}'), 200)
    clock.advance(11)
    await guarded.engine.maintenance.sweep()
    upload = b'{"status":"COMPLETED","result":{},"artifacts":[{"name":"a","contentBase64":"YQ=="}]}'
    assert_response(await one.send(f"{BASE}/tasks/{id}/result", upload), 409, b'{"error":"not-in-progress"}')
    json_of(await two.send(f"{BASE}/tasks/claim", b"{}"), 200)
    assert_response(await one.send(f"{BASE}/tasks/{id}/result", upload), 403, b'{"error":"not-owner"}')
    many = b'{"results":[{"taskId":"%b","status":"COMPLETED","artifacts":[{"name":"a","url":"https://example.org"}]}]}'
    given = json_of(await one.send(f"{BASE}/tasks/batch/results", many % id.encode()), 200)
    assert given == {"results": [{"taskId": id, "error": "not-owner"}]}
    assert await guarded.engine.artifacts.list(guarded.tenant, id) == []
    record = json_of(await two.send(f"{BASE}/tasks/{id}/result", upload), 200)
    assert [one["name"] for one in record["artifacts"]] == ["a"]
