"""The server under the application: deadlines for slow callers, bounds for heads, and a stop that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import ipaddress
import signal
import socket
from collections.abc import Iterator
from typing import Any, Final

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from interlock.api import problems
from interlock.api.direct_response import DIRECT_RESPONSE, DirectResponse
from interlock.api.head_cache import KNOWN, HeadCache, ParsedHead
from interlock.api.headers import Headers
from interlock.api.middleware import SECURITY, Middleware
from interlock.api.options import Options
from interlock.api.problems import Refusal
from interlock.errors import Invalid, Unavailable

MAX_HEADERS: Final = 100
BACKLOG: Final = 2048
CLOCK_TICK: Final = 0.002  # what a timer may be early by
COLLECT_AFTER: Final = (20_000, 20, 20)  # the default of 700 new objects is reached by a few requests


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_address(host: str, *, auth: bool) -> None:
    """Reject an address that other machines can reach while authentication is off."""
    if not auth and not is_loopback(host):
        raise Invalid(
            f"host {host} is not a loopback address: enable authentication with --auth tokens",
            pointer="/host",
        )


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections from now on; port 0 takes a free one."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, proto)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        way_out = "; name another port with --port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else ""
        raise Unavailable(f"cannot listen on {host} port {port}: {error.strerror}{way_out}") from None
    return listening


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class Protocol(HttpToolsProtocol):
    """One connection, with a deadline for the head of every request and for a reader that takes nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        approval: Middleware = self.config.app  # type: ignore[assignment]
        self._options: Options = approval.service.options
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_since: float | None = None
        self._head_size = 0
        self._in_head = False
        self._is_coded = False
        self._between = True  # requests, so that what comes next is the first byte of one
        self._heads = HeadCache()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._options.most_connections:
            self._refuse(Refusal("overloaded", "too many connections"))
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        self._reader_goes_on()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        between = self._between
        if between and (request := self._heads.whole(data)) is not None:
            self._take(request)
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(Refusal("bad_request", "there is nothing to upgrade to"))
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(
                cause if isinstance(cause, Refusal) else Refusal("bad_request", "this is not HTTP as we take it")
            )
        else:
            if self._in_head and self._head_timer is None:  # most heads arrive complete and need no timer
                self._await_head()
            if between and self._between and self.headers:  # none before the first request, only blank lines
                self._heads.remember(data, self.headers)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._between = False
        self._head_size = 0
        self._in_head = True
        self._is_coded = False
        self._idle_since = None

    def on_url(self, url: bytes) -> None:
        self._grow(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._grow(len(name) + len(value))
        if not self._in_head:
            return  # a trailer comes after everything has been judged by the headers, and none of ours means anything
        if len(self.headers) >= MAX_HEADERS:
            raise Refusal("head_too_large", f"more than {MAX_HEADERS} headers")
        name = name.lower()
        if name == b"transfer-encoding":
            self._is_coded = True
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._head_is_here()
        version = self.parser.get_http_version()
        if self._is_coded:
            Headers(self.headers).check_framing(version)
        if not self.parser.should_upgrade():
            url = httptools.parse_url(self.url)
            if url.schema is not None or url.fragment is not None:
                _check_target(url, Headers(self.headers).get("host"))
            scope: dict[str, Any] = self.scope  # type: ignore[assignment]
            scope["method"] = self.parser.get_method().decode("ascii")
            scope["http_version"] = version
            scope["query_string"] = url.query or b""
            self._begin(url.path, keep_alive=version != "1.0" and self.parser.should_keep_alive())

    def _take(self, request: ParsedHead) -> None:
        """Begin a request that is all here, past the parser: it has read the same head before."""
        self._head_is_here()
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope["method"], path, raw_headers, scope[KNOWN], body = request
        scope["headers"] = self.headers = raw_headers
        scope["query_string"] = b""
        cycle = self._begin(path, keep_alive=True)
        cycle.hold(body)

    def _begin(self, path: bytes, *, keep_alive: bool) -> DirectResponse:
        """Pass the request to the application, or queue it until the previous response is complete."""
        self._idle_since = None  # the previous response may have ended between the two halves of this head
        before: DirectResponse | None = self.cycle  # type: ignore[assignment]  # None before the first request
        self.cycle = cycle = DirectResponse(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=keep_alive,
            on_response=self.on_response_complete,
        )
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope["path"] = path.decode("ascii")
        scope["raw_path"] = path
        scope[DIRECT_RESPONSE] = cycle
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))
        return cycle

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._idle_since = self.loop.time()
            if self._idle_timer is None:
                self._await_request(self._options.idle_seconds)

    def on_message_complete(self) -> None:
        self._between = True
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        if not self.parser.should_upgrade():
            super().on_body(body)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self._options.stalled_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reader_goes_on()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Refusal("bad_request", msg))

    def _grow(self, size: int) -> None:
        self._head_size += size
        if self._head_size > self._options.largest_head:
            raise Refusal("head_too_large", f"the head of a request may have {self._options.largest_head} bytes")

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self._options.head_seconds, self._head_is_late)

    def _head_is_here(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self._answering:
            self._refuse(Refusal("request_timeout", f"no request within {self._options.head_seconds:g} s"))

    @property
    def _answering(self) -> bool:
        cycle: DirectResponse | None = self.cycle  # type: ignore[assignment]  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _await_request(self, seconds: float) -> None:
        self._idle_timer = self.loop.call_later(seconds, self._is_idle)

    def _is_idle(self) -> None:
        """Close a connection that has been idle too long. One repeating timer is cheaper than one per request."""
        allowed = self._options.idle_seconds
        left = allowed if self._idle_since is None else self._idle_since + allowed - self.loop.time()
        if left > CLOCK_TICK:
            self._await_request(left)
        else:
            self._idle_timer = None
            self._close()

    def _reader_goes_on(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _refuse(self, refusal: Refusal) -> None:
        """Send an error and close: data after broken framing cannot be parsed."""
        self._head_is_here()
        if self._answering:
            if self.cycle.response_started:
                # An error cannot be inserted into a started response.
                self._close()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = problems.encoded(refusal)
        head = [f"HTTP/1.1 {refusal.status} {problems.document(refusal)['title']}"]
        head += [f"{name}: {value}" for name, value in problems.headers(refusal).items()]
        head += [
            f"content-type: {problems.MEDIA_TYPE}",
            f"content-length: {len(body)}",
            *(f"{name.decode()}: {value.decode()}" for name, value in SECURITY),
            "connection: close",
        ]
        self.transport.write("\r\n".join([*head, "", ""]).encode() + body)
        self._close()

    def _close(self) -> None:
        """Close; abort if the client does not read the rest of the response in time."""
        if not self.transport.is_closing():
            self.transport.close()
            if self.transport.get_write_buffer_size():
                self._reader_goes_on()
                self._stall_timer = self.loop.call_later(self._options.stalled_seconds, self.transport.abort)


def _check_target(url: Any, host: str | None) -> None:
    """Reject a target with a fragment, or with another host than the Host header."""
    port = "" if url.port is None else f":{url.port}"
    if url.fragment is not None or host is None or f"{(url.host or b'').decode()}{port}".lower() != host.lower():
        raise Refusal("bad_request", "the target of a request is a path, or an address on the host it names")


class Server(uvicorn.Server):
    """The HTTP server. On shutdown it answers waiting requests, completes those in progress and starts no new ones."""

    def __init__(self, app: Middleware, listening: socket.socket) -> None:
        options = app.service.options
        check_address(listening.getsockname()[0], auth=options.auth)
        self._listening = listening
        self._service = app.service
        super().__init__(
            uvicorn.Config(
                app,
                http=Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=options.idle_seconds,  # type: ignore[arg-type]
                timeout_graceful_shutdown=options.grace_seconds,  # type: ignore[arg-type]
            )
        )

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        with _rare_collections():
            await super().serve(sockets=[self._listening])
        if self._service.broken is not None:
            raise self._service.broken

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._service.broken is not None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT, at once on the second; the process then ends in its own time."""
        loop = asyncio.get_running_loop()

        def asked() -> None:
            self.force_exit = self.should_exit
            self.should_exit = True

        taken = []
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, asked)
                taken.append(number)
        try:
            yield
        finally:
            for number in taken:
                loop.remove_signal_handler(number)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.stop()
        await super().shutdown(sockets)


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect cyclic garbage less often, and skip long-lived objects; reference counting frees the rest."""
    usual = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()
