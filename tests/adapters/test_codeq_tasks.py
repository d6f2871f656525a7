"""codeQ producers, in the bytes their clients send."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

from tests.adapters.responses import NEVER, RFC3339, assert_response, json_of
from tests.api.rig import Api
from tests.support.stores import ManualClock

BASE = "/v1/codeq"


def rfc3339(micros: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")


async def test_a_created_task_returns_202_with_its_payload_as_a_string(api: Api) -> None:
    response = await api.send(f"{BASE}/tasks", b'{"command":"GENERATE","payload":{"n": 1},"priority":4}')
    task = json_of(response, 202)
    assert RFC3339.fullmatch(task.pop("createdAt"))
    assert RFC3339.fullmatch(task.pop("updatedAt"))
    id = task.pop("id")
    assert task == {
        "command": "GENERATE", "payload": '{"n": 1}', "priority": 4, "status": "PENDING",
        "lastKnownLocation": "PENDING_LIST", "attempts": 0, "maxAttempts": 5, "tenantId": api.tenant,
    }  # fmt: skip
    assert json_of(await api.get(f"{BASE}/tasks/{id}"), 200)["payload"] == '{"n": 1}'


async def test_a_task_is_a_job_and_a_job_is_a_task(api: Api) -> None:
    task = json_of(await api.send(f"{BASE}/tasks", b'{"command":"both","payload":[1]}'), 202)
    job = await api.job(task["id"])
    assert (job["type"], job["payload"], job["max_attempts"]) == ("both", [1], 5)
    assert job["backoff"] == {"kind": "full_jitter", "base_seconds": 5, "max_seconds": 900, "multiplier": 2.0}
    native = await api.enqueue(type="native", payload="text")
    seen = json_of(await api.get(f"{BASE}/tasks/{native['id']}"), 200)
    assert (seen["command"], seen["payload"], seen["maxAttempts"]) == ("native", '"text"', 3)


async def test_priority_is_clamped_and_never_rejected(api: Api) -> None:
    for sent, kept in ((b"-5", 0), (b"0", 0), (b"9", 9), (b"1000000", 9), (b"9" * 18, 9), (b"-1e300", 0)):
        response = await api.send(f"{BASE}/tasks", b'{"command":"p","payload":{},"priority":%b}' % sent)
        assert json_of(response, 202)["priority"] == kept


async def test_an_unreadable_body_is_an_invalid_body(api: Api) -> None:
    for body in (b"", b"{", b"[]", b"null", b'{"command":"x"}', b'{"payload":1}', b'{"command":1,"payload":1}',
                 b'{"command":"x","payload":1,"payload":2}'):  # fmt: skip
        assert_response(await api.send(f"{BASE}/tasks", body), 400, b'{"error":"invalid body"}')


async def test_invalid_fields_are_rejected_in_the_format_of_codeq(api: Api) -> None:
    for more, text in (
        (b'"runAt":"tomorrow"', "invalid 'runAt' (use RFC3339)"),
        (b'"runAt":"2027-01-01T00:00:00"', "invalid 'runAt' (use RFC3339)"),
        (b'"delaySeconds":-1', "invalid 'delaySeconds' (must be >= 0)"),
        (b'"webhook":"ftp://example.org/x"', "invalid webhook url"),
        (b'"webhook":"http://"', "invalid webhook url"),
    ):
        response = await api.send(f"{BASE}/tasks", b'{"command":"x","payload":{},%b}' % more)
        assert_response(response, 400, json.dumps({"error": text}, separators=(",", ":")).encode())
    assert_response(
        await api.send(f"{BASE}/tasks", b'{"command":"","payload":{}}'), 400, b'{"error":"invalid command"}'
    )
    for body in (b'{"command":"x","payload":null}', b'{"command":"x"}'):
        assert_response(await api.send(f"{BASE}/tasks", body), 400, b'{"error":"invalid body"}')
        assert_response(await api.send(f"{BASE}/tasks/batch", b"[%b]" % body), 200, b'[{"error":"invalid body"}]')
    for payload in (b"0", b"false", b'""', b"{}", b"[]"):
        json_of(await api.send(f"{BASE}/tasks", b'{"command":"x","payload":%b}' % payload), 202)


async def test_unknown_fields_are_ignored(api: Api) -> None:
    json_of(await api.send(f"{BASE}/tasks", b'{"command":"x","payload":{},"later":true}'), 202)


async def test_a_known_key_returns_the_first_task_for_any_body(api: Api) -> None:
    first = json_of(await api.send(f"{BASE}/tasks", b'{"command":"a","payload":1,"idempotencyKey":"k"}'), 202)
    again = json_of(await api.send(f"{BASE}/tasks", b'{"command":"b","payload":2,"idempotencyKey":"k"}'), 202)
    assert again == first


async def test_a_key_ends_after_24_hours(api: Api, clock: ManualClock) -> None:
    create = b'{"command":"a","payload":1,"idempotencyKey":"k"}'
    first = json_of(await api.send(f"{BASE}/tasks", create), 202)
    clock.advance(86_399)
    assert json_of(await api.send(f"{BASE}/tasks", create), 202)["id"] == first["id"]
    clock.advance(1)
    batch = b'{"tasks":[%s,%s]}' % (create, create)
    tasks = [item["task"]["id"] for item in json_of(await api.send(f"{BASE}/tasks/batch", batch), 200)["results"]]
    assert len({first["id"], *tasks}) == 2
    assert json_of(await api.send(f"{BASE}/tasks", create), 202)["id"] == tasks[0]


async def test_run_at_wins_over_a_delay_and_a_past_one_means_now(api: Api, clock: ManualClock) -> None:
    past, future = rfc3339(clock.now - 10_000_000), rfc3339(clock.now + 90_000_000)
    body = '{"command":"t","payload":{},"delaySeconds":50,"runAt":"%s"}'
    due = json_of(await api.send(f"{BASE}/tasks", (body % past).encode()), 202)
    assert due["lastKnownLocation"] == "PENDING_LIST"
    late = json_of(await api.send(f"{BASE}/tasks", (body % future).encode()), 202)
    assert late["lastKnownLocation"] == "DELAYED_ZSET"
    assert (await api.job(late["id"]))["run_at"].startswith(future[:19])


async def test_a_task_due_in_more_than_a_day_is_kept(api: Api, clock: ManualClock) -> None:
    task = json_of(await api.send(f"{BASE}/tasks", b'{"command":"later","payload":{},"delaySeconds":200000}'), 202)
    clock.advance(199_999)
    assert (await api.send(f"{BASE}/tasks/claim", b'{"commands":["later"]}')).status_code == 204
    clock.advance(1)
    # No worker claimed in between: it is ready because its time has come.
    assert json_of(await api.get(f"{BASE}/tasks/{task['id']}"), 200)["lastKnownLocation"] == "PENDING_LIST"
    assert json_of(await api.send(f"{BASE}/tasks/claim", b'{"commands":["later"]}'), 200)["id"] == task["id"]


async def test_a_batch_is_created_item_by_item(api: Api) -> None:
    items = b'[{"command":"a","payload":1},{"command":"","payload":1},{"payload":1},{"command":"b","payload":2}]'
    for body in (b'{"tasks":%b}' % items, items):
        answer = json_of(await api.send(f"{BASE}/tasks/batch", body), 200)
        results = answer if body is items else answer["results"]  # a bare array gets a bare array
        assert [one.get("error") or one["task"]["command"] for one in results] == [
            "a", "invalid command", "invalid body", "b",
        ]  # fmt: skip


async def test_a_batch_has_1_to_100_items(api: Api) -> None:
    item = b'{"command":"a","payload":1}'
    full = json_of(await api.send(f"{BASE}/tasks/batch", b'{"tasks":[%b]}' % b",".join([item] * 100)), 200)
    assert len(full["results"]) == 100
    over = await api.send(f"{BASE}/tasks/batch", b'{"tasks":[%b]}' % b",".join([item] * 101))
    assert_response(over, 400, b'{"error":"batch size exceeds maximum of 100"}')
    assert_response(await api.send(f"{BASE}/tasks/batch", b'{"tasks":[]}'), 400, b'{"error":"invalid body"}')


async def test_an_unknown_task_is_not_found(api: Api) -> None:
    for id in (NEVER, "nonsense"):
        assert_response(await api.get(f"{BASE}/tasks/{id}"), 404, b'{"error":"not found"}')
        assert_response(await api.get(f"{BASE}/tasks/{id}/result?waitSeconds=60"), 404, b'{"error":"task not found"}')


async def test_a_result_can_be_awaited(api: Api) -> None:
    task = json_of(await api.send(f"{BASE}/tasks", b'{"command":"w","payload":{}}'), 202)
    assert_response(await api.get(f"{BASE}/tasks/{task['id']}/result"), 404, b'{"error":"result not found"}')
    waiting = asyncio.create_task(api.get(f"{BASE}/tasks/{task['id']}/result?waitSeconds=30"))
    json_of(await api.send(f"{BASE}/tasks/claim", b"{}"), 200)
    json_of(await api.send(f"{BASE}/tasks/{task['id']}/result", b'{"status":"COMPLETED","result":{"ok": 1}}'), 200)
    got = json_of(await waiting, 200)
    assert (got["task"]["status"], got["task"]["lastKnownLocation"]) == ("COMPLETED", "NONE")
    assert got["task"]["resultKey"] == task["id"]
    assert RFC3339.fullmatch(got["result"].pop("completedAt"))
    assert got["result"] == {"taskId": task["id"], "status": "COMPLETED", "result": {"ok": 1}}


async def test_a_request_id_is_echoed_or_generated(api: Api) -> None:
    response = await api.send(f"{BASE}/tasks", b"{}", x_request_id="abc-1")
    assert response.headers["x-request-id"] == "abc-1"
    made = (await api.get(f"{BASE}/tasks/{NEVER}")).headers["x-request-id"]
    assert len(made) == 32
    int(made, 16)


async def test_a_terminal_task_is_requeued_as_a_new_one(api: Api) -> None:
    task = json_of(await api.send(f"{BASE}/tasks", b'{"command":"again","payload":{"n":7}}'), 202)
    assert_response(await api.post(f"{BASE}/tasks/{task['id']}/requeue"), 409, b'{"error":"not-terminal"}')
    json_of(await api.send(f"{BASE}/tasks/claim", b"{}"), 200)
    json_of(await api.send(f"{BASE}/tasks/{task['id']}/result", b'{"status":"FAILED","error":"broke"}'), 200)
    new = json_of(await api.post(f"{BASE}/tasks/{task['id']}/requeue"), 202)
    assert new["id"] != task["id"]
    assert (new["status"], new["payload"], new["attempts"]) == ("PENDING", '{"n":7}', 0)
    assert_response(await api.post(f"{BASE}/tasks/{NEVER}/requeue"), 404, b'{"error":"not found"}')


async def test_a_cancelled_job_is_a_failed_task(api: Api) -> None:
    task = json_of(await api.send(f"{BASE}/tasks", b'{"command":"c","payload":{}}'), 202)
    json_of(await api.send(f"/v1/jobs/{task['id']}/cancel", b"{}"), 200)
    seen = json_of(await api.get(f"{BASE}/tasks/{task['id']}"), 200)
    assert (seen["status"], seen["error"], seen["lastKnownLocation"]) == ("FAILED", "cancelled", "NONE")


async def test_a_url_with_or_without_the_base_path_works(api: Api) -> None:
    for address in (BASE, BASE + BASE):
        task = json_of(await api.send(f"{address}/tasks", b'{"command":"x","payload":{}}'), 202)
        assert json_of(await api.get(f"{address}/tasks/{task['id']}"), 200)["id"] == task["id"]
        assert_response(await api.get(f"{address}/healthz"), 200, b'{"status":"ok"}')


async def test_every_error_below_the_base_path_has_the_format_of_codeq(api: Api, guarded: Api) -> None:
    for caller in (api, guarded):
        for path in (BASE, f"{BASE}/nothing", f"{BASE}/tasks/a/b/c", f"{BASE}/tasks//x", f"{BASE}{BASE}/nothing"):
            assert_response(await caller.get(path), 404, b'{"error":"nothing is served under this path"}')
    error = json_of(await api.call("DELETE", f"{BASE}/tasks"), 405)
    assert set(error) == {"error"}
    cross = await api.send(f"{BASE}/tasks", b"{}", **{"sec-fetch-site": "cross-site"})
    assert set(json_of(cross, 403)) == {"error"}
    plain = await api.get("/v1/codeqs")
    assert (plain.status_code, plain.headers["content-type"]) == (404, "application/problem+json")
