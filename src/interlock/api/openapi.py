"""The OpenAPI 3.1 document and its JSON Schemas, generated from the route table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, inspect

from interlock import __version__
from interlock.api import problems
from interlock.api.routes import JSON, Route
from interlock.domain.artifact import INERT, PLAIN_BYTES
from interlock.wire import responses


class Schemas:
    """Collects the schema of every struct under its name, so that each is written once."""

    def __init__(self) -> None:
        self.components: dict[str, dict[str, Any]] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        return self._of(inspect.type_info(kind))

    def _of(self, info: inspect.Type) -> dict[str, Any]:
        match info:
            case inspect.Metadata(extra={"any_of": kinds}):
                return {"anyOf": [self.of(kind) for kind in kinds]}
            case inspect.Metadata(extra={"documented": kind}):
                return self.of(kind)
            case inspect.Metadata():
                return self._of(info.type)
            case inspect.AnyType() | inspect.RawType():
                return {}
            case inspect.NoneType():
                return {"type": "null"}
            case inspect.BoolType():
                return {"type": "boolean"}
            case inspect.IntType():
                return {"type": "integer", **_bounds(info)}
            case inspect.FloatType():
                return {"type": "number", **_bounds(info)}
            case inspect.StrType():
                return {"type": "string", **_lengths(info, "Length")}
            case inspect.BytesType():
                return {"type": "string", "contentEncoding": "base64"}
            case inspect.DateTimeType():
                return {"type": "string", "format": "date-time"}
            case inspect.EnumType():
                return {"type": "string", "enum": [str(member.value) for member in info.cls]}
            case inspect.LiteralType():
                return {"enum": list(info.values)}
            case inspect.ListType() | inspect.VarTupleType():
                return {"type": "array", "items": self._of(info.item_type), **_lengths(info, "Items")}
            case inspect.DictType():
                return {"type": "object", "additionalProperties": self._of(info.value_type)}
            case inspect.UnionType():
                return self._union(info)
            case inspect.StructType():
                return self._struct(info)
            case _:
                raise TypeError(f"{info} cannot be part of the API")

    def _union(self, info: inspect.UnionType) -> dict[str, Any]:
        shapes = [self._of(one) for one in info.types]
        if {} in shapes:
            return {}
        kinds = {one.get("type") for one in shapes}
        if kinds == {"integer", "number"}:
            return {"type": "number"}
        if len(shapes) == 2 and {"type": "null"} in shapes:
            other = next(one for one in shapes if one != {"type": "null"})
            if isinstance(other.get("type"), str) and "enum" not in other:
                return {**other, "type": [other["type"], "null"]}
        return {"anyOf": shapes}

    def _struct(self, info: inspect.StructType) -> dict[str, Any]:
        name = info.cls.__name__
        if name not in self.components:
            schema: dict[str, Any] = {"type": "object", "properties": {}}
            self.components[name] = schema
            if info.cls.__doc__:
                schema["description"] = info.cls.__doc__.strip()
            required = []
            if info.tag_field is not None:
                schema["properties"][info.tag_field] = {"const": info.tag}
                required.append(info.tag_field)
            for field in info.fields:
                schema["properties"][field.encode_name] = self._field(field)
                if field.required:
                    required.append(field.encode_name)
            if required:
                schema["required"] = required
            if info.forbid_unknown_fields:
                schema["additionalProperties"] = False
        return {"$ref": f"#/components/schemas/{name}"}

    def _field(self, field: inspect.Field) -> dict[str, Any]:
        kind = field.type
        if isinstance(kind, inspect.UnionType):
            types = tuple(
                one for one in kind.types if not isinstance(one, inspect.CustomType) or one.cls is not type(UNSET)
            )
            kind = types[0] if len(types) == 1 else inspect.UnionType(types)
        schema = self._of(kind)
        default = field.default
        if not isinstance(default, (bool, int, float, str, tuple)):
            return schema
        return {**schema, "default": default}


def _bounds(info: inspect.IntType | inspect.FloatType) -> dict[str, Any]:
    names = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
    return {given: value for name, given in names.items() if (value := getattr(info, name)) is not None}


def _lengths(info: inspect.StrType | inspect.ListType | inspect.VarTupleType, what: str) -> dict[str, Any]:
    found = {f"min{what}": info.min_length, f"max{what}": info.max_length, "pattern": getattr(info, "pattern", None)}
    return {name: value for name, value in found.items() if value is not None}


ROLES: Final = "x-interlock-roles"
ON_CONDITION: Final = "x-interlock-roles-on-condition"
_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_HEADERS: Final = {
    "Idempotency-Key": "The same key with the same body answers what was made the first time.",
    "If-Match": "The ETag of the job; anything newer is refused with 412.",
    "Interlock-Fence": "The fence of the lease.",
    "Interlock-Link": "`none`: the answer carries no link token, also with auth off.",
    "Last-Event-ID": "The id of the last event that was received.",
    "traceparent": "W3C trace context, kept with the job unless its body names another.",
    "Range": "One range of bytes.",
}


class Leads(NamedTuple):
    """A link of a response: a member that is a parameter of other operations."""

    parameter: str
    member: str
    to: tuple[str, ...]
    body: Mapping[str, str] = {}


_JOB: Final = (
    "get_job", "list_history", "list_events", "list_steps", "list_artifacts", "list_children", "wait_for_result",
    "explain_job", "edit_job", "cancel", "revoke", "redrive",
    "run_now", "acknowledge",
)  # fmt: skip
LEADS: Final = {
    "enqueue": Leads("job_id", "/id", _JOB),
    "redrive": Leads("job_id", "/id", _JOB),
    "claim": Leads(
        "job_id", "/jobs/0/id",
        ("heartbeat", "complete", "fail", "release", "acknowledge_cancel", "save_checkpoint", "save_step",
         "add_events", "link_artifact", "open_approval"),
        {"fence": "/jobs/0/lease/fence", "worker": "/jobs/0/lease/worker"},
    ),
    "open_approval": Leads("approval_id", "/approval/id", ("get_approval", "create_link", "decide")),
    "subscribe": Leads(
        "subscription_id", "/id",
        ("get_subscription", "renew_subscription", "rotate_secret", "list_deliveries", "unsubscribe"),
    ),
    "create_token": Leads("token_id", "/id", ("revoke_token",)),
}  # fmt: skip


def document(table: Sequence[Route]) -> dict[str, Any]:
    """Return the complete document."""
    schemas = Schemas()
    problem = schemas.of(responses.Problem)
    paths: dict[str, dict[str, Any]] = {}
    for route in table:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Interlock",
            "version": __version__,
            "summary": "A durable job queue and control plane for AI agents.",
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {}],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "Rejected; `code` is the reason.",
                    "content": {problems.MEDIA_TYPE: {"schema": problem}},
                }
            },
        },
    }


def _operation(route: Route, schemas: Schemas) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(route.path)
    ]
    parameters += _query(route)
    parameters += [
        {"name": name, "in": "header", "required": name == "Interlock-Fence", "schema": {"type": "string"},
         "description": _HEADERS[name]}
        for name in route.headers
    ]  # fmt: skip
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary.partition("\n")[0],
        "tags": [route.path.split("/")[2] if route.path.startswith("/v1/") else "operations"],
        "responses": {str(status): _response(route, status, kind, schemas) for status, kind in route.answers.items()}
        | {"default": {"$ref": "#/components/responses/Problem"}},
        ROLES: sorted(route.roles),
        ON_CONDITION: sorted(route.on_condition),
    }
    if parameters:
        operation["parameters"] = parameters
    if not route.needs_credential:
        operation["security"] = []
    if route.body is not None:
        operation["requestBody"] = {
            "required": not route.body_optional,
            "content": {JSON: {"schema": schemas.of(route.body)}},
        }
    elif route.raw_body:
        operation["requestBody"] = {"required": True, "content": {"application/octet-stream": {"schema": {}}}}
    return operation


def _query(route: Route) -> list[dict[str, Any]]:
    info = inspect.type_info(route.query)
    assert isinstance(info, inspect.StructType)
    collected = Schemas()
    collected.of(route.query)
    properties = collected.components[route.query.__name__]["properties"]
    return [
        {"name": field.encode_name, "in": "query", "required": field.required,
         "schema": _without_null(properties[field.encode_name])}
        for field in info.fields
    ]  # fmt: skip


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from a schema: an absent parameter is omitted, not null."""
    kind = schema.get("type")
    return {**schema, "type": kind[0]} if isinstance(kind, list) else schema


def _response(route: Route, status: int, kind: Any, schemas: Schemas) -> dict[str, Any]:
    response: dict[str, Any] = {"description": _DESCRIPTIONS.get(status, "Done.")}
    if status != 204:
        if route.produces == PLAIN_BYTES:  # a file, with its own type if that is safe
            response["content"] = {media_type: {"schema": {}} for media_type in (PLAIN_BYTES, *sorted(INERT))}
        else:
            schema = {"type": "string"} if kind is None else schemas.of(kind)
            response["content"] = {route.produces: {"schema": schema}}
        if (leads := LEADS.get(route.name)) is not None:
            response["links"] = {name: _link(name, leads) for name in leads.to}
    return response


def _link(operation: str, leads: Leads) -> dict[str, Any]:
    link: dict[str, Any] = {
        "operationId": operation,
        "parameters": {leads.parameter: f"$response.body#{leads.member}"},
    }
    if leads.body:
        link["description"] = "The body proves the lease; what else the operation needs is added to it."
        link["requestBody"] = {name: f"$response.body#{member}" for name, member in leads.body.items()}
    return link


_DESCRIPTIONS: Final = {200: "Done.", 201: "Made.", 202: "Not yet.", 204: "Done."}


def encoded(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value)
