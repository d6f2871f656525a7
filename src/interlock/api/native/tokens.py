"""Tokens, and the authenticated caller."""

from __future__ import annotations

import msgspec

from interlock.api.cursors import Place
from interlock.api.native.pagination import Page, cursor_position, page
from interlock.api.routes import Nothing, RequestContext, Response, RouteTable, respond
from interlock.wire import TokenRequest, encode, responses

routes = RouteTable()


@routes.add(
    "POST", "/v1/tokens", roles=["admin"], body=TokenRequest, answers={201: responses.NewToken},
    headers=["Idempotency-Key"],
)  # fmt: skip
async def create_token(call: RequestContext[TokenRequest, Nothing]) -> Response:
    """Create a token for the caller's tenant. The response contains its secret, which is shown only once."""
    request = msgspec.structs.replace(call.body, key=call.headers.idempotency_key(call.body.key))
    minted = await call.engine.tokens.create(call.who, request)
    return respond(encode.token_to_dict(minted.token) | {"token": minted.text}, 201)


@routes.add("GET", "/v1/tokens", roles=["admin"], query=Page, answers={200: responses.TokenPage})
async def list_tokens(call: RequestContext[None, Page]) -> Response:
    """List tokens, newest first, without their secrets."""
    at = cursor_position(call, "tokens")
    before = None if at is None else str(at[0])
    found = await call.engine.tokens.list(call.who, before=before, limit=call.query.limit)
    end: Place = [found[-1].id] if found else []
    return page(
        call, "tokens", [encode.token_to_dict(one) for one in found], more=len(found) == call.query.limit, end=end
    )


@routes.add(
    "POST", "/v1/tokens/{token_id}/revoke", roles=["admin"], body=Nothing, body_optional=True,
    answers={200: responses.Token},
)  # fmt: skip
async def revoke_token(call: RequestContext[Nothing, Nothing]) -> Response:
    """Revoke a token; every server rejects it within a second."""
    return respond(encode.token_to_dict(await call.engine.tokens.revoke(call.who, call.path["token_id"])))


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
