"""The faces that can be turned on: from their names to the endpoints they serve."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from interlock.api.codeq import route_table as codeq
from interlock.api.codeq.auth import CodeqDoor
from interlock.api.endpoint import Endpoint
from interlock.api.face import Face, FaceEndpoint
from interlock.api.moonmind import route_table as moonmind
from interlock.api.moonmind.auth import MoonmindDoor
from interlock.api.routes import Route
from interlock.api.service import Service
from interlock.errors import Invalid


def _translated(routes: Callable[[], list[Route]], door: Callable[[], Face], service: Service) -> list[Endpoint]:
    """A face that is a table of routes behind a door of its own."""
    by_path: dict[str, list[Route]] = defaultdict(list)
    for route in routes():
        by_path[route.path].append(route)
    face = door()
    return [FaceEndpoint(service, path, of_path, face) for path, of_path in by_path.items()]


def _mcp(service: Service) -> list[Endpoint]:
    """The face that stands on a library which not everybody has installed."""
    need_mcp("/faces")
    from interlock.api.mcp.http import McpEndpoint

    return [McpEndpoint(service)]


FACES: Final[Mapping[str, Callable[[Service], list[Endpoint]]]] = {
    "codeq": partial(_translated, codeq.routes, CodeqDoor),
    "moonmind": partial(_translated, moonmind.routes, MoonmindDoor),
    "mcp": _mcp,
}


def endpoints(service: Service, names: Sequence[str]) -> list[Endpoint]:
    """What the named faces serve."""
    return [endpoint for name in names for endpoint in FACES[name](service)]


def at_hand() -> tuple[str, ...]:
    """Every face that can be served with what is installed."""
    return tuple(name for name in FACES if name != "mcp" or _has_mcp())


def need_mcp(pointer: str = "") -> None:
    """Say what is missing before anything of it is imported."""
    if not _has_mcp():
        raise Invalid("MCP needs the extra: pip install 'interlock[mcp]'", pointer=pointer)


def _has_mcp() -> bool:
    try:
        import mcp.server  # noqa: F401
    except ImportError:
        return False
    return True
