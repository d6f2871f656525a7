"""`interlock worker`: run the tasks of an app."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

from cyclopts import App, Parameter

from interlock import assemble, tracing
from interlock.cli import logs
from interlock.cli.output import escape_control
from interlock.cli.runner import (
    ANYWHERE,
    NOT_REACHABLE,
    REFUSED,
    USAGE,
    Anywhere,
    exit_code,
    loop_factory,
    server_of,
    token_of,
)
from interlock.errors import Error, Invalid
from interlock.sdk.app import App as Tasks
from interlock.worker.log import logger
from interlock.worker.loop import Worker
from interlock.worker.supervisor import Supervisor

app = App(name="worker", help="Run the tasks of an app.")


@dataclass(frozen=True)
class WorkerOptions:
    """Options of one worker process."""

    target: str
    worker: Mapping[str, Any]  # arguments of the worker
    drain: bool
    once: bool
    is_member: bool
    common: Anywhere


@app.default
def worker(
    target: Annotated[str, Parameter(help="the app, as MODULE:APP")],
    *,
    concurrency: Annotated[int, Parameter(help="jobs that run concurrently in each process")] = 100,
    processes: Annotated[int, Parameter(help="number of processes; a crashed one is restarted")] = 1,
    prefetch: Annotated[int, Parameter(help="jobs to lease in addition to those that run")] = 0,
    lease: Annotated[float, Parameter(help="lease duration in seconds; heartbeats extend it")] = 60.0,
    grace: Annotated[float, Parameter(help="seconds to let running jobs finish after SIGTERM")] = 30.0,
    name: Annotated[str | None, Parameter(help="name of the worker; default: host and process")] = None,
    type: Annotated[tuple[str, ...], Parameter(help="only jobs of this type; may be repeated")] = (),
    capability: Annotated[tuple[str, ...], Parameter(help="capability of this worker; may be repeated")] = (),
    affinity: Annotated[tuple[str, ...], Parameter(help="affinity key to accept, * for any; may be repeated")] = (),
    drain: Annotated[bool, Parameter(negative=(), help="stop when no job is due")] = False,
    once: Annotated[bool, Parameter(negative=(), help="run one job and stop")] = False,
    common: Anywhere = ANYWHERE,
) -> None:
    """Run the tasks of an app. SIGTERM waits for running jobs, a second one releases them immediately.

    The worker uses the database or server of the app unless one is given. Its log is JSON lines on standard error.
    """
    options = {
        "concurrency": concurrency, "prefetch": prefetch, "lease": lease, "shutdown_grace": grace, "name": name,
        "types": type or None, "capabilities": capability, "affinity_keys": affinity,
    }  # fmt: skip
    order = WorkerOptions(target, options, drain, once, processes > 1, common)
    if processes < 1:
        refuse(f"processes is {processes}: expected at least 1")
    if processes > 1:
        if name is not None:
            refuse("--name requires --processes 1: worker names are unique")
        logs.configure()
        hopeless = (USAGE, REFUSED, NOT_REACHABLE) if drain or once else (USAGE, REFUSED)
        sys.exit(Supervisor(serve, (order,), processes, hopeless=hopeless).run())
    else:
        serve(order)


def serve(order: WorkerOptions) -> None:
    """Run one worker in this process until it finishes or is stopped."""
    logs.configure()
    try:
        tracing.configure()
    except Invalid as error:
        refuse(str(error))
    tasks = find(order.target)
    try:
        work_for(tasks, order.common)
        one = Worker(tasks, **order.worker)
    except (ValueError, Error) as error:
        refuse(str(error))
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(run_worker(one, tasks, order))
    except Error as error:
        logger().critical("worker ended", code=error.code, error=str(error))
        sys.exit(exit_code(error))


def work_for(tasks: Tasks, common: Anywhere) -> None:
    """Connect the app to the given server or database, if any."""
    if (server := server_of(common)) is not None:
        token = token_of(common.token_file)
        assemble.check_server(server, token=token)
        tasks._connect_by(lambda: assemble.open_client(server, token=token))
    elif common.database is not None or common.tenant is not None:
        settings = common.settings
        tasks._connect_by(lambda: assemble.client_of(settings))


async def run_worker(one: Worker, tasks: Tasks, order: WorkerOptions) -> None:
    """Run a worker until it finishes or a signal stops it."""
    loop = asyncio.get_running_loop()
    signals = 0

    def stop() -> None:
        nonlocal signals
        signals += 1
        one.stop(now=signals > 1)

    loop.add_signal_handler(signal.SIGTERM, stop)
    if not order.is_member:
        loop.add_signal_handler(signal.SIGINT, stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored by nohup
            loop.add_signal_handler(signal.SIGHUP, stop)
    try:
        await one.run(drain=order.drain, once=order.once)
    finally:
        await tasks.close()


def find(target: str) -> Tasks:
    """Import the app MODULE:APP; modules in the current directory are found too."""
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        refuse(f"{target!r} is not an app: write MODULE:APP")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        meant = f": did you mean {module_name.removesuffix('.py')}:{attribute}?" if module_name.endswith(".py") else ""
        refuse(f"no module {module_name!r} in the current directory or on the path{meant}")
    except AttributeError:
        refuse(f"{module_name!r} has no {attribute!r}")
    if not isinstance(found, Tasks):
        refuse(f"{target!r} is not an interlock.App")
    return found


def refuse(why: str) -> NoReturn:
    print(f"interlock: {escape_control(why)}", file=sys.stderr)
    sys.exit(USAGE)
