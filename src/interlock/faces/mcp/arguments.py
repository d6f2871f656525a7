"""The arguments of a tool: their JSON Schema, and the text they came in, which the native API judges byte for byte."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from interlock.api.openapi import Schemas
from interlock.api.routes import Route
from interlock.domain.job import FIELDS
from interlock.domain.json_text import after_space, sanitize_text
from interlock.domain.json_text import members as members_of
from interlock.errors import Invalid, Malformed
from interlock.wire import JobRequest

REF: Final = "#/components/schemas/"

# Shared by all tools: an argument has the same meaning in each.
DESCRIPTIONS: Final[Mapping[str, str]] = {
    **{name: FIELDS[name].about for name in JobRequest.__struct_fields__ if name in FIELDS},
    "affinity_keys": "affinity keys that this worker accepts; * for any",
    "after": "only what has a higher seq or offset",
    "agent": "the agent that the job runs for; in a list, as kind/id",
    "approval_id": "the id of the approval",
    "artifact_id": "the id of one artifact",
    "artifacts": "small files (content_base64) or links (url) to keep with the job",
    "attention": "only jobs that need attention",
    "budgets": "names of budgets that the job uses",
    "capabilities": "capabilities of this worker",
    "cascade": "also the jobs below it",
    "checkpoint": "progress to save along with this call",
    "chunks": "each with text, or with base64 for other bytes",
    "children": "IDs of child jobs to wait for",
    "claim_id": "a name for this claim; the same again gets the same jobs while they run",
    "comment": "a remark that is kept with the decision",
    "created_after": "RFC 3339 time with an offset",
    "created_before": "RFC 3339 time with an offset",
    "cursor": "next_cursor of the page before",
    "data": "any JSON value",
    "decision": "approve or deny",
    "delay_seconds": "seconds until the earliest start",
    "details": "any JSON that helps people decide",
    "digest": "the digest that was shown",
    "error": "message, and perhaps kind and details",
    "events": "messages about progress for people",
    "expires_in_seconds": "seconds until the approval expires",
    "fence": "lease.fence of the claim",
    "force": "do not wait for the worker",
    "from": "start, checkpoint, or the name of the step to continue after",
    "function": "the function that computed the result, for people",
    "id": "a name for this message; the same again sends nothing more",
    "job": "the id of the job",
    "job_id": "the id of the job",
    "lease_seconds": "how long the job is kept without a heartbeat",
    "length": "how many bytes to read at most",
    "limit": "how many at most",
    "key": "idempotency key for the external system; of a limit with keys, the key to hold",
    "kind": "approval: people decide; question: people send data that is valid against the schema",
    "message": "the message to wait for: its name or topic, and the seq after which it comes",
    "name": "the name of the artifact, step, effect, approval, message, stream or limit",
    "occurrence": "which use of this name it is; an approval without it is the next",
    "offset": "from which byte on; of the first chunk, for a stream",
    "on_deny": "what a denial does: fail the job, or resume it with the decision",
    "overrides": "values that the new job has instead of the old ones",
    "parent": "the id of the job above",
    "prompt": "what people are asked",
    "reason": "why, for the history",
    "required": "number of approvals required",
    "result": "any JSON value",
    "result_summary": "the result in a sentence",
    "retain_seconds": "how long jobs that begin to wait later get it too, up to 7 days",
    "retry_after_seconds": "seconds until the next attempt, such as the reset of a provider",
    "retryable": "whether to retry",
    "risk": "how much is at stake, in a word",
    "schema": "JSON Schema of data that the approver may give",
    "search": "an ID, its last 8 or more characters, an idempotency key, or text",
    "seq": "number of this checkpoint, higher than the last",
    "stale_seconds": "only running jobs without a heartbeat for so long",
    "state": "done or not_done",
    "status": "only with this status",
    "tag": "only with all of these tags",
    "topic": "the topic, which reaches all jobs that wait for it",
    "types": "only these types; any if absent",
    "until": "RFC 3339 time with an offset, at most 30 days ahead",
    "usage": "numbers by name, as tokens or cost, summed over runs",
    "wait_seconds": "how long to wait, up to 60",
    "worker": "the worker's name, where one credential has several",
}


def schema_of(route: Route, path: Sequence[str]) -> dict[str, Any]:
    """Return the input schema of a route: path parameters and the fields of its body or query."""
    shapes = Schemas()
    name = shapes.of(route.body or route.query)["$ref"].removeprefix(REF)
    shape = _written_out(shapes.components[name], shapes.components)
    return taking(dict.fromkeys(path, _TEXT) | shape["properties"], [*path, *shape.get("required", ())])


def taking(properties: Mapping[str, Mapping[str, Any]], required: Sequence[str] = ()) -> dict[str, Any]:
    """An object with these members and no others."""
    given = {name: {**shape, "description": DESCRIPTIONS[name]} for name, shape in properties.items()}
    return {"type": "object", "properties": given, "required": list(required), "additionalProperties": False}


def one_of(name: str) -> dict[str, Any]:
    """A single text that may be left out."""
    return taking({name: {"type": ["string", "null"]}})


_TEXT: Final = {"type": "string"}


def _written_out(shape: Any, components: Mapping[str, Any]) -> Any:
    """Return a schema with its references inlined, for language models."""
    if isinstance(shape, list):
        return [_written_out(one, components) for one in shape]
    if not isinstance(shape, dict):
        return shape
    if "$ref" in shape:
        return _written_out(components[shape["$ref"].removeprefix(REF)], components)
    return {name: _written_out(one, components) for name, one in shape.items()}


SEAL: Final = "interlock"
CALL: Final = "tools/call"
CANCELLED: Final = "notifications/cancelled"
_READER: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)

Fields = dict[str, str]  # JSON text by name


class Message(NamedTuple):
    """A message of a client, parsed as far as needed before the library handles it."""

    text: str  # for the library, which would round large numbers and fail on invalid Unicode
    method: str | None = None
    id: str | None = None  # JSON text
    cancels: str | None = None  # the ID of the cancelled request


def message(text: str) -> Message:
    """Parse a client message and seal the arguments of a call. Anything but a single message is left to the library."""
    try:
        given = members(text)
        method = json.loads(given.get("method", "null"))
        if method == CANCELLED:
            return Message(text, method, cancels=members(given["params"]).get("requestId"))
        if method != CALL:
            return Message(text, method if isinstance(method, str) else None, given.get("id"))
        params = members(given["params"])
        if "arguments" in params and params["arguments"].startswith("{"):
            params["arguments"] = json.dumps({SEAL: params["arguments"]})
        return Message(together(given | {"params": together(params)}), method, given.get("id"))
    except (ValueError, KeyError, RecursionError, Malformed):
        return Message(text)


def unsealed(arguments: Mapping[str, Any] | None) -> Fields:
    """The arguments of a call by name, as they were sent."""
    given = arguments or {}
    sealed = given.get(SEAL)
    text = sealed if len(given) == 1 and isinstance(sealed, str) else json.dumps(given)
    try:
        return members(text)
    except (ValueError, RecursionError):
        raise Malformed("the arguments are not a JSON object that can be read") from None


def together(fields: Mapping[str, str]) -> str:
    """An object of the texts of its members."""
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in fields.items()) + "}"


def members(text: str) -> Fields:
    """Return the text of every member of an object; reject duplicate names."""
    _, end = _READER.raw_decode(text, after_space(text, 0))
    if after_space(text, end) != len(text):
        raise ValueError("there is more than one value")
    found: Fields = {}
    for name, value in members_of(text):
        if name in found:
            raise Malformed(f"arguments have a duplicate key at /{json.dumps(name)[1:-1]}", pointer=f"/{name}")
        found[name] = value
    return found


def scalar(fields: Fields, name: str) -> str | None:
    """A plain value as text; None where it was not given or is null."""
    texts = scalars(fields, name)
    if len(texts) > 1:
        raise Invalid(f"{name} must be one value", pointer=f"/{name}")
    return texts[0] if texts else None


def path_part(fields: Fields, name: str) -> str:
    """Return a path parameter; reject values that would change the path."""
    value, _ = sanitize_text(scalar(fields, name) or "")
    if not value:
        raise Invalid(f"{name} is missing", pointer=f"/{name}")
    if value in (".", "..") or "\x00" in value:
        raise Invalid(f"{name} cannot be {json.dumps(value)}", pointer=f"/{name}")
    return value


def scalars(fields: Fields, name: str) -> list[str]:
    """A plain value or a list of such, as text, for a place where there is room for nothing else."""
    value = _READER.decode(fields.get(name, "null"))
    found = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(one, (dict, list)) or one is None for one in found):
        raise Invalid(f"{name} must be a plain value", pointer=f"/{name}")
    return [json.dumps(one) if isinstance(one, bool) else str(one) for one in found]
