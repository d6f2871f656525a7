"""`interlock up`: server, maintenance, webhook sender and a worker in one process on a SQLite file, for evaluation."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import shutil
import sys
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from interlock import assemble, config, tracing
from interlock.api.server import Server, listen, url_of
from interlock.cli import logs, output, serve
from interlock.cli.runner import COMMON, Common, guard, loop_factory
from interlock.cli.worker import find
from interlock.client.local import LocalClient
from interlock.client.port import Approvals, Jobs
from interlock.config import Settings
from interlock.demo import seed
from interlock.demo.tasks import app as demo
from interlock.domain import json_text
from interlock.domain.approval import ApprovalKind
from interlock.domain.job import Filter, HistoryRow, Job
from interlock.domain.lifecycle import Status
from interlock.domain.principal import local
from interlock.domain.retry import SECOND
from interlock.errors import Invalid, NotFound, Unavailable
from interlock.faces import installed_faces, load_face
from interlock.sdk.app import App as Tasks
from interlock.worker.loop import Worker

log = logging.getLogger(__name__)
app = App(name="up")
LOOPBACK: Final = "127.0.0.1"
GRACE_SECONDS: Final = 5.0
INTRODUCTION: Final = """
interlock serves {url} from {file} without authentication: every local user has full access.
The dashboard is at {url}/ in a browser. In another terminal, try:

{commands}
  curl {url}/v1/queues

Ctrl-C stops it.
"""
LOOK_SECONDS: Final = 0.25
NEWEST: Final = Filter(limit=200)
TO_TRY: Final = ("jobs list", "jobs show ID", "jobs why ID", "approvals list")


@app.default
def up(
    target: Annotated[str | None, Parameter(help="app to run instead of the demo, as MODULE:APP")] = None,
    *,
    port: Annotated[int | None, Parameter(help="port to listen on; 0 for a free one (INTERLOCK_PORT)")] = None,
    common: Common = COMMON,
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

        client = LocalClient(engine, local(settings.tenant))

        async def connect() -> LocalClient:
            return client

        tasks._connect_by(connect)
        command = Command(settings.database)
        with listen(settings.host, settings.port) as listening:
            server = Server(await serve.application(engine, settings, adapters), listening)
            _introduce(url_of(listening), settings, command)
            await _serve_beside(
                server, TransitionPrinter(client.jobs, client.approvals, command).report(), _work(tasks, settings)
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
    """Formats commands to copy: with the program name of this process, and its database unless it is the default."""

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


class TransitionPrinter:
    """Prints every transition of the newest jobs; `command` formats the commands it suggests."""

    def __init__(self, jobs: Jobs, approvals: Approvals, command: Command) -> None:
        self._jobs, self._approvals, self._command = jobs, approvals, command
        self._printed: dict[str, int] = {}  # versions by job

    async def report(self) -> None:
        """Print new transitions until cancelled."""
        for job in await self._jobs.list(NEWEST):
            self._printed[job.id] = job.version
            await self._advise(job)
        while True:
            with contextlib.suppress(Unavailable):  # the worker logs it
                await self._print_new()
            await asyncio.sleep(LOOK_SECONDS)

    async def _print_new(self) -> None:
        newest = await self._jobs.list(NEWEST)
        self._printed = {job.id: self._printed.get(job.id, 0) for job in newest}
        moves = [move for job in newest if job.version > self._printed[job.id] for move in await self._moves(job.id)]
        for row, job in sorted(moves, key=lambda move: (move[0].at, move[0].job_id, move[0].version)):
            output.print_line(line(row, job))
            if row.version == job.version:
                await self._advise(job)

    async def _moves(self, job_id: str) -> list[tuple[HistoryRow, Job]]:
        """Return the transitions of a job that were not printed yet, with the job as of the last of them or later."""
        printed = self._printed[job_id]
        try:
            rows = [row for row in await self._jobs.history(job_id) if row.version > printed]
            job = await self._jobs.get(job_id)
        except NotFound:  # pruned a moment ago
            return []
        self._printed[job_id] = max((row.version for row in rows), default=printed)
        return [(row, job) for row in rows]

    async def _advise(self, job: Job) -> None:
        if job.status is Status.WAITING_FOR_APPROVAL:
            is_question = (await self._approvals.get(str(job.approval_id))).kind is ApprovalKind.QUESTION
            answer = f'answer {job.approval_id} \'{{"answer": "…"}}\''
            decide = answer if is_question else f"approve {job.approval_id}"
            output.print_line(f"          {self._command(f'approvals {decide}')}")
        elif job.status is Status.DEAD_LETTER:
            output.print_line(f"          {self._command(f'jobs why {job.id}')}")


def line(row: HistoryRow, job: Job) -> str:
    """`14:03:22  report       running → retry                    lease_expired`."""
    clock = time.strftime("%H:%M:%S", time.localtime(row.at // SECOND))
    move = f"{row.from_status or 'new'} → {row.to_status}"
    return f"{clock}  {job.type:<12} {move:<33}  {_detail(row, job)}".rstrip()


def _detail(row: HistoryRow, job: Job) -> str:
    if row.to_status is Status.RUNNING:
        return row.actor
    if row.reason is None and row.version == job.version and job.error is not None:
        return str(json_text.loads(job.error)["message"])
    return row.reason or ""
