"""codeQ workers, in the bytes their SDKs send."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from interlock.domain.principal import local
from interlock.faces.codeq import workers
from interlock.storage.contract import Store
from interlock.wire import LIMITS, job_request
from tests.adapters.responses import NEVER, RFC3339, assert_response, json_of
from tests.api.rig import Api
from tests.support.stores import ManualClock

BASE = "/v1/codeq"


async def create(api: Api, command: bytes = b"work", more: bytes = b"") -> str:
    body = b'{"command":"%b","payload":{}%b}' % (command, more)
    return str(json_of(await api.send(f"{BASE}/tasks", body), 202)["id"])


async def claim(api: Api, body: bytes = b"{}") -> dict[str, Any]:
    task: dict[str, Any] = json_of(await api.send(f"{BASE}/tasks/claim", body), 200)
    return task


async def result(api: Api, id: str, body: bytes) -> Any:
    return await api.send(f"{BASE}/tasks/{id}/result", body)


async def two_workers(guarded: Api, **policy: Any) -> tuple[Api, Api]:
    one = await guarded.as_role("work", "produce", worker_id="one", **policy)
    return one, await guarded.as_role("work", "produce", worker_id="two", **policy)


async def test_an_empty_claim_is_204_without_a_body(api: Api) -> None:
    for path, body in (("claim", b"{}"), ("claim/batch", b'{"count":3}')):
        response = await api.send(f"{BASE}/tasks/{path}", body)
        assert (response.status_code, response.content) == (204, b"")
        assert "content-type" not in response.headers


async def test_a_claim_needs_a_body(api: Api) -> None:
    assert_response(await api.send(f"{BASE}/tasks/claim", b""), 400, b'{"error":"invalid body"}')


async def test_a_claimed_task_names_its_worker_and_its_lease(api: Api, clock: ManualClock) -> None:
    id = await create(api)
    task = await claim(api)
    assert (task["id"], task["status"], task["lastKnownLocation"]) == (id, "IN_PROGRESS", "INPROG_SET")
    assert (task["workerId"], task["attempts"]) == ("local", 1)
    assert RFC3339.fullmatch(task["leaseUntil"])
    assert (await api.engine.queries.job(api.tenant, id)).lease_expires_at == clock.now + 300_000_000


async def test_commands_are_tried_in_the_given_order(api: Api) -> None:
    second = await create(api, b"low", b',"priority":9')
    first = await create(api, b"high")
    assert (await claim(api, b'{"commands":["none","high","low"]}'))["id"] == first
    third = await create(api, b"last", b',"priority":9')
    both = b'{"count":2,"commands":["low","none","low","last"]}'
    tasks = json_of(await api.send(f"{BASE}/tasks/claim/batch", both), 200)["tasks"]
    assert [task["id"] for task in tasks] == [second, third]


async def test_a_waiting_claim_tries_commands_in_the_given_order(
    api: Api,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first: list[str] = []
    looks = 0
    look = store.claim

    async def after_some_looks_in_vain(*asked: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 4:  # the three commands were looked at once
            jobs = [job_request({"type": "low", "priority": 9}), job_request({"type": "high"})]
            first.append((await api.engine.jobs.enqueue_batch(local(api.tenant), jobs))[1].id)
        return await look(*asked)

    monkeypatch.setattr(store, "claim", after_some_looks_in_vain)
    task = await claim(api, b'{"waitSeconds":60,"commands":["none","high","low"]}')
    assert [task["id"]] == first


async def test_null_counts_as_no_body(api: Api) -> None:
    id = await create(api)
    assert (await claim(api))["id"] == id
    for body in (b"null", b" null\n"):
        assert_response(await api.send(f"{BASE}/tasks/{id}/heartbeat", body), 200, b'{"ok":true}')
    assert_response(await api.send(f"{BASE}/tasks/{id}/abandon", b"null"), 200, b'{"status":"requeued"}')
    assert (await claim(api))["id"] == id
    assert json_of(await api.send(f"{BASE}/tasks/{id}/nack", b"null"), 200)["status"] == "requeued"
    json_of(await api.send(f"{BASE}/admin/tasks/cleanup", b"null"), 200)
    assert_response(await api.send(f"{BASE}/tasks/claim", b"null"), 400, b'{"error":"invalid body"}')


async def test_a_batch_claims_in_order_up_to_its_count(api: Api) -> None:
    for command in (b"a", b"b", b"b"):
        await create(api, command)
    tasks = json_of(await api.send(f"{BASE}/tasks/claim/batch", b'{"count":2,"commands":["b","a"]}'), 200)["tasks"]
    assert [task["command"] for task in tasks] == ["b", "b"]
    rest = json_of(await api.send(f"{BASE}/tasks/claim/batch", b'["b","a"]'), 200)
    assert [task["command"] for task in rest] == ["a"]


async def test_a_batch_claims_at_most_ten(api: Api) -> None:
    over = await api.send(f"{BASE}/tasks/claim/batch", b'{"count":11}')
    assert_response(over, 400, b'{"error":"count exceeds maximum of 10"}')
    for body in (b"{}", b'{"count":0}', b'{"count":"x"}'):
        assert_response(await api.send(f"{BASE}/tasks/claim/batch", body), 400, b'{"error":"invalid body"}')


async def test_a_claim_names_at_most_a_hundred_commands(api: Api) -> None:
    names = [b'"c%d"' % n for n in range(101)]
    for route in ("claim", "claim/batch"):
        some = await api.send(f"{BASE}/tasks/{route}", b'{"count":1,"commands":[%b]}' % b",".join(names[:100]))
        assert some.status_code == 204
        over = await api.send(f"{BASE}/tasks/{route}", b'{"count":1,"commands":[%b]}' % b",".join(names))
        assert_response(over, 400, b'{"error":"commands exceed maximum of 100"}')


async def test_a_claim_waits_for_a_task(api: Api) -> None:
    waiting = asyncio.create_task(api.send(f"{BASE}/tasks/claim", b'{"commands":["soon"],"waitSeconds":30}'))
    id = await create(api, b"soon")
    assert json_of(await waiting, 200)["id"] == id


async def test_max_attempts_is_the_number_of_runs(api: Api, clock: ManualClock) -> None:
    id = await create(api, more=b',"maxAttempts":3')
    for run in (1, 2, 3):
        assert (await claim(api))["attempts"] == run
        response = await api.send(f"{BASE}/tasks/{id}/nack", b'{"delaySeconds":7,"reason":"busy"}')
        assert_response(
            response,
            200,
            b'{"status":"requeued","delaySeconds":7}' if run < 3 else b'{"status":"dlq","delaySeconds":0}',
        )
        clock.advance(7)
    assert (await api.send(f"{BASE}/tasks/claim", b"{}")).status_code == 204
    dead = json_of(await api.get(f"{BASE}/tasks/{id}"), 200)
    assert (dead["status"], dead["lastKnownLocation"], dead["attempts"], dead["error"]) == (
        "FAILED",
        "DLQ_SET",
        3,
        "busy",
    )


async def test_a_nack_is_delayed_by_at_most_900_seconds(api: Api, clock: ManualClock) -> None:
    id = await create(api)
    await claim(api)
    json_of(await api.send(f"{BASE}/tasks/{id}/nack", b'{"delaySeconds":5000}'), 200)
    waits = json_of(await api.get(f"{BASE}/tasks/{id}"), 200)
    assert (waits["status"], waits["lastKnownLocation"], waits["attempts"]) == ("PENDING", "DELAYED_ZSET", 1)
    clock.advance(900)
    assert (await claim(api))["id"] == id


async def test_a_nack_without_a_delay_follows_the_backoff(api: Api) -> None:
    id = await create(api)
    await claim(api)
    given = json_of(await api.send(f"{BASE}/tasks/{id}/nack", b""), 200)
    assert given["status"] == "requeued"
    assert 1 <= given["delaySeconds"] <= 5


async def test_an_abandoned_task_is_claimable_immediately_and_uses_no_attempt(api: Api) -> None:
    id = await create(api)
    await claim(api)
    assert_response(await api.post(f"{BASE}/tasks/{id}/abandon"), 200, b'{"status":"requeued"}')
    assert json_of(await api.get(f"{BASE}/tasks/{id}"), 200)["attempts"] == 0
    assert (await claim(api))["attempts"] == 1


async def test_a_heartbeat_extends_the_lease(api: Api, clock: ManualClock) -> None:
    id = await create(api)
    await claim(api)
    clock.advance(100)
    for body, seconds in ((b"{}", 300), (b"", 300), (b'{"extendSeconds":60}', 60)):
        assert_response(await api.send(f"{BASE}/tasks/{id}/heartbeat", body), 200, b'{"ok":true}')
        assert (await api.engine.queries.job(api.tenant, id)).lease_expires_at == clock.now + seconds * 1_000_000


async def test_a_heartbeat_after_the_lease_was_lost_is_rejected(guarded: Api, clock: ManualClock) -> None:
    one, two = await two_workers(guarded)
    id = await create(one)
    await claim(one, b'{"leaseSeconds":10}')
    clock.advance(11)
    await guarded.engine.maintenance.sweep()
    assert_response(await one.send(f"{BASE}/tasks/{id}/heartbeat", b"{}"), 403, b'{"error":"not-owner"}')
    assert (await claim(two))["id"] == id
    assert_response(await one.send(f"{BASE}/tasks/{id}/heartbeat", b"{}"), 403, b'{"error":"not-owner"}')
    assert_response(await two.send(f"{BASE}/tasks/{id}/heartbeat", b"{}"), 200, b'{"ok":true}')


async def test_only_the_lease_holder_may_finish_or_release(guarded: Api) -> None:
    one, two = await two_workers(guarded)
    id = await create(one)
    await claim(one)
    before = await guarded.engine.queries.job(guarded.tenant, id)
    for path, body in (
        ("heartbeat", b"{}"), ("abandon", b""), ("nack", b"{}"),
        ("result", b'{"status":"COMPLETED"}'), ("result", b'{"status":"FAILED","error":"x"}'),
        ("result", b'{"status":"COMPLETED","artifacts":[{"name":"a","contentBase64":"YQ=="}]}'),
    ):  # fmt: skip
        assert_response(await two.send(f"{BASE}/tasks/{id}/{path}", body), 403, b'{"error":"not-owner"}')
    assert await guarded.engine.queries.job(guarded.tenant, id) == before
    assert await guarded.engine.artifacts.list(guarded.tenant, id) == []
    json_of(await result(one, id, b'{"status":"COMPLETED","result":{}}'), 200)


async def test_an_unknown_task_is_not_found_by_workers(api: Api) -> None:
    for path, body in (("heartbeat", b"{}"), ("abandon", b""), ("nack", b"{}")):
        assert_response(await api.send(f"{BASE}/tasks/{NEVER}/{path}", body), 404, b'{"error":"not-found"}')
    assert_response(await result(api, NEVER, b'{"status":"COMPLETED"}'), 404, b'{"error":"task not found"}')


async def test_a_task_that_is_not_running_accepts_no_result(api: Api) -> None:
    id = await create(api)
    for _ in ("waiting", "ended"):
        for body in (b'{"status":"COMPLETED","result":{}}', b'{"status":"COMPLETED"}', b'{"status":"WHAT"}'):
            assert_response(await result(api, id, body), 409, b'{"error":"not-in-progress"}')
        assert_response(await api.send(f"{BASE}/tasks/{id}/nack", b"{}"), 403, b'{"error":"not-owner"}')
        assert_response(await api.post(f"{BASE}/tasks/{id}/abandon"), 403, b'{"error":"not-owner"}')
        if (await api.send(f"{BASE}/tasks/claim", b"{}")).status_code == 200:
            json_of(await result(api, id, b'{"status":"COMPLETED","result":{}}'), 200)


async def test_a_failed_result_is_terminal(api: Api) -> None:
    id = await create(api)
    await claim(api)
    record = json_of(await result(api, id, b'{"status":"FAILED","error":"no such page","result":{"page":3}}'), 200)
    assert RFC3339.fullmatch(record.pop("completedAt"))
    assert record == {"taskId": id, "status": "FAILED", "error": "no such page", "result": {"page": 3}}
    task = json_of(await api.get(f"{BASE}/tasks/{id}"), 200)
    assert (task["status"], task["error"], task["lastKnownLocation"]) == ("FAILED", "no such page", "NONE")


async def test_a_failed_result_has_the_same_size_limit_and_is_stored_byte_for_byte(api: Api) -> None:
    largest = b'{"price": 1.10, "log": "%b"}' % (b"x" * (LIMITS.result - 26))
    assert len(largest) == LIMITS.result
    for status in (b"COMPLETED", b"FAILED"):
        id = await create(api)
        await claim(api)
        body = b'{"status":"%b","error":"%b","result":%b}' % (status, b"e" * 20_000, largest)
        assert (await result(api, id, body.replace(b"xx", b"xxx", 1))).status_code == 413
        json_of(await result(api, id, body), 200)
        seen = await api.get(f"{BASE}/tasks/{id}/result")
        assert json_of(seen, 200)["result"]["status"] == status.decode()
        assert largest in seen.content


async def test_the_details_of_a_failure_are_returned_byte_for_byte(api: Api) -> None:
    job = await api.running(type="a")
    body = b'{"fence":%d,"retryable":false,"error":{"message":"no","details":{"price": 1.10, "n":[1.0,"\\u00e9"]}}}'
    json_of(await api.send(f"/v1/jobs/{job['id']}/fail", body % job["lease"]["fence"]), 200)
    assert (
        b'"result":{"price": 1.10, "n":[1.0,"\\u00e9"]}' in (await api.get(f"{BASE}/tasks/{job['id']}/result")).content
    )


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"status":"DONE","result":{}}', "invalid status"),
        (b'{"status":"COMPLETED"}', "result required when status=COMPLETED"),
        (b'{"status":"COMPLETED","result":null}', "result required when status=COMPLETED"),
        (b'{"status":"FAILED"}', "error required when status=FAILED"),
        (b'{"status":"FAILED","error":" \\n"}', "error required when status=FAILED"),
        (b'{"status":"COMPLETED","result":[1]}', "invalid request body"),
        (b'{"status":"COMPLETED","result":"done"}', "invalid request body"),
        (b'{"status":"FAILED","error":"x","result":7}', "invalid request body"),
        (b"{}", "invalid request body"),
    ],
)
async def test_an_invalid_result_is_rejected_and_the_task_stays_leased(api: Api, body: bytes, text: str) -> None:
    id = await create(api)
    await claim(api)
    assert_response(await result(api, id, body), 400, b'{"error":"%b"}' % text.encode())
    if b"status" in body:
        assert_response(
            await api.send(f"{BASE}/tasks/batch/results", b'{"results":[{"taskId":"%b",%b]}' % (id.encode(), body[1:])),
            200,
            b'{"results":[{"taskId":"%b","error":"%b"}]}' % (id.encode(), text.encode()),
        )
    record = json_of(await result(api, id, b'{"status":"COMPLETED","result":{}}'), 200)
    assert (record["status"], record["result"]) == ("COMPLETED", {})


async def test_an_unreadable_item_does_not_reject_the_other_results(api: Api) -> None:
    one, two = await create(api), await create(api)
    json_of(await api.send(f"{BASE}/tasks/claim/batch", b'{"count":2}'), 200)
    items = (
        b'{"taskId":"%b","status":"COMPLETED","result":{"n":1}}' % one.encode(),
        b'{"taskId":"odd","status":7}', b'{"taskId":"twice","status":"FAILED","error":"x","result":{"a":1,"a":2}}',
        b'"text"', b"null", b"{}", b'{"taskId":"deep","status":"COMPLETED","result":%b%b}' % (b"[" * 99, b"]" * 99),
        b'{"taskId":"%b","options":{"status":"FAILED","error":"broke \\ud800"}}' % two.encode(),
    )  # fmt: skip
    results = json_of(await api.send(f"{BASE}/tasks/batch/results", b"[%b]" % b",".join(items)), 200)
    assert [one["taskId"] for one in results] == [one, "odd", "twice", "", "", "", "deep", two]
    assert (results[0]["result"]["status"], results[0]["result"]["result"]) == ("COMPLETED", {"n": 1})
    assert (results[-1]["result"]["status"], results[-1]["result"]["error"]) == ("FAILED", "broke \ufffd")
    assert {one["error"] for one in results[1:5] + results[6:7]} == {"invalid body"}
    assert results[5]["error"] == "task not found"
    assert (await api.engine.queries.job(api.tenant, two)).sanitized


async def test_commands_are_compared_without_case(api: Api) -> None:
    spelled = [(await create(api, name), name.decode()) for name in (b"RENDER", b"Render", b"render")]
    low = json_of(await api.send("/v1/jobs", b'{"type":"rEnDeR","priority":-1}'), 201)["id"]
    stats = json_of(await api.get(f"{BASE}/admin/queues/ReNdEr"), 200)
    assert stats == {"command": "ReNdEr", "ready": 4, "delayed": 0, "inProgress": 0, "dlq": 0}
    for id, name in (*spelled, (low, "rEnDeR")):
        task = await claim(api, b'{"commands":["rendeR"]}')
        assert (task["id"], task["command"]) == (id, name)
    assert (await api.send(f"{BASE}/tasks/claim", b'{"commands":["rendeR"]}')).status_code == 204


async def test_a_waiting_claim_finds_a_command_in_another_spelling(api: Api) -> None:
    waiting = asyncio.create_task(api.send(f"{BASE}/tasks/claim", b'{"commands":["Soon"],"waitSeconds":30}'))
    id = json_of(await api.send("/v1/jobs", b'{"type":"SOON"}'), 201)["id"]
    assert json_of(await waiting, 200)["id"] == id


async def test_a_native_token_allows_types_in_their_exact_spelling(guarded: Api) -> None:
    producer = await guarded.as_role("produce")
    worker = await guarded.as_role("work", worker_id="w", types=["mine"])
    await create(producer, b"MINE")
    for body in (b'{"commands":["mine"]}', b"{}"):
        assert (await worker.send(f"{BASE}/tasks/claim", body)).status_code == 204
    id = await create(producer, b"mine")
    assert (await claim(worker, b'{"commands":["mine"]}'))["id"] == id


async def test_a_claim_waits_at_most_30_seconds(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def patient(_call: Any, _ask: Any, seconds: float, **_more: Any) -> list[Any]:
        waits.append(seconds)
        return []

    monkeypatch.setattr(workers, "claim_with_wait", patient)
    for seconds in (5, 30, 31, 600):
        await api.send(f"{BASE}/tasks/claim", b'{"waitSeconds":%d}' % seconds)
    assert waits == [5, 30, 30, 30]


async def test_a_dead_letter_names_its_cause_and_a_pending_task_has_no_error(api: Api, clock: ManualClock) -> None:
    async def error(id: str) -> str | None:
        found: str | None = json_of(await api.get(f"{BASE}/tasks/{id}"), 200).get("error")
        return found

    nacked = await create(api, more=b',"maxAttempts":2')
    for expected in (None, "MAX_ATTEMPTS"):
        await claim(api)
        json_of(await api.send(f"{BASE}/tasks/{nacked}/nack", b'{"delaySeconds":1}'), 200)
        assert await error(nacked) == expected
        clock.advance(1)
    lost = await create(api, more=b',"maxAttempts":1')
    await claim(api, b'{"leaseSeconds":10}')
    clock.advance(11)
    await api.engine.maintenance.sweep()
    assert await error(lost) == "LEASE_EXPIRED"
    assert json_of(await api.get(f"{BASE}/tasks/{lost}/result"), 200)["result"]["error"] == "LEASE_EXPIRED"


async def test_a_lease_has_the_requested_duration(api: Api, clock: ManualClock) -> None:
    id = await create(api)
    await claim(api, b'{"leaseSeconds":86400}')
    clock.advance(86_399)
    await api.engine.maintenance.sweep()
    assert_response(await api.send(f"{BASE}/tasks/{id}/heartbeat", b'{"extendSeconds":172800}'), 200, b'{"ok":true}')
    clock.advance(172_799)
    await api.engine.maintenance.sweep()
    json_of(await result(api, id, b'{"status":"COMPLETED","result":{}}'), 200)


async def test_a_result_can_contain_files_and_links(api: Api) -> None:
    id = await create(api)
    await claim(api)
    content = base64.b64encode(b"# report")
    body = (
        b'{"status":"COMPLETED","result":{"n":[1, 2]},"artifacts":[{"name":"report.md","contentBase64":"%b","contentType":'
        b'"text/markdown"},{"name":"page","url":"https://example.org/page"}]}' % content
    )
    record = json_of(await result(api, id, body), 200)
    by_name = {one["name"]: one["url"] for one in record["artifacts"]}
    assert by_name["page"] == "https://example.org/page"
    file = await api.get(by_name["report.md"])
    assert (file.content, file.headers["content-type"]) == (b"# report", "text/markdown")
    assert json_of(await api.get(f"{BASE}/tasks/{id}/result"), 200)["result"] == record


async def test_artifacts_never_prevent_a_result_from_being_submitted(api: Api) -> None:
    id = await create(api)
    await claim(api)
    sent: list[dict[str, str]] = [
        {"name": "page", "url": "s3://bucket/key"}, {"name": "page", "url": "../relative"}, {"name": "page", "url": " "},
        {"name": "page [2]", "url": "https://user:password@example.org"}, {"name": "", "url": "x"},
        {"name": "long", "url": "https://example.org/" + "x" * 100_000}, {"name": "n" * 5000, "url": "y"},
        {"name": "both", "url": "file:///b", "contentBase64": "YQ=="}, {"name": "neither"}, {"url": "anonymous"},
        {"name": "empty", "contentBase64": ""}, {"name": "line\nbreak\x00", "url": "nul\x00"}, {"name": "..", "url": "z"},
        {"name": "file", "contentBase64": "YQ==", "contentType": "not a media type"},
    ]  # fmt: skip
    sent += [{"name": f"many {n}", "url": f"u{n}"} for n in range(250)]
    body = json.dumps({"status": "COMPLETED", "result": {}, "artifacts": sent}).encode()
    record = json_of(await result(api, id, body), 200)
    kept = [one for one in sent if one.get("url")]
    links, (file,) = record["artifacts"][: len(kept)], record["artifacts"][len(kept) :]
    assert [one["url"] for one in links] == [one["url"].replace("\x00", "\ufffd") for one in kept]
    exact = ("page", "page [2]", "long", "both", *(f"many {n}" for n in range(250)))
    assert [one["name"] for one in links if one["name"] in exact] == [
        one["name"] for one in kept if one.get("name") in exact
    ]
    assert file["name"] == "file"
    assert (await api.get(file["url"])).content == b"a"
    assert json_of(await api.get(f"{BASE}/tasks/{id}/result"), 200)["result"] == record
    assert len(await api.engine.artifacts.list(api.tenant, id, limit=200)) == 200


async def test_each_result_of_a_batch_gets_its_own_response(api: Api) -> None:
    good, bad = await create(api), await create(api)
    json_of(await api.send(f"{BASE}/tasks/claim/batch", b'{"count":2}'), 200)
    body = (
        b'{"results":[{"taskId":"%b","status":"COMPLETED","result":{"n":1}},{"taskId":"%b","status":"FAILED",'
        b'"error":"broke"},{"taskId":"%b","status":"COMPLETED"},{"taskId":"%b","status":"WHAT"}]}'
        % (good.encode(), bad.encode(), NEVER.encode(), good.encode())
    )
    results = json_of(await api.send(f"{BASE}/tasks/batch/results", body), 200)["results"]
    assert [one["taskId"] for one in results] == [good, bad, NEVER, good]
    assert (results[0]["result"]["status"], results[0]["result"]["result"]) == ("COMPLETED", {"n": 1})
    assert (results[1]["result"]["status"], results[1]["result"]["error"]) == ("FAILED", "broke")
    assert results[2:] == [
        {"taskId": NEVER, "error": "task not found"},
        {"taskId": good, "error": "not-in-progress"},
    ]


async def test_a_batch_of_results_has_1_to_100_items(api: Api) -> None:
    item = b'{"taskId":"%b","status":"COMPLETED"}' % NEVER.encode()
    over = await api.send(f"{BASE}/tasks/batch/results", b'{"results":[%b]}' % b",".join([item] * 101))
    assert_response(over, 400, b'{"error":"batch size exceeds maximum of 100"}')
    assert_response(await api.send(f"{BASE}/tasks/batch/results", b'{"results":[]}'), 400, b'{"error":"invalid body"}')


async def test_an_eligible_task_behind_a_thousand_ineligible_ones_is_claimed(guarded: Api) -> None:
    producer = await guarded.as_role("produce")
    mine = await guarded.as_role("work", worker_id="mine", types=["mine", "mine too"], capabilities=[])
    for _ in range(10):
        jobs = [{"type": "mine", "priority": 9, "requires": ["gpu"]} for _ in range(100)]
        producer.ok(await producer.post("/v1/jobs/batch", {"jobs": jobs}), 201)
    id = await create(producer, b"mine too")
    assert (await claim(mine))["id"] == id
    other = await create(producer, b"mine")
    assert (await claim(mine, b'{"commands":["mine"]}'))["id"] == other


async def test_a_worker_claims_only_what_its_credential_names(guarded: Api) -> None:
    producer = await guarded.as_role("produce")
    worker = await guarded.as_role("work", worker_id="w", types=["mine"])
    await create(producer, b"other")
    id = await create(producer, b"mine")
    refused = await worker.send(f"{BASE}/tasks/claim", b'{"commands":["mine","other"]}')
    assert_response(refused, 403, b'{"error":"event type not allowed"}')
    assert (await claim(worker))["id"] == id
    assert (await worker.send(f"{BASE}/tasks/claim", b"{}")).status_code == 204


async def test_producers_do_not_work_and_workers_do_not_produce(guarded: Api) -> None:
    producer, worker = await guarded.as_role("produce"), await guarded.as_role("work", worker_id="w")
    assert_response(await producer.send(f"{BASE}/tasks/claim", b"{}"), 403, b'{"error":"missing scope"}')
    assert_response(
        await worker.send(f"{BASE}/tasks", b'{"command":"x","payload":{}}'), 403, b'{"error":"missing scope"}'
    )
    for nobody in (guarded, replace(guarded, token="wrong")):
        assert_response(await nobody.send(f"{BASE}/tasks", b"{"), 401, b'{"error":"unauthorized"}')


async def test_tenants_share_neither_tasks_nor_keys(guarded: Api) -> None:
    mine = await guarded.as_role("produce", "read")
    foreign = await guarded.as_role("produce", "read", tenant=f"{guarded.tenant}-other")
    worker = await guarded.as_role("work", worker_id="w", tenant=f"{guarded.tenant}-other")
    body = b'{"command":"x","payload":{},"idempotencyKey":"same"}'
    one, two = (
        json_of(await mine.send(f"{BASE}/tasks", body), 202),
        json_of(await foreign.send(f"{BASE}/tasks", body), 202),
    )
    assert one["id"] != two["id"]
    assert_response(await foreign.get(f"{BASE}/tasks/{one['id']}"), 404, b'{"error":"not found"}')
    assert_response(await foreign.get(f"{BASE}/tasks/{one['id']}/result"), 404, b'{"error":"task not found"}')
    assert_response(await worker.send(f"{BASE}/tasks/{one['id']}/heartbeat", b"{}"), 404, b'{"error":"not-found"}')
    assert json_of(await worker.send(f"{BASE}/tasks/claim", b"{}"), 200)["id"] == two["id"]
