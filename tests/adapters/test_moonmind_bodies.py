"""What MoonMind's clients send and are shown, where its server was more generous or stricter than ours."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from interlock.domain.principal import ROLES, Principal, user
from interlock.faces.moonmind.model import decode_id
from interlock.wire import REMARK_BYTES, JobRequest
from tests.adapters.responses import json_of
from tests.adapters.test_moonmind_jobs import BASE, act, claim, enqueue, rejects, running
from tests.api.rig import Api
from tests.support.stores import ManualClock


async def test_fields_are_accepted_under_both_names(api: Api) -> None:
    job = await enqueue(api, b'{"type":"t","max_attempts":7,"affinity_key":"k","payload":{"a_b":1.0}}')
    assert (job["maxAttempts"], job["affinityKey"], job["payload"]) == (7, "k", {"a_b": 1.0})
    both = b'{"worker_id":"w2","workerId":"w1","lease_seconds":60,"allowed_types":["t"],"worker_capabilities":["git"]}'
    assert (await claim(api, both) or {})["claimedBy"] == "w1"
    json_of(await act(api, job["id"], "heartbeat", b'{"worker_id":"w1","lease_seconds":60}'), 200)
    json_of(await act(api, job["id"], "events", b'{"worker_id":"w1","message":"m"}'), 201)
    json_of(await act(api, job["id"], "runtime-state", b'{"worker_id":"w1","runtime_state":{"n":1}}'), 200)
    done = json_of(await act(api, job["id"], "complete", b'{"worker_id":"w1","result_summary":"ok"}'), 200)
    assert done["resultSummary"] == "ok"
    failing = await running(api)
    json_of(await act(api, failing, "fail", b'{"worker_id":"w1","error_message":"no"}'), 200)
    assert json_of(await act(api, failing, "resubmit", b'{"max_attempts":9}'), 201)["maxAttempts"] == 9
    rejects(await act(api, failing, "heartbeat", b'{"worker_id":"w1"}'), 422, "invalid_queue_payload")
    rejects(await api.send(f"{BASE}/jobs", b'{"type":"t","max_attempts":0}'), 422, "invalid_queue_payload")


async def test_tools_accept_both_names_too(api: Api) -> None:
    id = await running(api)
    call = b'{"tool":"queue.complete","arguments":{"job_id":"%b","worker_id":"w1","result_summary":"ok"}}'
    assert json_of(await api.send("/mcp/tools/call", call % id.encode()), 200)["result"]["resultSummary"] == "ok"


async def test_empty_and_repeated_entries_of_a_claim_are_ignored(api: Api) -> None:
    made = await enqueue(api, b'{"type":"t","payload":{"requiredCapabilities":["git"]}}')
    ask = b'{"workerId":" w1 ","leaseSeconds":5,"allowedTypes":["t"," t ","",  "x"],"workerCapabilities":["git","git"," "]}'
    job = await claim(api, ask)
    assert job is not None
    assert (job["id"], job["claimedBy"]) == (made["id"], "w1")
    anything = await enqueue(api)
    assert (await claim(api, b'{"workerId":"w1","leaseSeconds":5,"allowedTypes":["", " "]}') or {})["id"] == anything[
        "id"
    ]


async def test_an_empty_affinity_key_means_none(api: Api) -> None:
    for key in (b'""', b'"  "', b"null"):
        assert (await enqueue(api, b'{"type":" t ","affinityKey":%b}' % key))["affinityKey"] is None


async def test_a_long_summary_is_truncated_and_the_finish_accepted(api: Api) -> None:
    for text in ("é" * 5000, "\\u0000" * 5000, "x" * (REMARK_BYTES + 1)):
        id = await running(api)
        body = b'{"workerId":"w1","resultSummary":"%b"}' % text.encode()
        summary = json_of(await act(api, id, "complete", body), 200)["resultSummary"]
        assert summary.endswith("…")
        assert REMARK_BYTES - 3 <= len(summary.encode()) <= REMARK_BYTES
    id = await running(api)
    whole = "x" * REMARK_BYTES
    body = b'{"workerId":"w1","resultSummary":"%b"}' % whole.encode()
    assert json_of(await act(api, id, "complete", body), 200)["resultSummary"] == whole


@pytest.mark.parametrize("limit", [1, 50, 200, 500])
async def test_a_paging_client_sees_all_events_of_the_same_time(api: Api, limit: int) -> None:
    id = await running(api)
    job = await api.engine.queries.job(api.tenant, decode_id(id))
    body = {"fence": job.fence, "worker": "w1", "events": [{"message": str(n)} for n in range(300)]}
    api.ok(await api.post(f"/v1/jobs/{job.id}/events", body), 201)
    seen: list[dict[str, Any]] = []
    while True:
        after = f"&after={seen[-1]['createdAt']}" if seen else ""
        page = json_of(await api.get(f"{BASE}/jobs/{id}/events?limit={limit}{after}"), 200)["items"]
        if not page:
            break
        seen += page
    messages = [one["message"] for one in seen]
    assert [one for one in messages if one.isdecimal()] == [str(n) for n in range(300)]
    assert sorted(one for one in messages if not one.isdecimal()) == ["Job claimed", "Job queued"]
    assert len({one["id"] for one in seen}) == 302


async def test_the_payload_of_an_event_may_be_as_large_as_a_body(api: Api) -> None:
    id = await running(api)
    payload = {"log": "x" * 500_000}
    body = json.dumps({"workerId": "w1", "message": "m", "payload": payload}).encode()
    assert json_of(await act(api, id, "events", body), 201)["payload"] == payload
    rejects(await act(api, id, "events", body.replace(b"xx", b"xxxxx")), 422, "invalid_queue_payload")


async def test_the_subject_of_a_jwt_is_the_user_even_if_its_issuer_has_a_name(api: Api) -> None:
    someone = str(uuid4())
    for actor in (someone, f"okta/{someone}"):
        who = Principal(api.tenant, user(actor), ROLES)
        id = (await api.engine.jobs.enqueue(who, JobRequest(type="t"))).id
        job = json_of(await api.get(f"{BASE}/jobs/{id}"), 200)
        assert (job["createdByUserId"], job["requestedByUserId"]) == (someone, someone)


async def test_users_are_uuids_or_null(api: Api) -> None:
    assert (await enqueue(api))["createdByUserId"] is None
    someone, somebody = str(uuid4()), str(uuid4())
    who = Principal(api.tenant, user(someone), ROLES)
    for given, encoded in ((somebody, somebody), ("ada", None)):
        id = (await api.engine.jobs.enqueue(who, JobRequest(type="t", requested_by=given))).id
        job = json_of(await api.get(f"{BASE}/jobs/{id}"), 200)
        assert (job["createdByUserId"], job["requestedByUserId"]) == (someone, encoded)


async def test_a_token_is_not_a_user(guarded: Api) -> None:
    producer = await guarded.as_role("produce", "read")
    assert (await enqueue(producer))["createdByUserId"] is None


async def test_an_event_has_a_message_and_an_optional_object(api: Api) -> None:
    id = await running(api)
    for rest in (b'"message":""', b'"message":" \\n"', b'"message":"m","payload":[]', b'"message":"m","payload":"x"',
                 b'"message":"m","payload":1'):  # fmt: skip
        rejects(await act(api, id, "events", b'{"workerId":"w1",%b}' % rest), 422, "invalid_queue_payload")
    event = json_of(await act(api, id, "events", b'{"workerId":"w1","message":" m ","payload":null}'), 201)
    assert (event["message"], event["payload"]) == ("m", None)
    assert len(json_of(await api.get(f"{BASE}/jobs/{id}/events"), 200)["items"]) == 3


async def test_acknowledging_a_cancel_again_returns_the_cancelled_job(api: Api) -> None:
    id = await running(api)
    json_of(await act(api, id, "cancel", b""), 200)
    first = json_of(await act(api, id, "cancel/ack", b'{"workerId":"w1"}'), 200)
    assert first["status"] == "cancelled"
    assert json_of(await act(api, id, "cancel/ack", b'{"workerId":"w1"}'), 200) == first
    rejects(await act(api, id, "cancel/ack", b'{"workerId":"w2"}'), 409, "job_state_conflict")
    queued = (await enqueue(api))["id"]
    json_of(await act(api, queued, "cancel", b"null"), 200)
    rejects(await act(api, queued, "cancel/ack", b'{"workerId":"w1"}'), 409, "job_state_conflict")


async def test_events_are_read_page_by_page(api: Api, clock: ManualClock) -> None:
    """More than the largest page of the store, so that the parts have to be put together."""
    id = await running(api)
    native = decode_id(id)
    job = await api.engine.queries.job(api.tenant, native)
    for start in range(0, 450, 150):
        clock.advance(1)
        messages = [{"message": str(n)} for n in range(start, start + 150)]
        body = {"fence": job.fence, "worker": "w1", "events": messages}
        api.ok(await api.post(f"/v1/jobs/{native}/events", body), 201)
    clock.advance(1)
    json_of(await act(api, id, "complete", b'{"workerId":"w1"}'), 200)
    everything = ["Job queued", "Job claimed", *map(str, range(450)), "Job completed"]

    async def listed(query: str) -> list[str]:
        found = json_of(await api.get(f"{BASE}/jobs/{id}/events?{query}"), 200)["items"]
        return [one["message"] for one in found]

    assert await listed("limit=500") == everything
    assert await listed("limit=203") == everything[:203]
    items = json_of(await api.get(f"{BASE}/jobs/{id}/events?limit=500"), 200)["items"]
    assert len({one["createdAt"] for one in items}) == len(everything)
    assert await listed(f"limit=500&after={items[160]['createdAt']}") == everything[161:]
    assert await listed(f"limit=1&after={items[160]['createdAt']}") == everything[161:162]
    assert await listed(f"after={items[-1]['createdAt']}") == []
    assert await listed("after=0001-01-01T00:00:00Z&limit=1") == everything[:1]
    assert await listed("after=9999-12-31T00:00:00Z") == []
    async with api.http.stream("GET", f"{BASE}/jobs/{id}/events/stream") as response:
        text = (await response.aread()).decode()
    assert text.count("event: queue_event") == len(everything)
