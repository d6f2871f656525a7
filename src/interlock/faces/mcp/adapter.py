"""The MCP adapter: one endpoint over HTTP. Its library is an optional extra, imported when it is served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from interlock.api.adapters import NO_SETTINGS, Adapter
from interlock.api.endpoint import Endpoint
from interlock.api.service import Service
from interlock.errors import Invalid

if TYPE_CHECKING:
    from interlock.engine.jwks import Fetch


class McpAdapter(Adapter):
    """The tools of the Model Context Protocol, with the credentials of the native API."""

    def __init__(self, settings: Mapping[str, Any] = NO_SETTINGS, fetch: Fetch | None = None) -> None:
        need_mcp("/faces")

    @classmethod
    def missing(cls) -> str | None:
        try:
            import mcp.server  # noqa: F401
        except ImportError:
            return "MCP needs the extra: pip install 'interlock[mcp]'"
        return None

    def endpoints(self, service: Service) -> list[Endpoint]:
        from interlock.faces.mcp.http import McpEndpoint

        return [McpEndpoint(service)]


def need_mcp(pointer: str = "") -> None:
    """Raise an error that names the missing extra, before any of it is imported."""
    if (missing := McpAdapter.missing()) is not None:
        raise Invalid(missing, pointer=pointer)
