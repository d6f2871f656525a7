"""A client of the tasks extension, for the official MCP client and for that of fastmcp."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import mcp_types as types
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from pydantic import Field

EXTENSION = "io.modelcontextprotocol/tasks"

Answering = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]  # from message and schema to the response


class CreatedTask(types.Result):
    result_type: Literal["task"] = Field(alias="resultType")
    task_id: str = Field(alias="taskId")
    status: str
    created_at: str = Field(alias="createdAt")
    last_updated_at: str = Field(alias="lastUpdatedAt")
    ttl_ms: int | None = Field(alias="ttlMs")
    poll_interval_ms: int = Field(alias="pollIntervalMs")
    status_message: str | None = Field(default=None, alias="statusMessage")


class AnyResult(types.Result):
    model_config = types.Result.model_config | {"extra": "allow"}


class TaskRequestParams(types.RequestParams):
    task_id: str = Field(serialization_alias="taskId")
    input_responses: dict[str, Any] | None = Field(default=None, serialization_alias="inputResponses")


class TaskRequest(types.Request[TaskRequestParams, str]):
    method: str
    params: TaskRequestParams


class FollowedTasks(ClientExtension):
    """Follows each task to its end, and answers what it asks."""

    identifier = EXTENSION

    def __init__(self, answering: Answering | None = None) -> None:
        self.answering = answering
        self.seen: list[dict[str, Any]] = []

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=self._resolve)]

    async def _resolve(self, task: CreatedTask, context: ClaimContext) -> types.CallToolResult:
        while True:
            state = await asked(context.session, "tasks/get", task.task_id)
            self.seen.append(state)
            match state["status"]:
                case "completed":
                    return types.CallToolResult.model_validate(state["result"])
                case "failed" | "cancelled":
                    text = state.get("error", {}).get("message") or state["status"]
                    content = types.TextContent(type="text", text=text)
                    return types.CallToolResult(content=[content], is_error=True)
                case "input_required" if self.answering is not None:
                    responses = {
                        key: await self.answering(one["params"]["message"], one["params"]["requestedSchema"])
                        for key, one in state["inputRequests"].items()
                    }
                    await asked(context.session, "tasks/update", task.task_id, responses)
            await asyncio.sleep(0.01)


async def asked(session: Any, method: str, task_id: str, responses: dict[str, Any] | None = None) -> dict[str, Any]:
    """The result of one request for a task, as it is on the wire."""
    request = TaskRequest(method=method, params=TaskRequestParams(task_id=task_id, input_responses=responses))
    found = await session.send_request(request, AnyResult)
    plain: dict[str, Any] = found.model_dump(by_alias=True, mode="json", exclude_none=False)
    return plain
