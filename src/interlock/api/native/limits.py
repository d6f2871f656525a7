"""Limits on concurrency and rates, which jobs name."""

from __future__ import annotations

from datetime import datetime

from interlock.api.native.pagination import Page, cursor_position, page
from interlock.api.routes import Nothing, Request, RequestContext, Response, RouteTable, respond
from interlock.wire import responses
from interlock.wire.limits import BucketShape, LimitRequest, LimitShape, bucket_to_dict, limit_to_dict

routes = RouteTable()


class LimitPage(responses.Shape, frozen=True, kw_only=True):
    """Limits, by name."""

    items: list[LimitShape]
    next_cursor: str | None


class BucketPage(responses.Shape, frozen=True, kw_only=True):
    """The keys of a limit."""

    items: list[BucketShape]
    next_cursor: str | None


class Hold(Request, frozen=True, kw_only=True):
    """How long a limit is closed; `key` for a limit with keys."""

    until: datetime
    key: str | None = None
    reason: str | None = None


class Release(Request, frozen=True, kw_only=True):
    """The key whose hold ends, for a limit with keys."""

    key: str | None = None


@routes.add("PUT", "/v1/limits/{name}", roles=["admin"], body=LimitRequest, answers={200: LimitShape})
async def set_limit(call: RequestContext[LimitRequest, Nothing]) -> Response:
    """Create or update a limit. A lower concurrency takes effect as jobs end."""
    return respond(limit_to_dict(await call.engine.flow.set(call.who, call.path["name"], call.body)))


@routes.add("GET", "/v1/limits", roles=["read"], query=Page, answers={200: LimitPage})
async def list_limits(call: RequestContext[None, Page]) -> Response:
    """List limits by name."""
    at, limit = cursor_position(call, "limits"), call.query.limit
    found = await call.engine.flow.page(call.who.tenant, after="" if at is None else str(at[0]), limit=limit)
    return page(
        call, "limits", [limit_to_dict(one) for one in found], more=len(found) == limit,
        end=[one.limit.name for one in found[-1:]],
    )  # fmt: skip


@routes.add("GET", "/v1/limits/{name}", roles=["read"], answers={200: LimitShape})
async def get_limit(call: RequestContext[None, Nothing]) -> Response:
    """Return a limit and its state."""
    return respond(limit_to_dict(await call.engine.flow.get(call.who.tenant, call.path["name"])))


@routes.add("GET", "/v1/limits/{name}/keys", roles=["read"], query=Page, answers={200: BucketPage})
async def list_limit_keys(call: RequestContext[None, Page]) -> Response:
    """List the keys of a limit that jobs have used, with their state."""
    what, limit = f"limit keys {call.path['name']}", call.query.limit
    at = cursor_position(call, what)
    after = "" if at is None else str(at[0])
    found = await call.engine.flow.keys(call.who.tenant, call.path["name"], after=after, limit=limit)
    return page(
        call, what, [bucket_to_dict(one) for one in found], more=len(found) == limit,
        end=[one.key for one in found[-1:]],
    )  # fmt: skip


@routes.add("DELETE", "/v1/limits/{name}", roles=["admin"], answers={204: None})
async def delete_limit(call: RequestContext[None, Nothing]) -> Response:
    """Delete a limit that no unfinished job names."""
    await call.engine.flow.delete(call.who, call.path["name"])
    return Response(204, media_type="")


@routes.add("POST", "/v1/limits/{name}/hold", roles=["work", "operate"], body=Hold, answers={200: LimitShape})
async def hold_limit(call: RequestContext[Hold, Nothing]) -> Response:
    """Lease no job that names the limit until a time. The later time of two holds wins."""
    body = call.body
    held = await call.engine.flow.hold(call.who, call.path["name"], body.until, key=body.key, reason=body.reason)
    return respond(limit_to_dict(held))


@routes.add(
    "POST",
    "/v1/limits/{name}/release",
    roles=["operate"],
    body=Release,
    body_optional=True,
    answers={200: LimitShape},
)
async def release_limit(call: RequestContext[Release, Nothing]) -> Response:
    """End the hold of a limit."""
    return respond(limit_to_dict(await call.engine.flow.release(call.who, call.path["name"], key=call.body.key)))
