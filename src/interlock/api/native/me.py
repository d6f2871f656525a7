"""Me: who the service takes the caller for."""

from __future__ import annotations

from interlock.api import responses
from interlock.api.routes import Answer, Call, Nothing, Routes, answer

routes = Routes()


@routes.add("GET", "/v1/me", answers={200: responses.Me})
async def me(call: Call[None, Nothing]) -> Answer:
    """Return the caller, its tenant and its roles."""
    who = call.who
    return answer(
        {
            "tenant": who.tenant,
            "actor": who.actor,
            "roles": sorted(who.roles),
            "worker": who.worker,
            "auth": call.service.options.auth,
        }
    )
