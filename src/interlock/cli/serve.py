"""`interlock serve`: the HTTP service."""

from __future__ import annotations

import contextlib
import hmac
import logging
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from interlock import assemble, config, tracing
from interlock.api.adapters import Adapter
from interlock.api.app import create_app
from interlock.api.middleware import Middleware
from interlock.api.options import Options
from interlock.api.server import Server, check_address, listen, url_of
from interlock.cli import doctor, logs, output
from interlock.cli.runner import COMMON, Common, guard, loop_factory
from interlock.config import Settings
from interlock.dashboard.app import Dashboard
from interlock.dashboard.sessions import Sessions
from interlock.domain.webhook_url import Allowance
from interlock.engine.engine import Engine
from interlock.engine.outbound_http import OutboundClient
from interlock.engine.sign_in import Provider
from interlock.errors import Invalid

log = logging.getLogger(__name__)
app = App(name="serve")


@app.default
def serve(
    *,
    host: Annotated[str | None, Parameter(help="address to listen on (INTERLOCK_HOST)")] = None,
    port: Annotated[int | None, Parameter(help="port to listen on; 0 for a free one (INTERLOCK_PORT)")] = None,
    auth: Annotated[str | None, Parameter(help="off, or some of tokens,jwt,oidc (INTERLOCK_AUTH)")] = None,
    common: Common = COMMON,
) -> None:
    """Serve the HTTP API until SIGTERM or SIGINT; requests in flight are completed first."""
    flags = {"database": common.database, "tenant": common.tenant, "host": host, "port": port, "auth": auth}

    async def run() -> None:
        settings = config.load(flags)
        check_address(settings.host, auth=bool(settings.auth))
        with only_server_of(settings.database):
            await _serve(settings)

    guard(common, run, loop_factory=loop_factory())


async def _serve(settings: Settings) -> None:
    logs.configure()
    tracing.configure()
    async with (
        outbound(settings) as keys,
        assemble.open_adapters(settings, keys.fetch) as adapters,
        assemble.open_provider(settings, keys) as provider,
        assemble.engine_of(settings, trust=assemble.trust(settings, keys.fetch)) as engine,
    ):
        warn_of_readers(settings.database)
        engine.maintenance.start()
        engine.sender.start()
        service = await application(engine, settings, adapters, provider)
        with listen(settings.host, settings.port) as listening:
            server = Server(service, listening)
            _print_addresses(url_of(listening), settings)
            await server.serve()


@contextlib.asynccontextmanager
async def outbound(settings: Settings) -> AsyncIterator[OutboundClient]:
    """Provide a client that reads the keys of issuers."""
    outside = OutboundClient(Allowance.of(settings.webhooks_allow))
    try:
        yield outside
    finally:
        await outside.close()


def warn_of_readers(database: str) -> None:
    """Log a warning if other users can read the database file. Serve anyway: the operator may intend it."""
    if database.startswith(assemble.SQLITE) and not database.endswith(":memory:"):
        from interlock.storage.sqlite.connection import permissions

        for fault in doctor.not_right({"permissions": permissions(database.removeprefix(assemble.SQLITE))}):
            log.warning("%s", fault)


async def application(
    engine: Engine, settings: Settings, adapters: Sequence[Adapter] = (), provider: Provider | None = None
) -> Middleware:
    """Return the application: the API and the dashboard."""
    key = await engine.queries.signing_key()
    dashboard = Dashboard(
        engine, auth=bool(settings.auth), tenant=settings.tenant, sessions=Sessions(key), provider=provider,
        accepts_tokens=settings.auth != ("oidc",), trace_url=settings.trace_url, public_url=settings.public_url,
    )  # fmt: skip
    meant = replace(options(settings, adapters), cursor_key=hmac.digest(key, b"interlock cursors", "sha256"))
    return create_app(engine, meant, mounts=dashboard.mounts)


def options(settings: Settings, adapters: Sequence[Adapter] = ()) -> Options:
    """Return the service options of the settings."""
    return Options(
        auth=bool(settings.auth),
        tenant=settings.tenant,
        hosts=settings.hosts,
        faces=adapters,
        largest_body=settings.limits.get("body", Options.largest_body),
        rate_per_second=settings.rate_per_second,
        rate_burst=settings.rate_burst,
    )


@contextlib.contextmanager
def only_server_of(database: str) -> Iterator[None]:
    """Prevent a second server on a SQLite file: each would have its own clock and queue state."""
    if not database.startswith(assemble.SQLITE) or database.endswith(":memory:"):
        yield
        return
    import fcntl

    with Path(database.removeprefix(assemble.SQLITE) + ".serving").open("ab") as lock_file:
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            busy = f"another process already serves {database}: stop it, or use another file with --database"
            raise Invalid(busy, pointer="/database") from None
        yield


def _print_addresses(url: str, settings: Settings) -> None:
    open_to_all = "" if settings.auth else " without authentication: every local user has full access"
    output.print_line(f"interlock serves {url}{open_to_all}")
    sys.stdout.flush()
