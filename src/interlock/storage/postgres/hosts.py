"""The servers in a database URL, of which one at a time accepts writes."""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from interlock.errors import Invalid

CONNECT_SECONDS: Final = 10.0
ONE_OF_SEVERAL_SECONDS: Final = 4.0  # a machine without power does not even refuse a connection
TARGET: Final = "target_session_attrs"
WRITABLE: Final = ("read-write", "primary", "any")

_FAILED: Final = (OSError, asyncpg.PostgresError)
_ODD: Final = (asyncpg.InterfaceError, asyncpg.InternalClientError)
_REFUSED: Final = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError)


class Node(NamedTuple):
    """Address of one server; unset members come from the environment."""

    host: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else str(self.host or "the server")


class Nodes:
    """Connects to the node that accepts writes: the last known one first, then the others in the URL.

    Each node has its own timeout, and an error of one node does not stop the search.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._target, self._nodes = read(dsn)
        self.generation = 0

    @property
    def retry_seconds(self) -> float:
        """Timeout per node, short enough to leave time for another."""
        return CONNECT_SECONDS if len(self._nodes) == 1 else ONE_OF_SEVERAL_SECONDS

    async def connect(self, **options: Any) -> asyncpg.Connection[asyncpg.Record]:
        """Return a connection that accepts writes. If no node does, the error names the failure of every node."""
        options = {"timeout": self.retry_seconds, **options, TARGET: self._target}
        errors: dict[Node, Exception] = {}
        generation = self.generation
        for node in list(self._nodes):
            try:
                connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(
                    self._dsn, host=node.host, port=node.port, **options
                )
            except asyncpg.TargetServerAttributeNotMatched:
                errors[node] = ConnectionError("takes no writes")
            except TimeoutError:
                errors[node] = TimeoutError("no answer in time")
            except _FAILED as error:
                errors[node] = error
            except _ODD as error:
                errors[node] = ConnectionError(str(error))
            else:
                if generation == self.generation:
                    self._nodes = [node, *(other for other in self._nodes if other != node)]
                return connection
        # A wrong password is permanent; other errors may be transient.
        if lasting := [error for error in errors.values() if isinstance(error, _REFUSED) or len(errors) == 1]:
            raise lasting[0]
        raise ConnectionError("; ".join(f"{node}: {str(why) or type(why).__name__}" for node, why in errors.items()))

    def pass_over(self, generation: int) -> bool:
        """Try the last known node after all others, unless that was done since this generation.

        A primary that is cut off from its standbys still accepts writes, but never commits.
        """
        if generation != self.generation or len(self._nodes) == 1:
            return False
        self.generation += 1
        self._nodes = [*self._nodes[1:], self._nodes[0]]
        return True


def read(dsn: str) -> tuple[str, list[Node]]:
    """Return the target session attributes in a URL, and its nodes."""
    try:
        parts = urlsplit(dsn)
        options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        hosts = [_host_and_port(text) for text in _listed(parts.netloc.rpartition("@")[2] or options.get("host", ""))]
        ports = [int(port) for port in _listed(options.get("port", ""))]
        named = [Node(host, int(port) if port else None) for host, port in hosts]
    except ValueError as error:
        raise Invalid(f"the database URL cannot be read: {error}", pointer="/database") from None
    target = options.get(TARGET, WRITABLE[0])
    if target not in WRITABLE:
        raise Invalid(f"{TARGET}={target} would select read-only hosts; use read-write", pointer="/database")
    if len(ports) not in (0, 1, len(named)):
        raise Invalid(f"the database URL names {len(ports)} ports for {len(named)} hosts", pointer="/database")
    besides: list[int | None] = [*ports] if len(ports) > 1 else [ports[0] if ports else None] * len(named)
    return target, [Node(host, port or other) for (host, port), other in zip(named, besides, strict=True)] or [Node()]


def _listed(text: str) -> list[str]:
    return text.split(",") if text else []


def _host_and_port(text: str) -> tuple[str, str]:
    """Return host and port of `db1`, `db1:5432`, `[::1]:5432`, or the directory of a socket."""
    text = unquote(text)
    if text.startswith("/"):
        return text, ""
    host, _, port = text[1:].partition("]") if text.startswith("[") else text.partition(":")
    return host, port.removeprefix(":")
