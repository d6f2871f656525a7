"""Me: who the service takes the caller for."""

from __future__ import annotations

from interlock.api.routes import Nothing, RequestContext, Response, RouteTable, respond
from interlock.wire import responses

routes = RouteTable()


@routes.add("GET", "/v1/me", answers={200: responses.Me})
async def me(call: RequestContext[None, Nothing]) -> Response:
    """Return the caller, its tenant and its roles."""
    who = call.who
    return respond(
        {
            "tenant": who.tenant,
            "actor": who.actor,
            "roles": sorted(who.roles),
            "worker": who.worker,
            "auth": call.service.options.auth,
        }
    )
