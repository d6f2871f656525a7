"""From a path to its endpoint: one spelling of every path, matched segment by segment as it was sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote

from interlock.api.endpoint import Endpoint
from interlock.errors import Invalid


@dataclass
class _Node:
    named: dict[str, _Node] = field(default_factory=dict)
    parameter: tuple[str, _Node] | None = None
    endpoint: Endpoint | None = None


class PathRouter:
    """All paths that are served."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._root = _Node()
        for endpoint in endpoints:
            node = self._root
            for segment in endpoint.path.split("/")[1:]:
                node = _below(node, segment, endpoint.path)
            if node.endpoint is not None:
                raise Invalid(
                    f"the path {endpoint.path} is served twice: remove one of the faces that serve it", pointer="/faces"
                )
            node.endpoint = endpoint

    def find(self, path: str) -> tuple[Endpoint, dict[str, str]] | None:
        """Find the endpoint and parameters of a path; an escaped slash is part of a name, never a separator.

        Escapes that are not valid UTF-8 match nothing: replacing them would make different names equal.
        """
        node = self._root
        parameters: dict[str, str] = {}
        for segment in path.split("/")[1:]:
            if segment in node.named:
                node = node.named[segment]
            elif node.parameter is not None and segment:
                name, node = node.parameter
                try:
                    parameters[name] = unquote(segment, errors="strict")
                except UnicodeDecodeError:
                    return None
            else:
                return None
        return None if node.endpoint is None else (node.endpoint, parameters)


def _below(node: _Node, segment: str, path: str) -> _Node:
    if not segment.startswith("{"):
        return node.named.setdefault(segment, _Node())
    name = segment.strip("{}")
    if node.parameter is None:
        node.parameter = (name, _Node())
    known, below = node.parameter
    if known != name:
        raise Invalid(f"the path {path} must name the parameter {name} {known}, as another path does", pointer="/faces")
    return below
