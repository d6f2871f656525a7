"""Who may do what with tools: the credential decides which are offered, and for whose jobs."""

from __future__ import annotations

import pytest

from interlock.domain.principal import ROLES, Principal, user
from tests.adapters.agents import LEASED, WORKERS, agent, lease
from tests.api.rig import Api, problem
from tests.support.eventually import eventually

HELLO = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
ACCEPT = {"accept": "application/json, text/event-stream"}
READING = {"get_job", "list_jobs", "wait_for_job", "explain_job", "list_approvals", "queue_stats", "get_artifact",
           "list_events", "list_history", "list_limits", "list_budgets", "list_schedules", "read_stream",
           "list_messages", "list_effects"}  # fmt: skip
OPERATING = {"cancel_job", "redrive_job", "edit_job", "run_job_now", "acknowledge_job", "send_message",
             "hold_limit"}  # fmt: skip
PRODUCING = {"enqueue_job", "cancel_job", "send_message", "publish_message"}
OFFERED = [
    (("read",), READING),
    (("produce",), PRODUCING),
    (("operate",), OPERATING),
    (("admin",), set()),
    (("approve",), {"list_approvals", "decide_approval"}),
    (("work",), WORKERS | LEASED),
    (("work", "read", "produce"), WORKERS | READING | PRODUCING | {"run_job"}),
    (("approve", "operate", "read"), READING | OPERATING | {"decide_approval"}),
]


async def test_each_role_sees_its_tools_and_cannot_call_the_others(guarded: Api) -> None:
    for roles, expected in OFFERED:
        caller = await guarded.as_role(*roles, **({"worker_id": "w"} if "work" in roles else {}))
        async with agent(caller) as someone:
            assert await someone.tools() == expected, roles
            if "decide_approval" not in expected:
                await someone.is_rejected("decide_approval", 403, "forbidden", approval_id="x", decision="approve")
            if "claim_job" not in expected:
                await someone.is_rejected("claim_job", 403, "forbidden")
            if "list_jobs" not in expected:
                await someone.is_rejected("list_jobs", 403, "forbidden")


async def test_auth_off_offers_everything_except_deciding(api: Api) -> None:
    async with agent(api) as someone:
        assert "decide_approval" not in await someone.tools()
        job = await api.running(type="a")
        opened = await someone.does("request_approval", **lease(job), prompt="May I?")
        approval = opened["approval"]["id"]
        await someone.is_rejected("decide_approval", 403, "forbidden", approval_id=approval, decision="approve")
        assert (await someone.does("list_approvals"))["items"][0]["status"] == "open"


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer nobody"}, {"authorization": "Basic eDp5"}])
async def test_without_a_credential_every_call_is_rejected(guarded: Api, headers: dict[str, str]) -> None:
    for message in (HELLO, HELLO | {"method": "initialize"}, {"jsonrpc": "2.0", "method": "notifications/initialized"}):
        refused = await guarded.post("/mcp", message, headers=ACCEPT | headers)
        problem(refused, 401, "unauthenticated")
        assert refused.headers["www-authenticate"] == "Bearer"


async def test_a_revoked_token_is_rejected_within_a_second_even_in_a_session(guarded: Api) -> None:
    admin = Principal(guarded.tenant, user("test"), ROLES)
    caller = await guarded.as_role("read")
    async with agent(caller, "legacy") as someone:
        assert (await someone.does("list_jobs"))["items"] == []
        (token,) = await guarded.engine.tokens.list(admin, limit=10)
        await guarded.engine.tokens.revoke(admin, token.id)

        async def is_over() -> bool:
            guarded.clock.advance(1)
            answer = await caller.post("/mcp", HELLO, headers=ACCEPT)
            return answer.status_code == 401

        await eventually(is_over)


async def test_tenants_are_invisible_to_each_other(guarded: Api) -> None:
    ours = await guarded.as_role("read", "produce", "operate")
    works = await guarded.as_role("work", worker_id="w")
    theirs = await guarded.as_role("read", "produce", "operate", tenant=f"{guarded.tenant}-rival")
    rival_works = await guarded.as_role("work", worker_id="w", tenant=f"{guarded.tenant}-rival")
    async with agent(ours) as mine, agent(theirs) as rival, agent(works) as worker, agent(rival_works) as thief:
        job = await mine.does("enqueue_job", type="secret", payload="s3cret", idempotency_key="k")
        assert await thief.does("claim_job") == {"jobs": []}
        held = await worker.claims()
        for tool in ("get_job", "explain_job", "cancel_job", "get_artifact", "wait_for_job"):
            rejection = await rival.is_rejected(tool, 404, "not_found", job_id=job["id"])
            assert "s3cret" not in str(rejection)
        await thief.is_rejected("complete_job", 404, "not_found", **lease(held))
        assert (await rival.does("list_jobs"))["items"] == []
        assert (await rival.does("queue_stats"))["items"] == []
        own = await rival.does("enqueue_job", type="secret", payload="other", idempotency_key="k")
        assert own["id"] != job["id"]
        assert (await worker.does("complete_job", **lease(held)))["status"] == "succeeded"


async def test_a_worker_token_narrows_what_an_agent_can_claim(guarded: Api) -> None:
    producer = await guarded.as_role("produce")
    coder = await guarded.as_role("work", worker_id="coder", types=["code"], capabilities=["git"])
    async with agent(producer) as asks, agent(coder) as works:
        await asks.does("enqueue_job", type="mail")
        needs = await asks.does("enqueue_job", type="code", requires=["git"])
        await asks.does("enqueue_job", type="code", requires=["gpu"])
        assert (await works.claims())["id"] == needs["id"]
        assert await works.does("claim_job", capabilities=["git", "gpu"], types=["*"]) == {"jobs": []}
        assert await works.does("claim_job", types=["mail"]) == {"jobs": []}
        await works.is_rejected("claim_job", 403, "forbidden", worker="somebody")
        assert (await works.does("get_job", job_id=needs["id"]))["status"] == "running"


async def test_a_producer_cancels_its_own_jobs_and_no_others(guarded: Api) -> None:
    one, other = await guarded.as_role("produce"), await guarded.as_role("produce")
    async with agent(one) as owner, agent(other) as stranger:
        job = await owner.does("enqueue_job", type="a")
        await stranger.is_rejected("cancel_job", 403, "forbidden", job_id=job["id"])
        assert (await owner.does("cancel_job", job_id=job["id"]))["status"] == "cancelled"


async def test_the_session_of_one_caller_is_useless_to_another(guarded: Api) -> None:
    reader, producer = await guarded.as_role("read"), await guarded.as_role("produce")
    opening = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
    begun = await reader.post("/mcp", opening, headers=ACCEPT)
    session = {"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}
    listed = await producer.post("/mcp", HELLO, headers=ACCEPT | session)
    assert {tool["name"] for tool in listed.json()["result"]["tools"]} == PRODUCING
