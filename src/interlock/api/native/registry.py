"""Registered types and agents."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from interlock.api.native import encode
from interlock.api.native.pagination import Page, cursor_position, page
from interlock.api.routes import ABSENT, Nothing, Request, RequestContext, Response, RouteTable, respond
from interlock.wire import LimitUse, responses
from interlock.wire.encode import agent_to_dict, type_to_dict

routes = RouteTable()


class BackoffPart(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Backoff policy between attempts."""

    kind: str | None = None
    base_seconds: float | None = None
    max_seconds: float | None = None
    multiplier: float | None = None


class DefaultsPart(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Defaults for fields that a job does not set."""

    max_attempts: int | None = None
    backoff: BackoffPart | None = None
    lease_seconds: float | None = None
    timeout_seconds: float | None = None
    priority: int | None = None
    limits: list[LimitUse] | None = None
    budgets: list[str] | None = None


class TypeRequest(Request, frozen=True, kw_only=True):
    """A type: the JSON Schema of its payloads, the capabilities that it requires, and defaults."""

    schema: msgspec.Raw = ABSENT
    requires: tuple[str, ...] = ()
    defaults: DefaultsPart | None = None


class AgentRequest(Request, frozen=True, kw_only=True):
    """An agent: its concurrency limit, whether a started job keeps its slot while it waits, and defaults."""

    max_concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    strict: bool = False
    backoff: BackoffPart | None = None
    defaults: DefaultsPart | None = None


class TypeShape(responses.Shape, frozen=True, kw_only=True):
    """A registered type."""

    name: str
    schema: Any
    requires: list[str]
    defaults: dict[str, Any]
    created_at: datetime
    updated_at: datetime


class TypePage(responses.Shape, frozen=True, kw_only=True):
    """Types, by name."""

    items: list[TypeShape]
    next_cursor: str | None


class AgentShape(responses.Shape, frozen=True, kw_only=True):
    """An agent."""

    kind: str
    id: str
    max_concurrency: int | None
    strict: bool
    backoff: Any
    defaults: dict[str, Any]
    implicit: bool
    created_at: datetime
    updated_at: datetime


class AgentPage(responses.Shape, frozen=True, kw_only=True):
    """Agents, by kind and id."""

    items: list[AgentShape]
    next_cursor: str | None


@routes.add("PUT", "/v1/types/{name}", roles=["admin"], body=TypeRequest, answers={200: TypeShape})
async def put_type(call: RequestContext[TypeRequest, Nothing]) -> Response:
    """Register or update a type. Its schema applies to jobs enqueued from now on."""
    schema = encode.kept(call.body.schema)
    made = await call.engine.registry.set_type(
        call.who,
        call.path["name"],
        schema=None if schema == "null" else schema,
        requires=call.body.requires,
        defaults=_given(call.body.defaults),
    )
    return respond(type_to_dict(made))


@routes.add("GET", "/v1/types", roles=["read"], query=Page, answers={200: TypePage})
async def list_types(call: RequestContext[None, Page]) -> Response:
    """List registered types, by name."""
    at = cursor_position(call, "types")
    found = sorted(await call.engine.registry.types(call.who.tenant))
    rest = [one for one in found if at is None or one.name > str(at[0])]
    some = rest[: call.query.limit]
    return page(
        call,
        "types",
        [type_to_dict(one) for one in some],
        more=len(rest) > len(some),
        end=[one.name for one in some[-1:]],
    )


@routes.add("GET", "/v1/types/{name}", roles=["read"], answers={200: TypeShape})
async def get_type(call: RequestContext[None, Nothing]) -> Response:
    """Return a registered type."""
    return respond(type_to_dict(await call.engine.registry.type(call.who.tenant, call.path["name"])))


@routes.add("DELETE", "/v1/types/{name}", roles=["admin"], answers={204: None})
async def delete_type(call: RequestContext[None, Nothing]) -> Response:
    """Delete a type. Its jobs remain."""
    await call.engine.registry.delete_type(call.who, call.path["name"])
    return Response(204, media_type="")


@routes.add("PUT", "/v1/agents/{kind}/{id}", roles=["admin"], body=AgentRequest, answers={200: AgentShape})
async def put_agent(call: RequestContext[AgentRequest, Nothing]) -> Response:
    """Create or update an agent. A lower limit takes effect as running jobs finish."""
    body = call.body
    made = await call.engine.registry.set_agent(
        call.who,
        call.path["kind"],
        call.path["id"],
        max_concurrency=body.max_concurrency,
        strict=body.strict,
        backoff=None if body.backoff is None else msgspec.to_builtins(body.backoff),
        defaults=_given(body.defaults),
    )
    return respond(agent_to_dict(made))


class AgentQuery(Page, frozen=True, kw_only=True):
    """Filter for agents. `stalled` selects strict agents whose slots are all held by waiting jobs."""

    stalled: bool = False


@routes.add("GET", "/v1/agents", roles=["read"], query=AgentQuery, answers={200: AgentPage})
async def list_agents(call: RequestContext[None, AgentQuery]) -> Response:
    """List agents by kind and ID; with `stalled`, only strict ones whose slots are all held by waiting jobs."""
    if call.query.stalled:
        hang = await call.engine.registry.stalled_agents(call.who.tenant, limit=call.query.limit)
        return page(call, "agents", [agent_to_dict(one) for one in hang], more=False, end=[])
    at = cursor_position(call, "agents")
    after = ("", "") if at is None else (str(at[0]), str(at[1]))
    found = await call.engine.registry.agents(call.who.tenant, after=after, limit=call.query.limit)
    end: list[int | str] = [found[-1].kind, found[-1].id] if found else []
    return page(call, "agents", [agent_to_dict(one) for one in found], more=len(found) == call.query.limit, end=end)


@routes.add("GET", "/v1/agents/{kind}/{id}", roles=["read"], answers={200: AgentShape})
async def get_agent(call: RequestContext[None, Nothing]) -> Response:
    """Return an agent."""
    return respond(agent_to_dict(await call.engine.registry.agent(call.who.tenant, call.path["kind"], call.path["id"])))


@routes.add("DELETE", "/v1/agents/{kind}/{id}", roles=["admin"], answers={204: None})
async def delete_agent(call: RequestContext[None, Nothing]) -> Response:
    """Delete an agent that has no unfinished jobs."""
    await call.engine.registry.delete_agent(call.who, call.path["kind"], call.path["id"])
    return Response(204, media_type="")


def _given(defaults: DefaultsPart | None) -> dict[str, Any] | None:
    return None if defaults is None else msgspec.to_builtins(defaults)
