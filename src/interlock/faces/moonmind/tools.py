"""The queue as tools over plain HTTP: each tool does what its REST route does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import msgspec

from interlock.api.adapters import Lenient
from interlock.api.long_poll import whole_upload
from interlock.api.routes import Nothing, RequestContext, Response, RouteTable, respond
from interlock.errors import Invalid, Malformed, TooLarge
from interlock.faces.moonmind import model
from interlock.faces.moonmind.artifacts import store
from interlock.faces.moonmind.jobs import (
    CancelRequest,
    ClaimRequest,
    CompleteRequest,
    EnqueueRequest,
    FailRequest,
    HeartbeatRequest,
    ListJobsQuery,
    QueueService,
)
from interlock.faces.moonmind.model import TOOLS as PATH
from interlock.faces.moonmind.model import MoonmindRequest, Text, reject

routes = RouteTable()

ANY_ROLE: Final = ("produce", "read", "work", "operate")


class GetTool(MoonmindRequest, frozen=True, kw_only=True):
    """Arguments of queue.get."""

    job_id: Text


class HeartbeatTool(HeartbeatRequest, frozen=True, kw_only=True):
    """Arguments of queue.heartbeat."""

    job_id: Text


class CompleteTool(CompleteRequest, frozen=True, kw_only=True):
    """Arguments of queue.complete."""

    job_id: Text


class FailTool(FailRequest, frozen=True, kw_only=True):
    """Arguments of queue.fail."""

    job_id: Text


class CancelTool(CancelRequest, frozen=True, kw_only=True):
    """Arguments of queue.cancel."""

    job_id: Text


class UploadTool(MoonmindRequest, frozen=True, kw_only=True):
    """Arguments of queue.upload_artifact."""

    job_id: Text
    worker_id: Text
    name: Text
    content_base64: bytes
    content_type: str | None = None
    digest: str | None = None


class ToolCall(Lenient, frozen=True, kw_only=True):
    """The name of a tool and its arguments."""

    tool: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class _Tool(NamedTuple):
    """The arguments of a tool, the roles that may call it, and its function."""

    arguments: type[MoonmindRequest]
    roles: tuple[str, ...]
    run: Callable[[RequestContext[Any, Any], QueueService, Any], Awaitable[dict[str, Any]]]
    description: str


async def _upload(call: RequestContext[Any, Any], queue: QueueService, request: UploadTool) -> dict[str, Any]:
    stored = await store(
        call.engine, call.who.tenant, queue, request.job_id, worker_id=request.worker_id, name=request.name,
        content=request.content_base64, content_type=request.content_type, digest=request.digest,
    )  # fmt: skip
    return model.encode_artifact(stored)


TOOLS: Final = {
    "queue.cancel": _Tool(
        CancelTool, ("operate", "produce"), lambda _, queue, a: queue.cancel(a.job_id, a), "Cancel a job."
    ),
    "queue.claim": _Tool(
        ClaimRequest, ("work",), lambda _, queue, a: queue.claim(a), "Lease the next job for a worker."
    ),
    "queue.complete": _Tool(
        CompleteTool, ("work",), lambda _, queue, a: queue.complete(a.job_id, a), "Complete a job."
    ),
    "queue.enqueue": _Tool(EnqueueRequest, ("produce",), lambda _, queue, a: queue.enqueue(a), "Enqueue a job."),
    "queue.fail": _Tool(FailTool, ("work",), lambda _, queue, a: queue.fail(a.job_id, a), "Fail a job."),
    "queue.get": _Tool(GetTool, ("read",), lambda _, queue, a: queue.get(a.job_id), "Read a job."),
    "queue.heartbeat": _Tool(
        HeartbeatTool, ("work",), lambda _, queue, a: queue.heartbeat(a.job_id, a), "Extend the lease of a job."
    ),
    "queue.list": _Tool(ListJobsQuery, ("read",), lambda _, queue, a: queue.list(a), "List jobs, newest first."),
    "queue.upload_artifact": _Tool(UploadTool, ("work",), _upload, "Store a file of a running job."),
}


@routes.add("GET", PATH, roles=ANY_ROLE, answers={200: None})
async def list_tools(call: RequestContext[None, Nothing]) -> Response:
    """List the tools by name."""
    return respond(
        {
            "tools": [
                {"name": name, "description": tool.description, "inputSchema": _schema(tool.arguments)}
                for name, tool in sorted(TOOLS.items())
            ]
        }
    )


@routes.add("POST", f"{PATH}/call", roles=ANY_ROLE, raw_body=True, answers={200: None})
async def call_tool(call: RequestContext[None, Nothing]) -> Response:
    """Call a tool; the arguments of one of them hold a whole file."""
    tool_call, replaced = await _tool_call(call)
    tool = TOOLS.get(tool_call.tool)
    if tool is None:
        raise reject(404, "tool_not_found", f"unknown tool {tool_call.tool!r}")
    if call.who.roles.isdisjoint(tool.roles):
        raise reject(403, "worker_not_authorized", f"role {' or '.join(tool.roles)} is required")
    if replaced and "work" not in tool.roles:
        raise reject(422, "invalid_tool_arguments", "the arguments contain a lone surrogate")
    try:
        request = tool.arguments.of(tool_call.arguments)
    except msgspec.ValidationError as error:
        raise reject(422, "invalid_tool_arguments", str(error)) from None
    queue = QueueService(call.engine, call.who, sanitized=replaced)
    return respond({"result": await tool.run(call, queue, request)})


async def _tool_call(call: RequestContext[None, Nothing]) -> tuple[ToolCall, bool]:
    """Read the call, up to the size of the largest artifact in base64; return also whether text was replaced."""
    usual = call.service.options.largest_body
    limit = -(-call.engine.limits.artifact // 3) * 4 + usual
    try:
        raw = await whole_upload(call, limit)
        if len(raw) <= usual:
            return ToolCall.read(raw, limit=limit, sanitizes=True)
        return await asyncio.to_thread(ToolCall.read, raw, limit=limit, sanitizes=True)  # large bodies take long
    except TooLarge as error:
        raise reject(413, "artifact_too_large", str(error)) from None
    except (Invalid, Malformed) as error:
        raise reject(422, "invalid_queue_payload", str(error)) from None


def _schema(arguments: type[MoonmindRequest]) -> dict[str, Any]:
    """The schema of the arguments, without references."""
    (_,), parts = msgspec.json.schema_components([arguments], ref_template="{name}")
    found: dict[str, Any] = parts[arguments.__name__]
    return found
