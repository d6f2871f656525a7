"""The queue as tools over plain HTTP: a list of them, and one call; each does what its REST route does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import msgspec

from interlock.api.face import Lenient
from interlock.api.moonmind import encode
from interlock.api.moonmind.artifacts import keep
from interlock.api.moonmind.auth import refused
from interlock.api.moonmind.requests import Asked, Text
from interlock.api.moonmind.service import (
    CancelJob,
    Claim,
    Completed,
    Enqueue,
    Failed,
    Heartbeat,
    ListJobs,
    Queue,
)  # fmt: skip
from interlock.api.routes import Answer, Call, Nothing, Routes, answer
from interlock.api.waiting import whole_upload
from interlock.errors import Invalid, Malformed, TooLarge

routes = Routes()

ANYBODY: Final = ("produce", "read", "work", "operate")


class JobId(Asked, frozen=True, kw_only=True):
    """Which job."""

    job_id: Text


class HeartbeatJob(Heartbeat, frozen=True, kw_only=True):
    """A sign of life for a job."""

    job_id: Text


class CompleteJob(Completed, frozen=True, kw_only=True):
    """A success report on a job."""

    job_id: Text


class FailJob(Failed, frozen=True, kw_only=True):
    """A failure report on a job."""

    job_id: Text


class CancelJobById(CancelJob, frozen=True, kw_only=True):
    """Which job is to stop, and why."""

    job_id: Text


class UploadArtifact(Asked, frozen=True, kw_only=True):
    """A file of a job, in base64."""

    job_id: Text
    worker_id: Text
    name: Text
    content_base64: bytes
    content_type: str | None = None
    digest: str | None = None


class ToolCall(Lenient, frozen=True, kw_only=True):
    """Which tool, and with what."""

    tool: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class _Tool(NamedTuple):
    """What a tool takes, who may use it, and what it does."""

    takes: type[Asked]
    roles: tuple[str, ...]
    run: Callable[[Call[Any, Any], Queue, Any], Awaitable[dict[str, Any]]]
    description: str


async def _upload(call: Call[Any, Any], desk: Queue, asked: UploadArtifact) -> dict[str, Any]:
    kept = await keep(
        call.engine, call.who.tenant, desk, asked.job_id, worker_id=asked.worker_id, name=asked.name,
        content=asked.content_base64, content_type=asked.content_type, digest=asked.digest,
    )  # fmt: skip
    return encode.artifact(kept)


TOOLS: Final = {
    "queue.cancel": _Tool(
        CancelJobById, ("operate", "produce"), lambda _, desk, a: desk.cancel(a.job_id, a), "Stop a job."
    ),
    "queue.claim": _Tool(Claim, ("work",), lambda _, desk, a: desk.claim(a), "Lease the next job for a worker."),
    "queue.complete": _Tool(
        CompleteJob, ("work",), lambda _, desk, a: desk.complete(a.job_id, a), "Report that a job succeeded."
    ),
    "queue.enqueue": _Tool(Enqueue, ("produce",), lambda _, desk, a: desk.enqueue(a), "Add a job."),
    "queue.fail": _Tool(FailJob, ("work",), lambda _, desk, a: desk.fail(a.job_id, a), "Report that a job failed."),
    "queue.get": _Tool(JobId, ("read",), lambda _, desk, a: desk.get(a.job_id), "Show a job."),
    "queue.heartbeat": _Tool(
        HeartbeatJob, ("work",), lambda _, desk, a: desk.heartbeat(a.job_id, a), "Extend the lease of a job."
    ),
    "queue.list": _Tool(ListJobs, ("read",), lambda _, desk, a: desk.list(a), "List jobs, newest first."),
    "queue.upload_artifact": _Tool(UploadArtifact, ("work",), _upload, "Keep a file of a job that runs."),
}


@routes.add("GET", "/mcp/tools", roles=ANYBODY, answers={200: None})
async def list_tools(call: Call[None, Nothing]) -> Answer:
    """List the tools, by name."""
    return answer(
        {
            "tools": [
                {"name": name, "description": tool.description, "inputSchema": _schema(tool.takes)}
                for name, tool in sorted(TOOLS.items())
            ]
        }
    )


@routes.add("POST", "/mcp/tools/call", roles=ANYBODY, raw_body=True, answers={200: None})
async def call_tool(call: Call[None, Nothing]) -> Answer:
    """Use a tool; with one of them a whole file comes along."""
    asked_for, mended = await _asked_for(call)
    tool = TOOLS.get(asked_for.tool)
    if tool is None:
        raise refused(404, "tool_not_found", f"there is no tool {asked_for.tool}")
    if call.who.roles.isdisjoint(tool.roles):
        raise refused(403, "worker_not_authorized", f"this needs the role {' or '.join(tool.roles)}")
    if mended and "work" not in tool.roles:
        raise refused(422, "invalid_tool_arguments", "the arguments have a lone surrogate")
    try:
        asked = tool.takes.of(asked_for.arguments)
    except msgspec.ValidationError as error:
        raise refused(422, "invalid_tool_arguments", str(error)) from None
    desk = Queue(call.engine, call.who, sanitized=mended)
    return answer({"result": await tool.run(call, desk, asked)})


async def _asked_for(call: Call[None, Nothing]) -> tuple[ToolCall, bool]:
    """The call, which may be as large as the largest artifact in base64, and whether odd text in it was mended."""
    usual = call.service.options.largest_body
    limit = -(-call.engine.limits.artifact // 3) * 4 + usual
    try:
        raw = await whole_upload(call, limit)
        if len(raw) <= usual:
            return ToolCall.read(raw, limit=limit, mends=True)
        return await asyncio.to_thread(ToolCall.read, raw, limit=limit, mends=True)  # it takes a while
    except TooLarge as error:
        raise refused(413, "artifact_too_large", str(error)) from None
    except (Invalid, Malformed) as error:
        raise refused(422, "invalid_queue_payload", str(error)) from None


def _schema(takes: type[Asked]) -> dict[str, Any]:
    """The schema of the arguments, in one piece."""
    (_,), parts = msgspec.json.schema_components([takes], ref_template="{name}")
    found: dict[str, Any] = parts[takes.__name__]
    return found
