"""The servers that a database URL names, of which one at a time takes writes."""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

from interlock.errors import Invalid

CONNECT_SECONDS: Final = 10.0
ONE_OF_SEVERAL_SECONDS: Final = 4.0  # a machine without power does not even refuse
TARGET: Final = "target_session_attrs"
WRITABLE: Final = ("read-write", "primary", "any")

_FAILED: Final = (OSError, asyncpg.PostgresError)
_ODD: Final = (asyncpg.InterfaceError, asyncpg.InternalClientError)
_REFUSED: Final = (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError)


class Node(NamedTuple):
    """Where one server is; what is not said is up to the environment."""

    host: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else str(self.host or "the server")


class Nodes:
    """Connects to the node that takes writes: first where it was found last, then wherever the URL says it may be.

    Each node has a time of its own to answer, and nothing that is wrong with one keeps the others from being asked.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._target, self._nodes = read(dsn)
        self.generation = 0

    @property
    def retry_seconds(self) -> float:
        """How long one node is waited for: not so long that there is no time left for another."""
        return CONNECT_SECONDS if len(self._nodes) == 1 else ONE_OF_SEVERAL_SECONDS

    async def connect(self, **options: Any) -> asyncpg.Connection[asyncpg.Record]:
        """A connection that takes writes. If there is none to be had, the error tells of every node."""
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
        # A wrong password stays wrong; whatever else it was may pass.
        if lasting := [error for error in errors.values() if isinstance(error, _REFUSED) or len(errors) == 1]:
            raise lasting[0]
        raise ConnectionError("; ".join(f"{node}: {str(why) or type(why).__name__}" for node, why in errors.items()))

    def pass_over(self, generation: int) -> bool:
        """From now on ask the node that was found last after all others, unless that was said since the turn began.

        One that was cut off from its standbys still takes itself for the leader: it takes writes, and never commits.
        """
        if generation != self.generation or len(self._nodes) == 1:
            return False
        self.generation += 1
        self._nodes = [*self._nodes[1:], self._nodes[0]]
        return True


def read(dsn: str) -> tuple[str, list[Node]]:
    """What a URL asks of a node, and the nodes it names."""
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
        raise Invalid(f"{TARGET}={target} would find nodes that take no writes; use read-write", pointer="/database")
    if len(ports) not in (0, 1, len(named)):
        raise Invalid(f"the database URL names {len(ports)} ports for {len(named)} hosts", pointer="/database")
    besides: list[int | None] = [*ports] if len(ports) > 1 else [ports[0] if ports else None] * len(named)
    return target, [Node(host, port or other) for (host, port), other in zip(named, besides, strict=True)] or [Node()]


def _listed(text: str) -> list[str]:
    return text.split(",") if text else []


def _host_and_port(text: str) -> tuple[str, str]:
    """Host and port of `db1`, `db1:5432`, `[::1]:5432`, or the directory of a socket."""
    text = unquote(text)
    if text.startswith("/"):
        return text, ""
    host, _, port = text[1:].partition("]") if text.startswith("[") else text.partition(":")
    return host, port.removeprefix(":")
