"""The tools: each a request of the native API under a name and a description that agents understand."""

from __future__ import annotations

import codecs
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from interlock.api.native import (
    approvals,
    artifacts,
    budgets,
    effects,
    jobs,
    limits,
    messages,
    operations,
    progress,
    queues,
    routes,
    schedules,
    streams,
    work,
)
from interlock.api.routes import Handler, Route
from interlock.errors import Forbidden, Invalid, NotFound
from interlock.faces.mcp.api_client import Api, ApiRequest, ApiResponse
from interlock.faces.mcp.arguments import Fields, one_of, path_part, scalar, scalars, schema_of, taking, together

MAX_ITEMS: Final = 1024 * 1024
USUAL: Final = 64 * 1024
_ARTIFACT: Final = next(route for route in routes() if route.handler is artifacts.get_artifact)
_ARTIFACTS: Final = next(route for route in routes() if route.handler is artifacts.list_artifacts)
MAX_WAIT_SECONDS: Final = 60
_TEXT: Final = {"type": ["string", "null"]}
_WAIT: Final = {"type": "integer", "minimum": 0, "maximum": MAX_WAIT_SECONDS, "default": MAX_WAIT_SECONDS}
_ARTIFACT_SCHEMA: Final = taking(
    {
        "job_id": {"type": "string"},
        "name": _TEXT,
        "artifact_id": _TEXT,
        "offset": {"type": "integer", "minimum": 0, "default": 0},
        "length": {"type": "integer", "minimum": 1, "maximum": MAX_ITEMS, "default": USUAL},
        "cursor": _TEXT,
    },
    ["job_id"],
)


async def _get_artifact(native: Api, fields: Fields) -> ApiResponse:
    """Return the artifacts of a job, or the requested part of one of them."""
    if unknown := [name for name in fields if name not in _ARTIFACT_SCHEMA["properties"]]:
        raise Invalid(f"unknown field {unknown[0]!r}", pointer=f"/{unknown[0]}")
    job_id = path_part(fields, "job_id")
    name, id = scalar(fields, "name"), scalar(fields, "artifact_id")
    if name is not None and id is not None:
        raise Invalid("give name or artifact_id, not both", pointer="/artifact_id")
    if name is None and id is None:
        return await _page(native, job_id, scalar(fields, "cursor"))
    offset, length = _whole(fields, "offset", 0, 0, 2**53), _whole(fields, "length", USUAL, 1, MAX_ITEMS)
    cursor: str | None = None
    while True:
        listed = await _page(native, job_id, cursor)
        if listed.is_refusal:
            return listed
        page = json.loads(listed.body)
        for one in page["items"]:
            if one["name"] == name or one["id"] == id:
                return await _part(native, one, offset, length)
        cursor = page["next_cursor"]
        if cursor is None:
            raise NotFound(name or id or "", resource="artifact")


async def _page(native: Api, job_id: str, cursor: str | None) -> ApiResponse:
    query = [("limit", "200")] + ([("cursor", cursor)] if cursor is not None else [])
    return await native.ask(ApiRequest(route=_ARTIFACTS, path={"job_id": job_id}, query=query))


async def _part(native: Api, artifact: dict[str, Any], offset: int, length: int) -> ApiResponse:
    size = artifact["size"]
    if size is None or size == 0:  # a link has none
        return _described(artifact, offset=0, length=0, text=None if size is None else "")
    path = {"job_id": artifact["job_id"], "artifact_id": artifact["id"]}
    wanted = {"range": f"bytes={offset}-{offset + length - 1}"}
    read = await native.ask(ApiRequest(route=_ARTIFACT, path=path, headers=wanted))
    if read.is_refusal:
        return read
    is_last = offset + len(read.body) >= size
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(read.body, final=is_last)
    except UnicodeDecodeError:
        return _described(artifact, offset=offset, length=len(read.body), content_base64=read.body)
    taken = len(read.body) - len(decoder.getstate()[0])  # a character cut in two is left to the next part
    if not taken:
        return _described(artifact, offset=offset, length=len(read.body), content_base64=read.body)
    return _described(artifact, offset=offset, length=taken, text=text)


def _described(artifact: dict[str, Any], **part: Any) -> ApiResponse:
    return ApiResponse(200, {}, msgspec.json.encode({"artifact": artifact} | part))


def _whole(fields: Fields, name: str, usual: int, least: int, most: int) -> int:
    given = scalar(fields, name)
    if given is None:
        return usual
    if not given.isascii() or not given.isdigit() or len(given) > 16 or not least <= int(given) <= most:
        raise Invalid(f"{name} must be a whole number from {least} to {most}", pointer=f"/{name}")
    return int(given)


Act = Callable[[Api, Fields], Awaitable[ApiResponse]]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """An MCP tool and its required roles."""

    name: str
    title: str
    description: str
    act: Act
    schema: Mapping[str, Any]
    roles: frozenset[str]  # one of these is enough
    also: frozenset[str] = frozenset()  # all of these are needed too
    never_with: frozenset[str] = frozenset()
    as_task: Act | None = None  # what the tool does for a client that can follow the job itself; returns the job
    only_looks: bool = False
    may_be_repeated: bool = True
    may_destroy: bool = False

    def is_for(self, roles: frozenset[str]) -> bool:
        return bool(roles & self.roles) and self.also <= roles and not roles & self.never_with

    def check(self, roles: frozenset[str]) -> None:
        """Reject callers without a required role, or with a role that excludes this tool."""
        if wrong := sorted(roles & self.never_with):
            raise Forbidden(f"{self.name} is not available to credentials with the role {' or '.join(wrong)}")
        if not roles & self.roles:
            raise Forbidden(f"{self.name} needs the role {' or '.join(sorted(self.roles))}")
        if missing := sorted(self.also - roles):
            raise Forbidden(f"{self.name} needs the role {' and '.join(missing)} too")


def route_of(handler: Handler) -> Route:
    """Return the route that a handler of the native API serves."""
    return next(route for route in routes() if route.handler is handler)


def request(route: Route, fields: Fields, *, repeatable: bool = True) -> ApiRequest:
    """Build a request from arguments: path parameters go into the path, others into the body or query."""
    names = path_names(route)
    path = {name: path_part(fields, name) for name in names}
    rest = {name: value for name, value in fields.items() if name not in names}
    wait = _wait_seconds(rest)
    if route.body is not None:
        body = together(rest).encode()
        return ApiRequest(route=route, path=path, body=body, wait_seconds=wait, repeatable=repeatable)
    query = [(name, value) for name in rest for value in scalars(rest, name)]
    return ApiRequest(route=route, path=path, query=query, wait_seconds=wait, repeatable=repeatable)


def path_names(route: Route) -> list[str]:
    return [part[1:-1] for part in route.path.split("/") if part.startswith("{")]


def _wait_seconds(fields: Fields) -> float:
    """Return how long the response may take; the route validates the value itself."""
    try:
        return min(max(float(fields.get("wait_seconds", "0")), 0.0), 60.0)
    except ValueError:
        return 0.0


def _plain(handler: Handler, *, key: str | None = None) -> Act:
    """Return a tool that sends one request; if `key` is given, it is that argument that makes a resend safe."""
    route = route_of(handler)

    async def act(native: Api, fields: Fields) -> ApiResponse:
        return await native.ask(request(route, fields, repeatable=key is None or key in fields))

    return act


async def _enqueue(native: Api, fields: Fields) -> ApiResponse:
    route = route_of(jobs.enqueue)
    reply = await native.ask(request(route, fields, repeatable="idempotency_key" in fields))
    if reply.headers.get("idempotent-replay") != "true":
        return reply
    return reply._replace(body=b'{"replayed":true,' + reply.body[1:])


async def _run(native: Api, fields: Fields) -> ApiResponse:
    """Enqueue a job and wait for its end."""
    seconds = _whole(fields, "wait_seconds", MAX_WAIT_SECONDS, 0, MAX_WAIT_SECONDS)
    made = await _start(native, fields)
    if made.is_refusal:
        return made
    wait = {"job_id": json.dumps(json.loads(made.body)["id"]), "wait_seconds": str(seconds)}
    return await native.ask(request(route_of(jobs.wait_for_result), wait))


async def _start(native: Api, fields: Fields) -> ApiResponse:
    route = route_of(jobs.enqueue)
    job = {name: value for name, value in fields.items() if name != "wait_seconds"}
    return await native.ask(request(route, job, repeatable="idempotency_key" in fields))


async def _job(native: Api, fields: Fields) -> ApiResponse:
    asked = {name: value for name, value in fields.items() if name != "wait_seconds"}
    return await native.ask(request(route_of(jobs.get_job), asked))


async def _request_approval(native: Api, fields: Fields) -> ApiResponse:
    """Request an approval without a link: with one, an agent could approve its own request."""
    asked = request(route_of(approvals.open_approval), fields)
    return await native.ask(replace(asked, headers={"interlock-link": "none"}))


async def _queue_stats(native: Api, fields: Fields) -> ApiResponse:
    handler = queues.list_queues if scalar(fields, "type") is None else queues.get_queue
    asked = {name: value for name, value in fields.items() if value != "null"}
    return await native.ask(request(route_of(handler), asked))


async def _read_stream(native: Api, fields: Fields) -> ApiResponse:
    """Return chunks of a stream, or the streams of the job if none is named."""
    handler = streams.list_streams if scalar(fields, "name") is None else streams.read_stream
    asked = {name: value for name, value in fields.items() if value != "null"}
    return await native.ask(request(route_of(handler), asked))


def _with(schema: Mapping[str, Any], **arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an input schema with more arguments."""
    return {**schema, "properties": schema["properties"] | taking(arguments)["properties"]}


def _optional(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an input schema whose argument of this name may be absent or null."""
    properties = schema["properties"]
    return {
        **schema,
        "properties": {**properties, name: {**properties[name], **_TEXT}},
        "required": [one for one in schema["required"] if one != name],
    }


def _tool(
    name: str,
    handler: Handler,
    title: str,
    description: str,
    *,
    act: Act | None = None,
    schema: Mapping[str, Any] | None = None,
    **more: Any,
) -> Tool:
    route = route_of(handler)
    return Tool(
        name=name,
        title=title,
        description=description,
        act=act or _plain(handler),
        schema=schema or schema_of(route, path_names(route)),
        roles=route.roles | route.on_condition,
        only_looks=route.method == "GET",
        **more,
    )


TOOLS: Final[Sequence[Tool]] = (
    _tool(
        "enqueue_job", jobs.enqueue, "Enqueue a job",
        "Enqueue a job for a worker to run now or later. Give an idempotency_key to be able to repeat the call: the "
        "same key and arguments return the first job, marked replayed.",
        act=_enqueue, may_be_repeated=False,
    ),
    _tool(
        "run_job", jobs.enqueue, "Run a job",
        "Enqueue a job and wait up to wait_seconds, by default 60, until it is terminal. Returns the whole job then, "
        "else only its id, status and location: continue with wait_for_job. A client with the tasks extension gets a "
        "task.",
        act=_run, as_task=_start, also=frozenset({"read"}), may_be_repeated=False,
        schema=_with(schema_of(route_of(jobs.enqueue), []), wait_seconds=_WAIT),
    ),
    _tool(
        "get_job", jobs.get_job, "Get a job",
        "Show one job: status, payload, lease, attempts, checkpoint, result and error.",
    ),
    _tool(
        "list_jobs", jobs.list_jobs, "List jobs",
        "List jobs, newest first, without payloads. Continue with next_cursor while there is one.",
    ),
    _tool(
        "wait_for_job", jobs.wait_for_result, "Wait for a job",
        "Wait up to 60 seconds until a job is terminal (succeeded, failed, dead_letter or cancelled). Returns the "
        "whole job then, else only its id, status and location: call again. A client with the tasks extension gets a "
        "task.",
        as_task=_job,
    ),
    _tool(
        "cancel_job", jobs.cancel, "Cancel a job",
        "Cancel a job. A running job stops when its worker acknowledges; force revokes its lease now; cascade also "
        "cancels its descendants.",
        may_destroy=True,
    ),
    _tool(
        "explain_job", operations.explain_job, "Explain why a job does not run",
        "Name what keeps a job from running: no worker for it, its agent is busy, its type is paused, it is due "
        "later, it waits for approval or for other jobs.",
    ),
    _tool(
        "list_events", progress.list_events, "List events",
        "List the progress messages of a job, oldest first. after skips those up to a seq; continue with next_cursor.",
    ),
    _tool(
        "read_stream", streams.read_stream, "Read a stream",
        "Read the output that a job writes while it runs, in chunks; without a name, list its streams. Continue with "
        "next as after; ended is true when no more chunks will come.",
        act=_read_stream, schema=_optional(schema_of(route_of(streams.read_stream), ["job_id", "name"]), "name"),
    ),
    _tool(
        "send_message", messages.send_message, "Send a message to a job",
        "Put a message into the inbox of a job, which may wait for it by its name. Give an id to be able to repeat the "
        "call: the same id and content return the first message.",
        act=_plain(messages.send_message, key="id"), may_be_repeated=False,
    ),
    _tool(
        "publish_message", messages.publish_message, "Send a message to a topic",
        "Send a message to all jobs that wait for a topic, and with retain_seconds to those that begin to wait within "
        "that time. Give an id to be able to repeat the call.",
        act=_plain(messages.publish_message, key="id"), may_be_repeated=False,
    ),
    _tool(
        "list_messages", messages.list_messages, "Read messages of a job",
        "List the messages in the inbox of a job, oldest first, by name; after skips those up to a seq. To wait for "
        "one without a worker, call release_job with message.",
    ),
    _tool(
        "list_effects", effects.list_effects, "List effects",
        "List the recorded external side effects of a job with their state: started, done or not_done. Started without "
        "a running attempt means that the outcome is unknown.",
    ),
    _tool(
        "list_history", jobs.list_history, "List history",
        "List every transition of a job, oldest first: from, to, actor, attempt, reason and time.",
    ),
    _tool(
        "run_job_now", jobs.run_now, "Run a job now",
        "Make a queued or retrying job due now.",
    ),
    _tool(
        "edit_job", jobs.edit_job, "Edit a job",
        "Change a queued or retrying job: priority, deadline, max_attempts, tags, or run_at to postpone it. Arguments "
        "that are not given stay as they are.",
    ),
    _tool(
        "acknowledge_job", jobs.acknowledge, "Acknowledge a job",
        "Acknowledge a failed or dead-letter job, so that it no longer needs attention. Its status stays the same.",
    ),
    _tool(
        "redrive_job", operations.redrive, "Redrive a job",
        "Create a new job from one that succeeded, failed, was cancelled or is a dead letter: from the start, from its "
        "checkpoint, or after a named step, with overrides. Give an idempotency_key to be able to repeat the call.",
        act=_plain(operations.redrive, key="idempotency_key"), may_be_repeated=False,
    ),
    _tool(
        "list_approvals", approvals.list_approvals, "List approvals",
        "List approvals, newest first, with prompt, details, risk, digest and votes.",
    ),
    _tool(
        "queue_stats", queues.get_queue, "Count jobs",
        "Count the jobs of one type, or of every type: ready, delayed, blocked, in progress, waiting for approval, "
        "dead letters, and how old the oldest ready one is.",
        act=_queue_stats, schema=one_of("type"),
    ),
    _tool(
        "list_limits", limits.list_limits, "List limits",
        "List the limits that jobs name: running and waiting jobs, what is available of each unit, and holds. Continue "
        "with next_cursor while there is one.",
    ),
    _tool(
        "list_budgets", budgets.list_budgets, "List budgets",
        "List the budgets that jobs name: the amount, what is spent, reserved and available of each unit, waiting jobs "
        "and when it starts anew. Continue with next_cursor while there is one.",
    ),
    _tool(
        "list_schedules", schedules.list_schedules, "List schedules",
        "List the schedules that enqueue jobs at times: the next tick, the last one and its job. Continue with "
        "next_cursor while there is one.",
    ),
    _tool(
        "get_artifact", _ARTIFACT.handler, "Read an artifact",
        "List the artifacts of a job, or read one by name or id: text as text, anything else as base64, a part at a "
        "time for a large one.",
        act=_get_artifact, schema=_ARTIFACT_SCHEMA,
    ),
    _tool(
        "claim_job", work.claim, "Claim a job",
        "Lease the best job that is due and that this worker may have, waiting for one up to wait_seconds; jobs is "
        "empty if there is none. Keep lease.fence: every later call about the job needs it. Then work, call "
        "heartbeat_job before lease.expires_at, and end with complete_job, fail_job or request_approval. steps, "
        "checkpoint and approval are those of earlier runs.",
        act=_plain(work.claim, key="claim_id"), may_be_repeated=False,
    ),
    _tool(
        "heartbeat_job", work.heartbeat, "Extend a lease",
        "Extend the lease of a claimed job, with events about progress. If cancel_requested is true, stop and call "
        "fail_job; on lease_lost another worker may have the job: stop.",
    ),
    _tool(
        "checkpoint_job", progress.save_checkpoint, "Save progress",
        "Save progress that survives a crash, a retry and an approval: one free JSON value, with a seq that is higher "
        "each time. The next claim of the job gets it.",
    ),
    _tool(
        "save_step", progress.save_step, "Save a step",
        "Save the result of a named part of the work. The first result of a name and occurrence is kept and returned, "
        "and every later claim of the job carries it in steps, so that the part is not repeated.",
    ),
    _tool(
        "write_stream", streams.append_to_stream, "Write to a stream",
        "Append chunks of text or base64 to a stream of a claimed job, for people who follow it. offset is that of the "
        "first chunk, from 0; continue at next. The same chunks at the same offset again get the same response.",
    ),
    _tool(
        "begin_effect", effects.begin_effect, "Begin an effect",
        "Record that you are about to do something outside, such as a payment, that must not happen twice. If state is "
        "started and fence is yours, do it, then call settle_effect. If it is done, use its result. If it is started "
        "under another fence, find out whether it happened, and settle it as done or not_done, before anything else.",
    ),
    _tool(
        "settle_effect", effects.settle_effect, "Record the outcome of an effect",
        "Record whether an effect is done, with its result, or not_done. Done is final; after not_done it can begin "
        "again.",
    ),
    _tool(
        "release_job", work.release, "Release a job",
        "Return a claimed job to its queue without using an attempt: now, after delay_seconds, at run_at, when the "
        "named children are terminal, or when a message of a name and with a seq above after is in its inbox. The same "
        "release again gets the same receipt.",
    ),
    _tool(
        "hold_limit", limits.hold_limit, "Hold a limit",
        "Lease no job that names a limit until a time, because a provider rejects requests until then; key for a limit "
        "with keys. A worker may hold only a limit that a job it has claimed names. Then release that job with the "
        "same time as run_at. Jobs that run continue; the later time of two holds wins.",
    ),
    _tool(
        "complete_job", work.complete, "Report success",
        "Report that a claimed job is done, with its result. The same report again gets the same receipt.",
    ),
    _tool(
        "fail_job", work.fail, "Report failure",
        "Report that a claimed job failed. It is retried while attempts are left, unless retryable is "
        "false. The same report again gets the same receipt.",
    ),
    _tool(
        "request_approval", approvals.open_approval, "Request approval",
        "Suspend a claimed job until it is approved or denied. The lease ends with this call; after the decision the "
        "next claim of the job carries the approval.",
        act=_request_approval, may_be_repeated=False,
    ),
    _tool(
        "decide_approval", approvals.decide, "Decide an approval",
        "Approve or deny an approval. Give the digest from list_approvals, so that the decision counts only for the "
        "request you saw.",
        never_with=frozenset({"work"}), may_destroy=True,
    ),
)  # fmt: skip

_BY_NAME: Final = {tool.name: tool for tool in TOOLS}


def by_name(name: str) -> Tool | None:
    return _BY_NAME.get(name)
