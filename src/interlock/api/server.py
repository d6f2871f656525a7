"""The HTTP/1.1 server below the application: connections on httptools, with deadlines, limits and a graceful stop.

An application is called as in ASGI: `app(scope, receive, send)`, once for each request, one after the other on a
connection. `receive` and `send` raise nothing but `Disconnected`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import math
import re
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, cast

import httptools

from interlock.api import problems
from interlock.api.body import Disconnected
from interlock.api.headers import Headers
from interlock.api.middleware import BODY, SECURITY, Middleware
from interlock.api.problems import Refusal
from interlock.errors import Invalid, Unavailable
from interlock.garbage import rare_collections

log = logging.getLogger(__name__)

MAX_HEADERS: Final = 100
BACKLOG: Final = 2048
BUFFERED_BODY: Final = 64 * 1024  # of one request; then the client waits until the application has read it
DISCARDED_BODY: Final = 64 * 1024  # of a rejected request, so that its connection can be used again
LINGER_BYTES: Final = 64 * 1024 * 1024  # a file somewhat larger than the limit is read to its end
LINGER_SECONDS: Final = 5.0
CLOCK_TICK: Final = 0.002  # tolerance for timers that fire early
STOP_TICK: Final = 0.1
_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_NOT_IN_A_HEADER: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable only from this machine."""
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
    """Return a listening socket; port 0 selects a free port."""
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


class Exchange:
    """One request and its response; provides `receive` and `send` for the application."""

    def __init__(self, connection: Connection, scope: dict[str, Any], length: int | None, *, may_stay: bool) -> None:
        self.scope = scope
        self._connection = connection
        self._length = length  # as declared; None for a chunked body
        self._stays_open = may_stay
        self.asks = False  # the client sends the body only after 100 Continue
        self.received = False  # all of the body
        self.started = False  # the response
        self.ended = False
        self.gone = False
        self._pieces: list[bytes] = []
        self._size = 0
        self._read = False  # all of the body has been passed to the application
        self._news: asyncio.Event | None = None
        self._head = b""  # of the response, until it is written
        self._left: int | None = None  # bytes of the response, if its length was declared
        self._chunked = self._bodiless = False

    async def run(self, app: Any) -> None:
        """Call the application; respond with an error if it fails."""
        try:
            await app(self.scope, self.receive, self.send)
        except Disconnected:
            return
        except Exception:
            log.exception("the application failed")
        if not self.ended and not self.gone:
            self._connection.fail(self)

    def add(self, piece: bytes) -> int:
        """Keep a piece of the body; return how much of it is waiting for the application."""
        if self.ended:
            return 0
        self._pieces.append(piece)
        self._size += len(piece)
        self._wake()
        return self._size

    def complete(self) -> None:
        """Mark the body as complete; if the application has not started to read it, the scope contains it."""
        self.received = True
        if not self._read and self._length is not None and self._size == self._length:
            self.scope[BODY] = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._wake()

    def disconnect(self) -> None:
        self.gone = True
        self._wake()

    async def receive(self) -> dict[str, Any]:
        if self.asks and not self._pieces and not self.received:
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.asks = False
        while True:
            if self.gone or self.ended:
                return {"type": "http.disconnect"}
            if self._pieces or (self.received and not self._read):
                body, self._size, self._read = b"".join(self._pieces), 0, self.received
                self._pieces.clear()
                return {"type": "http.request", "body": body, "more_body": not self.received}
            self._connection.resume_reading()
            self._news = self._news or asyncio.Event()
            self._news.clear()
            await self._news.wait()

    async def send(self, message: dict[str, Any]) -> None:
        if self._connection.is_full:
            await self._connection.drained()
        if self.gone:
            raise Disconnected
        if message["type"] == "http.response.start":
            assert not self.started, "a response starts once"
            self._start(message["status"], message["headers"])
            return
        assert self.started, "a response starts with a status"
        assert not self.ended, "the response has ended"
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._bodiless:
            body = b""
        elif self._left is not None:
            self._left -= len(body)
            assert self._left >= 0, "the body of a response is longer than its content-length"
            assert more or self._left == 0, "the body of a response is shorter than its content-length"
        elif self._chunked:
            body = b"%b%b" % (b"%x\r\n%b\r\n" % (len(body), body) if body else b"", b"" if more else b"0\r\n\r\n")
        if self._head or body:
            self._connection.write(self._head + body)
            self._head = b""
        if not more:
            self.ended = True
            self._wake()
            self._connection.end(self)

    @property
    def is_on_the_wire(self) -> bool:
        """Return whether a part of the response has been sent."""
        return self.started and not self._head

    @property
    def stays_open(self) -> bool:
        """Return whether the connection can be reused after this exchange."""
        return self._stays_open and not self._connection.is_stopping

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Build the head. It is written together with the first piece of the body, in one packet."""
        self.started = True
        if not self.received and (self.asks or self._length is None or self._length > DISCARDED_BODY):
            self._stays_open = False
        lines = [_STATUS_LINES[status], b"date: ", _date(), b"\r\n"]
        for name, value in headers:
            if name == b"connection":
                self._stays_open = self._stays_open and value.lower() != b"close"
                continue
            if name == b"content-length":
                self._left = int(value)
            if _NOT_IN_A_HEADER.search(value):
                raise ValueError(f"the header {name.decode()} has a control character")
            lines += (name, b": ", value, b"\r\n")
        if self.scope["method"] == "HEAD" or status in (204, 304):
            self._bodiless = True
        elif self._left is None and self.scope["http_version"] == "1.0":
            self._stays_open = False  # the end of the connection is the end of the body
        elif self._left is None:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.stays_open:
            self._stays_open = False
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)
        if self._left is None and not self._bodiless:  # the first piece of a stream may come much later
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if self._head and not self.gone:
            self._connection.write(self._head)
            self._head = b""

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()


class Connection(asyncio.Protocol):
    """One connection: parses requests, has them answered in order, and closes on clients that are too slow."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._options = server.service.options
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # until the connection is made
        self._client: tuple[str, int] | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_size = 0
        self._unparsed = 0  # bytes since the parser produced anything
        self._in_head = False
        self._length = 0
        self._asks = self._coded = False
        self._receiving: Exchange | None = None  # the request whose body is being received
        self._answering: Exchange | None = None
        self._waiting: deque[Exchange] = deque()  # requests that were sent before the response to the first
        self._is_last = False  # the client wants the connection closed after the request that it has sent
        self._refusal: Refusal | None = None  # of data that cannot be parsed, sent after the responses before it
        self._lingering: int | None = None  # bytes to discard before closing
        self._is_paused = False
        self._full: asyncio.Event | None = None  # set when the write buffer has room again
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_since: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._client = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None
        self._server.connections.add(self)
        if len(self._server.connections) > self._options.most_connections:
            self._write_refusal(Refusal("overloaded", "too many connections"))
            self._close()
            return
        self._await_head()

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        for timer in (self._head_timer, self._stall_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        for exchange in (self._answering, self._receiving, *self._waiting):
            if exchange is not None:
                exchange.disconnect()
        self._waiting.clear()
        self.resume_writing()

    # eof_received is not overridden: a half-closed connection counts as disconnected, so that long polls notice it.

    def data_received(self, data: bytes) -> None:
        if self._lingering is not None:
            self._lingering -= len(data)
            if self._lingering < 0:
                self._transport.close()
        if self._transport.is_closing() or self._refusal is not None or self._lingering is not None:
            return
        self._unparsed += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(Refusal("bad_request", "there is nothing to upgrade to"))
        except httptools.HttpParserError as error:
            if self._is_last and self._receiving is None:
                return  # sent after a request that closes the connection
            cause = error.__context__
            self._refuse(
                cause if isinstance(cause, Refusal) else Refusal("bad_request", "this is not HTTP as we take it")
            )
        else:
            if self._unparsed > self._options.largest_head:
                self._refuse(self._too_large())
            elif self._in_head and self._head_timer is None:  # most request heads arrive complete and need no timer
                self._await_head()

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._head_size = 0
        self._in_head = True
        self._length = 0
        self._asks = self._coded = False
        self._idle_since = None

    def on_url(self, url: bytes) -> None:
        self._grow(len(url))
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._grow(len(name) + len(value))
        if not self._in_head:
            return  # trailers arrive after the request was checked by its headers, and have no meaning here
        if len(self._headers) >= MAX_HEADERS:
            raise Refusal("head_too_large", f"more than {MAX_HEADERS} headers")
        name = name.lower()
        if name == b"content-length":
            self._length = int(value)  # the parser accepts one value of digits only
        elif name == b"transfer-encoding":
            self._coded = True
        elif name == b"expect":
            self._asks = value.lower() == b"100-continue"
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._head_is_here()
        self._unparsed = 0
        parser, version = self._parser, self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise Refusal("bad_request", f"HTTP {version} is not served")
        if self._coded:
            Headers(self._headers).check_framing(version)
        if parser.should_upgrade():
            return
        url = httptools.parse_url(self._url)
        if url.schema is not None or url.fragment is not None:
            self._check_target(url, Headers(self._headers).get("host"))
        path = url.path or b"/"
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
            "scheme": "http",
            "path": path.decode("ascii"),
            "raw_path": path,
            "query_string": url.query or b"",
            "headers": self._headers,
            "client": self._client,
        }
        self._is_last = version == "1.0" or not parser.should_keep_alive()
        length = None if self._coded else self._length
        self._receiving = exchange = Exchange(self, scope, length, may_stay=not self._is_last)
        exchange.asks = self._asks and version == "1.1"
        self._idle_since = None  # the previous response may have ended between the two halves of this head
        if self._answering is None:
            self._start(exchange)
        else:
            self._pause_reading()
            self._waiting.append(exchange)

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        if self._receiving is not None and self._receiving.add(body) > BUFFERED_BODY:
            self._pause_reading()

    def on_message_complete(self) -> None:
        self._unparsed = 0
        if self._receiving is not None:
            self._receiving.complete()
            self._receiving = None

    def end(self, exchange: Exchange) -> None:
        """Record that the response to a request is complete."""
        if exchange is not self._answering:
            return
        self._answering = None
        if self._transport.is_closing():
            return
        if not exchange.stays_open:
            self._linger() if not exchange.received else self._close()
        elif self._waiting:
            self._start(self._waiting.popleft())
        elif self._refusal is not None:
            self._write_refusal(self._refusal)
        else:
            self.resume_reading()
            self._idle_since = self._loop.time()
            if self._idle_timer is None:
                self._await_request(self._options.idle_seconds)

    def fail(self, exchange: Exchange) -> None:
        """Respond with an error; abort a response that has started, so that it does not look complete."""
        if exchange.is_on_the_wire:
            self._transport.abort()
        else:
            exchange.disconnect()
            self._write_refusal(Refusal("internal", "something went wrong here"))

    def stop(self) -> None:
        """Close as soon as the request in progress is answered."""
        if self._answering is None:
            self._close()

    @property
    def is_stopping(self) -> bool:
        return self._server.service.stopping.is_set()

    def abort(self) -> None:
        self._transport.abort()

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    @property
    def is_full(self) -> bool:
        return self._full is not None

    async def drained(self) -> None:
        while self._full is not None:
            await self._full.wait()

    def pause_writing(self) -> None:
        self._full = asyncio.Event()
        if self._stall_timer is None:
            self._stall_timer = self._loop.call_later(self._options.stalled_seconds, self._transport.abort)

    def resume_writing(self) -> None:
        if self._full is not None:
            self._full.set()
            self._full = None
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def resume_reading(self) -> None:
        if self._is_paused and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def _pause_reading(self) -> None:
        if not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def _start(self, exchange: Exchange) -> None:
        self._answering = exchange
        task = self._loop.create_task(exchange.run(self._server.app))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    def _check_target(self, url: Any, host: str | None) -> None:
        """Reject a target with a fragment, or with another host than the Host header."""
        authority = re.split(rb"[/?#]", self._url.partition(b"://")[2], maxsplit=1)[0].decode("latin-1")
        if url.fragment is not None or host is None or authority.lower() != host.lower():
            raise Refusal("bad_request", "the target of a request is a path, or an address on the host it names")

    def _grow(self, size: int) -> None:
        self._head_size += size
        if self._head_size > self._options.largest_head:
            raise self._too_large()

    def _too_large(self) -> Refusal:
        return Refusal("head_too_large", f"the head of a request may have {self._options.largest_head} bytes")

    def _await_head(self) -> None:
        self._head_timer = self._loop.call_later(self._options.head_seconds, self._head_is_late)

    def _head_is_here(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        if self._is_paused:  # the client waits for the server
            self._await_head()
            return
        self._head_timer = None
        self._refuse(Refusal("request_timeout", f"no request within {self._options.head_seconds:g} s"))

    def _await_request(self, seconds: float) -> None:
        self._idle_timer = self._loop.call_later(seconds, self._is_idle)

    def _is_idle(self) -> None:
        """Close a connection that has been idle too long. One repeating timer is cheaper than one per request."""
        allowed = self._options.idle_seconds
        left = allowed if self._idle_since is None else self._idle_since + allowed - self._loop.time()
        if left > CLOCK_TICK:
            self._await_request(left)
        else:
            self._idle_timer = None
            self._close()

    def _refuse(self, refusal: Refusal) -> None:
        """Read no more: data after broken framing cannot be parsed. Requests before it are answered first."""
        self._head_is_here()
        self._refusal = refusal
        broken, self._receiving = self._receiving, None
        if broken is not None:
            broken.disconnect()
            if broken in self._waiting:
                self._waiting.remove(broken)
            elif broken.started:  # an error cannot be inserted into a response
                self._transport.abort()
                return
            else:
                self._answering = None
        if self._answering is None:
            self._write_refusal(refusal)

    def _write_refusal(self, refusal: Refusal) -> None:
        """Send an error of the server itself, and close."""
        body = problems.encoded(refusal)
        lines = [
            b"date: " + _date(),
            *(f"{name}: {value}".encode() for name, value in problems.headers(refusal).items()),
        ]
        lines += [b"content-type: " + problems.MEDIA_TYPE.encode(), b"content-length: %d" % len(body)]
        lines += [*(b"%b: %b" % one for one in SECURITY), b"connection: close"]
        self.write(_STATUS_LINES[refusal.status] + b"\r\n".join([*lines, b"", body]))
        self._linger()

    def _linger(self) -> None:
        """Close, but keep reading for a while: a reset could reach the client before it has read the response."""
        if self._transport.is_closing() or self._lingering is not None:
            return
        self._lingering = LINGER_BYTES
        self.resume_reading()
        self._transport.write_eof()
        self._head_timer = self._loop.call_later(LINGER_SECONDS, self._close)

    def _close(self) -> None:
        """Close; abort if the client does not read the rest of the response in time."""
        if not self._transport.is_closing():
            self._transport.close()
            if self._transport.get_write_buffer_size() and self._stall_timer is None:
                self._stall_timer = self._loop.call_later(self._options.stalled_seconds, self._transport.abort)


class Server:
    """The HTTP server. On shutdown it answers waiting requests, completes those in progress and starts no new ones."""

    def __init__(self, app: Middleware, listening: socket.socket) -> None:
        check_address(listening.getsockname()[0], auth=app.service.options.auth)
        self.app = app
        self.service = app.service
        self.should_exit = False  # may be set from any thread
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._at_once = False
        self._listening = listening

    async def serve(self) -> None:
        """Serve until shutdown (also by SIGTERM or SIGINT), or until the storage is broken."""
        loop = asyncio.get_running_loop()
        with rare_collections(), self._signals(loop):
            listener = await loop.create_server(lambda: Connection(self), sock=self._listening, backlog=BACKLOG)
            await self._until_stopped(loop)
            listener.close()
            await self._stop()
        if self.service.broken is not None:
            raise self.service.broken

    async def _until_stopped(self, loop: asyncio.AbstractEventLoop) -> None:
        """Return when the server must stop. A storage that only maintenance has found unusable gives requests time.

        The first request that uses it learns the reason, and stops the server at once.
        """
        ends_at = math.inf
        while not self.should_exit and self.service.broken is None:  # set by other threads
            if (fault := self.service.engine.maintenance.broken) is not None:
                ends_at = min(ends_at, loop.time() + self.service.options.grace_seconds)
                if loop.time() >= ends_at:
                    self.service.give_up(fault)
            await asyncio.sleep(STOP_TICK)

    async def _stop(self) -> None:
        self.service.stop()
        for connection in [*self.connections]:
            connection.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.service.options.grace_seconds):
                while (self.connections or self.tasks) and not self._at_once:  # noqa: ASYNC110 - both end often
                    await asyncio.sleep(STOP_TICK / 10)
        if self.tasks:
            log.warning("%d requests were not answered in time", len(self.tasks))
        for task in self.tasks:
            task.cancel()
        for connection in [*self.connections]:
            connection.abort()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    @contextlib.contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT, immediately on the second signal."""

        def asked() -> None:
            self._at_once = self.should_exit
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


_dated: tuple[int, bytes] = (0, b"")


def _date() -> bytes:
    """Return the Date header, formatted once per second."""
    global _dated
    now = int(time.time())
    if now != _dated[0]:
        _dated = (now, formatdate(now, usegmt=True).encode())
    return _dated[1]
