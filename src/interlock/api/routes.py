"""The route table: the source of the served paths, their roles, and the OpenAPI document."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from interlock import tracing, wire
from interlock.api.headers import Headers
from interlock.api.service import Service, Trail
from interlock.domain.principal import Principal
from interlock.engine.engine import Engine

B = TypeVar("B", covariant=True)
Q = TypeVar("Q", covariant=True)

Receive = Callable[[], Awaitable[Any]]
Authenticate = Callable[["Route", Headers], Awaitable[Principal]]
JSON = "application/json"
ABSENT = msgspec.Raw()  # any JSON value that was not sent
AROUND_CHECKPOINT = 256 * 1024  # how much larger a body may be than the checkpoint in it


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every request body and query; unknown fields are rejected."""


class Nothing(Request, frozen=True, kw_only=True):
    """An empty body or query."""


@dataclass(slots=True)  # not frozen: that makes construction five times slower, and every request needs one
class RequestContext(Generic[B, Q]):
    """One decoded and validated request, with its caller."""

    service: Service
    route: Route
    who: Principal
    path: Mapping[str, str]
    headers: Headers
    query: Q
    body: B
    unsanitized: bytes | None  # the original body, if invalid Unicode in it was replaced
    receive: Receive
    trail: Trail
    peer: str  # the peer address of the connection
    authenticate: Authenticate  # checks the credential again, for long calls

    @property
    def engine(self) -> Engine:
        return self.service.engine

    @property
    def sanitized(self) -> bool:
        return self.unsanitized is not None

    @property
    def traceparent(self) -> str | None:
        """The parent span of a job enqueued by this call: the caller's, or else ours."""
        return self.headers.traceparent or tracing.traceparent()

    @property
    def job_id(self) -> str:
        """The job ID of the path in canonical form; a malformed ID is treated as an unknown one."""
        return wire.job_id(self.path["job_id"])


@dataclass(slots=True)
class Response:
    """A response: a complete body or a stream of pieces."""

    status: int
    body: bytes = b""
    media_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None


Handler = Callable[[RequestContext[Any, Any]], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Route:
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    roles: frozenset[str]  # one of these is required; empty: any credential is accepted
    on_condition: frozenset[str]  # also accepted if the handler finds that the job belongs to the caller
    needs_credential: bool
    body: type[msgspec.Struct] | None
    body_optional: bool
    raw_body: bool  # the handler reads the bytes itself
    largest_body: int | None
    has_checkpoint: bool  # its body may be as large as a checkpoint plus a margin
    sanitizes: bool  # invalid Unicode is replaced, not rejected
    query: type[Request]
    answers: Mapping[int, Any]
    produces: str
    headers: Sequence[str]

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip()


class RouteTable(list[Route]):
    """The routes of one module, in the order they are written."""

    def add(
        self,
        method: str,
        path: str,
        *,
        answers: Mapping[int, Any],
        roles: Sequence[str] = (),
        on_condition: Sequence[str] = (),
        needs_credential: bool = True,
        body: type[msgspec.Struct] | None = None,
        body_optional: bool = False,
        raw_body: bool = False,
        largest_body: int | None = None,
        has_checkpoint: bool = False,
        sanitizes: bool = False,
        query: type[Request] = Nothing,
        produces: str = JSON,
        headers: Sequence[str] = (),
    ) -> Callable[
        [Callable[[RequestContext[B, Q]], Awaitable[Response]]], Callable[[RequestContext[B, Q]], Awaitable[Response]]
    ]:
        """Serve a path by the decorated function, whose docstring becomes its summary."""

        def register(
            handler: Callable[[RequestContext[B, Q]], Awaitable[Response]],
        ) -> Callable[[RequestContext[B, Q]], Awaitable[Response]]:
            self.append(
                Route(
                    method=method, path=path, handler=handler, roles=frozenset(roles),
                    on_condition=frozenset(on_condition), needs_credential=needs_credential, body=body,
                    body_optional=body_optional, raw_body=raw_body, largest_body=largest_body,
                    has_checkpoint=has_checkpoint, sanitizes=sanitizes, query=query, answers=answers, produces=produces,
                    headers=headers,
                )
            )  # fmt: skip
            return handler

        return register


def respond(value: object, status: int = 200, *, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(status, msgspec.json.encode(value), headers=headers or {})
