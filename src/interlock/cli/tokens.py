"""`interlock tokens`: create, list, revoke."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from interlock import wire
from interlock.cli import ids, output
from interlock.cli.runner import ANYWHERE, Anywhere, ExpiresIn, Limit, run, timed
from interlock.client.port import Client
from interlock.domain.token import Token
from interlock.wire.encode import token_to_dict

app = App(name="tokens", help="Create, list and revoke bearer tokens.")


@app.command
def create(
    *,
    role: Annotated[tuple[str, ...], Parameter(help="read, produce, work, operate, approve or admin; may be repeated")],
    description: Annotated[str | None, Parameter(help="description")] = None,
    worker_id: Annotated[str | None, Parameter(help="worker ID; requires the role work")] = None,
    type: Annotated[
        tuple[str, ...], Parameter(help="type that the worker may claim; may be repeated; default: any")
    ] = (),
    repository: Annotated[
        tuple[str, ...], Parameter(help="repository that the worker may claim; may be repeated; default: any")
    ] = (),
    capability: Annotated[
        tuple[str, ...], Parameter(help="capability of the worker; may be repeated; default: none")
    ] = (),
    expires_in: ExpiresIn = None,
    key: Annotated[str | None, Parameter(help="idempotency key: a repeated call creates no second token")] = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """Create a token for the tenant and print it (shown only once)."""
    request = wire.TokenRequest(
        roles=list(role),
        description=description,
        worker_id=worker_id,
        types=list(type) or None,
        repositories=list(repository) or None,
        capabilities=list(capability),
        expires_in_seconds=expires_in,
        key=key,
    )

    minted = run(common, lambda client: client.tokens.create(request))
    common.show({"token": minted.text, **token_to_dict(minted.token)}, minted.text)


@app.default
@app.command(name="list")
def list_(
    *,
    limit: Limit = 50,
    before: Annotated[str | None, Parameter(help="only tokens older than this ID, to page on")] = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """List the tokens of the tenant, newest first, without their secrets."""

    async def command(client: Client) -> list[Token]:
        last = None if before is None else await ids.token(client, before)
        return await client.tokens.list(before=last, limit=limit)

    tokens, now = timed(common, command)
    common.show_list(
        "tokens",
        tokens,
        token_to_dict,
        ("id", "roles", "worker", "state", "expires", "last used", "description"),
        lambda t: (
            t.id, " ".join(t.roles), t.worker_id, _state(t, now), output.time(t.expires_at),
            output.time(t.last_used_at), t.description,
        ),
    )  # fmt: skip


@app.command
def revoke(token_id: str, *, common: Anywhere = ANYWHERE) -> None:
    """Revoke a token; all servers reject it within a second."""

    async def command(client: Client) -> Token:
        return await client.tokens.revoke(await ids.token(client, token_id))

    token = run(common, command)
    common.show(token_to_dict(token), f"revoked {token.id}")


def _state(token: Token, now: int) -> str:
    if token.revoked_at is not None:
        return "revoked"
    return "active" if token.lives(now) else "expired"
