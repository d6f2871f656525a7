"""Tasks as tools of your own MCP server: a call is a durable job, which clients follow by the tasks extension.

    server = MCPServer("research", extensions=[InterlockTasks(app, research)])

Clients that declare the extension get a task and follow it, also after a crash of client or server. For others the
call lasts as long as the job.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.context import CallNext
from mcp.server.extension import Extension, MethodBinding, ToolBinding
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools.base import Tool
from mcp_types import CallToolRequestParams, CallToolResult, TextContent

from interlock.errors import Invalid, NotFound
from interlock.faces.mcp.task_protocol import (
    EXTENSION,
    Answer,
    Asked,
    Context,
    TaskJob,
    TaskMethods,
    created,
    invalid,
    opted_in,
    unknown_task,
)
from interlock.sdk.app import App
from interlock.sdk.exceptions import JobCancelled, JobFailed
from interlock.sdk.tasks import Task
from interlock.sdk.values import Approval, Job

APPROVE_SCOPE: Final = "approve"
CALLER: Final = "mcp_caller"  # the header of a job that names who called the tool


def has_approve_scope(token: AccessToken | None) -> bool:
    """Return whether the credential of a request has the scope `approve`."""
    return token is not None and APPROVE_SCOPE in token.scopes


class InterlockTasks(Extension):
    """Offer tasks of an app as tools.

    A question of a job is shown to the user of the client that called the tool. An approval is shown only if
    `may_approve` returns true for the credential of the request: by default, if it has the scope `approve`. With
    authentication, a task is visible only to the caller that created it.
    """

    identifier = EXTENSION

    def __init__(
        self,
        app: App,
        *tasks: Task[..., Any],
        may_approve: Callable[[AccessToken | None], bool] = has_approve_scope,
    ) -> None:
        self._app, self._may_approve = app, may_approve
        self._tasks = {task.__name__: task for task in tasks}
        self._tools = {name: Tool.from_function(_function(task)) for name, task in self._tasks.items()}
        self._types = {task.name: name for name, task in self._tasks.items()}
        self._methods = TaskMethods(self._read, self._decide, self._cancel)

    def tools(self) -> Sequence[ToolBinding]:
        return [ToolBinding(_function(task)) for task in self._tasks.values()]

    def methods(self) -> Sequence[MethodBinding]:
        return self._methods.bindings()

    async def intercept_tool_call(self, params: CallToolRequestParams, ctx: Context, call_next: CallNext) -> Any:
        task = self._tasks.get(params.name)
        if task is None or not opted_in(ctx):
            return await call_next(ctx)
        try:
            arguments = self._tools[params.name].fn_metadata.validate_arguments(params.arguments or {})
            handle = await _enqueue(task, arguments)
        except (TypeError, ValueError, Invalid) as error:
            return _error(str(error))
        return created(await self._read(ctx, handle.id))

    async def _read(self, context: Context, job_id: str) -> TaskJob:
        job = await self._job(job_id)
        approval = None if job.approval_id is None else await self._app.approvals.get(job.approval_id)
        is_open = approval is not None and approval.status == "open" and job.status == "waiting_for_approval"
        asked = _asked(approval) if approval is not None and is_open and self._may_answer(approval) else None
        error = (job.error or {}).get("message")
        messages = {"failed": error, "dead_letter": error, "cancelled": job.cancel_reason}
        message = messages.get(job.status, job.result_summary or str(job.status).replace("_", " "))
        if approval is not None and is_open and asked is None:
            message = f"waiting for approval: {approval.prompt}"
        return TaskJob(
            id=job.id,
            status=str(job.status),
            created_at=_time(job.created_at),
            updated_at=_time(job.updated_at),
            message=message,
            asked=asked,
            result=self._result(job),
            error=error,
        )

    async def _decide(self, context: Context, asked: Asked, answer: Answer) -> None:
        try:
            await self._app.approvals.decide(
                asked.id, answer.decision, comment=answer.comment, data=answer.data, digest=asked.digest
            )
        except Invalid as error:
            raise invalid(str(error)) from None

    async def _cancel(self, context: Context, job_id: str) -> None:
        job = await self._job(job_id)
        if job.finished_at is None:
            await self._app.jobs.cancel(job.id, reason="cancelled by the client of the task")

    async def _job(self, job_id: str) -> Job:
        """Return the job of a task that the caller created."""
        try:
            job = await self._app.jobs.get(job_id)
        except (NotFound, Invalid):
            raise unknown_task() from None
        if job.type not in self._types or (job.headers or {}).get(CALLER) != _caller():
            raise unknown_task()
        return job

    def _may_answer(self, approval: Approval) -> bool:
        return approval.kind == "question" or self._may_approve(get_access_token())

    def _result(self, job: Job) -> dict[str, Any] | None:
        """Return what the call of the tool would have returned."""
        if job.status == "succeeded":
            result = self._tools[self._types[job.type]].fn_metadata.convert_result(job.result)
        elif job.status == "failed":
            result = _error((job.error or {}).get("message") or "the job failed")
        else:
            return None
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)


def _function(task: Task[..., Any]) -> Callable[..., Any]:
    """Return a function with the arguments of a task, which runs it as a job and waits for the result."""

    @functools.wraps(task.function)
    async def call(**arguments: Any) -> Any:
        handle = await _enqueue(task, arguments)
        try:
            return msgspec.to_builtins(await handle.result(), str_keys=True)
        except JobFailed as failure:
            raise ToolError(failure.error.get("message") or str(failure)) from failure
        except JobCancelled as cancelled:
            raise ToolError(str(cancelled)) from cancelled

    signature = inspect.signature(task.function, eval_str=True)
    taken = [one for name, one in signature.parameters.items() if name != task.signature.context]
    call.__signature__ = signature.replace(parameters=taken)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in taken} | {"return": signature.return_annotation}
    del call.__wrapped__  # type: ignore[attr-defined]
    return call


async def _enqueue(task: Task[..., Any], arguments: dict[str, Any]) -> Any:
    caller = _caller()
    if caller is not None:
        task = task.options(headers={**(task._options.get("headers") or {}), CALLER: caller})
    return await task.enqueue_detached(**arguments)


def _caller() -> str | None:
    token = get_access_token()
    if token is None:
        return None
    return msgspec.json.encode([token.client_id, (token.claims or {}).get("iss"), token.subject]).decode()


def _asked(approval: Approval) -> Asked:
    return Asked(
        id=approval.id,
        digest=approval.digest,
        kind=str(approval.kind),
        prompt=approval.prompt,
        details=approval.details,
        risk=approval.risk,
        schema=approval.schema,
    )


def _error(message: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=message)], is_error=True)


def _time(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
