"""The faces that can be turned on: from their names to the endpoints they serve."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from interlock.api.codeq import table as codeq
from interlock.api.codeq.door import CodeqDoor
from interlock.api.endpoint import Endpoint
from interlock.api.face import Face, FaceEndpoint
from interlock.api.moonmind import table as moonmind
from interlock.api.moonmind.door import MoonmindDoor
from interlock.api.routes import Route
from interlock.api.service import Service


class _Made(NamedTuple):
    routes: Callable[[], list[Route]]
    door: Callable[[], Face]


FACES: Final[Mapping[str, _Made]] = {
    "codeq": _Made(codeq.routes, CodeqDoor),
    "moonmind": _Made(moonmind.routes, MoonmindDoor),
}


def endpoints(service: Service, names: Sequence[str]) -> list[Endpoint]:
    """What the named faces serve."""
    found: list[Endpoint] = []
    for made in (FACES[name] for name in names):
        by_path: dict[str, list[Route]] = defaultdict(list)
        for route in made.routes():
            by_path[route.path].append(route)
        face = made.door()
        found += [FaceEndpoint(service, path, of_path, face) for path, of_path in by_path.items()]
    return found
