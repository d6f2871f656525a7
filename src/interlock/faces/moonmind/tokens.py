"""Routes of worker tokens."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from interlock.api.adapters import Lenient
from interlock.api.routes import Nothing, RequestContext, Response, RouteTable, respond
from interlock.domain.token import Token
from interlock.faces.moonmind import model
from interlock.faces.moonmind.model import BASE, MoonmindRequest, stripped, trimmed
from interlock.wire import TokenRequest

routes = RouteTable()

PAGE: Final = 200
TOKEN_PREFIX: Final = "mmwt_"


class CreateTokenRequest(MoonmindRequest, frozen=True, kw_only=True):
    """A new worker token; absent lists of repositories and types allow any."""

    worker_id: str
    description: str | None = None
    allowed_repositories: list[str] | None = None
    allowed_job_types: list[str] | None = None
    capabilities: list[str] | None = None


class TokenQuery(Lenient, frozen=True, kw_only=True):
    """The length of a list."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 200


@routes.add("POST", f"{BASE}/workers/tokens", roles=["admin"], body=CreateTokenRequest, answers={201: None})
async def create_worker_token(call: RequestContext[CreateTokenRequest, Nothing]) -> Response:
    """Create a worker token; its text is shown only once."""
    body = call.body
    request = TokenRequest(
        roles=["work"],
        description=trimmed(body.description),
        worker_id=body.worker_id,
        types=_names(body.allowed_job_types),
        repositories=_names(body.allowed_repositories),
        capabilities=_names(body.capabilities),
    )
    created = await call.engine.tokens.create(call.who, request, prefix=TOKEN_PREFIX)
    return respond({"token": created.text, "workerToken": model.encode_token(created.token)}, 201)


@routes.add("GET", f"{BASE}/workers/tokens", roles=["admin"], query=TokenQuery, answers={200: None})
async def list_worker_tokens(call: RequestContext[None, TokenQuery]) -> Response:
    """List worker tokens, newest first."""
    found: list[Token] = []
    before: str | None = None
    while len(found) < call.query.limit:
        page = await call.engine.tokens.list(call.who, before=before, limit=PAGE)
        found += [one for one in page if one.worker_id is not None]
        if len(page) < PAGE:
            break
        before = page[-1].id
    return respond({"items": [model.encode_token(one) for one in found[: call.query.limit]]})


@routes.add("POST", f"{BASE}/workers/tokens/{{id}}/revoke", roles=["admin"], answers={200: None})
async def revoke_worker_token(call: RequestContext[None, Nothing]) -> Response:
    """Revoke a worker token."""
    return respond(
        model.encode_token(await call.engine.tokens.revoke(call.who, model.decode_id(call.path["id"]), of_worker=True))
    )


def _names(values: list[str] | None) -> list[str] | None:
    """Names of a list; an empty list allows nothing, an absent one anything."""
    return None if values is None else stripped(values)
