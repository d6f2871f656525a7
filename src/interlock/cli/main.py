"""The `interlock` command."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import cyclopts
from cyclopts import App, Parameter

import interlock
from interlock.cli import (
    agents,
    approvals,
    artifacts,
    audit,
    bench,
    budgets,
    channels,
    config,
    database,
    doctor,
    jobs,
    limits,
    output,
    promote,
    queues,
    schedules,
    subscriptions,
    tokens,
    types,
    usage,
    worker,
    workers,
)
from interlock.cli.runner import BROKEN_PIPE, FAILED, USAGE, give_up
from interlock.errors import Error

ELSEWHERE = "this command works on a database only: use --database instead of --server"


def in_words(error: cyclopts.CycloptsError) -> object:
    """Return the message of a usage error."""
    return cyclopts.CycloptsPanel(_ours(error) or error)


def _ours(error: cyclopts.CycloptsError) -> str | None:
    """Return our own text for a usage error, where we have a better one."""
    if isinstance(error, cyclopts.UnusedCliTokensError) and error.unused_tokens:
        return f"unknown command or argument {error.unused_tokens[0]!r}: see --help"
    return None


def default_of(value: object) -> str | None:
    """Return a default as the help prints it; what is off or empty unless given is left out."""
    if value is None or value is False or value in ("", ()):
        return None
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


app = App(
    name="interlock",
    console=output.ReportingConsole(),
    error_formatter=in_words,
    help="A durable job queue for AI agents, on SQLite or PostgreSQL.",
    version=interlock.__version__,
    default_parameter=Parameter(negative_iterable=(), show_default=default_of),
)
app.command(jobs.app)
app.command(approvals.app)
app.command(agents.app)
app.command(types.app)
app.command(queues.app)
app.command(limits.app)
app.command(budgets.app)
app.command(usage.usage)
app.command(schedules.app)
app.command(workers.app)
app.command(artifacts.app)
app.command(subscriptions.app)
app.command(channels.app)
app.command(tokens.app)
app.command(audit.app)
app.command(jobs.prune)
app.command(database.migrate)
app.command(promote.promote)
app.command(database.restored)
app.command(database.shards)
app.command(database.history)
app.command(config.app)
app.command(doctor.doctor)
app.command(bench.bench)
# By name, so that modules that load slowly are imported only when needed.
app.command("interlock.cli.serve:app", name="serve", help="Serve the HTTP API until SIGTERM or SIGINT.")
app.command("interlock.cli.up:app", name="up", help="Run server, worker and a demo in one process on SQLite.")
app.command("interlock.cli.mcp:app", name="mcp", help="Serve tools for agents (MCP) on standard input and output.")
app.command(worker.app)
app.command("interlock.cli.agent:app", name="agent", help="Run an agent CLI, such as claude, for each job of a type.")


def main() -> None:
    """Run the command line; a usage error is exit code 2."""
    _fill_standard_files()
    for_programs = "--json" in sys.argv
    try:
        with _errors_printed():
            try:
                app(exit_on_error=False, print_error=not for_programs)
            except cyclopts.CycloptsError as error:
                _refuse_usage(error, json=for_programs)
    except Error as error:  # from an argument that was read before the command started
        give_up(error, json=for_programs)


def _refuse_usage(error: cyclopts.CycloptsError, *, json: bool) -> NoReturn:
    is_elsewhere = isinstance(error, cyclopts.UnknownOptionError) and "--server" in sys.argv
    if json:
        detail = ELSEWHERE if is_elsewhere else _ours(error) or str(error)
        output.print_json({"error": {"code": "usage", "detail": detail}})
    elif is_elsewhere:
        print(f"interlock: {ELSEWHERE}", file=sys.stderr)
    sys.exit(USAGE)


@contextmanager
def _errors_printed() -> Iterator[None]:
    """Exit with a code if the output cannot be written: broken pipe, or disk full."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        is_unread = isinstance(error, BrokenPipeError)
        if not is_unread and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # Otherwise the interpreter reports the error again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not is_unread:
            print(f"interlock: cannot write the output: {error.strerror}", file=sys.stderr)
        sys.exit(BROKEN_PIPE if is_unread else FAILED)


def _fill_standard_files() -> None:
    """Open /dev/null for closed standard files; otherwise the next opened file would take their number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - for as long as the process lives
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    main()
