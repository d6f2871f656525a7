"""MoonMind's agent queue, in the bytes its clients and workers send."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import httpx2

from interlock.faces.moonmind.model import decode_id, encode_id
from tests.adapters.responses import NEVER, RFC3339, json_of
from tests.api.rig import Api
from tests.support.stores import ManualClock

BASE = "/api/queue"
FIELDS = [
    "id", "type", "status", "priority", "payload", "createdByUserId", "requestedByUserId", "affinityKey", "claimedBy",
    "leaseExpiresAt", "nextAttemptAt", "attempt", "maxAttempts", "resultSummary", "errorMessage", "artifactsPath",
    "startedAt", "finishedAt", "createdAt", "updatedAt",
]  # fmt: skip
CLAIM = b'{"workerId":"w1","leaseSeconds":60}'


def rejects(response: httpx2.Response, status: int, code: str) -> None:
    document = json_of(response, status)
    assert list(document) == ["detail"]
    assert document["detail"]["code"] == code, document
    assert document["detail"]["message"]


async def enqueue(api: Api, body: bytes = b'{"type":"codex_exec","payload":{"n": 1}}') -> dict[str, Any]:
    job: dict[str, Any] = json_of(await api.send(f"{BASE}/jobs", body), 201)
    return job


async def claim(api: Api, body: bytes = CLAIM) -> dict[str, Any] | None:
    job: dict[str, Any] | None = json_of(await api.send(f"{BASE}/jobs/claim", body), 200)["job"]
    return job


async def running(api: Api, body: bytes = b'{"type":"codex_exec"}') -> str:
    id = str((await enqueue(api, body))["id"])
    job = await claim(api)
    assert job is not None
    assert job["id"] == id
    return id


async def act(api: Api, id: str, verb: str, body: bytes) -> httpx2.Response:
    return await api.send(f"{BASE}/jobs/{id}/{verb}", body)


async def test_a_new_job_has_every_field(api: Api) -> None:
    job = await enqueue(api)
    assert list(job) == FIELDS
    assert RFC3339.fullmatch(job["createdAt"])
    assert RFC3339.fullmatch(job["updatedAt"])
    empty = [name for name, value in job.items() if value is None]
    assert empty == [
        "createdByUserId", "requestedByUserId", "affinityKey", "claimedBy", "leaseExpiresAt", "nextAttemptAt", "resultSummary",
        "errorMessage", "artifactsPath", "startedAt", "finishedAt",
    ]  # fmt: skip
    assert (job["type"], job["status"], job["priority"], job["payload"]) == ("codex_exec", "queued", 0, {"n": 1})
    assert (job["attempt"], job["maxAttempts"]) == (1, 3)
    assert json_of(await api.get(f"{BASE}/jobs/{job['id']}"), 200) == job


async def test_a_job_of_one_adapter_is_visible_to_the_others(api: Api) -> None:
    job = await enqueue(api)
    native = await api.job(decode_id(job["id"]))
    assert (native["type"], native["expiry_delay_seconds"]) == ("codex_exec", 30)
    assert native["backoff"] == {"kind": "exponential", "base_seconds": 15, "max_seconds": 600, "multiplier": 2}
    assert json_of(await api.get(f"/v1/codeq/tasks/{native['id']}"), 200)["command"] == "codex_exec"
    made = await api.enqueue(type="native")
    for id in (made["id"], encode_id(made["id"]), f"mm:{encode_id(made['id'])}", encode_id(made["id"]).upper()):
        seen = json_of(await api.get(f"{BASE}/jobs/{id}"), 200)
        assert (seen["type"], seen["id"]) == ("native", encode_id(made["id"]))


async def test_ids_differ_in_their_first_characters_and_are_the_same_everywhere(api: Api) -> None:
    """Workers name branches by the first eight characters of a job id."""
    made = [await enqueue(api) for _ in range(50)]
    assert len({job["id"][:8] for job in made}) == 50
    native = {job["id"]: (await api.job(decode_id(job["id"])))["id"] for job in made}
    assert len({id[:8] for id in native.values()}) < 50, "they begin with the time"
    assert {encode_id(ours) for ours in native.values()} == set(native)
    assert all(UUID(id).version == 4 for id in native)
    listed = json_of(await api.get(f"{BASE}/jobs?limit=200"), 200)["items"]
    assert [job["id"] for job in listed] == [job["id"] for job in reversed(made)]
    claimed = await claim(api)
    assert claimed is not None
    id = claimed["id"]
    assert id == made[0]["id"]
    assert json_of(await act(api, id, "heartbeat", CLAIM), 200)["id"] == id
    assert json_of(await act(api, id, "runtime-state", b'{"workerId":"w1","runtimeState":{}}'), 200)["id"] == id
    assert json_of(await act(api, id, "events", b'{"workerId":"w1","message":"m"}'), 201)["jobId"] == id
    done = json_of(await act(api, id, "fail", b'{"workerId":"w1","errorMessage":"x"}'), 200)
    assert (done["id"], done["status"]) == (id, "failed")
    assert {one["jobId"] for one in json_of(await api.get(f"{BASE}/jobs/{id}/events"), 200)["items"]} == {id}
    new = json_of(await act(api, id, "resubmit", b""), 201)["id"]
    assert (await api.job(decode_id(new)))["redrive_of"] == decode_id(id)
    refused = await act(api, id, "complete", b'{"workerId":"w1"}')
    rejects(refused, 409, "job_state_conflict")
    assert id in refused.text
    missing = await api.get(f"{BASE}/jobs/{encode_id(NEVER)}")
    rejects(missing, 404, "job_not_found")
    assert encode_id(NEVER) in missing.text
    assert decode_id("nonsense") == "nonsense"


async def test_an_invalid_job_is_rejected(api: Api) -> None:
    for body in (b"", b"{", b"[]", b"{}", b'{"type":""}', b'{"type":"x","maxAttempts":0}', b'{"type":"x","payload":[]}',
                 b'{"type":"x","priority":5000}', b'{"type":" "}', b'{"type":"x","payload":null}'):  # fmt: skip
        rejects(await api.send(f"{BASE}/jobs", body), 422, "invalid_queue_payload")


async def test_any_object_is_a_payload(api: Api) -> None:
    for payload in (b'{"requiredCapabilities":"git"}', b'{"repository":{"name":"acme/site"}}', b'{"repository":7}',
                    b'{"repository":"' + b"x" * 300 + b'"}', b'{"requiredCapabilities":{},"repository":" "}'):  # fmt: skip
        job = await enqueue(api, b'{"type":"t","payload":%b}' % payload)
        assert job["payload"] == json.loads(payload)
        assert (await claim(api) or {})["id"] == job["id"]
    needy = await enqueue(api, b'{"type":"t","payload":{"requiredCapabilities":[7," git ",""]}}')
    assert (await api.job(decode_id(needy["id"])))["requires"] == ["7", "git"]


async def test_texts_are_trimmed_and_blank_errors_are_rejected(api: Api) -> None:
    id = await running(api, b'{"type":" codex_exec ","affinityKey":"  "}')
    for message in (b"", b" ", b"\\n\\t"):
        rejects(
            await act(api, id, "fail", b'{"workerId":"w1","errorMessage":"%b"}' % message), 422, "invalid_queue_payload"
        )
    failed = json_of(await act(api, id, "fail", b'{"workerId":" w1 ","errorMessage":" broke \\n"}'), 200)
    assert (failed["type"], failed["affinityKey"], failed["errorMessage"]) == ("codex_exec", None, "broke")
    for summary, kept in ((b" done ", "done"), (b"  ", None)):
        id = await running(api)
        body = b'{"workerId":"w1","resultSummary":"%b"}' % summary
        assert json_of(await act(api, id, "complete", body), 200)["resultSummary"] == kept
    id = await running(api)
    cancelled = json_of(await act(api, id, "cancel", b'{"reason":" %b "}' % (b"r" * 300)), 200)
    assert cancelled["cancelReason"] == "r" * 256


async def test_numbers_and_flags_may_be_strings(api: Api) -> None:
    job = await enqueue(api, b'{"type":"t","priority":"7","maxAttempts":"1"}')
    assert (job["priority"], job["maxAttempts"]) == (7, 1)
    assert await claim(api, b'{"workerId":"w1","leaseSeconds":"60"}') is not None
    body = b'{"workerId":"w1","errorMessage":"x","retryable":"true"}'
    assert json_of(await act(api, job["id"], "fail", body), 200)["status"] == "dead_letter"


async def test_a_lease_has_the_requested_duration(api: Api, clock: ManualClock) -> None:
    """A worker sends heartbeats at a third of its lease."""
    id = (await enqueue(api))["id"]
    assert await claim(api, b'{"workerId":"w1","leaseSeconds":14400}') is not None
    for _ in range(3):
        clock.advance(4800)
        await api.engine.maintenance.sweep()
        job = json_of(await act(api, id, "heartbeat", b'{"workerId":"w1","leaseSeconds":14400}'), 200)
        assert (job["status"], job["attempt"]) == ("running", 1)
    found = await api.engine.queries.job(api.tenant, decode_id(id))
    assert found.lease_expires_at == clock.now + 14_400_000_000


async def test_every_error_below_the_base_path_has_the_format_of_moonmind(api: Api) -> None:
    for path in (BASE, f"{BASE}/nothing", f"{BASE}/jobs/a/b", f"{BASE}/jobs//x", "/mcp/tools/nothing"):
        rejects(await api.get(path), 404, "no_such_route")
    rejects(await api.call("DELETE", f"{BASE}/jobs"), 405, "method_not_allowed")
    rejects(await api.send(f"{BASE}/jobs", b"{}", **{"sec-fetch-site": "cross-site"}), 403, "cross_site")


async def test_an_unknown_job_is_not_found(api: Api) -> None:
    for id in (NEVER, "nonsense"):
        rejects(await api.get(f"{BASE}/jobs/{id}"), 404, "job_not_found")
        rejects(await act(api, id, "heartbeat", CLAIM), 404, "job_not_found")
        rejects(await act(api, id, "complete", b'{"workerId":"w1"}'), 404, "job_not_found")
        rejects(await api.get(f"{BASE}/jobs/{id}/events"), 404, "job_not_found")
        rejects(await api.get(f"{BASE}/jobs/{id}/artifacts"), 404, "job_not_found")


async def test_jobs_are_listed_newest_first_by_status_and_type(api: Api) -> None:
    retrying = await running(api)
    json_of(await act(api, retrying, "fail", b'{"workerId":"w1","errorMessage":"x","retryable":true}'), 200)
    queued = (await enqueue(api))["id"]
    other = (await enqueue(api, b'{"type":"other"}'))["id"]
    for query, expected in (
        ("", [other, queued, retrying]), ("?status=queued", [other, queued, retrying]), ("?status=running", []),
        ("?type=other", [other]), ("?limit=1", [other]),
    ):  # fmt: skip
        items = json_of(await api.get(f"{BASE}/jobs{query}"), 200)["items"]
        assert [job["id"] for job in items] == expected
        assert all(list(job) == FIELDS and isinstance(job["payload"], dict) for job in items)
        assert json_of(await api.get(f"{BASE}/jobs?type="), 200)["items"]
    for status in ("odd", "", "QUEUED"):
        rejects(await api.get(f"{BASE}/jobs?status={status}"), 422, "invalid_status_filter")
    for limit in ("0", "201", "many"):
        rejects(await api.get(f"{BASE}/jobs?limit={limit}"), 422, "invalid_queue_payload")


async def test_a_claimed_job_names_its_worker_and_its_lease(api: Api, clock: ManualClock) -> None:
    assert await claim(api) is None
    id = (await enqueue(api, b'{"type":"t","affinityKey":"session-1"}'))["id"]
    job = await claim(api)
    assert job is not None
    assert (job["id"], job["status"], job["claimedBy"], job["affinityKey"]) == (id, "running", "w1", "session-1")
    assert (await api.engine.queries.job(api.tenant, decode_id(id))).lease_expires_at == clock.now + 60_000_000
    for body in (
        b"{}",
        b'{"workerId":"w1"}',
        b'{"workerId":"","leaseSeconds":5}',
        b'{"workerId":"w1","leaseSeconds":0}',
    ):
        rejects(await api.send(f"{BASE}/jobs/claim", body), 422, "invalid_queue_payload")


async def test_a_job_is_leased_only_to_workers_with_its_capabilities(api: Api) -> None:
    body = b'{"type":"t","payload":{"repository":"acme/site","requiredCapabilities":["git","docker"]}}'
    id = (await enqueue(api, body))["id"]
    native = await api.job(decode_id(id))
    assert (native["repository"], native["requires"]) == ("acme/site", ["docker", "git"])
    assert await claim(api, b'{"workerId":"w1","leaseSeconds":5,"workerCapabilities":["git"]}') is None
    both = b'{"workerId":"w1","leaseSeconds":5,"workerCapabilities":["git","docker","gpu"]}'
    assert (await claim(api, both) or {})["id"] == id


async def test_an_eligible_job_behind_a_thousand_ineligible_ones_is_claimed(api: Api) -> None:
    for _ in range(10):
        jobs = [{"type": "t", "priority": 5, "requires": ["gpu"], "repository": "acme/other"} for _ in range(100)]
        api.ok(await api.post("/v1/jobs/batch", {"jobs": jobs}), 201)
    id = (await enqueue(api, b'{"type":"t"}'))["id"]
    assert (await claim(api) or {})["id"] == id


async def test_a_heartbeat_extends_the_lease_until_it_is_lost(api: Api, clock: ManualClock) -> None:
    id = await running(api)
    clock.advance(50)
    assert json_of(await act(api, id, "heartbeat", CLAIM), 200)["status"] == "running"
    assert (await api.engine.queries.job(api.tenant, decode_id(id))).lease_expires_at == clock.now + 60_000_000
    clock.advance(61)
    await api.engine.maintenance.sweep()
    rejects(await act(api, id, "heartbeat", CLAIM), 409, "job_state_conflict")
    waits = json_of(await api.get(f"{BASE}/jobs/{id}"), 200)
    assert (waits["status"], waits["attempt"]) == ("queued", 2)
    assert (await api.engine.queries.job(api.tenant, decode_id(id))).run_at == clock.now + 30_000_000
    clock.advance(30)
    assert (await claim(api, b'{"workerId":"w2","leaseSeconds":60}') or {})["id"] == id
    rejects(await act(api, id, "heartbeat", CLAIM), 409, "job_ownership_mismatch")


async def test_only_the_lease_holder_may_finish(api: Api) -> None:
    id = await running(api)
    before = json_of(await api.get(f"{BASE}/jobs/{id}"), 200)
    for verb, body in (
        ("heartbeat", b'{"workerId":"w2","leaseSeconds":5}'), ("complete", b'{"workerId":"w2"}'),
        ("fail", b'{"workerId":"w2","errorMessage":"x"}'), ("events", b'{"workerId":"w2","message":"x"}'),
        ("runtime-state", b'{"workerId":"w2","runtimeState":{}}'), ("cancel/ack", b'{"workerId":"w2"}'),
    ):  # fmt: skip
        rejects(await act(api, id, verb, body), 409, "job_ownership_mismatch")
    assert json_of(await api.get(f"{BASE}/jobs/{id}"), 200) == before
    done = json_of(await act(api, id, "complete", b'{"workerId":"w1","resultSummary":"all good"}'), 200)
    assert (done["status"], done["resultSummary"], done["claimedBy"]) == ("succeeded", "all good", None)
    assert RFC3339.fullmatch(done["finishedAt"])
    rejects(await act(api, id, "complete", b'{"workerId":"w1"}'), 409, "job_state_conflict")


async def test_a_failure_is_final_unless_marked_retryable(api: Api) -> None:
    id = await running(api)
    failed = json_of(await act(api, id, "fail", b'{"workerId":"w1","errorMessage":"no such repository"}'), 200)
    assert (failed["status"], failed["errorMessage"]) == ("failed", "no such repository")
    rejects(await act(api, id, "fail", b'{"workerId":"w1"}'), 422, "invalid_queue_payload")


async def test_max_attempts_is_the_number_of_runs_and_the_delay_doubles(api: Api, clock: ManualClock) -> None:
    id = (await enqueue(api, b'{"type":"t","maxAttempts":3}'))["id"]
    body = b'{"workerId":"w1","errorMessage":"busy","retryable":true}'
    for run, delay in ((1, 15), (2, 30)):
        job = await claim(api)
        assert job is not None
        assert job["attempt"] == run
        waits = json_of(await act(api, id, "fail", body), 200)
        assert (waits["status"], waits["attempt"], waits["errorMessage"]) == ("queued", run + 1, "busy")
        assert RFC3339.fullmatch(waits["nextAttemptAt"])
        clock.advance(delay - 1)
        assert await claim(api) is None
        clock.advance(1)
    assert (await claim(api) or {})["attempt"] == 3
    assert json_of(await act(api, id, "fail", body), 200)["status"] == "dead_letter"
    assert await claim(api) is None


async def test_a_cancel_waits_for_the_worker_and_is_acknowledged(api: Api) -> None:
    id = await running(api)
    rejects(await act(api, id, "cancel/ack", b'{"workerId":"w1"}'), 409, "job_state_conflict")
    asked = json_of(await act(api, id, "cancel", b'{"reason":"not needed"}'), 200)
    assert (asked["status"], asked["cancelReason"]) == ("running", "not needed")
    seen = json_of(await act(api, id, "heartbeat", CLAIM), 200)
    assert RFC3339.fullmatch(seen["cancelRequestedAt"])
    assert json_of(await act(api, id, "cancel/ack", b'{"workerId":"w1"}'), 200)["status"] == "cancelled"
    queued = (await enqueue(api))["id"]
    assert json_of(await act(api, queued, "cancel", b""), 200)["status"] == "cancelled"


async def test_runtime_state_is_the_checkpoint(api: Api) -> None:
    id = await running(api)
    for n in (1, 2):
        json_of(await act(api, id, "runtime-state", b'{"workerId":"w1","runtimeState":{"page": %d}}' % n), 200)
        native = await api.job(decode_id(id))
        assert (native["checkpoint"], native["checkpoint_seq"]) == ({"page": n}, n)
    edge = json.dumps({"x": "y" * (64 * 1024 - 8)}, separators=(",", ":")).encode()
    assert len(edge) == 64 * 1024
    json_of(await act(api, id, "runtime-state", b'{"workerId":"w1","runtimeState":%b}' % edge), 200)
    for bad in (edge.replace(b"y", b"yy", 1), b"[]", b"1"):
        response = await act(api, id, "runtime-state", b'{"workerId":"w1","runtimeState":%b}' % bad)
        rejects(response, 422, "invalid_queue_payload")


async def test_a_terminal_job_is_resubmitted_as_a_new_one(api: Api) -> None:
    id = await running(api, b'{"type":"t","payload":{"n":1}}')
    rejects(await act(api, id, "resubmit", b""), 409, "job_state_conflict")
    json_of(await act(api, id, "fail", b'{"workerId":"w1","errorMessage":"x"}'), 200)
    new = json_of(await act(api, id, "resubmit", b""), 201)
    assert (new["status"], new["payload"], new["attempt"]) == ("queued", {"n": 1}, 1)
    assert (await api.job(decode_id(new["id"])))["redrive_of"] == decode_id(id)
    other = json_of(await act(api, id, "resubmit", b'{"payload":{"n":2},"priority":7}'), 201)
    assert (other["payload"], other["priority"]) == ({"n": 2}, 7)


async def test_a_resubmitted_job_is_leased_only_to_workers_with_its_new_capabilities(api: Api) -> None:
    id = await running(api, b'{"type":"t","payload":{"n":1}}')
    json_of(await act(api, id, "fail", b'{"workerId":"w1","errorMessage":"x"}'), 200)
    new = b'{"payload":{"repository":"acme/site.git","requiredCapabilities":[" git ","git",""]}}'
    narrowed = json_of(await act(api, id, "resubmit", new), 201)["id"]
    native = await api.job(decode_id(narrowed))
    assert (native["repository"], native["requires"]) == ("acme/site", ["git"])
    assert await claim(api) is None
    able = b'{"workerId":"w1","leaseSeconds":5,"workerCapabilities":["git"]}'
    assert (await claim(api, able) or {})["id"] == narrowed
    json_of(await act(api, narrowed, "fail", b'{"workerId":"w1","errorMessage":"x"}'), 200)
    widened = json_of(await act(api, narrowed, "resubmit", b'{"payload":{"n":3}}'), 201)["id"]
    assert (await claim(api) or {})["id"] == widened
    json_of(await act(api, narrowed, "resubmit", b""), 201)
    assert await claim(api) is None, "without a new payload it needs what it needed"


async def test_an_invalid_resubmitted_payload_is_rejected(api: Api) -> None:
    id = await running(api, b'{"type":"t","payload":{"n":1}}')
    json_of(await act(api, id, "fail", b'{"workerId":"w1","errorMessage":"x"}'), 200)
    for payload in (b"[]", b"1", b'"x"', b"null"):
        rejects(await act(api, id, "resubmit", b'{"payload":%b}' % payload), 422, "invalid_queue_payload")


async def test_invalid_unicode_of_a_worker_is_sanitized_and_marked(api: Api) -> None:
    for verb, body in (
        ("complete", b'{"workerId":"w1","resultSummary":"\\ud800"}'),
        ("fail", b'{"workerId":"w1","errorMessage":"\\udfff"}'),
        ("runtime-state", b'{"workerId":"w1","runtimeState":{"at":"\\ud800"}}'),
    ):
        id = await running(api)
        json_of(await act(api, id, verb, body), 200)
        job = await api.job(decode_id(id))
        assert job["sanitized"] is True
        assert "\ufffd" in f"{job['result_summary']}{job['error']}{job['checkpoint']}"
