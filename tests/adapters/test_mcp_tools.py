"""The tools, by the official client over streamable HTTP: what producers, operators and workers do with them."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from mcp import MCPError

from interlock.domain.timestamps import when
from interlock.faces.mcp.tools import TOOLS
from tests.adapters.agents import ALL_ROLES, MODES, WORKERS, agent, lease, text_of, value_of
from tests.api.rig import NEVER, Api
from tests.support.eventually import eventually


@pytest.mark.parametrize("mode", MODES)
async def test_a_job_goes_from_a_producer_through_a_worker_to_its_result(api: Api, mode: str) -> None:
    async with agent(api, mode) as someone:
        assert await someone.tools() == ALL_ROLES | WORKERS
        made = await someone.does("enqueue_job", type="review", payload={"pr": 7}, tags=["mcp"], priority=5)
        assert (made["status"], made["payload"], made["created_by"]) == ("queued", {"pr": 7}, "user:local")
        job = await someone.claims(types=["review"], worker="coder", lease_seconds=120)
        assert job["id"] == made["id"]
        assert job["lease"]["worker"] == "coder"
        reply = await someone.does(
            "heartbeat_job", **lease(job), worker="coder", lease_seconds=300, events=[{"message": "reading"}]
        )
        assert (reply["cancel_requested"], reply["paused"]) == (False, False)
        saved = await someone.does("checkpoint_job", **lease(job), worker="coder", seq=1, data={"file": 3})
        assert saved == {"seq": 1}
        report = {"result": {"ok": True}, "result_summary": "fine", "usage": {"tokens": 12}}
        receipt = await someone.does("complete_job", **lease(job), worker="coder", **report)
        assert receipt["status"] == "succeeded"
        assert await someone.does("complete_job", **lease(job), worker="coder", **report) == receipt
        done = await someone.does("wait_for_job", job_id=job["id"], wait_seconds=5)
        assert (done["result"], done["checkpoint"], done["usage"]) == ({"ok": True}, {"file": 3}, {"tokens": 12})
    assert compacted(await api.job(job["id"])) == done
    events = api.ok(await api.get(f"/v1/jobs/{job['id']}/events"))["items"]
    assert "reading" in [event["message"] for event in events]


def compacted(job: dict[str, Any]) -> dict[str, Any]:
    """A job without what an agent is spared."""
    usual: dict[str, Any] = {"tags": [], "requires": [], "sanitized": False, "releases": 0}
    usual["retry_count"] = 0
    return {name: value for name, value in job.items() if value is not None and usual.get(name, ...) != value}


async def test_a_job_is_a_third_of_its_size_with_text_value_and_all_nulls(api: Api) -> None:
    await api.enqueue(type="review", payload={"pr": 7})
    job = (await api.claim(types=["review"]))[0]
    whole = (await api.get(f"/v1/jobs/{job['id']}")).text
    async with agent(api) as viewer:
        result = await viewer.client.call_tool("get_job", {"job_id": job["id"]})
    sent = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    before = sent | {"content": [{"type": "text", "text": whole}], "structuredContent": json.loads(whole)}
    sizes = [len(json.dumps(one, separators=(",", ":"))) for one in (sent, before)]
    assert 3 * sizes[0] <= sizes[1], sizes
    assert value_of(result)["created_at"] == job["created_at"]


async def test_nulls_are_omitted_except_those_of_users(api: Api) -> None:
    written = {"a": None, "n": [None, {"b": None}]}
    async with agent(api) as someone:
        made = await someone.does("enqueue_job", type="a", payload=written)
        assert made["payload"] == written
        assert None not in made.values()
        job = await someone.claims()
        assert None not in job["lease"].values()
        await someone.does("checkpoint_job", **lease(job), seq=1, data=written)
        await someone.does("save_step", **lease(job), name="s", result=written)
        error = {"message": "m", "details": written}
        await someone.does("fail_job", **lease(job), error=error, retryable=False)
        failed = await someone.does("get_job", job_id=job["id"])
        assert (failed["checkpoint"], failed["error"]["details"]) == (written, written)
        nothing = await someone.does("enqueue_job", type="b", payload=None)
        assert nothing["payload"] is None


async def test_numbers_of_a_payload_reach_an_agent_digit_for_digit(api: Api) -> None:
    sent = b'{"type":"a","payload":{"n":1.50,"none":null}}'
    made = api.ok(await api.send("/v1/jobs", sent), 201)
    async with agent(api) as viewer:
        result = await viewer.client.call_tool("get_job", {"job_id": made["id"]})
    assert '"payload":{"n":1.50,' in text_of(result)


async def test_a_worker_saves_steps_and_releases_and_an_operator_redrives_and_reads_events(api: Api) -> None:
    async with agent(api) as someone:
        made = await someone.does("enqueue_job", type="long")
        job = await someone.claims()
        first = await someone.does("save_step", **lease(job), name="fetch", occurrence=1, result={"pages": 3})
        again = await someone.does("save_step", **lease(job), name="fetch", occurrence=1, result="other")
        assert first["result"] == again["result"] == {"pages": 3}
        await someone.does("heartbeat_job", **lease(job), events=[{"message": "half"}, {"message": "more"}])
        released = await someone.does("release_job", **lease(job), delay_seconds=60, reason="quota")
        assert (released["status"], released["attempt"]) == ("queued", 1)
        assert await someone.does("release_job", **lease(job), delay_seconds=60, reason="quota") == released
        assert [e["message"] for e in (await someone.does("list_events", job_id=made["id"]))["items"]] == [
            "half",
            "more",
        ]
        (event,) = (await someone.does("list_events", job_id=made["id"], after=1))["items"]
        assert event["message"] == "more"
        api.clock.advance(61)
        resumed = await someone.claims()
        assert [(step["name"], step["result"]) for step in resumed["steps"]] == [("fetch", {"pages": 3})]
        await someone.does("complete_job", **lease(resumed))
        history = (await someone.does("list_history", job_id=made["id"]))["items"]
        assert [row["to"] for row in history] == ["queued", "running", "queued", "running", "succeeded"]
        redriven = await someone.does(
            "redrive_job", job_id=made["id"], overrides={"priority": 3}, idempotency_key="k", **{"from": "fetch"}
        )
        assert (redriven["redrive_of"], redriven["priority"]) == (made["id"], 3)
        await someone.is_rejected("redrive_job", 409, "not_ended", job_id=redriven["id"])


async def test_a_worker_writes_a_stream_and_waits_for_a_message_without_a_worker(api: Api) -> None:
    async with agent(api) as someone:
        made = await someone.does("enqueue_job", type="chat")
        job = await someone.claims()
        chunks = [{"text": "Hel"}, {"base64": "bG8="}]
        for _ in range(2):
            assert await someone.does("write_stream", **lease(job), name="tokens", offset=0, chunks=chunks) == {
                "next": 2
            }
        await someone.is_rejected(
            "write_stream", 409, "stream_conflict", **lease(job), name="tokens", offset=0, chunks=[{"text": "x"}]
        )
        (stream,) = (await someone.does("read_stream", job_id=made["id"]))["items"]
        assert (stream["name"], stream["chunks"], stream["bytes"]) == ("tokens", 2, 5)
        read = await someone.does("read_stream", job_id=made["id"], name="tokens", after=0)
        assert [(chunk["offset"], chunk["base64"]) for chunk in read["items"]] == [(1, "bG8=")]
        assert (read["next"], read["ended"]) == (1, False)
        released = await someone.does("release_job", **lease(job), message={"name": "answer", "after": 0})
        assert released["status"] == "queued"
        assert await someone.does("claim_job") == {"jobs": []}
        sent = await someone.does("send_message", job_id=made["id"], name="answer", payload={"n": None}, id="m1")
        assert (sent["seq"], sent["payload"]) == (1, {"n": None})
        assert (
            await someone.does("send_message", job_id=made["id"], name="answer", payload={"n": None}, id="m1") == sent
        )
        resumed = await someone.claims()
        assert resumed["id"] == made["id"]
        assert (await someone.does("list_messages", job_id=made["id"], name="answer"))["items"] == [sent]
        assert (await someone.does("list_messages", job_id=made["id"], after=1))["items"] == []
        await someone.does("release_job", **lease(resumed), message={"topic": "news", "after": 1})
        told = await someone.does("publish_message", topic="news", payload=7, id="n1")
        assert told["delivered"] == 1
        resumed = await someone.claims()
        await someone.does("complete_job", **lease(resumed))
        assert (await someone.does("read_stream", job_id=made["id"], name="tokens"))["ended"] is True
        await someone.is_rejected("send_message", 409, "already_finished", job_id=made["id"], name="answer")


async def test_the_same_key_returns_the_existing_job(api: Api) -> None:
    async with agent(api) as producer:
        first = await producer.does("enqueue_job", type="a", payload=[1], idempotency_key="k")
        again = await producer.does("enqueue_job", type="a", payload=[1], idempotency_key="k")
        assert (first.get("replayed"), again["replayed"], again["id"]) == (None, True, first["id"])
        await producer.is_rejected(
            "enqueue_job", 422, "idempotency_key_reuse", type="a", payload=[2], idempotency_key="k"
        )


async def test_jobs_are_listed_by_filter_and_page_by_page(api: Api) -> None:
    made = [await api.enqueue(type="a", tags=["x", "y"] if n else ["x"]) for n in range(3)]
    await api.enqueue(type="b")
    async with agent(api) as viewer:
        first = await viewer.does("list_jobs", type="a", limit=2, status=["queued", "retry"])
        assert [job["id"] for job in first["items"]] == [made[2]["id"], made[1]["id"]]
        rest = await viewer.does(
            "list_jobs", type="a", limit=2, status=["queued", "retry"], cursor=first["next_cursor"]
        )
        assert [job["id"] for job in rest["items"]] == [made[0]["id"]]
        tagged = await viewer.does("list_jobs", tag=["x", "y"])
        assert {job["id"] for job in tagged["items"]} == {made[1]["id"], made[2]["id"]}
        assert (await viewer.does("list_jobs", status="succeeded", type=None))["items"] == []


async def test_an_operator_reads_counts_and_reasons_and_cancels(api: Api) -> None:
    job = await api.enqueue(type="slow", delay_seconds=600)
    async with agent(api) as operator:
        assert (await operator.does("queue_stats", type="slow"))["delayed"] == 1
        (one,) = (await operator.does("queue_stats"))["items"]
        assert (one["type"], one["delayed"]) == ("slow", 1)
        assert (await operator.does("explain_job", job_id=job["id"]))["clause"] == "due_later"
        receipt = await operator.does("cancel_job", job_id=job["id"], reason="not needed", cascade=True)
        assert (receipt["status"], receipt["descendants"]) == ("cancelled", 0)
        ended = await operator.does("get_job", job_id=job["id"])
        assert (ended["status"], ended["cancel_reason"]) == ("cancelled", "not needed")


async def test_an_operator_postpones_a_job_runs_it_now_and_acknowledges_its_failure(api: Api) -> None:
    job = await api.enqueue(type="slow")
    async with agent(api) as someone:
        later = await someone.does("edit_job", job_id=job["id"], run_at="2099-01-01T00:00:00Z", priority=7)
        assert (later["location"], later["priority"]) == ("delayed", 7)
        assert (await someone.does("run_job_now", job_id=job["id"]))["location"] == "ready"
        leased = await someone.claims()
        await someone.is_rejected("edit_job", 409, "not_editable", job_id=job["id"], priority=1)
        await someone.does("fail_job", **lease(leased), error={"message": "no"}, retryable=False)
        (waiting,) = (await someone.does("list_jobs", attention=True))["items"]
        assert waiting["id"] == job["id"]
        seen = await someone.does("acknowledge_job", job_id=job["id"], comment="known")
        assert seen["acknowledged_by"]
        assert (await someone.does("list_jobs", attention=True))["items"] == []


async def test_a_worker_records_an_effect_and_its_outcome_which_readers_list(api: Api) -> None:
    async with agent(api) as someone:
        made = await someone.does("enqueue_job", type="shop")
        job = await someone.claims()
        begun = await someone.does("begin_effect", **lease(job), name="charge", occurrence=1, key="order-7")
        assert (begun["state"], begun["key"], begun["attempt"]) == ("started", "order-7", 1)
        assert await someone.does("begin_effect", **lease(job), name="charge", occurrence=1, key="order-7") == begun
        done = await someone.does(
            "settle_effect", **lease(job), name="charge", occurrence=1, state="done", result={"receipt": 3}
        )
        assert (done["state"], done["result"]) == ("done", {"receipt": 3})
        await someone.is_rejected(
            "settle_effect", 409, "effect_conflict", **lease(job), name="charge", occurrence=1, state="not_done"
        )
        assert (await someone.does("list_effects", job_id=made["id"]))["items"] == [done]


async def test_a_worker_holds_the_limit_of_its_job_until_the_provider_accepts_requests(guarded: Api) -> None:
    admin = await guarded.as_role("admin", "produce", "read")
    for name in ("provider", "other"):
        admin.ok(await admin.put(f"/v1/limits/{name}", {"concurrency": 5}))
    made = [await admin.enqueue(type="call", limits=[{"name": "provider"}]) for _ in range(2)]
    until = when(guarded.clock.now + 60_000_000)
    worker = await guarded.as_role("work", worker_id="w1")
    async with agent(worker) as works, agent(admin) as reads:
        job = await works.claims()
        await works.is_rejected("hold_limit", 403, "forbidden", name="other", until=until)
        held = await works.does("hold_limit", name="provider", until=until, reason="429")
        assert (held["held_until"], held["hold_reason"]) == (until, "429")
        await works.does("release_job", **lease(job), run_at=until)
        assert (await works.does("claim_job"))["jobs"] == []
        assert (await reads.does("list_limits"))["items"][1]["held_until"] == until
        assert (await reads.does("list_budgets"))["items"] == []
        assert (await reads.does("list_schedules"))["items"] == []
        guarded.clock.advance(60)
        assert [(await works.claims())["id"] for _ in made] == [one["id"] for one in reversed(made)]


async def test_a_failure_is_retried_until_it_is_final(api: Api) -> None:
    async with agent(api) as worker:
        await worker.does("enqueue_job", type="flaky", max_attempts=2)
        job = await worker.claims(types=["flaky"])
        failed = await worker.does("fail_job", **lease(job), error={"message": "quota"}, retry_after_seconds=60)
        assert (failed["status"], failed["attempt"]) == ("retry", 2)
        assert await worker.does("claim_job", types=["flaky"]) == {"jobs": []}
        api.clock.advance(61)
        job = await worker.claims(types=["flaky"])
        assert job["error"]["message"] == "quota"
        final = await worker.does("fail_job", **lease(job), error={"message": "no", "kind": "bug"}, retryable=False)
        assert final["status"] == "failed"


async def test_a_worker_whose_lease_was_lost_is_asked_to_stop(api: Api) -> None:
    async with agent(api) as worker:
        await worker.does("enqueue_job", type="a")
        lost = await worker.claims(worker="slow", lease_seconds=1)
        api.clock.advance(2)
        taken = await worker.claims(worker="quick")
        assert (taken["id"], taken["attempt"]) == (lost["id"], 2)
        for tool, more in (
            ("heartbeat_job", {}),
            ("checkpoint_job", {"seq": 1, "data": 1}),
            ("complete_job", {"result": 1}),
            ("fail_job", {"error": {"message": "x"}}),
            ("request_approval", {"prompt": "go on?"}),
        ):
            await worker.is_rejected(tool, 409, "lease_lost", **lease(lost), worker="slow", **more)
        assert (await worker.does("complete_job", **lease(taken), worker="quick"))["status"] == "succeeded"


async def test_a_cancel_request_reaches_the_worker_by_its_heartbeat(api: Api) -> None:
    async with agent(api) as worker:
        job = await api.running(type="a")
        await worker.does("cancel_job", job_id=job["id"], reason="enough")
        reply = await worker.does("heartbeat_job", **lease(job))
        assert (reply["cancel_requested"], reply["cancel_reason"]) == (True, "enough")
        assert (await worker.does("fail_job", **lease(job), error={"message": "stopped"}))["status"] == "cancelled"


async def test_an_approval_is_decided_by_another_caller_and_the_next_claim_contains_it(guarded: Api) -> None:
    producer = await guarded.as_role("produce", "read")
    worker = await guarded.as_role("work", worker_id="w1")
    approver = await guarded.as_role("approve")
    async with agent(producer) as asks, agent(worker) as works, agent(approver) as decides:
        made = await asks.does("enqueue_job", type="deploy")
        job = await works.claims()
        opened = await works.does(
            "request_approval", **lease(job), prompt="Deploy?", details={"host": "a"}, risk="high", on_deny="resume"
        )
        assert opened["receipt"]["status"] == "waiting_for_approval"
        assert "token" not in opened
        (approval,) = (await decides.does("list_approvals", status="open"))["items"]
        assert (approval["job_id"], approval["prompt"], approval["details"]) == (made["id"], "Deploy?", {"host": "a"})
        verdict = {"approval_id": approval["id"], "decision": "approve", "digest": approval["digest"], "comment": "go"}
        wrong = verdict | {"digest": "0" * 64}
        await decides.is_rejected("decide_approval", 409, "digest_mismatch", **wrong)
        assert (await decides.does("decide_approval", **verdict))["status"] == "approved"
        assert (await decides.does("decide_approval", **verdict))["status"] == "approved"
        resumed = await works.claims()
        assert (resumed["id"], resumed["attempt"]) == (made["id"], 1)
        assert (resumed["approval"]["status"], resumed["approval"]["comment"]) == ("approved", "go")


@pytest.mark.parametrize("mode", MODES)
async def test_an_agent_that_requests_approval_gets_no_approval_link(api: Api, mode: str) -> None:
    async with agent(api, mode) as someone:
        job = await api.running(type="a")
        await someone.does("request_approval", **lease(job), prompt="Go?")
        opened = await someone.does("request_approval", **lease(job), prompt="Go?")
        assert set(opened) == {"approval", "receipt"}
    assert "ilg_" not in json.dumps(opened)
    approval = await api.engine.approvals.get(api.tenant, opened["approval"]["id"])
    assert approval.link_created_by is None


async def test_artifacts_are_listed_and_read_as_text_or_base64_part_by_part(api: Api) -> None:
    binary, text = bytes(range(256)), "né" * 10
    async with agent(api) as someone:
        await someone.does("enqueue_job", type="files")
        job = await someone.claims()
        files = [
            {"name": "raw.bin", "content_base64": base64.b64encode(binary).decode()},
            {
                "name": "note.txt",
                "content_base64": base64.b64encode(text.encode()).decode(),
                "content_type": "text/plain",
            },
            {"name": "empty", "content_base64": ""},
            {"name": "link", "url": "https://example.org/x"},
        ]
        await someone.does("complete_job", **lease(job), artifacts=files)
        listed = await someone.does("get_artifact", job_id=job["id"])
        assert {one["name"] for one in listed["items"]} == {"raw.bin", "note.txt", "empty", "link"}
        read = await someone.does("get_artifact", job_id=job["id"], name="raw.bin")
        assert base64.b64decode(read["content_base64"]) == binary
        assert (read["length"], read["artifact"]["size"]) == (256, 256)
        note = await someone.does("get_artifact", job_id=job["id"], artifact_id=by_name(listed, "note.txt"))
        assert (note["text"], note["length"]) == (text, 30)
        part = await someone.does("get_artifact", job_id=job["id"], name="note.txt", length=2)
        assert (part["text"], part["length"]) == ("n", 1)
        rest = await someone.does("get_artifact", job_id=job["id"], name="note.txt", offset=1, length=5)
        assert (rest["text"], rest["offset"]) == ("éné", 1)
        assert (await someone.does("get_artifact", job_id=job["id"], name="empty"))["text"] == ""
        linked = await someone.does("get_artifact", job_id=job["id"], name="link")
        assert (linked["artifact"]["url"], "text" in linked) == ("https://example.org/x", False)
        await someone.is_rejected("get_artifact", 404, "not_found", job_id=job["id"], name="none")
        await someone.is_rejected("get_artifact", 404, "not_found", job_id=NEVER, name="raw.bin")
        await someone.is_rejected(
            "get_artifact", 416, "range_not_satisfiable", job_id=job["id"], name="raw.bin", offset=256
        )
        await someone.is_rejected("get_artifact", 422, "invalid", job_id=job["id"], name="raw.bin", length=2**21)


def by_name(listed: dict[str, Any], name: str) -> str:
    return next(str(one["id"]) for one in listed["items"] if one["name"] == name)


@pytest.mark.parametrize("mode", MODES)
async def test_a_claim_waits_for_a_job_and_a_wait_for_its_end(api: Api, mode: str) -> None:
    async with agent(api, mode) as worker, agent(api, mode) as producer:
        claim = asyncio.create_task(worker.claims(types=["late"], wait_seconds=60))
        await someone_waits(api)
        made = await producer.does("enqueue_job", type="late")
        job = await claim
        assert job["id"] == made["id"]
        unfinished = await producer.does("wait_for_job", job_id=made["id"])
        assert unfinished == {"id": made["id"], "status": "running", "location": "in_progress"}
        waiting = asyncio.create_task(producer.does("wait_for_job", job_id=made["id"], wait_seconds=60))
        await someone_waits(api)
        await worker.does("complete_job", **lease(job), result=1)
        assert (await waiting)["result"] == 1


async def someone_waits(api: Api) -> None:
    """A request waits, besides the message that carries it."""

    async def waits() -> bool:
        return api.service.admission.waiting >= 2

    await eventually(waits)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("enqueue_job", {}, "/type"),
    ("enqueue_job", {"type": 7}, "/type"),
    ("enqueue_job", {"type": "a", "colour": "red"}, "/colour"),
    ("enqueue_job", {"type": "a", "delay_seconds": 1, "run_at": "2030-01-01T00:00:00Z"}, "/delay_seconds"),
    ("enqueue_job", {"type": "a", "deadline": "2030-01-01T00:00:00"}, "/deadline"),
    ("get_job", {}, "/job_id"),
    ("get_job", {"job_id": {"id": 1}}, "/job_id"),
    ("get_job", {"job_id": ""}, "/job_id"),
    ("get_job", {"job_id": "nul\x00"}, "/job_id"),
    ("queue_stats", {"type": ".."}, "/type"),
    ("get_job", {"job_id": ["a", "b"]}, "/job_id"),
    ("get_job", {"job_id": NEVER, "deep": True}, "/deep"),
    ("list_jobs", {"limit": 0}, "/limit"),
    ("list_jobs", {"limit": "many"}, "/limit"),
    ("list_jobs", {"status": [["queued"]]}, "/status"),
    ("list_jobs", {"status": "asleep"}, "/status/0"),
    ("wait_for_job", {"job_id": NEVER, "wait_seconds": 61}, "/wait_seconds"),
    ("claim_job", {"limit": 1000}, "/limit"),
    ("claim_job", {"types": "a"}, "/types"),
    ("claim_job", {"lease_seconds": 0}, "/lease_seconds"),
    ("heartbeat_job", {"job_id": NEVER}, "/fence"),
    ("heartbeat_job", {"job_id": NEVER, "fence": "1"}, "/fence"),
    ("fail_job", {"job_id": NEVER, "fence": 1, "error": "text"}, "/error"),
    ("queue_stats", {"type": "a", "colour": 1}, "/colour"),
    ("get_artifact", {"name": "x"}, "/job_id"),
    ("get_artifact", {"job_id": NEVER, "path": "/etc/passwd"}, "/path"),
    ("get_artifact", {"job_id": NEVER, "name": "a", "artifact_id": "b"}, "/artifact_id"),
]


async def test_wrong_arguments_are_rejected_and_named(api: Api) -> None:
    async with agent(api) as someone:
        pointers = [
            (tool, arguments, (await someone.is_rejected(tool, 422, "invalid", **arguments))["errors"][0]["pointer"])
            for tool, arguments, _ in WRONG
        ]
        assert pointers == WRONG


async def test_unknown_resources_and_unknown_tools_are_not_found(api: Api) -> None:
    async with agent(api) as someone:
        for id in (NEVER, "no id", "../x", "a" * 500, "\u202e", "%2e%2e"):
            await someone.is_rejected("get_job", 404, "not_found", job_id=id)
            await someone.is_rejected("explain_job", 404, "not_found", job_id=id)
        for name in ("drop_table", "", "get_job ", "x" * 1000):
            with pytest.raises(MCPError) as rejection:
                await someone.client.call_tool(name, {})
            assert rejection.value.code == -32602


async def test_every_tool_describes_itself_and_accepts_what_its_schema_allows(api: Api) -> None:
    job = await api.running(type="a")
    good: dict[str, dict[str, Any]] = {
        "enqueue_job": {
            "type": "b",
            "agent": {"kind": "coder", "id": "1"},
            "backoff": {"kind": "fixed", "base_seconds": 1},
        },
        "get_job": {"job_id": job["id"]},
        "list_jobs": {"agent": "coder/1", "created_after": "2020-01-01T00:00:00Z"},
        "heartbeat_job": {**lease(job), "checkpoint": {"seq": 4, "data": None}},
        "claim_job": {"types": ["none"], "capabilities": [], "affinity_keys": ["*"], "claim_id": "c"},
    }
    async with agent(api) as someone:
        for tool in (await someone.client.list_tools()).tools:
            assert tool.title
            assert tool.description
            assert tool.annotations is not None
            fields = tool.input_schema["properties"]
            assert [name for name in fields if not fields[name].get("description")] == []
            validator = jsonschema_rs.validator_for(tool.input_schema)
            assert not validator.is_valid({"nobody_knows_this": 1})
            if arguments := good.get(tool.name):
                assert validator.is_valid(arguments)
                await someone.does(tool.name, **arguments)
    assert {tool.name for tool in TOOLS} == ALL_ROLES | WORKERS | {"decide_approval"}


def test_every_tool_and_its_roles_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "connect-mcp-clients.md").read_text()
    for tool in TOOLS:
        (row,) = [line for line in page.splitlines() if line.startswith("|") and f"`{tool.name}`" in line.split("|")[1]]
        assert [role for role in sorted(route_roles(tool.name)) if role not in row.split("|")[2]] == [], tool.name


def route_roles(name: str) -> frozenset[str]:
    """The roles that need no condition."""
    tool = next(one for one in TOOLS if one.name == name)
    return tool.roles - {"work", "produce"} if len(tool.roles) > 1 else tool.roles


async def test_a_job_enqueued_over_mcp_is_visible_to_the_other_adapters(api: Api) -> None:
    async with agent(api) as someone:
        made = await someone.does("enqueue_job", type="shared", payload={"n": 1})
    seen = api.ok(await api.get(f"/api/queue/jobs/{made['id']}"))
    assert (seen["type"], seen["payload"], seen["status"]) == ("shared", {"n": 1}, "queued")
    task = api.ok(await api.get(f"/v1/codeq/tasks/{made['id']}"))
    assert (task["command"], task["status"]) == ("shared", "PENDING")
