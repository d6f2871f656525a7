"""Runs one command: settings, an engine, and an exit code for every error."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar

from cyclopts import Parameter

from interlock import assemble, config, wire
from interlock.cli import output
from interlock.client.local import LocalClient
from interlock.client.port import Client
from interlock.config import Settings
from interlock.domain import principal
from interlock.domain.principal import Principal
from interlock.engine.engine import Engine
from interlock.errors import (
    DatabasePromoted,
    Error,
    Invalid,
    Malformed,
    NotFound,
    SchemaMismatch,
    StorageBroken,
    TooLarge,
    Unavailable,
)

T = TypeVar("T")

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
RETRY_SECONDS: Final = 10.0  # a person is waiting at the terminal


Limit = Annotated[int, Parameter(help="1 to 200")]
ExpiresIn = Annotated[float | None, Parameter(help="seconds until it expires; default: never")]
TokenFile = Annotated[Path | None, Parameter(help="file that contains the token; default: INTERLOCK_TOKEN")]
Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative=(), help="skip the confirmation prompt")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Common:
    """Options of every command."""

    database: Annotated[str | None, Parameter(help="sqlite:///PATH or postgresql://… (INTERLOCK_DATABASE)")] = None
    tenant: Annotated[str | None, Parameter(help="tenant (INTERLOCK_TENANT)")] = None
    json: Annotated[bool, Parameter(negative=(), help="print JSON")] = False

    @property
    def settings(self) -> Settings:
        return config.load({"database": self.database, "tenant": self.tenant})

    @property
    def who(self) -> Principal:
        """Return the local principal; access to the database is full access."""
        return principal.local(self.settings.tenant)

    def show(self, document: object, line: str) -> None:
        """Print a result as JSON or as a line of text."""
        if self.json:
            output.print_json(document)
        else:
            output.print_line(line)

    def show_facts(self, document: Mapping[str, Any], **more: Any) -> None:
        """Print a record; the text output also contains `more`."""
        if self.json:
            output.print_json(document)
        else:
            output.facts({**document, **more})

    def show_list(
        self,
        what: str,
        found: Sequence[T],
        encode: Callable[[T], object],
        columns: Sequence[str],
        row: Callable[[T], Sequence[object]],
    ) -> None:
        """Print a page of a list; `what` names the items."""
        if self.json:
            output.print_json({"items": [encode(one) for one in found]})
        elif not found:
            output.print_line(f"no {what}")
        else:
            output.table(columns, map(row, found))


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Anywhere(Common):
    """Options of commands that also work with a server."""

    server: Annotated[str | None, Parameter(help="use this server, https://HOST, instead of a database")] = None
    token_file: TokenFile = None


COMMON: Final = Common()
ANYWHERE: Final = Anywhere()


def run(common: Anywhere, command: Callable[[Client], Awaitable[T]]) -> T:
    """Run a command on the named server, else on the database of the settings; errors become exit codes.

    A missing SQLite file is an error.
    """

    async def act() -> T:
        server = server_of(common)
        if server is None:
            async with assemble.engine_of(common.settings, create=False) as engine:
                return await command(LocalClient(engine, common.who))
        from interlock.client.http import HttpClient  # slow to import

        client = HttpClient(server, token=token_of(common.token_file), retry_seconds=RETRY_SECONDS)
        try:
            return await command(client)
        finally:
            await client.close()

    return guard(common, act)


def timed(common: Anywhere, command: Callable[[Client], Awaitable[T]]) -> tuple[T, int]:
    """Run a command like `run`; also return the time that decides whether jobs are due."""

    async def both(client: Client) -> tuple[T, int]:
        return await command(client), await client.now()

    return run(common, both)


def on_database(common: Common, command: Callable[[Engine, Principal], Awaitable[T]]) -> T:
    """Run a command that needs the database itself."""

    async def act() -> T:
        async with assemble.engine_of(common.settings, create=False) as engine:
            return await command(engine, common.who)

    return guard(common, act)


def server_of(common: Anywhere) -> str | None:
    """Return the server URL, if set; reject mutually exclusive options."""
    if common.server is None:
        if common.token_file is not None:
            raise Invalid("--token-file requires --server", pointer="/token")
        return None
    if common.database is not None:
        raise Invalid("--server and --database are mutually exclusive", pointer="/server")
    if common.tenant is not None:
        raise Invalid("tenant is determined by the token: omit --tenant", pointer="/tenant")
    return common.server


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the faster event loop, for long-running commands."""
    try:
        import uvloop
    except ImportError:  # not available on this system
        return None
    return uvloop.new_event_loop


def token_of(file: Path | None) -> str | None:
    """Return the token from a file or the environment: other processes can read arguments."""
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
    """Return the exit code for an error."""
    match error:
        case NotFound():
            return NOT_FOUND
        case Invalid() | Malformed() | TooLarge():
            return REFUSED
        case DatabasePromoted():
            return REFUSED
        case SchemaMismatch() | StorageBroken():
            return FAILED
        case Unavailable():
            return NOT_REACHABLE
        case _:
            return REFUSED if error.status in (401, 403, 409, 410, 412) else FAILED
