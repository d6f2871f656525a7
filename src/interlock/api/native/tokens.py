"""Tokens: made, listed and revoked by admins; the text of one is shown once."""

from __future__ import annotations

import msgspec

from interlock.api import responses
from interlock.api.cursors import Place
from interlock.api.native.pagination import Page, page, place
from interlock.api.routes import Answer, Call, Nothing, Routes, answer
from interlock.wire import TokenRequest, encode

routes = Routes()


@routes.add(
    "POST", "/v1/tokens", roles=["admin"], body=TokenRequest, answers={201: responses.NewToken},
    headers=["Idempotency-Key"],
)  # fmt: skip
async def create_token(call: Call[TokenRequest, Nothing]) -> Answer:
    """Make a token of the caller's tenant; its text is in this answer and nowhere else."""
    request = msgspec.structs.replace(call.body, key=call.headers.idempotency_key(call.body.key))
    minted = await call.engine.tokens.create(call.who, request)
    return answer(encode.token_to_dict(minted.token) | {"token": minted.text}, 201)


@routes.add("GET", "/v1/tokens", roles=["admin"], query=Page, answers={200: responses.TokenPage})
async def list_tokens(call: Call[None, Page]) -> Answer:
    """List tokens, newest first, without their text."""
    at = place(call, "tokens")
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
async def revoke_token(call: Call[Nothing, Nothing]) -> Answer:
    """Revoke a token; every server rejects it within a second."""
    return answer(encode.token_to_dict(await call.engine.tokens.revoke(call.who, call.path["token_id"])))
