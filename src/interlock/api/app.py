"""Builds an ASGI application from an engine: the route table behind the middleware."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from interlock.api import native, openapi, system_routes
from interlock.api.endpoint import Endpoint, PathRouter
from interlock.api.middleware import Middleware
from interlock.api.options import Options
from interlock.api.routes import Route
from interlock.api.service import Service
from interlock.engine.engine import Engine


def create_app(
    engine: Engine, options: Options | None = None, *, mounts: Mapping[str, Any] | None = None
) -> Middleware:
    """Return the service as an ASGI application; `mounts` maps prefixes to other applications behind its middleware."""
    service = Service(engine, options or Options())
    native_endpoints = _endpoints(service, [*routes(), *_pages()])
    others = [endpoint for adapter in service.options.faces for endpoint in adapter.endpoints(service)]
    formats = [(prefix.encode(), adapter.refusal) for adapter in service.options.faces for prefix in adapter.prefixes]
    return Middleware(service, PathRouter([*native_endpoints, *others]), mounts or {}, formats)


def routes() -> list[Route]:
    """Return every documented route: the native API and the system routes for operators."""
    return [*native.routes(), *system_routes.routes]


@cache  # the table is the same for every application of a process
def _pages() -> list[Route]:
    return system_routes.pages(openapi.document(routes()))


def _endpoints(service: Service, table: Sequence[Route]) -> list[Endpoint]:
    by_path: dict[str, list[Route]] = defaultdict(list)
    for route in table:
        by_path[route.path].append(route)
    return [Endpoint(service, path, of_path) for path, of_path in by_path.items()]
