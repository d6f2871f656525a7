"""`interlock mcp`: the tools for agents on standard input and output, on a database or in front of a server."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Annotated, Final
from urllib.parse import quote

import msgspec
from cyclopts import App, Parameter

from interlock import assemble
from interlock.api.options import Options
from interlock.api.routes import JSON
from interlock.api.service import Service
from interlock.cli import logs
from interlock.cli.runner import COMMON, Common, TokenFile, guard, token_of
from interlock.client.transport import Calls, HttpRequest, HttpResponse
from interlock.domain.principal import ROLES
from interlock.errors import Error, Invalid, Unavailable
from interlock.faces.mcp.adapter import need_mcp
from interlock.faces.mcp.api_client import Api, ApiRequest, ApiResponse, InProcessApi, refused

app = App(name="mcp")
RETRY_SECONDS: Final = 20.0  # less than clients wait for a tool


@app.default
def mcp(
    *,
    role: Annotated[tuple[str, ...], Parameter(help="offer only the tools of this role; may be repeated")] = (),
    server: Annotated[str | None, Parameter(help="use this server instead of a database")] = None,
    token_file: TokenFile = None,
    common: Common = COMMON,
) -> None:
    """Serve tools for agents (MCP) on standard input and output, until the input ends or SIGTERM."""

    async def run() -> None:
        need_mcp()
        if unknown := sorted({*role} - ROLES):
            raise Invalid(f"unknown role {unknown[0]!r}: expected {', '.join(sorted(ROLES))}", pointer="/role")
        wanted = frozenset(role) or ROLES
        if server is None:
            if token_file is not None:
                raise Invalid("--token-file requires --server", pointer="/token")
            await _on_a_database(common, wanted)
        else:
            await _before_a_server(server, token_of(token_file), wanted)

    guard(common, run)


async def _on_a_database(common: Common, wanted: frozenset[str]) -> None:
    """Serve MCP on a database. Access to the database is full access, so the caller gets the roles they request."""
    async with assemble.engine_of(common.settings, create=False) as engine:
        engine.maintenance.start()
        service = Service(engine, Options(tenant=common.settings.tenant))
        native = InProcessApi(service)
        try:
            await _serve(native, wanted, service.stopping)
        finally:
            await native.settled()
        if service.broken is not None:
            raise service.broken


async def _before_a_server(url: str, token: str | None, wanted: frozenset[str]) -> None:
    """Serve MCP through a server. Read the roles of the token once: they never change."""
    assemble.check_server(url, token=token)
    calls = Calls(url, token=token, retry_seconds=RETRY_SECONDS)
    try:
        me = await calls.send(HttpRequest(method="GET", path="/v1/me"))
        roles = frozenset(msgspec.json.decode(me.body, type=_Me).roles)
        stop = asyncio.Event()
        await _serve(RemoteApi(calls, stop), roles & wanted, stop)
    finally:
        await calls.close()


async def _serve(native: Api, roles: frozenset[str], stop: asyncio.Event) -> None:
    """Serve until the input ends; SIGTERM shuts down in the same way."""
    from interlock.faces.mcp.stdio import serve

    logs.configure(level=logging.WARNING)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await serve(native, roles, stop)


class RemoteApi:
    """The native API of a remote server."""

    def __init__(self, calls: Calls, stop: asyncio.Event) -> None:
        self._calls = calls
        self._stop = stop

    async def ask(self, ask: ApiRequest) -> ApiResponse:
        path = ask.route.path
        for name, value in ask.path.items():
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        call = HttpRequest(
            method=ask.route.method,
            path=path,
            body=ask.body,
            query=ask.query,
            headers={**ask.headers, **({} if ask.body is None else {"content-type": JSON})},
            wait_seconds=ask.wait_seconds,
            repeatable=ask.repeatable,
        )
        try:
            answer = await self._answer(call)
        except Error as error:
            return refused(error)
        return ApiResponse(answer.status, answer.headers, answer.body)

    async def _answer(self, call: HttpRequest) -> HttpResponse:
        """Return the response; on shutdown, abort a call that is waiting on the server."""
        if not call.wait_seconds:
            return await self._calls.send(call)
        sending, stopping = asyncio.create_task(self._calls.send(call)), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({sending, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                return sending.result()
            raise Unavailable("this process is shutting down")
        finally:
            sending.cancel()
            stopping.cancel()


class _Me(msgspec.Struct):
    roles: list[str]
