"""Tasks of this server: calls that wait for a job. Each request about one goes to the native API as its caller."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from mcp import MCPError

from interlock.api.native import approvals, jobs
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.errors import Invalid
from interlock.faces.mcp.api_client import Api, ApiResponse
from interlock.faces.mcp.result import result_of
from interlock.faces.mcp.task_protocol import (
    INTERNAL_ERROR,
    Answer,
    Asked,
    Context,
    TaskJob,
    TaskMethods,
    invalid,
    unknown_task,
)
from interlock.faces.mcp.tools import TOOLS, request, route_of

_DECIDE = next(tool for tool in TOOLS if tool.name == "decide_approval")


@dataclass(frozen=True)
class JobTasks:
    """The jobs that a caller may read, as tasks."""

    native: Api
    roles: frozenset[str]

    @property
    def methods(self) -> TaskMethods:
        return TaskMethods(self.read, self.decide, self.cancel)

    async def read(self, context: Context, job_id: str) -> TaskJob:
        reply = await self._ask(jobs.get_job, job_id=job_id)
        job = task_job(reply)
        if job.status != Status.WAITING_FOR_APPROVAL:
            return job
        approval = json.loads(reply.body)["approval_id"]
        if approval is None or not _DECIDE.is_for(self.roles):
            return job
        return TaskJob(**{**job.__dict__, "asked": await self._asked(approval)})

    async def decide(self, context: Context, asked: Asked, answer: Answer) -> None:
        given = {"decision": answer.decision, "comment": answer.comment, "data": answer.data, "digest": asked.digest}
        fields = {name: value for name, value in given.items() if value is not None}
        await self._ask(approvals.decide, approval_id=asked.id, **fields)

    async def cancel(self, context: Context, job_id: str) -> None:
        reply = await self._ask(jobs.get_job, job_id=job_id)
        if json.loads(reply.body)["status"] not in TERMINAL:
            await self._ask(jobs.cancel, expects=(409,), job_id=job_id, reason="cancelled by the client of the task")

    async def _asked(self, approval_id: str) -> Asked | None:
        found = json.loads((await self._ask(approvals.get_approval, approval_id=approval_id)).body)
        if found["status"] != "open":
            return None
        return Asked(**{name: found[name] for name in ("id", "digest", "kind", "prompt", "details", "risk", "schema")})

    async def _ask(self, handler: Any, *, expects: tuple[int, ...] = (), **fields: Any) -> ApiResponse:
        """Return the response. A rejection is an error of the protocol, because no tool is called."""
        asked = {name: json.dumps(value) for name, value in fields.items()}
        try:
            reply = await self.native.ask(request(route_of(handler), asked))
        except Invalid as error:
            raise invalid(str(error)) from None
        if not reply.is_refusal or reply.status in expects:
            return reply
        problem = json.loads(reply.body)
        if reply.status == 404:
            raise unknown_task()
        if reply.status == 422:
            raise invalid(problem["detail"])
        raise MCPError(INTERNAL_ERROR, problem["detail"], {"code": problem["code"], "status": reply.status})


def task_job(reply: ApiResponse) -> TaskJob:
    """Read a job of the native API as a task."""
    job = json.loads(reply.body)
    status, error = job["status"], (job["error"] or {}).get("message")
    outcome = result_of(reply, is_error=status != Status.SUCCEEDED) if status in TERMINAL else None
    where = status if status == Status.WAITING_FOR_APPROVAL else job["location"]
    shown = {
        "failed": error,
        "dead_letter": error,
        "cancelled": job["cancel_reason"],
        "succeeded": job["result_summary"],
    }
    return TaskJob(
        id=job["id"],
        status=status,
        created_at=job["created_at"],
        updated_at=job["updated_at"],
        message=shown.get(status, where.replace("_", " ")),
        result=None if outcome is None else outcome.model_dump(by_alias=True, mode="json", exclude_none=True),
        error=error,
    )
