"""Approvals, edits, registries, queues and subscriptions over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.api.rig import NEVER, Api, pointer, problem
from tests.support.eventually import eventually


async def waiting(api: Api, **fields: Any) -> dict[str, Any]:
    """A job that has requested an approval."""
    job = await api.running()
    body = {"fence": job["lease"]["fence"], "prompt": "Publish?", "details": {"pages": 3}} | fields
    opened: dict[str, Any] = api.ok(await api.post(f"/v1/jobs/{job['id']}/approvals", body), 201)
    return opened


async def test_an_approval_is_requested_decided_and_returned_to_the_next_lease_holder(api: Api) -> None:
    opened = await waiting(api, checkpoint={"seq": 1, "data": {"at": 3}})
    approval = opened["approval"]
    assert (opened["receipt"]["status"], approval["status"], approval["details"]) == (
        "waiting_for_approval",
        "open",
        {"pages": 3},
    )
    assert [one["id"] for one in api.ok(await api.get("/v1/approvals", params={"status": "open"}))["items"]] == [
        approval["id"]
    ]
    body = {"decision": "approve", "comment": "fine", "data": {"title": "Tides"}, "digest": approval["digest"]}
    decided = api.ok(await api.post(f"/v1/approvals/{approval['id']}/decide", body))
    assert (decided["status"], decided["data"]) == ("approved", {"title": "Tides"})
    (job,) = await api.claim()
    assert job["approval"]["decision"] == "approve"
    assert job["approval"]["data"] == {"title": "Tides"}
    assert job["checkpoint"] == {"at": 3}
    assert job["attempt"] == 1


async def test_a_question_is_answered_with_data_and_declining_resumes_its_job(api: Api) -> None:
    schema = {"type": "object", "properties": {"branch": {"type": "string"}}, "required": ["branch"]}
    for decision in ("approve", "deny"):
        opened = await waiting(api, kind="question", name="branch", schema=schema)
        question = opened["approval"]
        assert (question["kind"], question["name"], question["required"]) == ("question", "branch", 1)
        decide = f"/v1/approvals/{question['id']}/decide"
        assert (await api.post(decide, {"decision": "approve"})).status_code == 422
        assert (await api.post(decide, {"decision": "approve", "data": {}})).status_code == 422
        data = {"data": {"branch": "main"}} if decision == "approve" else {}
        api.ok(await api.post(decide, {"decision": decision, **data}))
        (job,) = await api.claim()
        assert (job["approval"]["kind"], job["approval"]["decision"]) == ("question", decision)
        api.ok(
            await api.post(
                f"/v1/jobs/{job['id']}/complete", {"fence": job["lease"]["fence"], "worker": job["lease"]["worker"]}
            )
        )


@pytest.mark.parametrize("member", [{"required": 1}, {"required": 2}, {"on_deny": "fail"}, {"on_deny": "resume"}])
async def test_a_question_has_one_answer(api: Api, member: dict[str, Any]) -> None:
    job = await api.running()
    body = {"fence": job["lease"]["fence"], "worker": "w", "prompt": "Which?", "kind": "question", **member}
    answer = await api.post(f"/v1/jobs/{job['id']}/approvals", body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == f"/{next(iter(member))}"


async def test_a_claim_returns_all_decisions_by_name_and_occurrence(api: Api) -> None:
    """A worker in any language can resume: each decision belongs to one request."""
    job = await api.running()
    requests: list[dict[str, Any]] = [{"name": "legal"}, {}, {"name": "legal"}, {"name": "cost", "occurrence": 4}, {}]
    for number, request in enumerate(requests):
        body = {"fence": job["lease"]["fence"], "prompt": "Go on?", "on_deny": "resume"} | request
        opened = api.ok(await api.post(f"/v1/jobs/{job['id']}/approvals", body), 201)["approval"]
        vote = {"decision": "deny" if number % 2 else "approve", "comment": str(number)}
        decided = api.ok(await api.post(f"/v1/approvals/{opened['id']}/decide", vote))
        assert (decided["name"], decided["occurrence"]) == (opened["name"], opened["occurrence"])
        (job,) = await api.claim()
        api.clock.advance(1)
    reported = [(one["name"], one["occurrence"], one["decision"], one["comment"]) for one in job["approvals"]]
    assert reported == [
        ("legal", 1, "approve", "0"), (None, 1, "deny", "1"), ("legal", 2, "approve", "2"), ("cost", 4, "deny", "3"),
        (None, 2, "approve", "4"),
    ]  # fmt: skip
    assert job["approval"] == job["approvals"][-1]
    path, body = f"/v1/jobs/{job['id']}/approvals", {"fence": job["lease"]["fence"], "prompt": "Go on?"}
    for wrong, where in (({"name": " "}, "/name"), ({"occurrence": 0}, "/occurrence"), ({"name": "\u202e"}, "/name")):
        assert pointer(await api.post(path, body | wrong)) == where


async def test_with_auth_off_the_approval_contains_a_link_that_decides_once(api: Api) -> None:
    opened = await waiting(api)
    body = {"token": opened["token"], "decision": "deny"}
    assert api.ok(await api.post("/v1/approvals/decide", body))["status"] == "denied"
    other = body | {"decision": "approve"}
    assert (await api.post("/v1/approvals/decide", other)).status_code in (404, 409, 410)
    assert (await api.job(opened["approval"]["job_id"]))["status"] == "failed"


async def test_a_get_of_an_approval_decides_nothing(api: Api) -> None:
    opened = await waiting(api)
    for _ in range(3):
        await api.get(f"/v1/approvals/{opened['approval']['id']}", params={"decision": "approve"})
        await api.call("HEAD", f"/v1/approvals/{opened['approval']['id']}")
        problem(await api.get("/v1/approvals/decide"), 405, "method_not_allowed")
    assert api.ok(await api.get(f"/v1/approvals/{opened['approval']['id']}"))["status"] == "open"


async def test_a_wrong_digest_and_a_wrong_approval_are_rejected(api: Api) -> None:
    opened = await waiting(api)
    path = f"/v1/approvals/{opened['approval']['id']}/decide"
    problem(await api.post(path, {"decision": "approve", "digest": "0" * 64}), 409, "digest_mismatch")
    problem(await api.post(f"/v1/approvals/{NEVER}/decide", {"decision": "approve"}), 404, "not_found")
    assert pointer(await api.post(path, {"decision": "maybe"})) == "/decision"


async def test_an_expired_approval_is_gone(api: Api) -> None:
    opened = await waiting(api, expires_in_seconds=10)
    api.clock.advance(11)
    await api.engine.maintenance.sweep()
    response = await api.post(f"/v1/approvals/{opened['approval']['id']}/decide", {"decision": "approve"})
    assert response.status_code == 410


async def test_the_link_is_for_approvers_and_never_used_with_a_worker_credential(guarded: Api) -> None:
    """S22: the agent that asked can neither mint nor decide, and wrong links are not tried for long."""
    producer, worker = await guarded.as_role("produce"), await guarded.as_role("work", worker_id="w1")
    approver = await guarded.as_role("approve")
    await producer.enqueue()
    (job,) = await worker.claim()
    body = {"fence": job["lease"]["fence"], "prompt": "Go?"}
    opened = worker.ok(await worker.post(f"/v1/jobs/{job['id']}/approvals", body), 201)
    assert "token" not in opened
    path = f"/v1/approvals/{opened['approval']['id']}"
    problem(await worker.post(f"{path}/token"), 403, "forbidden")
    problem(await worker.post(f"{path}/decide", {"decision": "approve"}), 403, "forbidden")
    link = approver.ok(await approver.post(f"{path}/token"), 201)["token"]
    problem(await worker.post("/v1/approvals/decide", {"token": link, "decision": "approve"}), 403, "forbidden")
    for _ in range(5):
        problem(
            await guarded.post("/v1/approvals/decide", {"token": "ilg_wrong", "decision": "approve"}), 404, "not_found"
        )
    problem(
        await guarded.post("/v1/approvals/decide", {"token": "ilg_wrong", "decision": "approve"}), 429, "rate_limited"
    )
    decided = guarded.ok(await guarded.post("/v1/approvals/decide", {"token": link, "decision": "approve"}))
    assert decided["status"] == "approved", "a valid link does not wait because of invalid ones"


async def test_the_bearer_of_a_link_needs_no_credential(guarded: Api) -> None:
    producer, worker = await guarded.as_role("produce"), await guarded.as_role("work", worker_id="w1")
    approver = await guarded.as_role("approve")
    await producer.enqueue()
    (job,) = await worker.claim()
    opened = worker.ok(
        await worker.post(f"/v1/jobs/{job['id']}/approvals", {"fence": job["lease"]["fence"], "prompt": "Go?"}), 201
    )
    link = approver.ok(await approver.post(f"/v1/approvals/{opened['approval']['id']}/token"), 201)["token"]
    decided = guarded.ok(await guarded.post("/v1/approvals/decide", {"token": link, "decision": "approve"}))
    assert decided["status"] == "approved"
    assert link not in str(decided)


async def test_an_unknown_link_is_rejected_without_naming_it(guarded: Api) -> None:
    reported = problem(
        await guarded.post("/v1/approvals/decide", {"token": "ilg_wrong", "decision": "approve"}), 404, "not_found"
    )
    assert (reported["what"], reported["detail"]) == ("approval", "no such approval")
    assert {"id", "job_id"}.isdisjoint(reported)


async def test_run_now_makes_a_waiting_job_due_and_adds_one_history_row(api: Api) -> None:
    later = await api.enqueue(delay_seconds=3600)
    due = api.ok(await api.post(f"/v1/jobs/{later['id']}/run-now", {}))
    assert (due["location"], due["version"]) == ("ready", 2)
    rows = api.ok(await api.get(f"/v1/jobs/{later['id']}/history"))["items"]
    assert [(row["from"], row["to"]) for row in rows] == [(None, "queued"), ("queued", "queued")]
    again = api.ok(await api.post(f"/v1/jobs/{later['id']}/run-now"))
    assert (again["version"], again["run_at"]) == (2, due["run_at"])  # due already: it keeps its order
    (claimed,) = await api.claim()
    assert claimed["id"] == later["id"]
    problem(await api.post(f"/v1/jobs/{later['id']}/run-now"), 409, "not_editable")
    problem(await api.post("/v1/jobs/01890000-0000-7000-8000-000000000000/run-now"), 404, "not_found")


async def test_a_failed_job_is_acknowledged_once_and_keeps_its_status(api: Api) -> None:
    job = await api.running()
    path = f"/v1/jobs/{job['id']}"
    problem(await api.post(f"{path}/acknowledge"), 409, "not_failed")
    failure = {"fence": job["lease"]["fence"], "error": {"message": "no"}, "retryable": False}
    failed = api.ok(await api.post(f"{path}/fail", failure))
    answer = await api.post(f"{path}/acknowledge", {"comment": "known outage"})
    seen = api.ok(answer)
    assert (seen["status"], seen["version"], answer.headers["etag"]) == ("failed", 4, '"4"')
    assert seen["acknowledged_at"] is not None
    assert seen["acknowledged_by"] == (await api.job(job["id"]))["acknowledged_by"] is not None
    assert seen["finished_at"] == failed["finished_at"]
    assert api.ok(await api.post(f"{path}/acknowledge", {"comment": "again"})) == seen
    newest = api.ok(await api.get(f"{path}/history"))["items"][-1]
    assert (newest["from"], newest["to"], newest["reason"]) == ("failed", "failed", "known outage")
    assert newest["actor"] == seen["acknowledged_by"]
    assert pointer(await api.post(f"{path}/acknowledge", {"comment": 7})) == "/comment"
    problem(await api.post("/v1/jobs/01890000-0000-7000-8000-000000000000/acknowledge"), 404, "not_found")


async def test_what_needs_attention_is_listed_in_pages(api: Api) -> None:
    ids = [(await api.enqueue(type="nobody"))["id"] for _ in range(3)]
    first = api.ok(await api.get("/v1/jobs", params={"attention": "true", "limit": "2"}))
    assert [one["id"] for one in first["items"]] == ids[:0:-1]
    rest = {"attention": "true", "limit": "2", "cursor": first["next_cursor"]}
    assert [one["id"] for one in api.ok(await api.get("/v1/jobs", params=rest))["items"]] == ids[:1]
    assert api.ok(await api.get("/v1/jobs", params={"attention": "false"}))["items"] != []


async def test_attention_search_and_filters_are_combined(api: Api) -> None:
    async def found(**params: str) -> list[str]:
        return [one["id"] for one in api.ok(await api.get("/v1/jobs", params=params))["items"]]

    tides = await api.enqueue(type="nobody", payload={"topic": "T\u00efdes"}, tags=["sea"], requested_by="Ada")
    other = await api.enqueue(type="nobody", payload={"topic": "winds"}, idempotency_key="order 7")
    await api.enqueue(type="nobody", payload={"topic": "tides"}, delay_seconds=600)
    failed = await api.enqueue(type="work", payload={"topic": "sea"})
    path, (leased,) = f"/v1/jobs/{failed['id']}", await api.claim(types=["work"])
    error = {"message": "No TIDES today"}
    api.ok(await api.post(f"{path}/fail", {"fence": leased["lease"]["fence"], "error": error, "retryable": False}))
    assert await found(attention="true", search="t\u00efdes") == [tides["id"]]
    assert await found(attention="true", search="tides") == [failed["id"]]
    assert await found(attention="true", search="sea") == [failed["id"], tides["id"]]
    assert await found(attention="true", search="sea", type="work") == [failed["id"]]
    assert await found(attention="true", search="ada") == [tides["id"]]
    assert await found(attention="true", search=other["id"][-8:]) == await found(attention="true", search="order 7")
    assert await found(attention="true", search="order 7") == [other["id"]]
    assert await found(attention="true", type="nobody", tag="sea") == [tides["id"]]
    assert await found(attention="true", status="failed") == [failed["id"]]
    assert await found(attention="true", created_before=tides["created_at"]) == []
    assert await found(search="sea", type="nobody") == [tides["id"]]
    first = api.ok(await api.get("/v1/jobs", params={"attention": "true", "search": "sea", "limit": "1"}))
    rest = {"attention": "true", "search": "sea", "cursor": first["next_cursor"]}
    assert [one["id"] for one in api.ok(await api.get("/v1/jobs", params=rest))["items"]] == [tides["id"]]
    assert pointer(await api.get("/v1/jobs", params={"attention": "true", "search": ""})) == "/search"
    assert pointer(await api.get("/v1/jobs", params={"search": "sea", "cursor": first["next_cursor"]})) == "/search"
    api.ok(await api.post(f"{path}/acknowledge"))
    assert await found(attention="true", search="sea") == [tides["id"]]


async def test_a_job_is_found_by_the_end_of_its_id_and_by_its_key(api: Api) -> None:
    job = await api.enqueue(idempotency_key="order 7")
    await api.enqueue()

    async def found(text: str) -> list[str]:
        return [one["id"] for one in api.ok(await api.get("/v1/jobs", params={"search": text}))["items"]]

    for text in (job["id"], job["id"][-8:], job["id"][-17:].upper(), job["id"].replace("-", "")[-20:], "order 7"):
        assert await found(text) == [job["id"]]
    for text in (job["id"][-7:], "order", "0" * 8, "%" * 8, "_" * 12, "'"):
        assert await found(text) == []
    assert pointer(await api.get("/v1/jobs", params={"search": ""})) == "/search"


async def test_a_waiting_job_can_be_edited_at_the_version_that_was_read(api: Api) -> None:
    job = await api.enqueue(deadline="2200-01-01T00:00:00Z")
    path = f"/v1/jobs/{job['id']}"
    edited = await api.call(
        "PATCH", path, {"priority": 5, "tags": ["x"], "deadline": None}, headers={"if-match": '"1"'}
    )
    seen = api.ok(edited)
    assert (seen["priority"], seen["tags"], seen["deadline"], seen["version"]) == (5, ["x"], None, 2)
    assert edited.headers["etag"] == '"2"'
    old = await api.call("PATCH", path, {"priority": 1}, headers={"if-match": '"1"'})
    assert "has version 2, not 1" in problem(old, 412, "precondition_failed")["detail"]
    for tag in ('"0"', 'W/"2"', '"abc"', '"01"'):
        strange = await api.call("PATCH", path, {"priority": 1}, headers={"if-match": tag})
        assert "the ETag is not from this job" in problem(strange, 412, "precondition_failed")["detail"]
    problem(await api.call("PATCH", path, {"priority": 1}, headers={"if-match": "2"}), 400, "malformed")
    assert api.ok(await api.call("PATCH", path, {"priority": 6}, headers={"if-match": "*"}))["priority"] == 6
    assert pointer(await api.call("PATCH", path, {"payload": {}})) == "/payload"
    await api.claim()
    assert (await api.call("PATCH", path, {"priority": 1})).status_code == 409


async def test_types_are_registered_and_payloads_checked(api: Api) -> None:
    schema = {"type": "object", "required": ["topic"], "properties": {"topic": {"type": "string"}}}
    made = api.ok(await api.put("/v1/types/research", {"schema": schema, "defaults": {"max_attempts": 7}}))
    assert (made["name"], made["schema"], made["defaults"]) == ("research", schema, {"max_attempts": 7})
    problem(await api.post("/v1/jobs", {"type": "research", "payload": {}}), 422, "invalid")
    assert (await api.enqueue(type="research", payload={"topic": "x"}))["max_attempts"] == 7
    assert [one["name"] for one in api.ok(await api.get("/v1/types"))["items"]] == ["research"]
    api.ok(await api.call("DELETE", "/v1/types/research"), 204)
    problem(await api.get("/v1/types/research"), 404, "not_found")


async def test_a_schema_validation_that_takes_too_long_is_rejected(api: Api) -> None:
    for pattern in (".{0,3000}z", "[^z]{0,3000}z", "(.{0,100}){0,30}z"):
        api.ok(await api.put("/v1/types/research", {"schema": {"pattern": pattern}}))
        rejected = await api.post("/v1/jobs", {"type": "research", "payload": "a" * 5000})
        assert "simplify the patterns" in problem(rejected, 422, "invalid")["detail"]
        assert pointer(rejected) == "/payload"
        assert (await api.enqueue(type="research", payload="abcz"))["payload"] == "abcz"
    many = {"properties": {f"k{n}": {"pattern": f"^{n}"} for n in range(501)}}
    assert pointer(await api.put("/v1/types/research", {"schema": many})) == "/schema"


async def test_a_lease_has_the_duration_of_the_claim_or_the_type(api: Api) -> None:
    api.ok(await api.put("/v1/types/long", {"defaults": {"lease_seconds": 600}}))
    start = datetime.fromtimestamp(api.clock.now / 1_000_000, UTC)
    for type, asked, seconds in (("long", {}, 600), ("long", {"lease_seconds": 5}, 5), ("short", {}, 60)):
        await api.enqueue(type=type)
        (job,) = await api.claim(types=[type], **asked)
        assert datetime.fromisoformat(job["lease"]["expires_at"]) == start + timedelta(seconds=seconds)


async def test_agents_are_registered_listed_and_keep_their_jobs(api: Api) -> None:
    for id in ("a/b", "c", "d"):
        api.ok(await api.put(f"/v1/agents/planner/{id.replace('/', '%2F')}", {"max_concurrency": 1}))
    assert api.ok(await api.get("/v1/agents/planner/a%2Fb"))["max_concurrency"] == 1
    first = api.ok(await api.get("/v1/agents", params={"limit": 2}))
    rest = api.ok(await api.get("/v1/agents", params={"cursor": first["next_cursor"]}))
    assert [one["id"] for one in first["items"] + rest["items"]] == ["a/b", "c", "d"]
    job = await api.enqueue(agent={"kind": "planner", "id": "a/b"})
    assert job["agent"] == {"kind": "planner", "id": "a/b"}
    assert [one["id"] for one in api.ok(await api.get("/v1/jobs", params={"agent": "planner/a/b"}))["items"]] == [
        job["id"]
    ]
    assert pointer(await api.get("/v1/jobs", params={"agent": "planner"})) == "/agent"
    assert (await api.call("DELETE", "/v1/agents/planner/a%2Fb")).status_code == 409
    api.ok(await api.call("DELETE", "/v1/agents/planner/c"), 204)


async def test_queues_count_their_jobs(api: Api) -> None:
    await api.enqueue(type="a")
    await api.enqueue(type="a", delay_seconds=60)
    await api.running(type="b")
    api.clock.advance(5)
    queue = api.ok(await api.get("/v1/queues/a"))
    assert (queue["ready"], queue["delayed"], queue["in_progress"], queue["paused"]) == (1, 1, 0, False)
    assert queue["oldest_ready_seconds"] == 5
    assert {one["type"]: one["in_progress"] for one in api.ok(await api.get("/v1/queues"))["items"]} == {"a": 0, "b": 1}
    problem(await api.get("/v1/queues/nobody"), 404, "not_found")


async def test_queues_are_listed_by_type_in_pages(api: Api) -> None:
    for type in ("b", "a", "c"):
        await api.enqueue(type=type)
    whole = api.ok(await api.get("/v1/queues"))
    assert [one["type"] for one in whole["items"]] == ["a", "b", "c"]
    assert whole["next_cursor"] is None
    first = api.ok(await api.get("/v1/queues?limit=2"))
    rest = api.ok(await api.get(f"/v1/queues?limit=2&cursor={first['next_cursor']}"))
    assert [one["type"] for page in (first, rest) for one in page["items"]] == ["a", "b", "c"]
    assert rest["next_cursor"] is None
    assert pointer(await api.get("/v1/queues?limit=201")) == "/limit"
    for n in range(50):
        await api.enqueue(type=f"d{n:02}")
    usual = api.ok(await api.get("/v1/queues"))
    assert (len(usual["items"]), usual["next_cursor"] is None) == (50, False)
    assert pointer(await api.get("/v1/queues?cursor=made-up")) == "/cursor"


async def test_subscriptions_show_their_secret_once(api: Api) -> None:
    body = {"url": "https://example.com/hook", "events": ["job.succeeded"], "key": "k"}
    made = api.ok(await api.post("/v1/subscriptions", body), 201)
    assert made["secret"].startswith("whsec_")
    again = await api.post("/v1/subscriptions", body)
    assert api.ok(again)["secret"] is None
    assert again.headers["idempotent-replay"] == "true"
    reused = problem(
        await api.post("/v1/subscriptions", body | {"events": ["job.failed"]}), 422, "idempotency_key_reuse"
    )
    assert (reused["what"], reused["id"], reused["errors"][0]["pointer"]) == ("subscription", made["id"], "/key")
    path = f"/v1/subscriptions/{made['id']}"
    for seen in (await api.get(path), await api.get("/v1/subscriptions")):
        assert made["secret"] not in seen.text
    assert api.ok(await api.post(f"{path}/rotate"))["secret"] != made["secret"]
    assert api.ok(await api.post(f"{path}/renew", {"expires_in_seconds": 60}))["expires_at"]
    assert api.ok(await api.get(f"{path}/deliveries"))["items"] == []
    api.ok(await api.call("DELETE", path), 204)
    problem(await api.get(path), 404, "not_found")


async def test_a_delivery_is_sent_again_only_under_its_own_subscription(api: Api) -> None:
    def hook(name: str, **more: str) -> dict[str, Any]:
        return {"url": f"https://example.com/{name}", "events": ["job.queued"], **more}

    first, second, other = [
        api.ok(await api.post("/v1/subscriptions", body), 201)["id"]
        for body in (hook("a", mode="group", group_id="g"), hook("b", mode="group", group_id="g"), hook("c"))
    ]
    await api.enqueue()
    (reported,) = api.ok(await api.get(f"/v1/subscriptions/{first}/deliveries"))["items"]
    for listed in (first, second):
        again = await api.post(f"/v1/subscriptions/{listed}/deliveries/{reported['id']}/redeliver")
        assert api.ok(again)["id"] == reported["id"]
    assert reported not in api.ok(await api.get(f"/v1/subscriptions/{other}/deliveries"))["items"]
    problem(await api.post(f"/v1/subscriptions/{other}/deliveries/{reported['id']}/redeliver"), 404, "not_found")


async def test_a_terminal_job_is_redriven_as_a_new_one(api: Api) -> None:
    job = await api.running(payload={"n": 1}, priority=3)
    problem(await api.post(f"/v1/jobs/{job['id']}/redrive"), 409, "not_ended")
    api.ok(await api.post(f"/v1/jobs/{job['id']}/complete", {"fence": job["lease"]["fence"]}))
    body = {"from": "start", "overrides": {"priority": 9}, "idempotency_key": "again"}
    first = await api.post(f"/v1/jobs/{job['id']}/redrive", body)
    made = api.ok(first, 201)
    assert (made["redrive_of"], made["payload"], made["priority"], made["status"]) == (job["id"], {"n": 1}, 9, "queued")
    again = await api.post(f"/v1/jobs/{job['id']}/redrive", body)
    assert api.ok(again)["id"] == made["id"]
    assert again.headers["idempotent-replay"] == "true"
    wrong = await api.post(f"/v1/jobs/{job['id']}/redrive", {"overrides": {"priority": 5000}})
    assert pointer(wrong) == "/overrides/priority"


async def test_a_whole_family_is_cancelled(api: Api) -> None:
    parent = await api.enqueue(type="parent")
    child = await api.enqueue(type="child", parent_id=parent["id"])
    done = api.ok(await api.post(f"/v1/jobs/{parent['id']}/cancel", {"cascade": True}))
    assert (done["status"], done["descendants"]) == ("cancelled", 1)
    assert (await api.job(child["id"]))["status"] == "cancelled"


async def test_many_jobs_are_cancelled_in_one_call_and_a_dry_run_only_counts(api: Api) -> None:
    jobs = [await api.enqueue(type="a") for _ in range(3)]
    await api.enqueue(type="b")
    body: dict[str, Any] = {"action": "cancel", "filter": {"type": "a"}, "limit": 2}
    dry = api.ok(await api.post("/v1/jobs/bulk", body | {"dry_run": True}))
    assert (dry["matched"], dry["done"], dry["more"]) == (2, 0, True)
    assert api.ok(await api.post("/v1/jobs/bulk", body))["done"] == 2
    assert api.ok(await api.post("/v1/jobs/bulk", body))["done"] == 1
    named = api.ok(await api.post("/v1/jobs/bulk", {"action": "redrive", "ids": [jobs[0]["id"], NEVER]}))
    assert (named["done"], [one["error"]["code"] for one in named["refused"]]) == (1, ["not_found"])
    problem(await api.post("/v1/jobs/bulk", {"action": "cancel"}), 422, "invalid")


async def test_a_filter_names_one_status_or_several_as_a_query_does(api: Api) -> None:
    await api.enqueue(tags=["x", "y"])
    for filter in ({"status": "queued"}, {"status": ["queued", "retry"]}, {"tag": "x"}, {"tag": ["x", "y"]}):
        body = {"action": "cancel", "filter": filter, "dry_run": True}
        assert api.ok(await api.post("/v1/jobs/bulk", body))["matched"] == 1, filter
    wrong = {"action": "cancel", "filter": {"agent": "no slash"}}
    assert pointer(await api.post("/v1/jobs/bulk", wrong)) == "/filter/agent"


async def test_a_null_is_not_the_data_of_a_decision(api: Api) -> None:
    job = await api.running()
    opened = await api.post(f"/v1/jobs/{job['id']}/approvals", {"fence": job["lease"]["fence"], "prompt": "Go on?"})
    approval = api.ok(opened, 201)["approval"]["id"]
    body = {"decision": "deny", "comment": None, "data": None, "digest": None}
    assert api.ok(await api.post(f"/v1/approvals/{approval}/decide", body))["status"] == "denied"


async def test_why_names_the_reason(api: Api) -> None:
    job = await api.enqueue(delay_seconds=60)
    assert api.ok(await api.get(f"/v1/jobs/{job['id']}/why"))["clause"] == "due_later"


async def test_workers_that_polled_are_listed(api: Api) -> None:
    await api.claim(worker="w7", types=["a"])
    await eventually(lambda: _listed(api, "w7"))


async def test_old_jobs_are_pruned_and_the_rest_verifies(api: Api) -> None:
    gone, later, kept = [await api.enqueue() for _ in range(3)]
    for job in (gone, later):
        api.ok(await api.post(f"/v1/jobs/{job['id']}/cancel"))
    api.clock.advance(10 * 86_400)
    assert api.ok(await api.post("/v1/prune", {"days": 7, "dry_run": True}))["deleted"] == 2
    assert api.ok(await api.post("/v1/prune", {"days": 7, "limit": 1})) == {"deleted": 1, "more": True}
    assert api.ok(await api.post("/v1/prune", {"days": 7, "limit": 1})) == {"deleted": 1, "more": False}
    problem(await api.get(f"/v1/jobs/{gone['id']}"), 404, "not_found")
    assert (await api.job(kept["id"]))["status"] == "queued"
    verdict = api.ok(await api.get("/v1/audit/verify"))
    assert (verdict["ok"], verdict["first_bad"], verdict["next_cursor"]) == (True, None, None)
    more = await api.enqueue()
    part = api.ok(await api.get("/v1/audit/verify?limit=1"))
    assert (part["ok"], part["jobs"]) == (True, 1)
    rest = api.ok(await api.get(f"/v1/audit/verify?limit=1000&cursor={part['next_cursor']}"))
    assert (rest["ok"], part["rows"] + rest["rows"]) == (True, verdict["rows"] + more["version"])
    assert rest["next_cursor"] is None
    assert pointer(await api.get("/v1/audit/verify?limit=1001")) == "/limit"
    assert len(api.ok(await api.get("/v1/audit/head"))["head"]) == 64


async def test_the_audit_log_lists_what_operators_did_oldest_first(api: Api) -> None:
    await api.enqueue(type="mail")
    api.ok(await api.post("/v1/queues/mail/pause", {"reason": "down"}), 204)
    api.ok(await api.post("/v1/queues/mail/resume"), 204)
    api.ok(await api.put("/v1/agents/worker/reader", {"max_concurrency": 2}))
    created_link = [
        row for row in api.ok(await api.get("/v1/audit/log"))["items"] if row["action"].startswith("token.")
    ]
    first = api.ok(await api.get(f"/v1/audit/log?limit={len(created_link) + 2}"))
    first["items"] = [row for row in first["items"] if row not in created_link]
    assert [(row["action"], row["object"]) for row in first["items"]] == [
        ("queue.pause", "mail"), ("queue.resume", "mail"),
    ]  # fmt: skip
    assert first["items"][0]["details"] == {"reason": "down"}
    assert set(first["items"][0]) == {"seq", "actor", "action", "object", "details", "at", "hash"}
    assert len(first["items"][0]["hash"]) == 64
    rest = api.ok(await api.get(f"/v1/audit/log?cursor={first['next_cursor']}"))
    assert [(row["action"], row["object"]) for row in rest["items"]] == [("agent.set", "worker/reader")]
    assert rest["next_cursor"] is None
    assert pointer(await api.get("/v1/audit/log?limit=0")) == "/limit"


async def _listed(api: Api, name: str) -> bool:
    return name in [one["name"] for one in api.ok(await api.get("/v1/workers"))["items"]]


async def test_a_wait_that_can_never_end_is_rejected_and_a_deadlocked_strict_agent_is_listed(api: Api) -> None:
    path, agent = "/v1/agents/planner/solo", {"kind": "planner", "id": "solo"}
    assert api.ok(await api.put(path, {"max_concurrency": 1}))["strict"] is False
    api.ok(await api.put(path, {"max_concurrency": 1, "strict": True}))
    await api.enqueue(type="plan", agent=agent)
    (job,) = await api.claim(types=["plan"])
    child = await api.enqueue(type="read", agent=agent, parent_id=job["id"])
    held = {"fence": job["lease"]["fence"]}
    error = problem(
        await api.post(f"/v1/jobs/{job['id']}/release", held | {"children": [child["id"]]}), 409, "would_deadlock"
    )
    assert child["id"] in error["detail"]
    assert api.ok(await api.get("/v1/agents", params={"stalled": "true"}))["items"] == []
    api.ok(await api.post(f"/v1/jobs/{job['id']}/approvals", held | {"prompt": "Go on?"}), 201)
    (stalled,) = api.ok(await api.get("/v1/agents", params={"stalled": "true"}))["items"]
    assert (stalled["kind"], stalled["id"], stalled["strict"]) == ("planner", "solo", True)


async def test_a_test_message_takes_no_body_or_an_empty_one(api: Api) -> None:
    channel = {"kind": "email", "host": "8.8.8.8", "from": "a@example.com", "to": ["b@example.com"], "tls": "none"}
    bodies: tuple[dict[str, str] | None, ...] = (None, {})
    for body in bodies:
        problem(await api.post("/v1/channels/ops/test", body), 404, "not_found")
    api.ok(await api.put("/v1/channels/ops", channel | {"port": 25}))
    pointer(await api.post("/v1/channels/ops/test", {"to": "c@example.com"}))
    assert "password" not in (await api.get("/v1/channels/ops")).text
