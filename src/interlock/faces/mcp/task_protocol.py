"""The tasks extension of MCP (SEP-2663): a job as a task, and an approval as a form that the client shows."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from mcp import MCPError, types
from mcp.server import ServerRequestContext
from mcp.server.extension import MethodBinding
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

EXTENSION: Final = "io.modelcontextprotocol/tasks"
POLL_MILLISECONDS: Final = 1000
MISSING_CAPABILITY: Final = -32021
INTERNAL_ERROR: Final = -32603
_FLAT: Final = frozenset({"string", "number", "integer", "boolean"})

Context = ServerRequestContext[Any, Any]
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """An open approval or question of a job."""

    id: str
    digest: str
    kind: str
    prompt: str
    details: Any = None
    risk: str | None = None
    schema: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        """The key of the input request. With the digest, an answer counts only for the request that was shown."""
        return f"{self.id}/{self.digest}"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the client's user decided."""

    decision: Literal["approve", "deny"]
    comment: str | None = None
    data: Any = None


@dataclass(frozen=True, kw_only=True)
class TaskJob:
    """A job as far as a task shows it. `asked` is set only if the caller may answer."""

    id: str
    status: str
    created_at: str
    updated_at: str
    message: str | None = None
    asked: Asked | None = None
    result: Json | None = None  # of the call that created the task, for a job that succeeded or failed
    error: str | None = None


class TaskParams(types.RequestParams):
    """The parameters of a request for a task."""

    task_id: str = Field(alias="taskId")


class UpdateParams(TaskParams):
    """Responses to input requests, by key."""

    input_responses: dict[str, Any] = Field(alias="inputResponses")


def opted_in(context: Context) -> bool:
    """Return whether the request declares the extension; older protocol versions cannot carry a task."""
    capabilities = context.session.client_capabilities
    declared = capabilities.extensions if capabilities else None
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in (declared or {})


def created(job: TaskJob) -> Json:
    """Return the result of a call that continues as a task."""
    return {"resultType": "task"} | _task(job, "working")


def detailed(job: TaskJob) -> Json:
    """Return the current state of a task, with its outcome or what it asks for."""
    match job.status:
        case "succeeded" | "failed":
            return _task(job, "completed") | {"result": job.result}
        case "dead_letter":
            return _task(job, "failed") | {"error": {"code": INTERNAL_ERROR, "message": job.error or "the job failed"}}
        case "cancelled":
            return _task(job, "cancelled")
    if job.asked is not None:
        return _task(job, "input_required") | {"inputRequests": {job.asked.key: form(job.asked)}}
    return _task(job, "working")


def _task(job: TaskJob, status: str) -> Json:
    message = {} if job.message is None else {"statusMessage": job.message}
    return {
        "taskId": job.id,
        "status": status,
        **message,
        "createdAt": job.created_at,
        "lastUpdatedAt": job.updated_at,
        "ttlMs": None,
        "pollIntervalMs": POLL_MILLISECONDS,
    }


def form(asked: Asked) -> Json:
    """Return the form in which the client asks its user."""
    lines = [asked.prompt]
    if asked.risk is not None:
        lines.append(f"Risk: {asked.risk}")
    if asked.details is not None:
        lines.append(json.dumps(asked.details, ensure_ascii=False, indent=2))
    data = _data_fields(asked)
    properties: Json = data.properties
    required = data.required
    if asked.kind != "question":
        decision = {"type": "string", "title": "Decision", "enum": ["approve", "deny"]}
        properties = {"decision": decision, "comment": {"type": "string", "title": "Comment"}} | properties
        required = ["decision"]  # a denial needs no data
    schema = {"type": "object", "properties": properties, "required": required}
    params = {"mode": "form", "message": "\n\n".join(lines), "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def answer(asked: Asked, response: Any) -> Answer | None:
    """Return the decision in a response of the client; None if its user closed the form."""
    if not isinstance(response, dict):
        raise invalid("an input response is not an object")
    content = response.get("content") or {}
    if response.get("action") == "decline":
        return Answer(decision="deny")
    if response.get("action") != "accept":
        return None
    if not isinstance(content, dict):
        raise invalid("the content of an input response is not an object")
    data = _data_fields(asked).read(content)
    if asked.kind == "question":
        return Answer(decision="approve", data=data)
    decision, comment = content.get("decision"), content.get("comment")
    if decision == "deny":
        return Answer(decision="deny", comment=comment)
    if decision != "approve":
        raise invalid(f"decision is {decision!r}: expected 'approve' or 'deny'")
    return Answer(decision="approve", comment=comment, data=data)


@dataclass(frozen=True)
class _DataFields:
    """The fields of a form that make up the data of a decision."""

    properties: Json
    required: list[str]
    read: Callable[[Json], Any]


def _data_fields(asked: Asked) -> _DataFields:
    """Return the fields of the schema, or one field for the whole: forms of MCP cannot be nested."""
    schema = asked.schema
    if schema is None:
        return _DataFields({}, [], lambda content: None)
    properties = schema.get("properties", {})
    are_flat = schema.get("type") == "object" and bool(properties) and all(map(_is_flat, properties.values()))
    if are_flat and (asked.kind == "question" or not {"decision", "comment"} & set(properties)):
        return _DataFields(
            dict(properties),
            list(schema.get("required", ())),
            lambda content: {name: content[name] for name in properties if name in content} or None,
        )
    if _is_flat(schema):
        return _DataFields({"answer": dict(schema)}, ["answer"], lambda content: content.get("answer"))
    about = f"JSON that is valid against {json.dumps(schema, ensure_ascii=False)}"
    whole = {"type": "string", "title": "JSON", "description": about}
    return _DataFields({"answer": whole}, ["answer"], lambda content: _json(content.get("answer")))


def _is_flat(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") in _FLAT


def _json(text: Any) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        raise invalid("the answer is not JSON") from None


def invalid(message: str) -> MCPError:
    return MCPError(types.INVALID_PARAMS, message)


def unknown_task() -> MCPError:
    return invalid("there is no such task")


@dataclass(frozen=True)
class TaskMethods:
    """The requests for tasks, over functions that read, answer and cancel a job for the caller of a request."""

    read: Callable[[Context, str], Awaitable[TaskJob]]
    decide: Callable[[Context, Asked, Answer], Awaitable[None]]
    cancel_job: Callable[[Context, str], Awaitable[None]]

    def bindings(self) -> Sequence[MethodBinding]:
        return (
            MethodBinding("tasks/get", TaskParams, self.get),
            MethodBinding("tasks/update", UpdateParams, self.update),
            MethodBinding("tasks/cancel", TaskParams, self.cancel),
        )

    async def get(self, context: Context, params: TaskParams) -> Json:
        _need_capability(context)
        return detailed(await self.read(context, params.task_id))

    async def update(self, context: Context, params: UpdateParams) -> Json:
        """Pass the answer on; responses to requests that are not open any more are ignored."""
        _need_capability(context)
        job = await self.read(context, params.task_id)
        if job.asked is not None and job.asked.key in params.input_responses:
            given = answer(job.asked, params.input_responses[job.asked.key])
            if given is not None:
                await self.decide(context, job.asked, given)
        return {}

    async def cancel(self, context: Context, params: TaskParams) -> Json:
        _need_capability(context)
        await self.cancel_job(context, params.task_id)
        return {}


def _need_capability(context: Context) -> None:
    if not opted_in(context):
        missing: Json = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        raise MCPError(MISSING_CAPABILITY, f"the request does not declare the extension {EXTENSION}", missing)
