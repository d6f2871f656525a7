"""Tasks of an app as tools of a user's MCP server, called by the official client, with the tasks extension and without."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from fastmcp.client import Client as FastClient
from mcp import Client, MCPError
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken

from interlock import Context, Fail
from interlock.integrations.mcp_tasks import CALLER, InterlockTasks
from tests.integrations.conftest import DrainedApp
from tests.support.eventually import eventually
from tests.support.mcp_tasks import FollowedTasks, asked


def server(app: DrainedApp, *tasks: Any, **options: Any) -> MCPServer:
    return MCPServer("test", extensions=[InterlockTasks(app, *tasks, **options)])


def text(result: Any) -> str:
    (content,) = result.content
    found: str = content.text
    return found


@contextlib.contextmanager
def signed_in(subject: str, *scopes: str) -> Any:
    token = AccessToken(token="t", client_id="c", scopes=[*scopes], subject=subject)
    before = auth_context_var.set(AuthenticatedUser(token))
    try:
        yield
    finally:
        auth_context_var.reset(before)


async def test_a_call_is_a_job_and_its_result_that_of_the_tool(app: DrainedApp) -> None:
    @app.task
    async def add(ctx: Context, a: int, b: int = 2) -> int:
        """Add two numbers."""
        return a + b

    following = FollowedTasks()
    async with Client(server(app, add), extensions=[following]) as client, app.working():
        (tool,) = (await client.list_tools()).tools
        assert (tool.name, tool.description, sorted(tool.input_schema["properties"])) == (
            "add",
            "Add two numbers.",
            ["a", "b"],
        )
        assert client.session.server_capabilities.extensions == {"io.modelcontextprotocol/tasks": {}}  # type: ignore[union-attr]
        result = await client.call_tool("add", {"a": 1})
        assert (result.structured_content, text(result), result.is_error) == ({"result": 3}, "3", False)
    last = following.seen[-1]
    job = await app.job(last["taskId"])
    assert (job.type, last["status"], last["resultType"], last["ttlMs"]) == (add.name, "completed", "complete", None)
    assert last["createdAt"].endswith("Z")


async def test_a_client_without_the_extension_waits_for_the_result(app: DrainedApp) -> None:
    @app.task
    async def double(n: int) -> int:
        if n < 0:
            raise Fail("n is negative")
        return 2 * n

    async with app.working():
        for mode in ("legacy", "auto"):
            async with Client(server(app, double), mode=mode) as client:
                assert (await client.call_tool("double", {"n": 4})).structured_content == {"result": 8}
                failed = await client.call_tool("double", {"n": -4})
                assert failed.is_error
                assert "n is negative" in text(failed)
    async with Client(server(app, double), extensions=[FollowedTasks()], mode="legacy") as client, app.working():
        assert (await client.call_tool("double", {"n": 4})).structured_content == {"result": 8}


async def test_wrong_arguments_create_no_job(app: DrainedApp) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with Client(server(app, double), extensions=[FollowedTasks()]) as client:
        for arguments in ({}, {"n": "many"}):
            assert (await client.call_tool("double", arguments)).is_error
    assert await app.jobs.list() == []


async def test_a_failed_job_is_a_result_with_an_error_and_a_dead_letter_a_failed_task(app: DrainedApp) -> None:
    @app.task(max_attempts=1)
    async def broken(how: str) -> None:
        raise Fail("no such file") if how == "fail" else RuntimeError("bug")

    following = FollowedTasks()
    async with Client(server(app, broken), extensions=[following]) as client, app.working():
        failed = await client.call_tool("broken", {"how": "fail"})
        assert (failed.is_error, text(failed), following.seen[-1]["status"]) == (True, "no such file", "completed")
        dead = await client.call_tool("broken", {"how": "raise"})
        last = following.seen[-1]
        assert (dead.is_error, last["status"], last["error"]["code"]) == (True, "failed", -32603)
        assert "bug" in last["error"]["message"]
        assert last["statusMessage"] == last["error"]["message"]


async def test_a_question_is_a_form_and_its_answer_reaches_the_job(app: DrainedApp) -> None:
    @app.task
    async def deploy(ctx: Context) -> str:
        schema = {"type": "object", "properties": {"branch": {"type": "string"}}, "required": ["branch"]}
        return "to " + (await ctx.ask("Which branch?", schema=schema))["branch"]

    forms: list[tuple[str, dict[str, Any]]] = []

    async def answer(message: str, schema: dict[str, Any]) -> dict[str, Any]:
        forms.append((message, schema))
        return {"action": "accept", "content": {"branch": "main"}}

    following = FollowedTasks(answer)
    async with Client(server(app, deploy), extensions=[following]) as client, app.working():
        assert text(await client.call_tool("deploy", {})) == "to main"
    assert forms[0][0] == "Which branch?"
    assert forms[0][1]["properties"] == {"branch": {"type": "string"}}
    keys = {key for state in following.seen for key in state.get("inputRequests") or {}}
    assert len(keys) == 1


async def test_the_client_of_fastmcp_follows_a_task_and_answers_its_question(app: DrainedApp) -> None:
    @app.task
    async def deploy(ctx: Context, host: str) -> str:
        return f"{host}: {await ctx.ask('Which branch?')}"

    async def answer(message: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"action": "accept", "content": {"answer": "main"}}

    following = FollowedTasks(answer)
    async with FastClient(server(app, deploy), extensions=[following]) as client, app.working():
        assert (await client.call_tool("deploy", {"host": "a"})).data.result == "a: main"
    statuses = [one["status"] for one in following.seen]
    assert ("input_required" in statuses, statuses[-1]) == (True, "completed")


async def test_an_approval_is_not_shown_to_the_client_that_called_unless_its_credential_may_approve(
    app: DrainedApp,
) -> None:
    @app.task
    async def deploy(ctx: Context) -> str:
        return (await ctx.approve("Deploy?", details={"host": "a"})).comment or ""

    async def approve(message: str, schema: dict[str, Any]) -> dict[str, Any]:
        assert schema["properties"]["decision"]["enum"] == ["approve", "deny"]
        assert '"host": "a"' in message
        return {"action": "accept", "content": {"decision": "approve", "comment": "go"}}

    following = FollowedTasks(approve)
    async with Client(server(app, deploy), extensions=[following]) as client, app.working():
        call = asyncio.create_task(client.call_tool("deploy", {}))

        async def waits() -> bool:
            return any(one.get("statusMessage") == "waiting for approval: Deploy?" for one in following.seen)

        await eventually(waits)
        assert {one["status"] for one in following.seen} == {"working"}
        (approval,) = await app.approvals.list()
        key = f"{approval.id}/{approval.digest}"
        task_id = following.seen[-1]["taskId"]
        forged = {key: {"action": "accept", "content": {"decision": "approve"}}}
        await asked(client.session, "tasks/update", task_id, forged)
        assert (await app.approvals.get(approval.id)).status == "open"
        call.cancel()
        await asyncio.wait({call})
    may = FollowedTasks(approve)
    async with Client(server(app, deploy, may_approve=lambda token: True), extensions=[may]) as client, app.working():
        assert text(await client.call_tool("deploy", {})) == "go"


@pytest.mark.parametrize("response", [{"action": "decline"}, {"action": "accept", "content": {"decision": "deny"}}])
async def test_declining_denies(app: DrainedApp, response: dict[str, Any]) -> None:
    @app.task
    async def deploy(ctx: Context) -> None:
        await ctx.approve("Deploy?")

    async def decline(message: str, schema: dict[str, Any]) -> dict[str, Any]:
        return response

    tools = server(app, deploy, may_approve=lambda token: True)
    async with Client(tools, extensions=[FollowedTasks(decline)]) as client, app.working():
        assert (await client.call_tool("deploy", {})).is_error
    (approval,) = await app.approvals.list()
    assert approval.status == "denied"


async def test_a_task_can_be_cancelled_and_unknown_ones_are_invalid(app: DrainedApp) -> None:
    @app.task
    async def slow() -> None: ...

    @app.task
    async def private() -> None: ...

    following = FollowedTasks()
    async with Client(server(app, slow), extensions=[following]) as client:
        call = asyncio.create_task(client.call_tool("slow", {}))

        async def is_seen() -> bool:
            return bool(following.seen)

        await eventually(is_seen)
        task_id = following.seen[0]["taskId"]
        assert "taskId" not in await asked(client.session, "tasks/cancel", task_id)
        assert (await call).is_error
        assert following.seen[-1]["status"] == "cancelled"
        await asked(client.session, "tasks/cancel", task_id)  # again changes nothing
        other = await private.enqueue()
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            for id in (other.id, "01890000-0000-7000-8000-000000000000", "x"):
                with pytest.raises(MCPError) as caught:
                    await asked(client.session, method, id, {} if method == "tasks/update" else None)
                assert caught.value.error.code == -32602
        assert (await app.job(other.id)).status == "queued"
    async with Client(server(app, slow)) as client:
        with pytest.raises(MCPError) as caught:
            await asked(client.session, "tasks/get", task_id)
        assert caught.value.error.code == -32021
        assert caught.value.error.data == {
            "requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}
        }


async def test_with_authentication_a_task_belongs_to_its_caller(app: DrainedApp) -> None:
    @app.task
    async def slow() -> None: ...

    following = FollowedTasks()
    with signed_in("ada", "approve"):
        async with Client(server(app, slow), extensions=[following]) as client:
            call = asyncio.create_task(client.call_tool("slow", {}))

            async def is_seen() -> bool:
                return bool(following.seen)

            await eventually(is_seen)
            call.cancel()
            await asyncio.wait({call})
    (job,) = await app.jobs.list()
    assert (await app.jobs.get(job.id)).headers == {CALLER: '["c",null,"ada"]'}
    with signed_in("bob"):
        async with Client(server(app, slow), extensions=[FollowedTasks()]) as client:
            with pytest.raises(MCPError):
                await asked(client.session, "tasks/get", job.id)
    with signed_in("ada"):
        async with Client(server(app, slow), extensions=[FollowedTasks()]) as client:
            assert (await asked(client.session, "tasks/get", job.id))["status"] == "working"
