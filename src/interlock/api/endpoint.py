"""Routing of paths to endpoints, and handling of requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import structlog

from interlock.api import auth, body, problems
from interlock.api.admission import STRANGERS
from interlock.api.body import Disconnected
from interlock.api.headers import Headers
from interlock.api.problems import Refusal
from interlock.api.routes import AROUND_CHECKPOINT, Receive, RequestContext, Response, Route
from interlock.api.service import Service, Trail
from interlock.domain.principal import Principal
from interlock.errors import Error, Fatal, Invalid, Unavailable

log = structlog.get_logger("interlock.api")

TRAIL: Final = "interlock.trail"


class Endpoint:
    """The methods of one path."""

    def __init__(self, service: Service, path: str, routes: Sequence[Route]) -> None:
        self._service = service
        self.path = path
        self._by_method = {route.method: route for route in routes}
        if "GET" in self._by_method:
            self._by_method.setdefault("HEAD", self._by_method["GET"])

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        trail: Trail = scope[TRAIL]
        trail.route = self.path
        try:
            answer = await self._answer(scope, receive, trail)
        except Disconnected:
            trail.status = 499
            return
        except Exception as error:
            if isinstance(error, Fatal):
                self._service.give_up(error)
            answer = self._refusal(error, trail)
        if answer.stream is None:
            await send_answer(answer, send)
        else:
            await self._stream(answer, answer.stream, send, trail)

    async def _stream(self, answer: Response, pieces: AsyncIterator[bytes], send: Any, trail: Trail) -> None:
        """Send a stream. It counts as waiting, because it is mostly idle; its source is always closed."""
        try:
            trail.seat.check_waiting()  # once the response has started, it is too late to reject
            with trail.seat.parked():
                await _send_stream(answer, pieces, send, trail)
        except Refusal as refused:
            await send_answer(self._refusal(refused, trail), send)
        except Disconnected:
            pass
        finally:
            await pieces.aclose()  # type: ignore[attr-defined]  # an iterator need not have it, ours all do

    async def _answer(self, scope: Mapping[str, Any], receive: Receive, trail: Trail) -> Response:
        route = self._by_method.get(scope["method"])
        if route is None:
            allowed = ", ".join(sorted(self._by_method))
            raise Refusal("method_not_allowed", f"this path takes {allowed}", headers={"allow": allowed})
        headers = trail.headers
        who = await self._admit(route, headers, trail)
        value, unsanitized = await self._body(route, headers, receive, trail)
        call = RequestContext(
            service=self._service,
            route=route,
            who=who,
            path=scope["path_params"],
            headers=headers,
            query=self._query(scope["query_string"], route),
            body=value,
            unsanitized=unsanitized,
            receive=receive,
            trail=trail,
            peer=(scope.get("client") or ("",))[0],
            authenticate=self._authenticate,
        )
        return await route.handler(call)

    async def _admit(self, route: Route, headers: Headers, trail: Trail) -> Principal:
        """Authenticate on the headers, before the body is read, so that unauthenticated requests cost little."""
        if not route.needs_credential:
            if route.body is not None:
                trail.seat.belongs_to(STRANGERS)
            return Principal("", "", frozenset())
        who = await self._authenticate(route, headers)
        trail.tenant, trail.actor = who.tenant, who.actor
        trail.seat.belongs_to(who.tenant)
        auth.check_role(who, route)
        if self._service.rates is not None:
            self._service.rates.take(f"{who.tenant} {who.actor}")
        return who

    async def _authenticate(self, route: Route, headers: Headers) -> Principal:
        return await auth.authenticate(self._service, headers)

    def _query(self, raw: bytes, route: Route) -> Any:
        return body.query(raw, route.query)

    def _refusal(self, error: Exception, trail: Trail) -> Response:
        return refusal(error, trail)

    def _bytes(self, headers: Headers, receive: Receive, trail: Trail, *, limit: int) -> Awaitable[bytes]:
        """Return the body as it was sent."""
        within = self._service.options.body_seconds
        return body.read(receive, headers, limit=limit, within=within, seat=trail.seat, whole=trail.body)

    def _largest(self, route: Route) -> int:
        """Return the size limit of a body."""
        own = self._service.engine.limits.checkpoint + AROUND_CHECKPOINT if route.has_checkpoint else 0
        return max(self._service.options.largest_body, route.largest_body or 0, own)

    async def _body(self, route: Route, headers: Headers, receive: Receive, trail: Trail) -> tuple[Any, bytes | None]:
        if route.raw_body:
            body.refuse_encoded(headers)
            return None, None
        if route.body is None:
            if headers.has_body:
                body.check_media_type(headers)
                await self._bytes(headers, receive, trail, limit=0)
            return None, None
        if route.body_optional and not headers.has_body:
            return route.body(), None
        body.check_media_type(headers)
        limit = self._largest(route)
        raw = await self._bytes(headers, receive, trail, limit=limit)
        if route.body_optional and not raw:
            return route.body(), None
        value, unsanitized = body.decode(raw, route.body, limit=limit, sanitizes=route.sanitizes)
        return value, raw if unsanitized else None


def refusal(error: Exception, trail: Trail) -> Response:
    """Return the response for a failed request. Unexpected errors are logged, not shown to the caller."""
    status = problems.status_of(error)
    trail.code = getattr(error, "code", "internal")
    if isinstance(error, Fatal):
        log.critical("storage", request_id=trail.request_id, error=str(error))
    elif isinstance(error, Unavailable):
        log.warning("unavailable", request_id=trail.request_id, route=trail.route, error=str(error))
    elif not isinstance(error, (Error, Refusal)):
        log.error("defect", request_id=trail.request_id, route=trail.route, exc_info=error)
    headers = problems.headers(error)
    if isinstance(error, Refusal) and error.close:
        headers["connection"] = "close"
    return Response(status, problems.encoded(error), media_type=problems.MEDIA_TYPE, headers=headers)


async def send_answer(answer: Response, send: Any) -> None:
    """Send a complete response."""
    headers = _headers(answer)
    if answer.status != 204:
        headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})


async def _send_stream(answer: Response, pieces: AsyncIterator[bytes], send: Any, trail: Trail) -> None:
    """Send pieces as they are produced."""
    await send({"type": "http.response.start", "status": answer.status, "headers": _headers(answer)})
    if trail.method != "HEAD":
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _headers(answer: Response) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", answer.media_type.encode())] if answer.media_type else []
    return headers + [(name.encode(), value.encode("latin-1")) for name, value in answer.headers.items()]


@dataclass
class _Node:
    named: dict[str, _Node] = field(default_factory=dict)
    parameter: tuple[str, _Node] | None = None
    endpoint: Endpoint | None = None


class PathRouter:
    """The served paths and their endpoints."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._root = _Node()
        for endpoint in endpoints:
            node = self._root
            for segment in endpoint.path.split("/")[1:]:
                node = _below(node, segment, endpoint.path)
            if node.endpoint is not None:
                raise Invalid(
                    f"the path {endpoint.path} is served twice: remove one of the protocol adapters that serve it",
                    pointer="/faces",
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
