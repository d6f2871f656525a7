"""The middleware of every request: checks before routing, and the headers of every response."""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from interlock import tracing
from interlock.api.direct_response import DIRECT_RESPONSE, DirectResponse
from interlock.api.endpoint import TRAIL, refusal, send_answer
from interlock.api.head_cache import KNOWN
from interlock.api.headers import Headers
from interlock.api.options import LOOPBACK_NAMES
from interlock.api.problems import Refusal
from interlock.api.router import PathRouter
from interlock.api.routes import Response
from interlock.api.service import Service, Trail, not_at_once, nothing_arrived, still_here

ALWAYS_ANSWERED: Final = (b"/healthz", b"/readyz")  # a busy process is neither sick nor about to be replaced
DRAIN_BYTES: Final = 64 * 1024
DRAIN_SECONDS: Final = 0.2
LINGER_BYTES: Final = 64 * 1024 * 1024  # a file somewhat larger than is taken is heard out
LINGER_SECONDS: Final = 5.0
STRICT_POLICY: Final = "default-src 'none'; frame-ancestors 'none'"
SECURITY: Final = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", STRICT_POLICY.encode()),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
_SECURED: Final = frozenset(name for name, _ in SECURITY)
_SECURITY_LINES: Final = b"".join(b"%b: %b\r\n" % one for one in SECURITY)
_UNUSUAL: Final = frozenset({name.decode() for name in _SECURED} | {"connection"})  # in an answer of a route
_CLOSE: Final = (b"connection", b"close")
_HSTS: Final = (b"strict-transport-security", b"max-age=31536000")
# A path is served in one spelling only: no empty or dotted segments, no half escapes, nothing after a final slash.
_PATH: Final = re.compile(rb"/|(?:/(?!\.{1,2}(?:/|$))(?:[A-Za-z0-9._~!$&'()*+,=:@-]++|%(?!00)[0-9A-Fa-f]{2})++)++")
_DOTS: Final = re.compile(rb"/(?:\.|%2[eE]){1,2}(?:/|$)")
_PROCESS: Final = secrets.token_hex(10)
_NUMBERS: Final = itertools.count(1)
_HOST: Final = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")

ErrorFormat = tuple[bytes, Callable[[Exception, Trail, str], Response]]  # a path prefix, and how its errors look


class Middleware:
    """Wraps the application; every request passes here exactly once."""

    def __init__(
        self, service: Service, router: PathRouter, mounts: Mapping[str, Any], errors: Sequence[ErrorFormat] = ()
    ) -> None:
        self.service = service
        self._router = router
        self._mounts = mounts
        self._errors = errors
        options = service.options
        self._hosts = set(options.hosts) if options.auth else LOOPBACK_NAMES | set(options.hosts)
        self._last_host: str | None = None
        self._log = structlog.get_logger("interlock.http").bind()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http", "the server below takes nothing else"
        seat = self.service.admission.enter()
        trail = Trail(_new_id(), scope["method"], seat)
        scope[TRAIL] = trail
        exchange = _Exchange(self.service, scope, receive, send, trail)
        try:
            try:
                self._check(scope, trail)
            except Exception as error:
                await send_answer(self._refusal(error, scope, trail), exchange.send, trail)
            else:
                await (self._trace if tracing.is_on() else self._serve)(scope, exchange, trail)
        finally:
            seat.leave()
            self._done(trail)
            exchange.let_go()

    async def _trace(self, scope: Any, exchange: _Exchange, trail: Trail) -> None:
        method = _known(trail.method)
        with tracing.span(method, "server", parent=trail.headers.traceparent) as span:
            assert span is not None
            trail.trace_id = f"{span.get_span_context().trace_id:032x}"
            await self._serve(scope, exchange, trail)
            span.update_name(f"{method} {trail.route}")
            span.set_attribute("http.request.method", method)
            span.set_attribute("http.route", trail.route)
            span.set_attribute("http.response.status_code", trail.status)
            if trail.code is not None:
                span.set_attribute("error.type", trail.code)

    async def _serve(self, scope: Any, exchange: _Exchange, trail: Trail) -> None:
        path: str = scope["path"]
        if found := self._router.find(path):
            endpoint, scope["path_params"] = found
            await endpoint.handle(scope, exchange.receive, exchange.send)
            return
        for prefix, app in self._mounts.items():
            if path == prefix or path.startswith(f"{prefix}/"):
                trail.route = f"{prefix}/*"
                await app(scope, exchange.receive, exchange.send)
                return
        if "/" in self._mounts and not path.startswith("/v1/") and "text/html" in (trail.headers.get("accept") or ""):
            await self._mounts["/"](scope, exchange.receive, exchange.send)  # which has a page for what is not there
            return
        nothing = Refusal("no_such_route", "nothing is served under this path")
        await send_answer(self._refusal(nothing, scope, trail), exchange.send, trail)

    def _refusal(self, error: Exception, scope: Any, trail: Trail) -> Response:
        """The error response for a request that no route handles, in the format of the protocol of its path."""
        raw_path: bytes = scope["raw_path"]
        for prefix, encode in self._errors:
            if raw_path == prefix or raw_path.startswith(prefix + b"/"):
                return encode(error, trail, prefix.decode())
        return refusal(error, trail)

    def _check(self, scope: Any, trail: Trail) -> None:
        raw_path: bytes = scope["raw_path"]
        if raw_path not in ALWAYS_ANSWERED:
            self.service.admission.check()
        trail.headers = headers = scope.get(KNOWN) or Headers(scope["headers"])
        trail.request_id = headers.request_id or trail.request_id
        if trace := headers.traceparent:
            trail.trace_id = trace[3:35]
        if headers.judged.passed is self:
            return  # such a head comes with a plain path only
        if not _PATH.fullmatch(raw_path) or (b"%" in raw_path and _DOTS.search(raw_path)):
            raise Refusal("no_such_route", "nothing is served under this path")
        scope["path"] = raw_path.decode("ascii")
        headers.check_framing(scope["http_version"])
        host = self._check_host(scope, headers)
        if scope["method"] not in ("GET", "HEAD"):
            self._check_site(headers, host)
            headers.judged.passed = self

    def _check_host(self, scope: Any, headers: Headers) -> str:
        """Allow only loopback host names while authentication is off, to prevent DNS rebinding."""
        given = headers.get("host")
        if given is not None and given == self._last_host:
            return given
        if given is None and scope["http_version"] == "1.0" and self.service.options.auth:
            return ""
        found = None if given is None else _HOST.fullmatch(given)
        if given is None or found is None:
            raise Refusal("bad_request", "the header Host is missing or not a host", close=True)
        name = found[1].lower().rstrip(".")
        if self._hosts and name not in self._hosts:
            raise Refusal("unknown_host", "the service does not answer to this host name", close=True)
        if given == given.lower():
            self._last_host = given  # most callers use one name
        return given.lower()

    def _check_site(self, headers: Headers, host: str) -> None:
        """Reject requests that a browser sends on behalf of another site; only our own pages may change data."""
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site not in (None, "same-origin", "none"):
            raise Refusal("cross_site", "a page of another site made this request")
        if origin is not None and origin.lower().partition("://")[2] != host:
            raise Refusal("cross_site", "a page of another site made this request")

    def _done(self, trail: Trail) -> None:
        method, seconds = _known(trail.method), trail.seconds
        self.service.metrics.answered(method, trail.route, trail.status, seconds)
        facts: dict[str, Any] = {
            "method": method, "route": trail.route, "status": trail.status, "ms": round(seconds * 1000, 2),
            "sent": trail.sent, "request_id": trail.request_id,
        }  # fmt: skip
        if trail.code is not None:
            facts["code"] = trail.code
        if trail.tenant is not None:
            facts["tenant"] = trail.tenant
        if trail.actor is not None:
            facts["actor"] = trail.actor
        if trail.trace_id is not None:
            facts["trace_id"] = trail.trace_id
        self._log.info("request", **facts)


class _Exchange:
    """The two directions of one request, watched: has the body been read, what went out."""

    def __init__(self, service: Service, scope: Any, receive: Any, send: Any, trail: Trail) -> None:
        self._service, self._scope, self._trail = service, scope, trail
        self._receive, self._send = receive, send
        self._cycle: DirectResponse | None = scope.get(DIRECT_RESPONSE)
        self._waits_to_be_asked = False
        self._length = 0
        self._unread = False
        self._gone = False
        self._lingers = False
        if self._cycle is not None:
            trail.take_body, trail.answer_at_once = self._take_body, self._answer_at_once
            trail.has_gone = self._has_gone
        if self._cycle is None or self._cycle.more_body:
            self._expect_body()

    def let_go(self) -> None:
        """Break reference cycles, so that the objects are freed immediately and not by the garbage collector."""
        self._trail.take_body, self._trail.answer_at_once = nothing_arrived, not_at_once
        self._trail.has_gone = still_here
        self._scope.pop(DIRECT_RESPONSE, None)

    def _expect_body(self) -> None:
        for name, value in self._scope["headers"]:
            if name == b"content-length":
                self._length = int(value)
                self._unread = self._unread or self._length > 0
            elif name == b"transfer-encoding":
                self._unread = True
            elif name == b"expect":
                self._waits_to_be_asked = True

    def _take_body(self) -> bytes | None:
        body = self._cycle.take_body() if self._cycle is not None else None
        if body is not None:
            self._unread = False
        return body

    def _has_gone(self) -> bool:
        return self._cycle is not None and self._cycle.disconnected

    def _answer_at_once(self, answer: Response) -> bool:
        """Write an ordinary response directly in one piece, if possible; otherwise it is sent through ASGI."""
        cycle, trail = self._cycle, self._trail
        if cycle is None or not cycle.is_clear or answer.stream is not None or not answer.media_type:
            return False
        if not _UNUSUAL.isdisjoint(answer.headers) or self._scope["scheme"] != "http":
            return False
        own = [f"content-type: {answer.media_type}", *(f"{name}: {value}" for name, value in answer.headers.items())]
        if not all(map(str.isprintable, own)):
            return False
        if self._service.stopping.is_set():
            cycle.keep_alive = False
        own += [f"content-length: {len(answer.body)}", f"x-request-id: {trail.request_id}"]
        if not cycle.keep_alive:
            own.append("connection: close")
        trail.status, trail.sent = answer.status, len(answer.body)
        head = "\r\n".join([*own, ""]).encode("latin-1")
        cycle.answer(answer.status, head + _SECURITY_LINES, answer.body)
        return True

    async def receive(self) -> Any:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._gone = True
        elif not message.get("more_body", False):
            self._unread = False
        else:
            self._waits_to_be_asked = False
        return message

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._trail.status = message["status"]
            message["headers"] = await self._headers(message["headers"])
        else:
            self._trail.sent += len(message.get("body", b""))
            if self._lingers and not message.get("more_body", False):
                # Closing while the client is still sending could reset the connection before it reads the response.
                await self._send(message | {"more_body": True})
                self._trail.seat.leave()  # the work is done: free the capacity for other requests
                await self._read_on(LINGER_BYTES, LINGER_SECONDS)
                message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _headers(self, given: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        names = {name for name, _ in given}
        headers = [*given, (b"x-request-id", self._trail.request_id.encode())]
        headers += SECURITY if names.isdisjoint(_SECURED) else [one for one in SECURITY if one[0] not in names]
        if self._scope["scheme"] == "https":
            headers.append(_HSTS)
        if not self._settled() and not await self._can_be_read_at_once():
            # What is left of the body would be taken for the next request.
            self._lingers = not self._waits_to_be_asked
            headers = [(name, value) for name, value in headers if name != b"connection"] + [_CLOSE]
        elif self._service.stopping.is_set() and b"connection" not in names:
            headers.append(_CLOSE)
        return headers

    async def _can_be_read_at_once(self) -> bool:
        """Read and discard a small unread body, so that the connection can be reused."""
        if self._waits_to_be_asked or self._length > DRAIN_BYTES:
            return False
        with self._trail.seat.aside():
            return await self._read_on(DRAIN_BYTES, DRAIN_SECONDS)

    async def _read_on(self, most: int, seconds: float) -> bool:
        """Return whether the body ended within these limits; the bytes are discarded."""
        try:
            async with asyncio.timeout(seconds):
                while not self._settled() and most > 0:
                    most -= len((await self.receive()).get("body", b""))
        except TimeoutError:
            return False
        return self._settled()

    def _settled(self) -> bool:
        return not self._unread or self._gone or (self._cycle is not None and not self._cycle.more_body)


def _new_id() -> str:
    """Unlike any other, and cheap: drawn once for the process, then counted."""
    return f"{_PROCESS}{next(_NUMBERS):012x}"


def _known(method: str) -> str:
    """A method as a label: those that do not exist are all alike."""
    return method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE") else "other"
