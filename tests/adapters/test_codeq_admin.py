"""codeQ admins, and the response to callers above the rate limit."""

from __future__ import annotations

import pytest

from interlock.api.admission import RateLimiter
from interlock.api.options import Options
from interlock.storage.contract import Store
from tests.adapters.responses import NEVER, assert_response, json_of
from tests.api.rig import Api, serving
from tests.support.stores import ManualClock

BASE = "/v1/codeq"


async def create(api: Api, command: str, more: str = "") -> str:
    body = f'{{"command":"{command}","payload":{{}}{more}}}'.encode()
    return str(json_of(await api.send(f"{BASE}/tasks", body), 202)["id"])


async def test_queues_are_counted_by_command(api: Api) -> None:
    await create(api, "a")
    await create(api, "a", ',"delaySeconds":60')
    await create(api, "b", ',"maxAttempts":1')
    id = json_of(await api.send(f"{BASE}/tasks/claim", b'{"commands":["b"]}'), 200)["id"]
    one = '{"command":"a","ready":1,"delayed":1,"inProgress":0,"dlq":0}'
    assert_response(
        await api.get(f"{BASE}/admin/queues"), 200,
        f'[{one},{{"command":"b","ready":0,"delayed":0,"inProgress":1,"dlq":0}}]'.encode(),
    )  # fmt: skip
    assert_response(await api.get(f"{BASE}/admin/queues/a"), 200, one.encode())
    json_of(await api.send(f"{BASE}/tasks/{id}/nack", b"{}"), 200)
    assert json_of(await api.get(f"{BASE}/admin/queues/b"), 200)["dlq"] == 1
    nothing = b'{"command":"c","ready":0,"delayed":0,"inProgress":0,"dlq":0}'
    assert_response(await api.get(f"{BASE}/admin/queues/c"), 200, nothing)


async def test_tasks_are_listed_by_status(api: Api) -> None:
    first, second = await create(api, "a"), await create(api, "b")
    json_of(await api.send(f"/v1/jobs/{first}/cancel", b"{}"), 200)
    for status, ids in (("PENDING", [second]), ("FAILED", [first]), ("COMPLETED", []), ("", [second, first])):
        tasks = json_of(await api.get(f"{BASE}/admin/tasks?status={status}"), 200)
        assert [task["id"] for task in tasks] == ids
        assert all(task["payload"] == "{}" for task in tasks)
    assert_response(await api.get(f"{BASE}/admin/tasks?status=ODD"), 400, b'{"error":"invalid status"}')


async def test_cleanup_keeps_terminal_tasks_for_a_day(api: Api, clock: ManualClock) -> None:
    async def clean_up(body: bytes) -> int:
        return int(json_of(await api.send(f"{BASE}/admin/tasks/cleanup", body), 200)["deleted"])

    old = await create(api, "a")
    json_of(await api.send(f"/v1/jobs/{old}/cancel", b"{}"), 200)
    clock.advance(3600)
    live, new = await create(api, "a"), await create(api, "a")
    json_of(await api.send(f"/v1/jobs/{new}/cancel", b"{}"), 200)
    for year in ("2001", "0001"):
        body = b'{"before":"%b-01-01T00:00:00Z"}' % year.encode()
        done = json_of(await api.send(f"{BASE}/admin/tasks/cleanup", body), 200)
        assert done == {"deleted": 0, "before": f"{year}-01-01T00:00:00.000000Z", "limit": 1000}
    clock.advance(86_400 - 3601)
    assert await clean_up(b"{}") == 0
    clock.advance(2)
    done = json_of(await api.send(f"{BASE}/admin/tasks/cleanup", b'{"limit":10}'), 200)
    assert (done["deleted"], done["limit"]) == (1, 10)
    assert_response(await api.get(f"{BASE}/tasks/{old}"), 404, b'{"error":"not found"}')
    json_of(await api.get(f"{BASE}/tasks/{new}"), 200)
    # A time in the future shortens the day, as it did there.
    assert await clean_up(b'{"before":"2999-01-01T00:00:00Z"}') == 1
    json_of(await api.get(f"{BASE}/tasks/{live}"), 200)
    bad = await api.send(f"{BASE}/admin/tasks/cleanup", b'{"before":"yesterday"}')
    assert_response(bad, 400, b'{"error":"invalid \'before\' (use RFC3339)"}')


async def test_only_admins_see_queues(guarded: Api) -> None:
    admin, producer = await guarded.as_role("admin"), await guarded.as_role("produce")
    assert json_of(await admin.get(f"{BASE}/admin/queues"), 200) == []
    for caller in (guarded, producer):
        for method, path in (("GET", "queues"), ("GET", "queues/a"), ("GET", "tasks"), ("POST", "tasks/cleanup")):
            response = await caller.call(method, f"{BASE}/admin/{path}", headers={"x-role": "ADMIN"})
            assert_response(response, 401, b'{"error":"unauthorized. Admin only"}')


async def test_anyone_can_read_that_the_service_is_healthy(guarded: Api) -> None:
    assert_response(await guarded.get(f"{BASE}/healthz"), 200, b'{"status":"ok"}')


@pytest.mark.parametrize(
    ("path", "scope", "operation"),
    [
        ("tasks", "producer", "create_task"),
        ("tasks/claim", "worker", "claim"),
        ("admin/tasks/cleanup", "admin", "cleanup"),
    ],
)
async def test_a_caller_above_the_rate_limit_is_asked_to_retry_later(
    api: Api, path: str, scope: str, operation: str
) -> None:
    api.service.rates = RateLimiter(0.1, 1, clock=lambda: 0.0)
    assert (await api.send(f"{BASE}/{path}", b"{}")).status_code != 429
    response = await api.send(f"{BASE}/{path}", b"{}")
    assert_response(
        response, 429,
        f'{{"error":"rate limit exceeded","scope":"{scope}","operation":"{operation}","retryAfterSeconds":10}}'.encode(),
    )  # fmt: skip
    assert response.headers["retry-after"] == "10"
    # A worker that has to wait may still extend its leases.
    assert (await api.send(f"{BASE}/tasks/{NEVER}/heartbeat", b"{}")).status_code == 404


async def test_an_adapter_is_off_unless_it_is_enabled(store: Store, clock: ManualClock) -> None:
    async with serving(store, clock, Options()) as plain:
        response = await plain.send(f"{BASE}/tasks", b'{"command":"x","payload":{}}')
        assert (response.status_code, response.json()["code"]) == (404, "no_such_route")
