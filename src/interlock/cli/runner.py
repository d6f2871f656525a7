"""Runs one command: settings, an engine, and an exit code for every error."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, NoReturn, TypeVar

from cyclopts import Parameter

from interlock import assemble, config, wire
from interlock.cli import output
from interlock.config import Settings
from interlock.domain import principal
from interlock.domain.principal import Principal
from interlock.engine.engine import Engine
from interlock.errors import Error, Invalid, Malformed, NotFound, SchemaMismatch, StorageBroken, TooLarge, Unavailable

T = TypeVar("T")

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
REFUSED: Final = 4
NOT_REACHABLE: Final = 5
UNSUCCESSFUL: Final = 6
BAD_AUDIT: Final = 7
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
TOKEN: Final = "INTERLOCK_TOKEN"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Common:
    """Options that every command takes."""

    database: Annotated[str | None, Parameter(help="sqlite:///PATH or postgresql://… (INTERLOCK_DATABASE)")] = None
    tenant: Annotated[str | None, Parameter(help="tenant (INTERLOCK_TENANT)")] = None
    json: Annotated[bool, Parameter(negative=(), help="print JSON")] = False

    @property
    def settings(self) -> Settings:
        return config.load({"database": self.database, "tenant": self.tenant})

    @property
    def who(self) -> Principal:
        """The local principal; access to the database is full access."""
        return principal.local(self.settings.tenant)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Anywhere(Common):
    """The same, for commands that also work with a server."""

    server: Annotated[str | None, Parameter(help="use this server, https://HOST, instead of a database")] = None
    token_file: Annotated[Path | None, Parameter(help="file that contains the token; default: INTERLOCK_TOKEN")] = None


Action = Callable[[Engine, Principal], Awaitable[T]]


def run(common: Common, command: Action[T]) -> T:
    """Run a command on the named server, else on the engine of the settings; errors become exit codes.

    A missing SQLite file is an error.
    """

    async def act() -> T:
        if isinstance(common, Anywhere) and _is_remote(common):
            return await _remotely(common, command)
        async with assemble.engine_of(common.settings, create=False) as engine:
            return await command(engine, common.who)

    return guard(common, act)


def _is_remote(common: Anywhere) -> bool:
    """Whether a server is named; options that exclude each other are rejected."""
    if common.server is None:
        if common.token_file is not None:
            raise Invalid("--token-file requires --server", pointer="/token")
        return False
    if common.database is not None:
        raise Invalid("--server and --database are mutually exclusive", pointer="/server")
    if common.tenant is not None:
        raise Invalid("tenant is determined by the token: omit --tenant", pointer="/tenant")
    return True


async def _remotely(common: Anywhere, command: Action[T]) -> T:
    from interlock.cli.remote import engine as remote_engine  # an HTTP client takes its time to be loaded

    assert common.server is not None
    async with remote_engine.opened(common.server, token_of(common.token_file)) as (engine, who):
        return await command(engine, who)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The quick event loop, for what runs for long."""
    try:
        import uvloop
    except ImportError:  # not to be had on this system
        return None
    return uvloop.new_event_loop


def token_of(file: Path | None) -> str | None:
    """A secret is never an argument, which every process of the machine could read."""
    file = file or (Path(path) if (path := os.environ.get(f"{TOKEN}_FILE")) else None)
    if file is None:
        return os.environ.get(TOKEN) or None
    try:
        if token := file.read_text().strip():
            return token
        raise Invalid(f"token file {file} is empty: write the token into it", pointer="/token")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read the token from {file}: {error}", pointer="/token") from None


def guard(
    common: Common,
    command: Callable[[], Awaitable[T]],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Return the result of the command, or print the error and exit."""
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(_await(command))
    except Error as error:
        give_up(error, json=common.json)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def give_up(error: Error, *, json: bool) -> NoReturn:
    """Print the error and exit with its code."""
    if json:
        output.print_json({"error": wire.error_to_dict(error)})
    else:
        print(f"interlock: {output.escape_control(_sentence(error))}", file=sys.stderr)
    sys.exit(exit_code(error))


def _sentence(error: Error) -> str:
    """Return the message, with the name of the invalid value if the message of a server does not contain it."""
    place = error.pointer.strip("/") if isinstance(error, Invalid) else ""
    names = [part for part in place.split("/") if not part.isdigit()]
    return str(error) if not names or names[-1] in str(error) else f"{place}: {error}"


async def _await(command: Callable[[], Awaitable[T]]) -> T:
    return await command()


def exit_code(error: Error) -> int:
    """What a script learns from an error."""
    match error:
        case NotFound():
            return NOT_FOUND
        case Invalid() | Malformed() | TooLarge():
            return REFUSED
        case SchemaMismatch() | StorageBroken():
            return FAILED
        case Unavailable():
            return NOT_REACHABLE
        case _:
            return REFUSED if error.status in (401, 403, 409, 410, 412) else FAILED
