"""Agents for tests: the official MCP client in front of a server, and the responses it gets."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

from tests.api.rig import Api
from tests.support.eventually import RETRY_SECONDS

MODES: Final = ("legacy", "auto")  # with a handshake, as most clients of today, and without
ALL_ROLES: Final = {"enqueue_job", "run_job", "get_job", "list_jobs", "wait_for_job", "cancel_job", "explain_job", "list_approvals", "list_events",
                    "list_history", "read_stream", "send_message", "publish_message", "list_messages", "redrive_job", "run_job_now", "acknowledge_job",
                    "edit_job", "list_effects",
                    "queue_stats", "list_limits", "list_budgets", "list_schedules", "get_artifact"}  # fmt: skip
WORKERS: Final = {"claim_job", "heartbeat_job", "checkpoint_job", "save_step", "begin_effect", "settle_effect", "write_stream", "release_job", "complete_job",
                  "fail_job", "request_approval", "hold_limit"}  # fmt: skip
# Of a job that is held, or of its tree.
LEASED: Final = {
    "get_job",
    "wait_for_job",
    "get_artifact",
    "read_stream",
    "list_messages",
    "send_message",
    "list_effects",
}


class Agent:
    """A client that has nothing but tools."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def tools(self) -> set[str]:
        return {tool.name for tool in (await self.client.list_tools()).tools}

    async def does(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """What a tool returns."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        return value_of(result)

    async def is_rejected(self, tool: str, status: int, code: str, /, **arguments: Any) -> dict[str, Any]:
        """The problem that a tool answers with."""
        result = await self.client.call_tool(tool, arguments)
        problem = value_of(result)
        assert result.is_error, problem
        assert (problem["status"], problem["code"]) == (status, code), problem
        return problem

    async def claims(self, **arguments: Any) -> dict[str, Any]:
        """The one job there is to have."""
        (job,) = (await self.does("claim_job", **arguments))["jobs"]
        taken: dict[str, Any] = job
        return taken


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def value_of(result: CallToolResult) -> dict[str, Any]:
    assert result.structured_content is None  # the response is sent once
    value: dict[str, Any] = json.loads(text_of(result))
    return value


def lease(job: Mapping[str, Any]) -> dict[str, Any]:
    """What every call about a claimed job carries."""
    return {"job_id": job["id"], "fence": job["lease"]["fence"]}


@asynccontextmanager
async def agent(api: Api, mode: str = "auto") -> AsyncIterator[Agent]:
    """An agent on streamable HTTP, with the credential of this caller."""
    async with (
        httpx2.AsyncClient(headers=api.headers(), trust_env=False, timeout=RETRY_SECONDS) as http,
        Client(streamable_http_client(f"{api.url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield Agent(client)


def command(*arguments: str) -> StdioServerParameters:
    """`interlock mcp` as a client starts it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK_")}
    return StdioServerParameters(command=sys.executable, args=["-m", "interlock", "mcp", *arguments], env=inherited)


@asynccontextmanager
async def agent_on_stdio(*arguments: str, mode: str = "auto") -> AsyncIterator[Agent]:
    async with Client(command(*arguments), mode=mode) as client:
        yield Agent(client)
