"""The middleware of every request: checks before routing, and the headers of every response."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from interlock import tracing
from interlock.api.endpoint import TRAIL, PathRouter, refusal, send_answer
from interlock.api.headers import Headers
from interlock.api.options import LOOPBACK_NAMES
from interlock.api.problems import Refusal
from interlock.api.routes import Response
from interlock.api.service import Service, Trail

ALWAYS_ANSWERED: Final = (b"/healthz", b"/readyz")  # an overloaded process is still healthy and must not be restarted
BODY: Final = "interlock.body"  # in the scope: the body, if all of it arrived before the application was called
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
# A path is served in one spelling only: no empty or dotted segments, no half escapes, nothing after a final slash.
_PATH: Final = re.compile(rb"/|(?:/(?!\.{1,2}(?:/|$))(?:[A-Za-z0-9._~!$&'()*+,=:@-]++|%(?!00)[0-9A-Fa-f]{2})++)++")
_DOTS: Final = re.compile(rb"/(?:\.|%2[eE]){1,2}(?:/|$)")
_PROCESS: Final = secrets.token_hex(10)
_NUMBERS: Final = itertools.count(1)
_HOST: Final = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")

ErrorFormat = tuple[bytes, Callable[[Exception, Trail, str], Response]]  # a path prefix, and the format of its errors


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
        trail.body = scope.get(BODY)

        async def watched(message: Any) -> None:
            """Add the common headers to a response, and record its log fields."""
            if message["type"] == "http.response.start":
                trail.status = message["status"]
                message["headers"] = _complete(message["headers"], trail.request_id)
            else:
                trail.sent += len(message.get("body", b""))
            await send(message)

        try:
            try:
                self._check(scope, trail)
            except Exception as error:
                await send_answer(self._refusal(error, scope, trail), watched)
            else:
                await (self._trace if tracing.is_on() else self._serve)(scope, receive, watched, trail)
        finally:
            seat.leave()
            self._done(trail)

    async def _trace(self, scope: Any, receive: Any, send: Any, trail: Trail) -> None:
        method = _known(trail.method)
        with tracing.span(method, "server", parent=trail.headers.traceparent) as span:
            assert span is not None
            trail.trace_id = f"{span.get_span_context().trace_id:032x}"
            await self._serve(scope, receive, send, trail)
            span.update_name(f"{method} {trail.route}")
            span.set_attribute("http.request.method", method)
            span.set_attribute("http.route", trail.route)
            span.set_attribute("http.response.status_code", trail.status)
            if trail.code is not None:
                span.set_attribute("error.type", trail.code)

    async def _serve(self, scope: Any, receive: Any, send: Any, trail: Trail) -> None:
        path: str = scope["path"]
        if found := self._router.find(path):
            endpoint, scope["path_params"] = found
            await endpoint.handle(scope, receive, send)
            return
        for prefix, app in self._mounts.items():
            if path == prefix or path.startswith(f"{prefix}/"):
                trail.route = f"{prefix}/*"
                await app(scope, receive, send)
                return
        if "/" in self._mounts and not path.startswith("/v1/") and "text/html" in (trail.headers.get("accept") or ""):
            await self._mounts["/"](scope, receive, send)  # which has its own page for unknown paths
            return
        nothing = Refusal("no_such_route", "nothing is served under this path")
        await send_answer(self._refusal(nothing, scope, trail), send)

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
        trail.headers = headers = Headers(scope["headers"])
        trail.request_id = headers.request_id or trail.request_id
        if trace := headers.traceparent:
            trail.trace_id = trace[3:35]
        if not _PATH.fullmatch(raw_path) or (b"%" in raw_path and _DOTS.search(raw_path)):
            raise Refusal("no_such_route", "nothing is served under this path")
        scope["path"] = raw_path.decode("ascii")
        host = self._check_host(scope, headers)
        if scope["method"] not in ("GET", "HEAD"):
            self._check_site(headers, host)

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
        self.service.metrics.answered(method, trail.route, trail.status, seconds, trail.code)
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


def _complete(given: list[tuple[bytes, bytes]], request_id: str) -> list[tuple[bytes, bytes]]:
    """Add the headers that every response has; its own take precedence."""
    names = {name for name, _ in given}
    headers = [*given, (b"x-request-id", request_id.encode())]
    return headers + (
        list(SECURITY) if names.isdisjoint(_SECURED) else [one for one in SECURITY if one[0] not in names]
    )


def _new_id() -> str:
    """Return a unique request ID: a random prefix per process, then a counter."""
    return f"{_PROCESS}{next(_NUMBERS):012x}"


def _known(method: str) -> str:
    """Return the method as a metric label; unknown methods share one label."""
    return method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE") else "other"
