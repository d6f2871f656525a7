"""Calls to one server, retried until it responds or the retry time is over; lists, batches, waits and streams of it."""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpcore2
import httpx2
from msgspec import Raw

from interlock import __version__
from interlock.client import codec
from interlock.domain.job import Rejected
from interlock.errors import Error, Indeterminate, Invalid, Malformed, TooLarge, Unauthenticated, Unavailable
from interlock.pauses import Pauses
from interlock.wire import responses

SCHEMES: Final = ("http://", "https://")
CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 20.0  # for one attempt to make progress, beyond its wait time
NO_TOKEN: Final = "no token was given: use token= in Python, --token-file or INTERLOCK_TOKEN on the command line"
WRONG_TOKEN: Final = "the token is mistyped, expired, revoked or for another server"
RETRY_SECONDS: Final = 60.0
MAX_CALLS: Final = 100
MAX_WAITS: Final = 1000
IDLE_SECONDS: Final = 30.0  # less than any server or balancer keeps an idle connection
LARGE_BODY: Final = 1024 * 1024  # a server that rejects a smaller body reads it to its end
ASKING_SECONDS: Final = 2.0  # for a rejection before the body is sent
LARGEST_ANSWER: Final = 256 * 1024 * 1024
QUIET_SECONDS: Final = 45.0  # three times the server's keep-alive interval
BATCH_SIZE: Final = 10
MAX_POLL_SECONDS: Final = 20.0  # shorter than what proxies let a silent connection live
SHORTEST_POLL_SECONDS: Final = 0.1
MAX_PAGE_SIZE: Final = 200
MAX_LISTS: Final = 200
MAX_ENDS: Final = 1000
JSON: Final = {"content-type": "application/json"}
T = TypeVar("T")

_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
# Nothing of the request has reached the server.
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
# Retrying does not help.
_HOPELESS: Final = (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError)
NOT_ASKED_SO: Final = 417  # a proxy does not support `Expect: 100-continue`
_GATEWAY: Final = frozenset({502, 504})  # a proxy does not know the outcome either


Query = Sequence[tuple[str, str | int | float | bool | None]]


@dataclass(frozen=True, kw_only=True)
class HttpRequest:
    """A request. It is identical on every attempt, so that a server can recognize a repeated call."""

    method: str
    path: str
    body: bytes | None = None
    query: Query = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_seconds: float = 0.0  # how long the server may wait before it responds
    sending_seconds: float = 0.0  # how long a large body may take
    repeatable: bool = True
    about: Mapping[str, object] = field(default_factory=dict)  # facts for errors that the server does not repeat


class HttpResponse(NamedTuple):
    """A complete response."""

    status: int
    headers: httpx2.Headers
    body: bytes

    @property
    def retry_after(self) -> float:
        """The server's Retry-After in seconds; dates are ignored."""
        given = self.headers.get("retry-after", "")
        return float(given) if given.isascii() and given.isdigit() and len(given) < 7 else 0.0


class Calls:
    """The connections to one server. Waiting calls have separate connections, so that they never block other calls.

    No redirect is followed: the token is sent only to the configured host. Proxies are those of the environment
    (HTTPS_PROXY, HTTP_PROXY, NO_PROXY), certificates are verified with the system's trust store or SSL_CERT_FILE.
    """

    def __init__(self, url: str, *, token: str | None = None, retry_seconds: float = RETRY_SECONDS) -> None:
        self.has_token = token is not None
        self.retry_seconds = retry_seconds
        headers = {"accept-encoding": "identity", "user-agent": f"interlock/{__version__}"}
        if token is not None:
            headers["authorization"] = f"Bearer {checked_token(token)}"
        base = checked_url(url)
        self._quick, self._waiting = (_connections(base, headers, most) for most in (MAX_CALLS, MAX_WAITS))

    async def send(self, call: HttpRequest) -> HttpResponse:
        """Return the response of a successful call; raise an error response as the engine would have raised it."""
        budget = _RetryBudget(self.retry_seconds + call.wait_seconds + call.sending_seconds)
        while True:
            try:
                async with asyncio.timeout_at(budget.until):
                    answer = await self._once(call, budget)
            except _HOPELESS as error:
                raise Error(f"the server cannot be called: {error}") from None
            except _NOT_SENT as error:
                why = f"the server cannot be reached: {_message(error)}"
            except TimeoutError:
                how = "did not answer" if budget.is_sending else "cannot be reached: it took no connection"
                why = f"the server {how} in time"
                budget.is_unsure |= budget.is_sending
            except (httpx2.TransportError, httpx2.DecodingError) as error:
                why = f"the connection to the server broke: {_message(error)}"
                budget.is_unsure = True
                if (for_good := await self._refused_unsent(call)) is not None:
                    raise for_good from None
            else:
                if 200 <= answer.status < 300:
                    return answer
                refused = self._with_advice(refusal(answer, call.about))
                if not codec.is_passing(answer.status):
                    raise refused
                why = str(refused)
                budget.is_unsure |= isinstance(refused, Indeterminate) or answer.status in _GATEWAY
                budget.hint = answer.retry_after
            if budget.is_unsure and not call.repeatable:
                raise Indeterminate(f"{why}; it may have succeeded: check before you repeat it")
            await budget.wait(why)

    def _with_advice(self, refused: Error) -> Error:
        """Add advice to an authentication error: the server gives no reason, but we know whether we sent a token."""
        if isinstance(refused, Unauthenticated):
            refused.args = (f"{refused}; {WRONG_TOKEN if self.has_token else NO_TOKEN}",)
        return refused

    @asynccontextmanager
    async def stream(
        self, path: str, headers: Mapping[str, str], *, quiet_seconds: float
    ) -> AsyncIterator[HttpResponse | httpx2.EventSource]:
        """Yield the events of the server, or the error response it sent instead."""
        timeout = httpx2.Timeout(quiet_seconds, connect=CONNECT_SECONDS)
        async with self._waiting.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.status_code == 200:
                yield httpx2.EventSource(response)
            else:
                yield HttpResponse(response.status_code, response.headers, await _whole(response))

    async def close(self) -> None:
        await self._quick.aclose()
        await self._waiting.aclose()

    async def _once(self, call: HttpRequest, budget: _RetryBudget) -> HttpResponse:
        budget.is_sending = False
        connections = self._waiting if call.wait_seconds else self._quick
        timeout = httpx2.Timeout(call.wait_seconds + ANSWER_SECONDS, connect=CONNECT_SECONDS)
        async with connections.stream(
            call.method,
            call.path,
            content=call.body,
            params=list(call.query) or None,
            headers=call.headers,
            timeout=timeout,
            extensions={"trace": budget.note},
        ) as response:
            return HttpResponse(response.status_code, response.headers, await _whole(response))

    async def _refused_unsent(self, call: HttpRequest) -> Error | None:
        """Return the error with which a server rejects a large body by its headers alone; None if it does not.

        A server that rejects a body midway closes the connection, and its response may be lost.
        """
        if call.body is None or len(call.body) <= LARGE_BODY:
            return None
        asking = {"content-length": str(len(call.body)), "expect": "100-continue"}
        try:
            async with self._quick.stream(
                call.method,
                call.path,
                content=_not_sent(),
                params=list(call.query) or None,
                headers={**call.headers, **asking},
                timeout=httpx2.Timeout(ASKING_SECONDS, connect=CONNECT_SECONDS),
            ) as response:
                answer = HttpResponse(response.status_code, response.headers, await _whole(response))
        except httpx2.TransportError:
            return None
        if answer.status < 400 or answer.status == NOT_ASKED_SO or codec.is_passing(answer.status):
            return None
        return refusal(answer, call.about)


class _RetryBudget:
    """The time budget of a call's attempts, with growing pauses and jitter."""

    def __init__(self, seconds: float) -> None:
        self._clock = asyncio.get_running_loop().time
        self._pauses = Pauses()
        self.until = self._clock() + seconds
        self.is_sending = False  # this attempt has a connection, and part of it may have reached the server
        self.is_unsure = False  # an attempt may have succeeded although its response was lost
        self.hint = 0.0

    async def note(self, step: str, _facts: object) -> None:
        """Record from the trace of the connection that sending has begun."""
        self.is_sending |= step.endswith("send_request_headers.started")

    async def wait(self, why: str) -> None:
        """Wait before the next attempt; if none is left, raise what is known of the earlier ones."""
        pause = max(self._pauses.next(), self.hint * random.uniform(1.0, 1.2))
        if self._clock() + pause >= self.until:
            raise Indeterminate(f"{why}; it may have succeeded: repeat it") if self.is_unsure else Unavailable(why)
        await asyncio.sleep(pause)
        self.hint = 0.0


def refusal(answer: HttpResponse, about: Mapping[str, object]) -> Error:
    """Return the error of a rejected call."""
    if 300 <= answer.status < 400:
        return Error(
            f"the server redirects (status {answer.status}): use the URL it redirects to, redirects are not followed"
        )
    return codec.rebuilt(codec.problem(answer.body), answer.status, about)


async def _not_sent() -> AsyncIterator[bytes]:
    """Yield a body that is never sent: the error makes the connection read the response, as after a disconnect."""
    raise httpcore2.WriteError
    yield b""


async def _whole(response: httpx2.Response) -> bytes:
    """Read the body, up to the size that an Interlock server would send."""
    pieces: list[bytes] = []
    size = 0
    async for piece in response.aiter_raw():
        size += len(piece)
        if size > LARGEST_ANSWER:
            raise TooLarge("the response of the server", size, LARGEST_ANSWER)
        pieces.append(piece)
    return b"".join(pieces)


def _connections(base: str, headers: Mapping[str, str], most: int) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=most, max_keepalive_connections=most, keepalive_expiry=IDLE_SECONDS)
    return httpx2.AsyncClient(base_url=base, headers=headers, limits=limits, verify=_trusted(), follow_redirects=False)


@cache
def _trusted() -> ssl.SSLContext:
    """Return the TLS context. Loading all certificates is slow, so it is done once."""
    return httpx2.create_ssl_context()


def checked_url(url: str) -> str:
    """Return the URL of a server; reject one with parts that it must not have."""
    unfit = Invalid(
        "the URL of a server is http://HOST:PORT or https://HOST, with or without a path: "
        f"{url.split('@')[-1].split('?')[0]!r} is not one",
        pointer="/server",
    )
    try:
        parts = urlsplit(url)
        has_place = bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise unfit from None
    if not has_place or not url.startswith(SCHEMES) or parts.query or parts.fragment:
        raise unfit
    if "@" in parts.netloc:
        raise Invalid("the URL of a server must not contain a user or password: use a token", pointer="/server")
    return url.rstrip("/")


def checked_token(token: str) -> str:
    """Return a token that is valid as one header value; reject any other text."""
    if not _TOKEN.fullmatch(token):
        raise Invalid(
            "token has characters other than visible ASCII: remove them, such as a line break at its end",
            pointer="/token",
        )
    return token


def _message(error: BaseException) -> str:
    return str(error) or type(error).__name__


class Server:
    """One server and a credential for it: requests with JSON bodies, lists, and the name to work under."""

    def __init__(self, url: str, token: str | None, retry_seconds: float) -> None:
        self.calls = Calls(url, token=token, retry_seconds=retry_seconds)
        self.pages = Pages(self._page)
        self._works_as: str | None = None
        self._is_known = token is None  # without a credential any name will do

    async def get(self, path: str, query: Query = (), *, wait_seconds: float = 0.0, **about: object) -> HttpResponse:
        return await self.calls.send(
            HttpRequest(method="GET", path=path, query=query, wait_seconds=wait_seconds, about=about)
        )

    async def send(
        self,
        method: str,
        path: str,
        body: bytes = b"{}",
        *,
        headers: Mapping[str, str] | None = None,
        wait_seconds: float = 0.0,
        repeatable: bool = True,
        about: Mapping[str, object] | None = None,
    ) -> HttpResponse:
        call = HttpRequest(
            method=method, path=path, body=body, headers={**JSON, **(headers or {})}, wait_seconds=wait_seconds,
            repeatable=repeatable, about=about or {},
        )  # fmt: skip
        return await self.calls.send(call)

    async def post(self, path: str, body: bytes = b"{}", **more: Any) -> HttpResponse:
        return await self.send("POST", path, body, **more)

    async def put(self, path: str, body: bytes, **more: Any) -> HttpResponse:
        return await self.send("PUT", path, body, **more)

    async def delete(self, path: str, **about: object) -> None:
        await self.calls.send(HttpRequest(method="DELETE", path=path, about=about))

    async def me(self) -> responses.Me:
        return codec.read((await self.get("/v1/me")).body, responses.Me)

    async def worker(self, name: str) -> str:
        """Return the worker name: a worker's credential sets it, and any other name is an instance of that worker."""
        if not self._is_known:
            self._works_as, self._is_known = (await self.me()).worker, True
        own = self._works_as
        if own is None or name == own or name.startswith(f"{own}/"):
            return name
        return f"{own}/{name}"

    async def _page(self, path: str, query: Query) -> bytes:
        job_id = path.split("/")[3] if path.startswith("/v1/jobs/") else ""
        return (await self.get(path, query, job_id=job_id)).body


class Pages:
    """Reads lists of one server page by page."""

    def __init__(self, fetch: Callable[[str, Query], Awaitable[bytes]]) -> None:
        self._fetch = fetch
        self._ends: OrderedDict[str, list[tuple[Any, str]]] = OrderedDict()

    async def all(self, path: str, item: Callable[[Raw], T], query: Query = ()) -> list[T]:
        """Yield every item, in the order of the list."""
        found: list[T] = []
        cursor: str | None = None
        while True:
            page = await self._page(path, [*query, ("limit", str(MAX_PAGE_SIZE))], cursor)
            found += map(item, page.items)
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def after(
        self,
        path: str,
        item: Callable[[Raw], T],
        at: Callable[[T], Any],
        place: Any,
        limit: int,
        query: Query = (),
        *,
        keep: Callable[[T], bool] = lambda _: True,
        size: int | None = None,
    ) -> list[T]:
        """Return up to `limit` items after a position; positions rise along the list, and None reads from the start.

        Reading begins at the last known page end before the position.
        """
        what = f"{path}?{query}"
        cursor = None if place is None else self._known(what, place)
        found: list[T] = []
        while True:
            page = await self._page(path, [*query, ("limit", str(size or limit))], cursor)
            items = [item(one) for one in page.items]
            cursor = page.next_cursor
            if items and cursor is not None:
                self._remember(what, at(items[-1]), cursor)
            found += [one for one in items if (place is None or at(one) > place) and keep(one)]
            if len(found) >= limit or cursor is None:
                return found[:limit]

    async def _page(self, path: str, query: Query, cursor: str | None) -> codec.Page:
        more = [] if cursor is None else [("cursor", cursor)]
        return codec.read(await self._fetch(path, [*query, *more]), codec.Page)

    def _known(self, what: str, place: Any) -> str | None:
        ends = self._ends.get(what, [])
        i = bisect_right(ends, place, key=lambda end: end[0])
        return ends[i - 1][1] if i else None

    def _remember(self, what: str, place: Any, cursor: str) -> None:
        ends = self._ends.setdefault(what, [])
        self._ends.move_to_end(what)
        i = bisect_right(ends, place, key=lambda end: end[0])
        if not i or ends[i - 1][0] != place:
            ends.insert(i, (place, cursor))
        if len(ends) > MAX_ENDS:
            del ends[0]
        while len(self._ends) > MAX_LISTS:
            self._ends.popitem(last=False)


async def each(
    parts: Sequence[bytes | Rejected],
    about: Sequence[Mapping[str, object]],
    send: Callable[[bytes], Awaitable[HttpResponse]],
    value: Callable[[Raw], T],
) -> list[T | Rejected]:
    """Send items and return a result for each. An item that fails the whole call is isolated by sending halves."""
    answers: dict[int, T | Rejected] = {}
    good: list[tuple[int, bytes]] = []
    for i, part in enumerate(parts):
        if isinstance(part, Rejected):
            answers[i] = part
        else:
            good.append((i, part))

    async def ask(some: Sequence[tuple[int, bytes]]) -> None:
        try:
            answer = await send(codec.joined("items", [part for _, part in some]))
        except (Malformed, Invalid, TooLarge) as error:
            if len(some) == 1:
                answers[some[0][0]] = Rejected(error)
                return
            await ask(some[: len(some) // 2])
            await ask(some[len(some) // 2 :])
            return
        items = codec.read(answer.body, codec.Page).items
        for (i, _), item in zip(some, items, strict=True):
            problem = codec.read(item, codec.ItemError).error
            if problem is None:
                answers[i] = value(item)
            else:
                answers[i] = Rejected(codec.rebuilt(problem, int(problem.get("status", 0)), about[i]))

    for some in codec.gathered([part for _, part in good]):
        await ask([good[i] for i in some])
    return [answers[i] for i in range(len(parts))]


async def together(calls: Sequence[Awaitable[T]]) -> list[T | Rejected]:
    """Await all calls, a limited number at a time. Return rejections as results; raise if there is no response."""
    turns = asyncio.Semaphore(BATCH_SIZE)

    async def in_turn(call: Awaitable[T]) -> T | Rejected:
        async with turns:
            try:
                return await call
            except Unavailable:
                raise
            except Error as error:
                return Rejected(error)

    answers: list[T | Rejected] = []
    for answer in await asyncio.gather(*map(in_turn, calls), return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer
        answers.append(answer)
    return answers


async def polled(look: Callable[[float], Awaitable[T | None]], seconds: float) -> T | None:
    """Return the result if it appears within that time, by several long polls."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while True:
        began = clock()
        poll = max(min(deadline - began, MAX_POLL_SECONDS), 0.0)
        found = await look(poll)
        left = deadline - clock()
        if found is not None or left <= 0:
            return found
        if clock() - began < min(poll, SHORTEST_POLL_SECONDS):  # a server that is stopping does not wait
            await asyncio.sleep(min(left, SHORTEST_POLL_SECONDS * random.uniform(0.5, 1.0)))


async def follow(
    calls: Calls,
    path: str,
    event: str,
    decode: Callable[[bytes], T],
    number: Callable[[T], int],
    *,
    after: int,
    about: Mapping[str, object],
) -> AsyncGenerator[T, None]:
    """Yield each item once, until the stream ends; raise `Unavailable` if nothing arrives for too long."""
    clock = asyncio.get_running_loop().time
    heard, pauses, why = clock(), Pauses(), "the stream broke"
    while True:
        hint = 0.0
        try:
            async with calls.stream(path, {"last-event-id": str(after)}, quiet_seconds=QUIET_SECONDS) as opened:
                if isinstance(opened, HttpResponse):
                    error = refusal(opened, about)
                    if not codec.is_passing(opened.status):
                        raise error
                    why, hint = str(error), opened.retry_after
                else:
                    async for sent in opened:
                        heard = clock()
                        pauses.reset()
                        if sent.event == "end":
                            return
                        if sent.event != event:
                            continue
                        row = decode(sent.data.encode())
                        if number(row) > after:
                            after = number(row)
                            yield row
        except httpx2.TransportError as error:
            why = f"the connection to the server broke: {str(error) or type(error).__name__}"
        if clock() - heard > calls.retry_seconds:
            raise Unavailable(why)
        await pauses.wait(hint)
