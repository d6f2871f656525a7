"""From an engine to an ASGI application: the table of routes behind the gate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from litestar import Litestar, Response
from litestar import asgi as asgi_handler
from litestar.exceptions import HTTPException

from interlock.api import openapi, ops, problems
from interlock.api.endpoint import Endpoint
from interlock.api.gate import Gate
from interlock.api.native import table as native
from interlock.api.options import Options
from interlock.api.problems import Refusal
from interlock.api.routes import Route
from interlock.api.service import Service
from interlock.engine.engine import Engine


def create_app(engine: Engine, options: Options | None = None, *, more: Sequence[Any] = ()) -> Gate:
    """The service as an ASGI application; `more` are handlers of Litestar for other faces, behind the same gate."""
    service = Service(engine, options or Options())
    table = routes()
    document = openapi.document(table)
    handlers = [_handler(endpoint) for endpoint in _endpoints(service, [*table, *ops.pages(document)])]
    app = Litestar(
        route_handlers=[*handlers, *more],
        openapi_config=None,
        logging_config=None,
        exception_handlers={HTTPException: _as_problem},
    )
    return Gate(service, app)


def routes() -> list[Route]:
    """Every route that is documented: the native API and what operators look at."""
    return [*native.routes(), *ops.routes]


def _endpoints(service: Service, table: Sequence[Route]) -> list[Endpoint]:
    by_path: dict[str, list[Route]] = defaultdict(list)
    for route in table:
        by_path[route.path].append(route)
    return [Endpoint(service, path, of_path) for path, of_path in by_path.items()]


def _handler(endpoint: Endpoint) -> Any:
    async def serve(scope: Any, receive: Any, send: Any) -> None:
        await endpoint.handle(scope, receive, send)

    return asgi_handler(endpoint.litestar_path, copy_scope=False)(serve)


def _as_problem(request: Any, error: HTTPException) -> Response[bytes]:
    """What the router refuses, in our words."""
    refusal = Refusal(
        "no_such_route" if error.status_code == 404 else "bad_request", "nothing is served under this path"
    )
    return Response(problems.encoded(refusal), status_code=refusal.status, media_type=problems.MEDIA_TYPE)
