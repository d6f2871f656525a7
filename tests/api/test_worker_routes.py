"""Work over HTTP: claim, stay alive, save progress, finish."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from typing import Any

import httpx2
import pytest

from tests.api.rig import JSON, NEVER, Api, pointer, problem
from tests.support.eventually import eventually

NUMBERS = f'{{"a":123456789012345678901234567890,"b":[1e400,-1E+99999,1.10,1E+2,-0.0],"c":{"7" * 5000}}}'


async def test_numbers_of_any_size_are_kept_digit_for_digit(api: Api) -> None:
    """In payload, step, checkpoint, event, approval, result and error, in every response that contains them."""

    async def send(path: str, body: str, status: int = 200, *, method: str = "POST") -> httpx2.Response:
        sent = await api.call(method, path, content=body.replace("NUMBERS", NUMBERS), headers=JSON)
        assert sent.status_code == status, sent.text
        return sent

    async def holds(path: str) -> None:
        assert NUMBERS in (await api.get(path)).text, path

    api.ok(await api.put("/v1/types/sums", {"schema": {"properties": {"a": {"type": "integer", "minimum": 5}}}}))
    made = await send("/v1/jobs", '{"type":"sums","payload":NUMBERS}', 201)
    id = json.loads(made.text, parse_int=str)["id"]
    path = f"/v1/jobs/{id}"
    claimed = await send("/v1/claims", '{"worker":"w"}')
    assert NUMBERS in claimed.text
    await holds(path)
    await send(f"{path}/steps", '{"fence":1,"name":"s","result":NUMBERS}')
    await holds(f"{path}/steps")
    await send(f"{path}/checkpoint", '{"fence":1,"seq":1,"data":NUMBERS}', method="PUT")
    await send(f"{path}/events", '{"fence":1,"events":[{"message":"m","payload":NUMBERS}]}', 201)
    await holds(f"{path}/events")
    asked = await send(f"{path}/approvals", '{"fence":1,"prompt":"Go?","details":NUMBERS}', 201)
    approval = f"/v1/approvals/{json.loads(asked.text, parse_int=str)['approval']['id']}"
    await holds(approval)
    await send(f"{approval}/decide", '{"decision":"approve","data":NUMBERS}')
    assert (await send("/v1/claims", '{"worker":"w"}')).text.count(NUMBERS) >= 4
    await send(f"{path}/fail", '{"fence":2,"error":{"message":"m","details":NUMBERS},"retry_after_seconds":1}')
    assert (await api.get(path)).text.count(NUMBERS) >= 3
    await holds(f"{path}/history")
    assert (await api.get(f"{path}/why")).status_code == 200
    api.clock.advance(2)
    await send("/v1/claims", '{"worker":"w"}')
    await send(f"{path}/complete", '{"fence":3,"result":NUMBERS}')
    await holds(path)
    await holds(f"{path}/result")
    other = await send("/v1/jobs/batch", '{"jobs":[{"type":"other","payload":NUMBERS}]}', 201)
    assert NUMBERS in other.text


async def test_a_star_among_the_affinity_keys_of_a_claim_means_any(api: Api) -> None:
    for keys, taken in ((None, 0), (["a"], 0), (["b", "a"], 1), (["*"], 1), (["a", "*"], 1)):
        await api.enqueue(affinity_key="b")
        jobs = api.ok(await api.post("/v1/claims", {"affinity_keys": keys, "limit": 100}))["jobs"]
        assert bool(jobs) == taken, keys


async def test_a_claim_leases_the_best_job_with_its_payload_and_steps(api: Api) -> None:
    await api.enqueue(type="low", priority=1)
    best = await api.enqueue(type="high", priority=9, payload={"x": 1})
    (job,) = await api.claim(worker="w7", lease_seconds=30)
    assert (job["id"], job["status"], job["payload"]) == (best["id"], "running", {"x": 1})
    assert job["lease"]["worker"] == "w7"
    assert job["lease"]["fence"] >= 1
    assert job["steps"] == []
    assert job["approval"] is None


async def test_a_claim_leases_several_jobs_or_returns_an_empty_list(api: Api) -> None:
    for _ in range(3):
        await api.enqueue()
    assert len(await api.claim(limit=2)) == 2
    assert len(await api.claim(limit=100)) == 1
    assert await api.claim() == []


async def test_a_claim_outside_the_rules_is_rejected_by_name(api: Api) -> None:
    for fields, where in [
        ({"limit": 0}, "/limit"), ({"limit": 101}, "/limit"), ({"lease_seconds": 0.5}, "/lease_seconds"),
        ({"lease_seconds": 3601}, "/lease_seconds"), ({"wait_seconds": 61}, "/wait_seconds"), ({"types": [""]}, "/types"),
        ({"worker": ""}, "/worker"), ({"worker": "a\nb"}, "/worker"), ({"tenant": "x"}, "/tenant"),
    ]:  # fmt: skip
        assert pointer(await api.post("/v1/claims", fields)) == where, fields


async def test_the_same_claim_id_again_gets_the_same_jobs(api: Api) -> None:
    await api.enqueue()
    await api.enqueue()
    (first,) = await api.claim(claim_id="c1")
    (again,) = await api.claim(claim_id="c1")
    assert again["id"] == first["id"]
    assert again["lease"]["fence"] == first["lease"]["fence"]


async def test_a_waiting_claim_returns_when_a_job_is_enqueued(api: Api) -> None:
    claim = asyncio.create_task(api.claim(wait_seconds=30))
    await eventually(lambda: _is(api.service.admission.waiting == 1))
    assert api.service.admission.active == 0
    job = await api.enqueue()
    (leased,) = await claim
    assert leased["id"] == job["id"]
    assert api.service.admission.waiting == 0


async def test_a_disconnected_caller_leaves_no_job_leased(api: Api) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", api.port)
    body = b'{"wait_seconds": 60}'
    writer.write(
        b"POST /v1/claims HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    await writer.drain()
    await eventually(lambda: _is(api.service.admission.waiting == 1))
    writer.close()
    await writer.wait_closed()
    await eventually(lambda: _is(api.service.admission.waiting == 0))
    job = await api.enqueue()
    (leased,) = await api.claim()
    assert leased["id"] == job["id"]


async def test_a_finish_does_not_require_the_worker_name(api: Api) -> None:
    job = await api.running(worker="some/instance")
    receipt = api.ok(
        await api.post(f"/v1/jobs/{job['id']}/complete", {"fence": job["lease"]["fence"], "result": [1.0]})
    )
    assert (receipt["id"], receipt["status"], receipt["attempt"]) == (job["id"], "succeeded", 1)
    done = await api.job(job["id"])
    assert done["result"] == [1.0]
    assert done["lease"] is None


async def test_a_repeated_finish_gets_the_same_receipt_and_another_operation_is_rejected(api: Api) -> None:
    job = await api.running(worker="w1")
    body = {"fence": job["lease"]["fence"]}
    first = api.ok(await api.post(f"/v1/jobs/{job['id']}/complete", body))
    assert api.ok(await api.post(f"/v1/jobs/{job['id']}/complete", body)) == first
    failing = body | {"error": {"message": "no"}}
    problem(await api.post(f"/v1/jobs/{job['id']}/fail", failing), 409, "already_finished")
    problem(await api.post(f"/v1/jobs/{job['id']}/heartbeat", body), 409, "not_running")


async def test_a_stale_fence_changes_nothing(api: Api) -> None:
    first = await api.running()
    await api.post(f"/v1/jobs/{first['id']}/revoke", {})
    api.clock.advance(3600)
    (job,) = await api.claim()
    assert (job["id"], job["lease"]["fence"] > first["lease"]["fence"]) == (first["id"], True)
    stale = {"fence": first["lease"]["fence"]}
    before = await api.job(job["id"])
    reports: list[tuple[str, dict[str, Any]]] = [
        ("complete", {}), ("fail", {"error": {"message": "x"}}), ("release", {}), ("heartbeat", {}),
        ("events", {"events": [{"message": "x"}]}), ("steps", {"name": "a", "occurrence": 0, "result": 1}), ("cancel/ack", {}),
    ]  # fmt: skip
    for path, more in reports:
        problem(await api.post(f"/v1/jobs/{job['id']}/{path}", stale | more), 409, "lease_lost")
    problem(await api.put(f"/v1/jobs/{job['id']}/checkpoint", stale | {"seq": 1, "data": 1}), 409, "lease_lost")
    assert await api.job(job["id"]) == before


async def test_a_failure_is_retried_and_keeps_its_error(api: Api) -> None:
    job = await api.running()
    error = {"message": "quota", "kind": "provider", "details": {"code": 429}}
    body = {"fence": job["lease"]["fence"], "error": error, "retry_after_seconds": 60}
    receipt = api.ok(await api.post(f"/v1/jobs/{job['id']}/fail", body))
    assert (receipt["status"], receipt["attempt"]) == ("retry", 2)
    seen = await api.job(job["id"])
    assert seen["error"] == error
    assert seen["location"] == "delayed"
    api.clock.advance(60)
    assert (await api.job(job["id"]))["location"] == "ready"


async def test_a_release_returns_the_job_at_a_time(api: Api) -> None:
    job = await api.running()
    fence = job["lease"]["fence"]
    body = {"fence": fence, "run_at": "2200-01-01T00:00:00Z", "reason": "later"}
    assert api.ok(await api.post(f"/v1/jobs/{job['id']}/release", body))["run_at"] == "2200-01-01T00:00:00.000000Z"
    both = {"fence": fence, "run_at": "2200-01-01T00:00:00Z", "delay_seconds": 1}
    assert (await api.post(f"/v1/jobs/{job['id']}/release", both)).status_code == 422


async def test_a_cancel_is_signaled_by_the_heartbeat_and_acknowledged(api: Api) -> None:
    job = await api.running()
    body = {"fence": job["lease"]["fence"]}
    reply = api.ok(await api.post(f"/v1/jobs/{job['id']}/heartbeat", body | {"lease_seconds": 120}))
    assert (reply["cancel_requested"], reply["paused"]) == (False, False)
    api.ok(await api.post(f"/v1/jobs/{job['id']}/cancel", {"reason": "stop"}))
    reply = api.ok(await api.post(f"/v1/jobs/{job['id']}/heartbeat", body))
    assert (reply["cancel_requested"], reply["cancel_reason"]) == (True, "stop")
    assert api.ok(await api.post(f"/v1/jobs/{job['id']}/cancel/ack", body))["status"] == "cancelled"


async def test_finishes_return_a_result_per_item(api: Api) -> None:
    jobs = [await api.running(type=f"t{n}", worker=f"w{n}") for n in range(3)]
    items: list[dict[str, Any]] = [
        {"id": jobs[0]["id"], "fence": jobs[0]["lease"]["fence"], "outcome": "complete", "result": {"ok": True}},
        {"id": jobs[1]["id"], "fence": 999, "outcome": "complete"},
        {
            "id": jobs[1]["id"],
            "fence": jobs[1]["lease"]["fence"],
            "outcome": "fail",
            "error": {"message": "x"},
            "retryable": False,
        },
        {"id": jobs[2]["id"], "fence": jobs[2]["lease"]["fence"], "outcome": "release", "worker": "w2"},
        {"id": NEVER, "fence": 1, "outcome": "complete"},
        {"id": "nobody", "fence": 1, "outcome": "complete"},
    ]
    answers = api.ok(await api.post("/v1/finishes", {"items": items}))["items"]
    assert [a.get("status") for a in answers] == ["succeeded", None, "failed", "queued", None, None]
    assert [a["error"]["code"] for a in answers if "error" in a] == ["lease_lost", "not_found", "not_found"]
    assert [a["id"] for a in answers] == [i["id"] for i in items]


async def test_a_finish_can_add_files_and_a_bad_one_rejects_only_its_item(api: Api) -> None:
    jobs = [await api.running(type=f"t{n}", worker=f"w{n}") for n in range(3)]
    files: list[list[dict[str, str]]] = [
        [{"name": "a.txt", "content_base64": "aGVsbG8="}],
        [{"name": "neither"}],
        [{"name": "b", "url": "https://example.com/b"}],
    ]
    items: list[dict[str, Any]] = [
        {"id": job["id"], "fence": job["lease"]["fence"], "outcome": "complete", "artifacts": some}
        for job, some in zip(jobs, files, strict=True)
    ]
    for _ in range(2):  # the same again answers the same, and keeps nothing twice
        answers = api.ok(await api.post("/v1/finishes", {"items": items}))["items"]
        assert [a.get("status") for a in answers] == ["succeeded", None, "succeeded"]
        assert answers[1]["error"]["errors"][0]["pointer"] == "/artifacts/0"
    kept = [api.ok(await api.get(f"/v1/jobs/{job['id']}/artifacts"))["items"] for job in jobs]
    assert [[one["name"] for one in some] for some in kept] == [["a.txt"], [], ["b"]]
    assert (await api.job(jobs[1]["id"]))["status"] == "running"


async def test_heartbeats_return_a_result_per_item(api: Api) -> None:
    job = await api.running(worker="w1")
    fence = job["lease"]["fence"]
    items = [
        {"id": job["id"], "fence": fence, "events": [{"message": "half"}], "checkpoint": {"seq": 1, "data": {"n": 1}}},
        {"id": job["id"], "fence": fence + 1},
    ]
    alive, lost = api.ok(await api.post("/v1/heartbeats", {"items": items}))["items"]
    assert alive["id"] == job["id"]
    assert lost["error"]["code"] == "lease_lost"
    assert (await api.job(job["id"]))["checkpoint"] == {"n": 1}
    assert [e["message"] for e in api.ok(await api.get(f"/v1/jobs/{job['id']}/events"))["items"]] == ["half"]


async def test_an_unknown_outcome_is_rejected(api: Api) -> None:
    response = await api.post("/v1/finishes", {"items": [{"id": NEVER, "fence": 1, "outcome": "explode"}]})
    assert pointer(response).startswith("/items/0")


async def test_checkpoint_numbers_rise_and_a_repeat_is_accepted(api: Api) -> None:
    job = await api.running()
    fence = job["lease"]["fence"]

    async def save(seq: int, data: object) -> Any:
        return await api.put(f"/v1/jobs/{job['id']}/checkpoint", {"fence": fence, "seq": seq, "data": data})

    assert api.ok(await save(2, {"page": 2})) == {"seq": 2}
    assert api.ok(await save(2, {"page": 2})) == {"seq": 2}
    problem(await save(2, {"page": 3}), 409, "checkpoint_conflict")
    problem(await save(1, {"page": 1}), 409, "checkpoint_conflict")


async def test_steps_are_saved_once_and_returned_by_the_next_claim(api: Api) -> None:
    job = await api.running()
    fence = job["lease"]["fence"]
    body = {"fence": fence, "name": "search", "occurrence": 0, "result": {"hits": [1.50]}}
    first = await api.post(f"/v1/jobs/{job['id']}/steps", body)
    assert b'{"hits":[1.5]}' in first.content
    again = await api.post(f"/v1/jobs/{job['id']}/steps", body | {"result": "other"})
    assert api.ok(again)["result"] == {"hits": [1.5]}
    api.ok(await api.post(f"/v1/jobs/{job['id']}/release", {"fence": fence}))
    (resumed,) = await api.claim()
    assert [(s["name"], s["result"]) for s in resumed["steps"]] == [("search", {"hits": [1.5]})]
    page = api.ok(await api.get(f"/v1/jobs/{job['id']}/steps"))
    assert [s["name"] for s in page["items"]] == ["search"]


async def test_an_event_has_the_time_of_its_recording_and_of_its_arrival(api: Api) -> None:
    job = await api.running()
    path, fence = f"/v1/jobs/{job['id']}/events", job["lease"]["fence"]
    recorded = ["2001-01-01T00:00:00Z", job["run_started_at"], "2999-12-31T23:59:59+01:00", None]
    reported = [{"message": "m"} | ({} if at is None else {"at": at}) for at in recorded]
    assert api.ok(await api.post(path, {"fence": fence, "events": reported}), 201) == {"seqs": [1, 2, 3, 4]}
    early, exact, late, plain = api.ok(await api.get(path))["items"]
    assert early["at"] == exact["at"] == job["run_started_at"]
    assert late["at"] == plain["at"] == plain["received_at"] == early["received_at"]
    bad = {"message": "m", "at": "2001-01-01T00:00:00"}
    answer = await api.post(path, {"fence": fence, "events": [{"message": "m"}, bad]})
    assert problem(answer, 422, "invalid")["errors"][0]["pointer"] == "/events/1/at"


@pytest.mark.parametrize("message", ["", "  ", "\n"])
async def test_a_blank_message_is_rejected(api: Api, message: str) -> None:
    job = await api.running()
    path, body = f"/v1/jobs/{job['id']}", {"fence": job["lease"]["fence"], "events": [{"message": message}]}
    for call in ("events", "heartbeat"):
        error = problem(await api.post(f"{path}/{call}", body), 422, "invalid")
        assert error["errors"][0]["pointer"] == "/events/0/message"
    assert api.ok(await api.get(f"{path}/events"))["items"] == []


async def test_events_are_numbered_and_a_repeated_id_adds_nothing(api: Api) -> None:
    job = await api.running()
    event = {"message": "one", "id": NEVER, "level": "warn", "payload": {"p": 1}}
    body = {"fence": job["lease"]["fence"], "events": [event, {"message": "two"}]}
    assert api.ok(await api.post(f"/v1/jobs/{job['id']}/events", body), 201) == {"seqs": [1, 2]}
    again = body | {"events": [event]}
    assert api.ok(await api.post(f"/v1/jobs/{job['id']}/events", again), 201) == {"seqs": [1]}
    first = api.ok(await api.get(f"/v1/jobs/{job['id']}/events", params={"limit": 1}))
    assert [(e["seq"], e["level"], e["message"], e["payload"]) for e in first["items"]] == [
        (1, "warn", "one", {"p": 1})
    ]
    rest = api.ok(await api.get(f"/v1/jobs/{job['id']}/events", params={"cursor": first["next_cursor"]}))
    assert [e["message"] for e in rest["items"]] == ["two"]


async def test_a_result_can_be_awaited(api: Api) -> None:
    job = await api.running()
    waiting = asyncio.create_task(api.get(f"/v1/jobs/{job['id']}/result", params={"wait_seconds": 30}))
    await eventually(lambda: _is(api.service.admission.waiting == 1))
    api.ok(await api.post(f"/v1/jobs/{job['id']}/complete", {"fence": job["lease"]["fence"], "result": 42}))
    response = await waiting
    assert api.ok(response)["result"] == 42
    assert response.headers["etag"] == '"3"'


async def test_a_missing_result_returns_the_status(api: Api) -> None:
    job = await api.enqueue(delay_seconds=60)
    response = await api.get(f"/v1/jobs/{job['id']}/result")
    assert api.ok(response, 202) == {"id": job["id"], "status": "queued", "location": "delayed"}


async def test_an_artifact_is_streamed_in_and_out(api: Api) -> None:
    job = await api.running()
    content = bytes(range(256)) * 1000
    path = f"/v1/jobs/{job['id']}/artifacts"
    headers = {"interlock-fence": str(job["lease"]["fence"]), "content-type": "text/plain"}
    made = api.ok(await api.call("PUT", path, params={"name": "a/../b é.txt"}, content=content, headers=headers))
    assert made["size"] == len(content)
    assert made["sha256"] == hashlib.sha256(content).hexdigest()
    assert [a["id"] for a in api.ok(await api.get(path))["items"]] == [made["id"]]
    assert made["url"] == f"{path}/{made['id']}"
    read = await api.get(made["url"])
    assert read.content == content
    assert read.headers["content-type"] == "text/plain"
    assert read.headers["content-disposition"].startswith("attachment;")
    several = await api.get(f"{path}/{made['id']}", headers={"range": "bytes=0-1,3-4"})
    problem(several, 416, "range_not_satisfiable")
    assert several.headers["content-range"] == f"bytes */{made['size']}"
    part = await api.get(f"{path}/{made['id']}", headers={"range": "bytes=10-19"})
    assert part.status_code == 206
    assert part.content == content[10:20]
    assert part.headers["content-range"] == f"bytes 10-19/{len(content)}"
    whole = await api.get(f"{path}/{made['id']}", headers={"range": "lines=1-2"})
    assert (whole.status_code, len(whole.content)) == (200, made["size"])
    assert "content-range" not in whole.headers
    beyond = await api.get(f"{path}/{made['id']}", headers={"range": "bytes=9999999-"})
    problem(beyond, 416, "range_not_satisfiable")
    assert beyond.headers["content-range"] == f"bytes */{made['size']}"
    problem(await api.get(f"{path}/{NEVER}"), 404, "not_found")


@pytest.mark.parametrize("kind", ["text/html", "image/svg+xml", "application/pdf", "text/javascript"])
async def test_an_artifact_that_a_browser_could_run_is_served_as_plain_bytes(api: Api, kind: str) -> None:
    job = await api.running()
    path = f"/v1/jobs/{job['id']}/artifacts"
    headers = {"interlock-fence": str(job["lease"]["fence"]), "content-type": kind}
    made = api.ok(await api.call("PUT", path, params={"name": "a"}, content=b"<script>", headers=headers))
    assert made["content_type"] == kind
    read = await api.get(f"{path}/{made['id']}")
    assert read.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize("name", ["%FF", "a%FE", "%ED%A0%80", "%C3"])
async def test_a_name_that_is_not_utf_8_is_rejected(api: Api, name: str) -> None:
    job = await api.running()
    path = f"/v1/jobs/{job['id']}/artifacts"
    headers = {"interlock-fence": str(job["lease"]["fence"])}
    assert pointer(await api.call("PUT", f"{path}?name={name}", content=b"x", headers=headers)) == "/name"
    api.ok(await api.call("PUT", f"{path}?name=%EF%BF%BD", content=b"x", headers=headers))
    assert [one["name"] for one in api.ok(await api.get(path))["items"]] == ["\ufffd"]


async def test_an_artifact_needs_the_fence_of_the_lease(api: Api) -> None:
    job = await api.running()
    path = f"/v1/jobs/{job['id']}/artifacts"
    assert pointer(await api.call("PUT", path, params={"name": "a"}, content=b"x")) == "/fence"
    headers = {"interlock-fence": str(job["lease"]["fence"] + 1)}
    problem(await api.call("PUT", path, params={"name": "a"}, content=b"x", headers=headers), 409, "lease_lost")
    assert api.ok(await api.get(path))["items"] == []


async def test_a_link_is_created_and_listed_with_its_url(api: Api) -> None:
    job = await api.running()
    link = {"fence": job["lease"]["fence"], "name": "page", "url": "https://example.com/x"}
    made = api.ok(await api.post(f"/v1/jobs/{job['id']}/artifacts", link), 201)
    assert (made["url"], made["size"], made["sha256"]) == ("https://example.com/x", None, None)
    assert api.ok(await api.get(f"/v1/jobs/{job['id']}/artifacts"))["items"] == [made]


async def test_durations_have_one_format_in_every_response(api: Api) -> None:
    api.ok(await api.put("/v1/types/slow", {"defaults": {"timeout_seconds": 50, "lease_seconds": 20}}))
    asked = {"backoff": {"kind": "fixed", "base_seconds": 3, "max_seconds": 7}, "expiry_delay_seconds": 4}
    names = ("timeout_seconds", "backoff", "expiry_delay_seconds", "priority", "max_attempts")
    for more in ({"type": "slow"}, {"timeout_seconds": 50}, {"type": "slow", "tags": ["a"], "delay_seconds": 0}):
        made = await api.post("/v1/jobs", {"type": "work", **asked, **more})
        path = f"/v1/jobs/{made.json()['id']}"
        answers = [made.text, (await api.get(path)).text, (await api.post("/v1/claims", {"worker": "w"})).text]
        answers += [(await api.get(path)).text]
        for name in names:
            written = {re.findall(rf'"{name}":(\{{[^}}]*\}}|[^,]*)', text)[0] for text in answers}
            assert len(written) == 1, (name, written)


async def test_a_finish_can_contain_small_artifacts(api: Api) -> None:
    job = await api.running(worker="w1")
    body = {
        "fence": job["lease"]["fence"],
        "artifacts": [
            {"name": "a.txt", "content_base64": base64.b64encode(b"hello").decode(), "content_type": "text/plain"},
            {"name": "page", "url": "https://example.com/x"},
        ],
    }
    first = api.ok(await api.post(f"/v1/jobs/{job['id']}/complete", body))
    assert api.ok(await api.post(f"/v1/jobs/{job['id']}/complete", body)) == first
    found = {a["name"]: a for a in api.ok(await api.get(f"/v1/jobs/{job['id']}/artifacts"))["items"]}
    assert found["page"]["url"] == "https://example.com/x"
    assert (await api.get(f"/v1/jobs/{job['id']}/artifacts/{found['a.txt']['id']}")).content == b"hello"


async def _is(fact: bool) -> bool:
    return fact


async def test_an_invalid_value_is_named_by_its_pointer(api: Api) -> None:
    job = await api.running()
    path, fence = f"/v1/jobs/{job['id']}", job["lease"]["fence"]
    good = {"name": "a", "content_base64": ""}
    for bad, place in (
        ({"name": ""}, "/artifacts/1"),
        ({"name": "", "content_base64": ""}, "/artifacts/1/name"),
        ({"name": "b", "url": "javascript:x"}, "/artifacts/1/url"),
        ({"name": "b", "content_base64": "", "content_type": "no"}, "/artifacts/1/content_type"),
    ):
        assert pointer(await api.post(f"{path}/complete", {"fence": fence, "artifacts": [good, bad]})) == place
    assert pointer(await api.post(f"{path}/artifacts", {"fence": fence, "name": "", "url": "https://a.b"})) == "/name"
    events = [{"message": "a"}, {"message": "b", "id": ""}]
    for verb in ("events", "heartbeat"):
        assert pointer(await api.post(f"{path}/{verb}", {"fence": fence, "events": events})) == "/events/1/id"
    for verb in ("finishes", "heartbeats"):
        assert pointer(await api.post(f"/v1/{verb}", {"items": []})) == "/items"
    assert pointer(await api.post("/v1/jobs/batch", {"jobs": []})) == "/jobs"
    assert pointer(await api.put("/v1/agents/a/b", {"backoff": {"kind": "x"}})) == "/backoff/kind"
    assert (
        pointer(await api.put("/v1/agents/a/b", {"defaults": {"backoff": {"kind": "x"}}})) == "/defaults/backoff/kind"
    )
    assert (await api.job(job["id"]))["status"] == "running"
