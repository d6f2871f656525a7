"""Worker tokens: ours, spelled the way MoonMind's workers know them."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from interlock.api.face import Lenient
from interlock.api.moonmind import encode
from interlock.api.moonmind.jobs import BASE
from interlock.api.moonmind.requests import Asked, stripped
from interlock.api.routes import Answer, Call, Nothing, Routes, answer
from interlock.domain.token import Token
from interlock.wire import TokenRequest

routes = Routes()

PAGE: Final = 200


class NewWorkerToken(Asked, frozen=True, kw_only=True):
    """Whom a token is for, and what it allows; absent lists of repositories and types mean any."""

    worker_id: str
    description: str | None = None
    allowed_repositories: list[str] | None = None
    allowed_job_types: list[str] | None = None
    capabilities: list[str] | None = None


class TokenQuery(Lenient, frozen=True, kw_only=True):
    """How many are shown."""

    limit: Annotated[int, Meta(ge=1, le=200)] = 200


@routes.add("POST", f"{BASE}/workers/tokens", roles=["admin"], body=NewWorkerToken, answers={201: None})
async def create_worker_token(call: Call[NewWorkerToken, Nothing]) -> Answer:
    """Make a token for a worker; its text is shown this once."""
    body = call.body
    request = TokenRequest(
        roles=["work"],
        description=body.description,
        worker_id=body.worker_id,
        types=_named(body.allowed_job_types),
        repositories=_named(body.allowed_repositories),
        capabilities=_named(body.capabilities),
    )
    minted = await call.engine.tokens.create(call.who, request, for_moonmind=True)
    return answer({"token": minted.text, "workerToken": encode.token(minted.token)}, 201)


@routes.add("GET", f"{BASE}/workers/tokens", roles=["admin"], query=TokenQuery, answers={200: None})
async def list_worker_tokens(call: Call[None, TokenQuery]) -> Answer:
    """List the tokens of workers, newest first."""
    found: list[Token] = []
    before: str | None = None
    while len(found) < call.query.limit:
        page = await call.engine.tokens.list(call.who, before=before, limit=PAGE)
        found += [one for one in page if one.worker_id is not None]
        if len(page) < PAGE:
            break
        before = page[-1].id
    return answer({"items": [encode.token(one) for one in found[: call.query.limit]]})


@routes.add("POST", f"{BASE}/workers/tokens/{{id}}/revoke", roles=["admin"], answers={200: None})
async def revoke_worker_token(call: Call[None, Nothing]) -> Answer:
    """End a token for good; one that is no worker's is not known here."""
    return answer(encode.token(await call.engine.tokens.revoke(call.who, call.path["id"], of_worker=True)))


def _named(values: list[str] | None) -> list[str] | None:
    """An empty list allows nothing, unlike one that is absent."""
    return None if values is None else stripped(values)
