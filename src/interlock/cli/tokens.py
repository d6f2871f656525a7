"""`interlock tokens`: create, list, revoke."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from interlock import wire
from interlock.cli import ids, output
from interlock.cli.runner import Anywhere, run
from interlock.domain.principal import Principal
from interlock.domain.token import Token
from interlock.engine.engine import Engine
from interlock.engine.tokens import CreatedToken
from interlock.wire import encode

app = App(name="tokens", help="Create, list and revoke bearer tokens.")
NOTHING = Anywhere()


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
    expires_in: Annotated[float | None, Parameter(help="seconds until it expires; default: never")] = None,
    key: Annotated[str | None, Parameter(help="idempotency key: a repeated call creates no second token")] = None,
    common: Anywhere = NOTHING,
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

    async def command(engine: Engine, who: Principal) -> CreatedToken:
        return await engine.tokens.create(who, request)

    # The first token of a server that requires one is created before its first start.
    minted = run(common, command)
    if common.json:
        output.print_json({"token": minted.text, **encode.token_to_dict(minted.token)})
    else:
        output.print_line(minted.text)


@app.default
@app.command(name="list")
def list_(
    *,
    limit: Annotated[int, Parameter(help="1 to 200")] = 50,
    before: Annotated[str | None, Parameter(help="only tokens older than this ID, to page on")] = None,
    common: Anywhere = NOTHING,
) -> None:
    """List the tokens of the tenant, newest first, without their secrets."""

    async def command(engine: Engine, who: Principal) -> tuple[list[Token], int]:
        last = None if before is None else await ids.token(engine, who, before)
        return await engine.tokens.list(who, before=last, limit=limit), await engine.queries.now()

    tokens, now = run(common, command)
    if common.json:
        output.print_json({"items": [encode.token_to_dict(token) for token in tokens]})
    elif not tokens:
        output.print_line("no tokens")
    else:
        output.table(
            ("id", "roles", "worker", "state", "expires", "last used", "description"),
            (
                (t.id, " ".join(t.roles), t.worker_id, _state(t, now), _day(t.expires_at), _day(t.last_used_at),
                 t.description)
                for t in tokens
            ),
        )  # fmt: skip


@app.command
def revoke(token_id: str, *, common: Anywhere = NOTHING) -> None:
    """Revoke a token; all servers reject it within a second."""

    async def command(engine: Engine, who: Principal) -> Token:
        return await engine.tokens.revoke(who, await ids.token(engine, who, token_id))

    token = run(common, command)
    if common.json:
        output.print_json(encode.token_to_dict(token))
    else:
        output.print_line(f"revoked {token.id}")


def _state(token: Token, now: int) -> str:
    if token.revoked_at is not None:
        return "revoked"
    return "active" if token.lives(now) else "expired"


def _day(micros: int | None) -> str | None:
    return None if micros is None else wire.when(micros)[:19] + "Z"
