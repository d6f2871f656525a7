"""Jobs over HTTP: enqueue, look at, list, cancel, revoke."""

from __future__ import annotations

import re

import pytest

from tests.api.rig import NEVER, Api, pointer, problem

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


async def test_an_enqueued_job_is_returned_with_its_location_and_version(api: Api) -> None:
    response = await api.post(
        "/v1/jobs", {"type": "work", "payload": {"x": [1, 2.50]}, "tags": ["b", "a"], "priority": 7}
    )
    job = api.ok(response, 201)
    assert response.headers["location"] == f"/v1/jobs/{job['id']}"
    assert response.headers["etag"] == '"1"'
    assert "idempotent-replay" not in response.headers
    assert (job["type"], job["status"], job["location"], job["priority"]) == ("work", "queued", "ready", 7)
    assert (job["tags"], job["attempt"], job["max_attempts"], job["version"]) == (["a", "b"], 1, 3, 1)
    assert job["created_by"] == "user:local"
    assert TIME.fullmatch(job["created_at"])
    assert await api.job(job["id"]) == job


def rare(number: int) -> str:
    """A name of the longest kind, in which nothing repeats that could be pressed together."""
    return "".join(chr(0x20000 + (number * 7919 + place * 104_729) % 42_000) for place in range(200))


async def test_the_longest_requires_list_is_accepted_on_both_engines_and_a_longer_one_rejected(guarded: Api) -> None:
    producer = await guarded.as_role("produce", "work", tenant=rare(1))
    needs = {"type": rare(2), "affinity_key": rare(3), "requires": ["x" * 60]}
    job = await producer.enqueue(**needs)
    asked = {"types": [rare(2)], "affinity_keys": [rare(3)], "capabilities": ["x" * 60]}
    assert await producer.claim(**asked) == [], "a credential without the capability gets nothing"
    assert pointer(await producer.post("/v1/jobs", needs | {"repository": rare(4)})) == "/requires"
    assert pointer(await producer.post("/v1/jobs", {"type": "t", "requires": [rare(5), rare(6)]})) == "/requires"
    assert job["requires"] == ["x" * 60]


async def test_tags_have_a_limit(api: Api) -> None:
    many = [f"{n:04}" for n in range(1000)]
    assert (await api.enqueue(tags=many))["tags"] == many
    assert pointer(await api.post("/v1/jobs", {"type": "a", "tags": [*many, "more"]})) == "/tags"
    assert pointer(await api.post("/v1/jobs", {"type": "a", "tags": [f"{n:0200}" for n in range(50)]})) == "/tags"


async def test_the_payload_is_returned_byte_for_byte(api: Api) -> None:
    payload = b'{ "a" : 1.10,"b":"\\u00e9\\u0000", "c":[ 1e2 , -0.0 ],  "d": 12345678901234567}'
    made = await api.send("/v1/jobs", b'{"type":"work","payload":' + payload + b"}")
    assert made.status_code == 201
    assert payload in made.content
    assert payload in (await api.get(f"/v1/jobs/{made.json()['id']}")).content


async def test_a_job_needs_no_payload(api: Api) -> None:
    assert (await api.enqueue())["payload"] == {}


async def test_the_same_key_and_body_return_the_same_job_marked_as_replayed(api: Api) -> None:
    body = {"type": "work", "payload": [1], "idempotency_key": "k1"}
    first = api.ok(await api.post("/v1/jobs", body), 201)
    second = await api.post("/v1/jobs", body)
    assert api.ok(second, 200)["id"] == first["id"]
    assert second.headers["idempotent-replay"] == "true"


async def test_the_key_may_be_in_the_header(api: Api) -> None:
    key = {"idempotency-key": "k1"}
    first = api.ok(await api.post("/v1/jobs", {"type": "work"}, headers=key), 201)
    assert first["idempotency_key"] == "k1"
    assert api.ok(await api.post("/v1/jobs", {"type": "work", "idempotency_key": "k1"}))["id"] == first["id"]


async def test_another_trace_is_not_another_body(api: Api) -> None:
    body = {"type": "work", "idempotency_key": "k1"}
    traces = [f"00-{'a' * 31}{digit}-{'b' * 16}-01" for digit in "12"]
    first = api.ok(await api.post("/v1/jobs", body, headers={"traceparent": traces[0]}), 201)
    second = api.ok(await api.post("/v1/jobs", body, headers={"traceparent": traces[1]}))
    assert first["traceparent"] == second["traceparent"] == traces[0]


async def test_a_malformed_trace_is_dropped(api: Api) -> None:
    response = await api.post("/v1/jobs", {"type": "work"}, headers={"traceparent": "00-zz-yy-01"})
    assert api.ok(response, 201)["traceparent"] is None


async def test_the_trace_of_the_body_wins(api: Api) -> None:
    mine, other = (f"00-{c * 32}-{c * 16}-01" for c in "ab")
    response = await api.post("/v1/jobs", {"type": "work", "traceparent": mine}, headers={"traceparent": other})
    assert api.ok(response, 201)["traceparent"] == mine


async def test_two_different_keys_are_rejected(api: Api) -> None:
    response = await api.post("/v1/jobs", {"type": "work", "idempotency_key": "a"}, headers={"idempotency-key": "b"})
    assert pointer(response) == "/idempotency_key"


async def test_the_same_key_with_another_body_is_rejected(api: Api) -> None:
    await api.enqueue(idempotency_key="k1")
    response = await api.post("/v1/jobs", {"type": "work", "priority": 1, "idempotency_key": "k1"})
    assert pointer(response, code="idempotency_key_reuse") == "/idempotency_key"


WRONG_VALUES: list[tuple[dict[str, object], str]] = [
    ({}, "/type"),
    ({"type": ""}, "/type"),
    ({"type": 7}, "/type"),
    ({"type": "work", "priority": 1001}, "/priority"),
    ({"type": "work", "priority": 1.5}, "/priority"),
    ({"type": "work", "max_attempts": 0}, "/max_attempts"),
    ({"type": "work", "run_at": "2030-01-01T00:00:00Z", "delay_seconds": 1}, "/delay_seconds"),
    ({"type": "work", "run_at": "2030-01-01T00:00:00"}, "/run_at"),
    ({"type": "work", "run_at": "tomorrow"}, "/run_at"),
    ({"type": "work", "deadline": "2020-01-01T00:00:00Z"}, "/deadline"),
    ({"type": "work", "tags": ["a", "a"]}, "/tags"),
    ({"type": "work", "tags": ["a", 1]}, "/tags/1"),
    ({"type": "work", "backoff": {"kind": "fixed", "speed": 1}}, "/backoff/speed"),
    ({"type": "work", "parent_id": "nobody"}, "/parent_id"),
]


async def test_a_value_outside_the_rules_is_rejected_by_name(api: Api) -> None:
    for fields, where in WRONG_VALUES:
        assert pointer(await api.post("/v1/jobs", fields)) == where, fields


# S14: nothing that the system itself decides can be sent along.
NOT_FOR_CALLERS = [
    "status", "attempt", "fence", "tenant", "tenant_id", "created_by", "claimed_by", "version", "lease",
    "lease_expires_at", "is_active", "token_hash", "id", "seq", "result", "checkpoint", "a/b~c",
]  # fmt: skip


async def test_a_read_only_field_is_rejected(api: Api) -> None:
    for field in NOT_FOR_CALLERS:
        response = await api.post("/v1/jobs", {"type": "work", field: "running"})
        assert pointer(response) == "/" + field.replace("~", "~0").replace("/", "~1")
    assert api.ok(await api.get("/v1/jobs"))["items"] == []


async def test_an_unknown_parent_is_rejected(api: Api) -> None:
    response = await api.post("/v1/jobs", {"type": "work", "parent_id": NEVER})
    assert response.status_code in (404, 422)


async def test_a_batch_is_enqueued_in_order_and_marks_replays(api: Api) -> None:
    old = await api.enqueue(type="b", idempotency_key="k")
    jobs = api.ok(
        await api.post("/v1/jobs/batch", {"jobs": [{"type": "a"}, {"type": "b", "idempotency_key": "k"}]}), 201
    )["jobs"]
    assert [job["type"] for job in jobs] == ["a", "b"]
    assert [job["replayed"] for job in jobs] == [False, True]
    assert jobs[1]["id"] == old["id"]


async def test_a_batch_with_one_bad_job_enqueues_none_and_names_it(api: Api) -> None:
    response = await api.post("/v1/jobs/batch", {"jobs": [{"type": "a"}, {"type": "b", "priority": 5000}]})
    assert pointer(response) == "/jobs/1/priority"
    assert api.ok(await api.get("/v1/jobs"))["items"] == []


async def test_every_rejection_of_a_batch_names_the_job(api: Api) -> None:
    ended = await api.enqueue()
    api.ok(await api.post(f"/v1/jobs/{ended['id']}/cancel"))
    large = {"type": "b", "payload": "x" * 300_000}
    refused = await api.post("/v1/jobs/batch", {"jobs": [{"type": "a"}, {"type": "b", "parent_id": ended["id"]}]})
    too_large = await api.post("/v1/jobs/batch", {"jobs": [large, {"type": "a"}]})
    assert problem(refused, 409, "parent_ended")["errors"][0]["pointer"] == "/jobs/1"
    assert problem(too_large, 413, "too_large")["errors"][0]["pointer"] == "/jobs/0"


@pytest.mark.parametrize("size", [0, 1001])
async def test_a_batch_has_one_to_a_thousand_jobs(api: Api, size: int) -> None:
    problem(await api.post("/v1/jobs/batch", {"jobs": [{"type": "a"}] * size}), 422, "invalid")


async def test_a_thousand_jobs_are_one_batch(api: Api) -> None:
    jobs = api.ok(await api.post("/v1/jobs/batch", {"jobs": [{"type": "a"}] * 1000}), 201)["jobs"]
    assert len({job["id"] for job in jobs}) == 1000


async def test_a_key_for_a_whole_batch_is_rejected(api: Api) -> None:
    problem(
        await api.post("/v1/jobs/batch", {"jobs": [{"type": "a"}]}, headers={"idempotency-key": "k"}), 422, "invalid"
    )


async def test_lists_are_newest_first_without_payloads_and_paged_by_cursor(api: Api) -> None:
    made = [(await api.enqueue(payload={"n": n}))["id"] for n in range(5)]
    seen: list[str] = []
    cursor: str | None = None
    for expected in (2, 2, 1):
        page = api.ok(await api.get("/v1/jobs", params={"limit": 2} | ({"cursor": cursor} if cursor else {})))
        assert len(page["items"]) == expected
        assert not any({"payload", "checkpoint", "result", "error"} & job.keys() for job in page["items"])
        seen += [job["id"] for job in page["items"]]
        cursor = page["next_cursor"]
    assert cursor is None
    assert seen == made[::-1]


async def test_lists_filter(api: Api) -> None:
    parent = await api.enqueue(type="a", tags=["x", "y"])
    child = await api.enqueue(type="b", tags=["x"], parent_id=parent["id"])

    async def listed(**params: object) -> list[str]:
        return [job["id"] for job in api.ok(await api.get("/v1/jobs", params=params))["items"]]

    assert await listed(type="a") == [parent["id"]]
    assert await listed(tag=["x", "y"]) == [parent["id"]]
    assert await listed(tag="x") == [child["id"], parent["id"]]
    assert await listed(parent=parent["id"]) == [child["id"]]
    assert await listed(status=["queued", "running"]) == [child["id"], parent["id"]]
    assert await listed(status="running") == []
    assert await listed(created_after="2200-01-01T00:00:00Z") == []
    assert await listed(created_before="2200-01-01T00:00:00+02:00", type="b") == [child["id"]]
    assert [j["id"] for j in api.ok(await api.get(f"/v1/jobs/{parent['id']}/children"))["items"]] == [child["id"]]


WRONG_QUERIES = {
    "limit=0": "/limit", "limit=201": "/limit", "limit=1000000000": "/limit", "limit=x": "/limit",
    "status=done": "/status/0", "colour=red": "/colour", "type=a&type=b": "/type", "sort=payload": "/sort",
    "created_after=yesterday": "/created_after", "created_after=2030-01-01T00:00:00": "/created_after",
    "created_after=2030": "/created_after", "created_before=-1": "/created_before", "created_before=1e9": "/created_before",
    "parent=nobody": "/parent", "cursor=abc": "/cursor", "cursor=%ff": "/cursor", "type=%00": "/type",
}  # fmt: skip


async def test_a_query_outside_the_rules_is_rejected_by_name(api: Api) -> None:
    for query, where in WRONG_QUERIES.items():
        assert pointer(await api.get(f"/v1/jobs?{query}")) == where, query


async def test_history_is_oldest_first_and_paged(api: Api) -> None:
    job = await api.enqueue()
    await api.post(f"/v1/jobs/{job['id']}/cancel", {"reason": "enough"})
    first = api.ok(await api.get(f"/v1/jobs/{job['id']}/history", params={"limit": 1}))
    rest = api.ok(await api.get(f"/v1/jobs/{job['id']}/history", params={"cursor": first["next_cursor"]}))
    rows = first["items"] + rest["items"]
    assert rest["next_cursor"] is None
    assert [(row["version"], row["from"], row["to"]) for row in rows] == [
        (1, None, "queued"),
        (2, "queued", "cancelled"),
    ]
    assert rows[1]["reason"] == "enough"
    assert rows[1]["actor"] == "user:local"
    assert re.fullmatch(r"[0-9a-f]{64}", rows[1]["hash"])


async def test_cancel_accepts_no_body_or_a_reason(api: Api) -> None:
    job = await api.enqueue()
    assert api.ok(await api.post(f"/v1/jobs/{job['id']}/cancel"))["status"] == "cancelled"
    again = await api.post(f"/v1/jobs/{job['id']}/cancel", {"force": True})
    assert again.status_code in (200, 409)


async def test_revoke_ends_a_lease(api: Api) -> None:
    job = await api.running()
    assert api.ok(await api.post(f"/v1/jobs/{job['id']}/revoke", {"reason": "gone"}))["status"] == "retry"


async def test_an_unknown_job_is_not_found(api: Api) -> None:
    for id in (NEVER, "nobody", "%F0%9F%92%A9", "a%2Fb", NEVER.upper(), "x" * 5000):
        for path in ("", "/history", "/children", "/result", "/events", "/steps", "/artifacts"):
            problem(await api.get(f"/v1/jobs/{id}{path}"), 404, "not_found")
        problem(await api.post(f"/v1/jobs/{id}/cancel"), 404, "not_found")


async def test_an_id_in_capitals_is_the_same_job(api: Api) -> None:
    job = await api.enqueue()
    assert (await api.job(job["id"].upper()))["id"] == job["id"]


async def test_a_paused_queue_leases_nothing_until_resumed(api: Api) -> None:
    await api.enqueue(type="a/b c")
    api.ok(await api.post("/v1/queues/a%2Fb%20c/pause", {"reason": "later"}), 204)
    assert await api.claim(types=["a/b c"]) == []
    api.ok(await api.post("/v1/queues/a%2Fb%20c/resume", {"reason": "done"}), 204)
    assert len(await api.claim(types=["a/b c"])) == 1


async def test_a_queue_of_an_unknown_type_is_not_found(api: Api) -> None:
    for answer in (
        await api.get("/v1/queues/nosuch"),
        await api.post("/v1/queues/nosuch/pause"),
        await api.post("/v1/queues/nosuch/resume"),
    ):
        assert "never had a job" in problem(answer, 404, "not_found")["detail"]
    assert api.ok(await api.get("/v1/queues"))["items"] == []


@pytest.mark.parametrize("name", [".", "..", "a\u202eb", "a\u200bb", "a\u200fb"])
async def test_a_type_that_no_path_can_name_or_that_is_invisible_is_rejected(api: Api, name: str) -> None:
    for body, at in (
        ({"type": name}, "/type"),
        ({"type": "a", "agent": {"kind": name, "id": "x"}}, "/agent/kind"),
        ({"type": "a", "tags": [name]}, "/tags"),
        ({"type": "a", "repository": name}, "/repository"),
    ):
        refused = await api.post("/v1/jobs", body)
        assert pointer(refused) == at
    assert "neither . nor .." in (await api.post("/v1/jobs", {"type": name})).json()["detail"]
