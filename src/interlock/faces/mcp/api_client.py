"""Requests of MCP tools to the native API, served in this process or by a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlencode

from interlock.api import problems
from interlock.api.endpoint import TRAIL, Endpoint
from interlock.api.headers import Headers
from interlock.api.routes import JSON, Route
from interlock.api.service import Service, Trail
from interlock.wire import new_id

CLIENT_GONE: Final = 499  # the client disconnected


@dataclass(frozen=True, kw_only=True)
class ApiRequest:
    """A request of the native API."""

    route: Route
    path: Mapping[str, str] = field(default_factory=dict)
    query: Sequence[tuple[str, str]] = ()
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_seconds: float = 0.0
    repeatable: bool = True  # whether it may be resent when the outcome is unknown


class ApiResponse(NamedTuple):
    """The response of the native API; errors are problem documents."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_refusal(self) -> bool:
        return self.status >= 400


def refused(error: Exception) -> ApiResponse:
    return ApiResponse(problems.status_of(error), problems.headers(error), problems.encoded(error))


class Api(Protocol):
    """The native API, in this process or on a server."""

    async def ask(self, ask: ApiRequest) -> ApiResponse: ...


class InProcessApi:
    """The native API in this process, for one caller. A started request completes even if the caller disconnects."""

    def __init__(self, service: Service, *, headers: Mapping[str, str] | None = None, peer: str = "") -> None:
        self._service = service
        self._headers = headers or {}
        self._peer = peer
        self._under_way: set[asyncio.Task[ApiResponse]] = set()

    async def ask(self, ask: ApiRequest) -> ApiResponse:
        """Return the response. Cancellation counts as a disconnect: a waiting claim then releases the jobs it gets."""
        gone = asyncio.Event()
        answering = asyncio.create_task(self._answer(ask, gone))
        self._under_way.add(answering)
        answering.add_done_callback(self._under_way.discard)
        try:
            return await asyncio.shield(answering)
        except asyncio.CancelledError:
            gone.set()
            raise

    async def settled(self) -> None:
        """Wait until no request is in progress."""
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _answer(self, ask: ApiRequest, gone: asyncio.Event) -> ApiResponse:
        bodies = iter([ask.body or b""])

        async def receive() -> dict[str, Any]:
            for body in bodies:
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        collected = _Collected()
        seat = self._service.admission.enter()
        trail = Trail(new_id(), ask.route.method, seat, headers=self._given(ask))
        scope = {
            "method": ask.route.method,
            "path_params": ask.path,
            "query_string": encoded_query(ask.query).encode(),
            "client": (self._peer, 0),
            TRAIL: trail,
        }
        try:
            await Endpoint(self._service, ask.route.path, [ask.route]).handle(scope, receive, collected.send)
        finally:
            seat.leave()
        return ApiResponse(collected.status, collected.headers, b"".join(collected.pieces))

    def _given(self, ask: ApiRequest) -> Headers:
        headers = {**self._headers, **ask.headers}
        if ask.body is not None:
            headers |= {"content-type": JSON, "content-length": str(len(ask.body))}
        return Headers((name.encode(), value.encode("latin-1")) for name, value in headers.items())


def encoded_query(query: Sequence[tuple[str, str]]) -> str:
    """Encode query parameters; invalid Unicode is replaced, because no valid value contains it."""
    return urlencode(query, errors="replace")


class _Collected:
    """Collects a response as it is sent."""

    def __init__(self) -> None:
        self.status = CLIENT_GONE
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []

    async def send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
        else:
            self.pieces.append(message["body"])
