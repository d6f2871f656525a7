"""`interlock agent`: a worker whose jobs run an agent CLI."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from interlock import assemble
from interlock.agent_cli.process import PASSED_ON
from interlock.agent_cli.runner import AgentOptions, declare
from interlock.cli import logs
from interlock.cli.runner import ANYWHERE, Anywhere, exit_code, loop_factory
from interlock.cli.worker import WorkerOptions, refuse, run_worker, work_for
from interlock.errors import Error
from interlock.worker.log import logger
from interlock.worker.loop import Worker

app = App(name="agent", help="Run an agent CLI, such as claude, for each job of a type.")
PR_SET_DUMPABLE = 4


@app.command
def run(
    *command: Annotated[str, Parameter(help="the command and its arguments, after --", allow_leading_hyphen=True)],
    type: Annotated[str, Parameter(help="type of the jobs")],
    adapter: Annotated[
        Literal["claude", "codex", "gemini", "plain"], Parameter(help="how to run the command and read its output")
    ] = "plain",
    concurrency: Annotated[int, Parameter(help="commands that run concurrently")] = 1,
    prompt: Annotated[str | None, Parameter(help="template of the prompt; {name} is a member of the payload")] = None,
    schema: Annotated[
        Path | None, Parameter(help="file with a JSON Schema; the result is JSON that matches it")
    ] = None,
    work_dir: Annotated[Path, Parameter(help="directory that holds a directory for each job")] = Path(
        "interlock-agents"
    ),
    worktree: Annotated[
        Path | None, Parameter(help="git repository; each job gets its own worktree and branch")
    ] = None,
    keep: Annotated[
        Literal["always", "failed", "never"], Parameter(help="which directories to keep when the job ends")
    ] = "failed",
    env: Annotated[
        tuple[str, ...], Parameter(help="NAME passes a variable on, NAME=VALUE sets it; may be repeated")
    ] = (),
    approve_tools: Annotated[
        str | None, Parameter(help="tools that need an approval, such as 'Bash|Write'; claude only")
    ] = None,
    approval_expires_in: Annotated[float | None, Parameter(help="seconds until an approval expires")] = None,
    max_usd: Annotated[float | None, Parameter(help="most a job may cost; claude only")] = None,
    idle_timeout: Annotated[float | None, Parameter(help="end a command that writes nothing for these seconds")] = None,
    rate_limit_delay: Annotated[
        float, Parameter(help="seconds until a rate-limited job runs again, if the response names no time")
    ] = 300.0,
    limit: Annotated[
        str | None, Parameter(help="limit of the jobs that is held until then; default: the only one they name")
    ] = None,
    lease: Annotated[float, Parameter(help="lease duration in seconds; heartbeats extend it")] = 60.0,
    grace: Annotated[float, Parameter(help="seconds to let running jobs finish after SIGTERM")] = 30.0,
    name: Annotated[str | None, Parameter(help="name of the worker; default: host and process")] = None,
    capability: Annotated[tuple[str, ...], Parameter(help="capability of this worker; may be repeated")] = (),
    drain: Annotated[bool, Parameter(negative=(), help="stop when no job is due")] = False,
    once: Annotated[bool, Parameter(negative=(), help="run one job and stop")] = False,
    common: Anywhere = ANYWHERE,
) -> None:
    """Run a command for each job of a type. Its environment has only what is listed in the documentation."""
    logs.configure()
    if not command:
        if adapter == "plain":
            refuse("no command: write it after --")
        command = (adapter,)
    options = AgentOptions(
        adapter, command, prompt, schema, work_dir, worktree, keep, _environment(env), approve_tools,
        approval_expires_in, max_usd, idle_timeout, rate_limit_delay, limit,
    )  # fmt: skip
    tasks = assemble.App()
    try:
        work_for(tasks, common)
        declare(tasks, type, options)
        worker = Worker(
            tasks, concurrency=concurrency, lease=lease, shutdown_grace=grace, name=name, capabilities=capability
        )
    except (ValueError, Error) as error:
        refuse(str(error))
    _hide_environment()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(run_worker(worker, tasks, WorkerOptions("", {}, drain, once, False, common)))
    except Error as error:
        logger().critical("worker ended", code=error.code, error=str(error))
        sys.exit(exit_code(error))


def _environment(given: tuple[str, ...]) -> dict[str, str]:
    made: dict[str, str] = {}
    for one in given:
        name, is_set, value = one.partition("=")
        if not is_set and name not in os.environ:
            refuse(f"variable {name!r} is not set: set it, or use --env {name}=VALUE")
        made[name] = value if is_set else os.environ[name]
    return made


def _hide_environment() -> None:
    """Keep commands of the same user from reading the environment of this process below /proc.

    Root may read it nevertheless: so the variables move to other memory, and what is shown there is overwritten.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    shown = ctypes.POINTER(ctypes.c_void_p).in_dll(libc, "environ")
    places = list(itertools.takewhile(bool, (shown[n] for n in itertools.count())))
    entries = [(place, ctypes.string_at(place)) for place in places]
    for name, value in os.environb.items():
        os.putenv(name, value)
    for place, entry in entries:
        if entry.partition(b"=")[0].decode(errors="replace") not in PASSED_ON:
            ctypes.memset(place, 0, len(entry))
