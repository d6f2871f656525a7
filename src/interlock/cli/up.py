"""`interlock up`: server, maintenance, webhook sender and a worker in one process on a SQLite file, for evaluation."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from interlock import assemble, config, tracing
from interlock.api.server import Server, listen, url_of
from interlock.cli import logs, output, serve
from interlock.cli.runner import Common, guard, loop_factory
from interlock.cli.transition_printer import TransitionPrinter
from interlock.cli.worker import find
from interlock.client.local import LocalClient
from interlock.config import Settings
from interlock.demo import seed
from interlock.demo.tasks import app as demo
from interlock.domain.principal import local
from interlock.errors import Invalid
from interlock.faces import installed_faces, load_face
from interlock.sdk.app import App as Tasks
from interlock.worker.loop import Worker

log = logging.getLogger(__name__)
app = App(name="up")
NOTHING = Common()
LOOPBACK: Final = "127.0.0.1"
GRACE_SECONDS: Final = 5.0
INTRODUCTION: Final = """
interlock serves {url} from {file} without authentication: every local user has full access.
The dashboard is at {url}/ in a browser. In another terminal, try:

{commands}
  curl {url}/v1/queues

Ctrl-C stops it.
"""
TO_TRY: Final = ("jobs list", "jobs show ID", "jobs why ID", "approvals list")


@app.default
def up(
    target: Annotated[str | None, Parameter(help="app to run instead of the demo, as MODULE:APP")] = None,
    *,
    port: Annotated[int | None, Parameter(help="port to listen on; 0 for a free one (INTERLOCK_PORT)")] = None,
    common: Common = NOTHING,
) -> None:
    """Serve the HTTP API and run a worker, in one process on a SQLite file, until SIGTERM or SIGINT."""
    flags = {
        "database": common.database, "tenant": common.tenant, "host": LOOPBACK, "port": port, "auth": config.OFF,
    }  # fmt: skip
    tasks = demo if target is None else find(target)

    async def run() -> None:
        settings = config.load(flags)
        if not settings.database.startswith(assemble.SQLITE):
            raise Invalid("`up` is for a SQLite file; on PostgreSQL run `serve` and `worker`", pointer="/database")
        settings = replace(settings, faces=settings.faces or servable_faces())
        with serve.only_server_of(settings.database):
            await _up(settings, tasks)

    guard(common, run, loop_factory=loop_factory())


def servable_faces() -> tuple[str, ...]:
    """Return the names of all protocol adapters that can be served as they are installed."""
    found = []
    for name in installed_faces():
        try:
            if load_face(name).missing() is None:
                found.append(name)
        except Invalid as error:
            log.warning("%s", error)
    return tuple(found)


async def _up(settings: Settings, tasks: Tasks) -> None:
    logs.configure(level=logging.WARNING)
    tracing.configure()
    async with (
        serve.outbound(settings) as keys,
        assemble.open_adapters(settings, keys.fetch) as adapters,
        assemble.engine_of(settings) as engine,
    ):
        serve.warn_of_readers(settings.database)
        engine.maintenance.start()
        engine.sender.start()

        async def client() -> LocalClient:
            return LocalClient(engine, local(settings.tenant))

        tasks.connect_by(client)
        command = Command(settings.database)
        with listen(settings.host, settings.port) as listening:
            server = Server(await serve.application(engine, settings, adapters), listening)
            _introduce(url_of(listening), settings, command)
            await _serve_beside(
                server, TransitionPrinter(engine.queries, settings.tenant, command).report(), _work(tasks, settings)
            )
    output.print_line("stopped; unfinished jobs resume at the next start")


async def _serve_beside(server: Server, *others: Coroutine[Any, Any, None]) -> None:
    """Serve until shutdown, or until one of the others fails; then stop them gracefully too."""
    beside = [asyncio.create_task(other) for other in others]

    def stop(_: asyncio.Task[None]) -> None:
        server.should_exit = True

    for task in beside:
        task.add_done_callback(stop)
    try:
        await server.serve()
    finally:
        for task in beside:
            task.cancel()
        ended = await asyncio.gather(*beside, return_exceptions=True)
    for fault in ended:
        if isinstance(fault, Exception):
            raise fault


async def _work(tasks: Tasks, settings: Settings) -> None:
    """Run jobs until cancelled; then let running jobs finish, and release the rest after the grace period."""
    if tasks is demo:
        await seed.play(settings.database, settings.tenant)
    await Worker(tasks, name="up", shutdown_grace=GRACE_SECONDS).run()


def _introduce(url: str, settings: Settings, command: Command) -> None:
    file = output.escape_control(settings.database.removeprefix(assemble.SQLITE))
    commands = "\n".join(f"  {command(words)}" for words in TO_TRY)
    print(INTRODUCTION.format(url=url, file=file, commands=commands), flush=True)


class Command:
    """Writes commands as they can be copied: called as this one was, on its database where that is not the default."""

    def __init__(self, database: str) -> None:
        called = Path(sys.argv[0])
        found = shutil.which(called.name)
        if called.name == "__main__.py":
            self._name = f"{shlex.quote(os.path.relpath(sys.executable))} -m interlock"
        elif found is not None and called.samefile(found):
            self._name = called.name
        else:
            self._name = shlex.quote(os.path.relpath(called))
        is_default = database == config.load({}).database
        self._where = "" if is_default else f" --database {shlex.quote(database)}"

    def __call__(self, words: str) -> str:
        return output.escape_control(f"{self._name} {words}{self._where}")
