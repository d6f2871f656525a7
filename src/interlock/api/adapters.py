"""The protocol adapters that can be enabled, by name, and their endpoints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from interlock.api.adapter import Adapter, AdapterEndpoint, refusal_of
from interlock.api.codeq import route_table as codeq
from interlock.api.codeq.auth import CodeqAuth
from interlock.api.codeq.model import BASE
from interlock.api.endpoint import Endpoint
from interlock.api.moonmind import route_table as moonmind
from interlock.api.moonmind.auth import MoonmindAuth
from interlock.api.routes import Response, Route
from interlock.api.service import Service, Trail
from interlock.errors import Invalid

Refuse = Callable[[Exception, Trail, str], Response]


def _translated(
    routes: Callable[[], list[Route]], make_adapter: Callable[[], Adapter], service: Service
) -> list[Endpoint]:
    """Return the endpoints of an adapter that consists of a route table and its own authentication."""
    by_path: dict[str, list[Route]] = defaultdict(list)
    for route in routes():
        by_path[route.path].append(route)
    adapter = make_adapter()
    return [AdapterEndpoint(service, path, of_path, adapter) for path, of_path in by_path.items()]


def _aliased(routes: Callable[[], list[Route]], base: str) -> list[Route]:
    """Routes below their base and below the base twice, for clients that append it to an address that has it."""
    table = routes()
    return table + [replace(route, path=base + route.path) for route in table]


def _mcp(service: Service) -> list[Endpoint]:
    """Return the MCP endpoint. Imported on demand, because the MCP library is an optional extra."""
    need_mcp("/faces")
    from interlock.api.mcp.http import McpEndpoint

    return [McpEndpoint(service)]


AUTH: Final[Mapping[str, Callable[[], Adapter]]] = {"codeq": CodeqAuth, "moonmind": MoonmindAuth}
ADAPTERS: Final[Mapping[str, Callable[[Service], list[Endpoint]]]] = {
    "codeq": partial(_translated, partial(_aliased, codeq.routes, BASE), CodeqAuth),
    "moonmind": partial(_translated, moonmind.routes, MoonmindAuth),
    "mcp": _mcp,
}


def endpoints(service: Service, names: Sequence[str]) -> list[Endpoint]:
    """Return the endpoints of the named protocol adapters."""
    return [endpoint for name in names for endpoint in ADAPTERS[name](service)]


def errors(names: Sequence[str]) -> list[tuple[bytes, Refuse]]:
    """How errors are encoded below the paths of the named protocols."""
    found: list[tuple[bytes, Refuse]] = []
    for name in names:
        if name in AUTH:
            adapter = AUTH[name]()
            found += [(prefix.encode(), partial(refusal_of, adapter)) for prefix in adapter.prefixes]
    return found


def at_hand() -> tuple[str, ...]:
    """Return the names of all protocol adapters whose dependencies are installed."""
    return tuple(name for name in ADAPTERS if name != "mcp" or _has_mcp())


def need_mcp(pointer: str = "") -> None:
    """Raise an error that names the missing extra, before any of it is imported."""
    if not _has_mcp():
        raise Invalid("MCP needs the extra: pip install 'interlock[mcp]'", pointer=pointer)


def _has_mcp() -> bool:
    try:
        import mcp.server  # noqa: F401
    except ImportError:
        return False
    return True
