"""Jobs as tasks on Interlock's own MCP server, by the official client and by that of fastmcp."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from fastmcp.client import Client as FastClient
from fastmcp.client.transports import StreamableHttpTransport
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from tests.adapters.agents import agent, lease
from tests.api.rig import Api
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.mcp_tasks import Answering, FollowedTasks, asked


@asynccontextmanager
async def following(api: Api, tasks: FollowedTasks) -> AsyncIterator[Client]:
    """The official client, with the tasks extension."""
    async with (
        httpx2.AsyncClient(headers=api.headers(), trust_env=False, timeout=RETRY_SECONDS) as http,
        Client(streamable_http_client(f"{api.url}/mcp", http_client=http), extensions=[tasks]) as client,
    ):
        yield client


async def job_id_of(tasks: FollowedTasks) -> str:
    async def is_seen() -> bool:
        return bool(tasks.seen)

    await eventually(is_seen)
    id: str = tasks.seen[0]["taskId"]
    return id


def document(result: Any) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(result.content[0].text)
    return value


async def test_a_call_that_opts_in_is_a_task_and_its_result_is_the_job(api: Api) -> None:
    tasks = FollowedTasks()
    async with following(api, tasks) as client, agent(api) as worker:
        assert client.session.server_capabilities.extensions == {"io.modelcontextprotocol/tasks": {}}  # type: ignore[union-attr]
        call = asyncio.create_task(client.call_tool("run_job", {"type": "a", "payload": {"n": None}}))
        id = await job_id_of(tasks)
        assert (tasks.seen[0]["status"], tasks.seen[0]["statusMessage"]) == ("working", "ready")
        job = await worker.claims()
        assert job["id"] == id
        await worker.does("complete_job", **lease(job), result={"big": 12345678901234567890}, result_summary="fine")
        result = await call
        assert (result.is_error, document(result)["status"]) == (False, "succeeded")
        assert document(result) == await worker.does("get_job", job_id=id)
        last = tasks.seen[-1]
        assert (last["status"], last["statusMessage"], last["ttlMs"]) == ("completed", "fine", None)
        assert document(await client.call_tool("wait_for_job", {"job_id": id}))["id"] == id  # ended: no task
        rejected = await client.call_tool("run_job", {"type": ""})
        assert rejected.is_error


async def test_without_the_extension_the_call_waits(api: Api) -> None:
    async with agent(api) as producer, agent(api) as worker:
        short = await producer.does("run_job", type="a", wait_seconds=0)
        assert short == {"id": short["id"], "status": "queued", "location": "ready"}
        await producer.is_rejected("run_job", 422, "invalid", type="a", wait_seconds=61)
        await producer.is_rejected("run_job", 422, "invalid", type="")
        call = asyncio.create_task(producer.does("run_job", type="b"))

        async def is_there() -> bool:
            return bool((await worker.does("list_jobs", type="b"))["items"])

        await eventually(is_there)
        job = await worker.claims(types=["b"])
        await worker.does("complete_job", **lease(job), result=1)
        assert (await call)["result"] == 1
        with pytest.raises(MCPError) as caught:
            await asked(producer.client.session, "tasks/get", job["id"])
        assert caught.value.error.code == -32021


async def test_the_client_of_fastmcp_follows_a_task(api: Api) -> None:
    tasks = FollowedTasks()
    transport = StreamableHttpTransport(f"{api.url}/mcp", headers=api.headers())
    async with FastClient(transport, extensions=[tasks]) as client, agent(api) as worker:
        call = asyncio.create_task(client.call_tool("run_job", {"type": "a"}))
        await job_id_of(tasks)
        await worker.does("complete_job", **lease(await worker.claims()), result="done")
        assert document(await call)["result"] == "done"
    assert tasks.seen[-1]["status"] == "completed"


@pytest.mark.parametrize(
    ("error", "status"),
    [({"message": "no", "kind": "bug"}, "completed"), ({"message": "no", "kind": "timeout"}, "failed")],
)
async def test_failures(api: Api, error: dict[str, str], status: str) -> None:
    tasks = FollowedTasks()
    async with following(api, tasks) as client, agent(api) as worker:
        call = asyncio.create_task(client.call_tool("run_job", {"type": "a", "max_attempts": 1}))
        await job_id_of(tasks)
        job = await worker.claims()
        await worker.does("fail_job", **lease(job), error=error, retryable=status == "failed")
        assert (await call).is_error
    last = tasks.seen[-1]
    assert (last["status"], last["statusMessage"]) == (status, "no")
    if status == "failed":
        assert last["error"] == {"code": -32603, "message": "no"}
    else:
        assert last["result"]["isError"] is True


async def test_a_task_is_cancelled_by_its_creator(guarded: Api) -> None:
    caller = await guarded.as_role("produce", "read")
    stranger = await guarded.as_role("produce", "read")
    rival = await guarded.as_role("produce", "read", tenant=f"{guarded.tenant}-rival")
    tasks = FollowedTasks()
    async with following(caller, tasks) as client:
        call = asyncio.create_task(client.call_tool("run_job", {"type": "a"}))
        id = await job_id_of(tasks)
        for other, code in ((stranger, -32603), (rival, -32602)):
            async with following(other, FollowedTasks()) as foreign:
                with pytest.raises(MCPError) as caught:
                    await asked(foreign.session, "tasks/cancel", id)
                assert caught.value.error.code == code
        await asked(client.session, "tasks/cancel", id)
        assert (await call).is_error
        assert tasks.seen[-1]["status"] == "cancelled"
        await asked(client.session, "tasks/cancel", id)


async def test_unknown_tasks_are_invalid(api: Api) -> None:
    async with following(api, FollowedTasks()) as client:
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            for id in ("01890000-0000-7000-8000-000000000000", "x", "..", ""):
                with pytest.raises(MCPError) as caught:
                    await asked(client.session, method, id, {} if method == "tasks/update" else None)
                assert caught.value.error.code == -32602, (method, id)


def saying(content: dict[str, Any], forms: list[dict[str, Any]]) -> Answering:
    async def answering(message: str, schema: dict[str, Any]) -> dict[str, Any]:
        forms.append({"message": message, **schema})
        return {"action": "accept", "content": content}

    return answering


async def test_an_approver_answers_an_approval_and_a_question_by_forms(guarded: Api) -> None:
    caller = await guarded.as_role("produce", "read", "approve")
    worker = await guarded.as_role("work", worker_id="w")
    forms: list[dict[str, Any]] = []
    tasks = FollowedTasks(saying({"decision": "approve", "comment": "go", "branch": "main"}, forms))
    schema = {"type": "object", "properties": {"branch": {"type": "string"}}, "required": ["branch"]}
    async with following(caller, tasks) as client, agent(worker) as works:
        call = asyncio.create_task(client.call_tool("run_job", {"type": "deploy"}))
        await job_id_of(tasks)
        job = await works.claims()
        await works.does("request_approval", **lease(job), prompt="Deploy?", risk="high", details={"host": "a"})
        job = await claimed(works)
        assert (job["approval"]["status"], job["approval"]["comment"]) == ("approved", "go")
        await works.does("request_approval", **lease(job), prompt="Which?", kind="question", schema=schema)
        job = await claimed(works)
        assert job["approval"]["data"] == {"branch": "main"}
        await works.does("complete_job", **lease(job))
        await call
    assert [form["message"].splitlines()[0] for form in forms] == ["Deploy?", "Which?"]
    assert [form["required"] for form in forms] == [["decision"], ["branch"]]
    assert "Risk: high" in forms[0]["message"]
    assert "input_required" in {state["status"] for state in tasks.seen}


async def claimed(works: Any) -> Any:
    """The job, once it can be claimed."""
    found: list[Any] = []

    async def is_there() -> bool:
        found[:] = (await works.does("claim_job"))["jobs"]
        return bool(found)

    await eventually(is_there)
    return found[0]


async def test_a_client_cannot_approve_what_its_agent_asked_without_the_role(guarded: Api) -> None:
    caller = await guarded.as_role("produce", "read", "work", worker_id="w1")
    worker = await guarded.as_role("work", worker_id="w2")
    approver = await guarded.as_role("approve")
    tasks = FollowedTasks()
    async with following(caller, tasks) as client, agent(worker) as works, agent(approver) as people:
        call = asyncio.create_task(client.call_tool("run_job", {"type": "deploy"}))
        id = await job_id_of(tasks)
        opened = await works.does("request_approval", **lease(await works.claims()), prompt="Deploy?")
        state = await asked(client.session, "tasks/get", id)
        assert (state["status"], state["statusMessage"]) == ("working", "waiting for approval")
        key = f"{opened['approval']['id']}/{opened['approval']['digest']}"
        await asked(client.session, "tasks/update", id, {key: {"action": "accept", "content": {"decision": "approve"}}})
        (approval,) = (await people.does("list_approvals"))["items"]
        assert approval["status"] == "open"
        call.cancel()
        await asyncio.wait({call})
