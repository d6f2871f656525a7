"""Outbound HTTP: every request to a caller-supplied URL goes through one resolver, one address check, one deadline.

The client connects to the address that was checked; the name is used for the Host header and for TLS. There are no
proxies, redirects or cookies, and no connection is reused.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import httpx2

from interlock.domain.webhook import WebhookResponse
from interlock.domain.webhook_url import Allowance, Destination, admitted, admitted_mail
from interlock.engine.dns import Dns
from interlock.errors import Invalid, Unavailable

DEADLINE_SECONDS: Final = 10.0
ANSWER_BYTES: Final = 4 * 1024
DOCUMENT_BYTES: Final = 256 * 1024
OURS: Final = ""  # the owner of names from the settings; no tenant has this name
MAX_ADDRESSES: Final = 3
USER_AGENT: Final = "interlock-webhooks"

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Stage = Callable[[str], None]

_STAGES: Final = {"connection.connect_tcp.complete": "connected", "http11.send_request_body.complete": "sent"}


class Unreachable(Exception):
    """No response arrived; the reason is one word that reveals nothing about the address."""


class OutboundResponse(NamedTuple):
    """A response, truncated at the limit and not decoded."""

    status_code: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool


class OutboundClient:
    """HTTP client with an address check and a deadline for every request."""

    def __init__(
        self,
        allowance: Allowance | None = None,
        *,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._allowance = allowance or Allowance()
        self._resolve = resolve
        self._deadline = deadline_seconds
        self._tls = tls
        self._transport: httpx2.AsyncHTTPTransport | None = None
        self._making = asyncio.Lock()
        self._lookups = Dns()

    async def admit(self, url: str, field: str = "url", *, owner: str = OURS) -> None:
        """Reject a URL that resolves to a forbidden address; a name that does not resolve yet is accepted."""
        destination = admitted(url, self._allowance, field)
        try:
            async with asyncio.timeout(self._deadline):
                await self._addresses(destination, owner)
        except (TimeoutError, Unreachable) as error:
            if str(error) == "destination_refused":
                raise Invalid(f"{field} refers to a host that is not public", pointer=f"/{field}") from None

    async def admit_mail(self, host: str, port: int, *, owner: str = OURS) -> None:
        """Reject a mail server that resolves to a forbidden address; a name that does not resolve yet is accepted."""
        admitted_mail(host, port, self._allowance)
        try:
            await self.mail_servers(host, port, owner=owner)
        except Unreachable as error:
            if str(error) == "destination_refused":
                raise Invalid("host refers to a host that is not public", pointer="/host") from None

    async def mail_servers(self, host: str, port: int, *, owner: str = OURS) -> Sequence[str]:
        """Return the checked addresses of a mail server."""
        try:
            destination = admitted_mail(host, port, self._allowance)
            async with asyncio.timeout(self._deadline):
                return await self._addresses(destination, owner)
        except Invalid:
            raise Unreachable("destination_refused") from None
        except TimeoutError:
            raise Unreachable("timeout") from None

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The trusted certificates; None means those of the system."""
        return self._tls

    async def post(
        self, url: str, headers: Mapping[str, str], content: bytes, at: Stage | None = None, *, owner: str = OURS
    ) -> WebhookResponse:
        """Send a POST and return its outcome; errors are part of the result."""
        try:
            answer = await self._request("POST", url, headers, content, ANSWER_BYTES, at, owner)
        except Unreachable as error:
            return WebhookResponse(error=str(error))
        return WebhookResponse(answer.status_code, retry_after_seconds=_seconds(answer.headers.get("retry-after", "")))

    async def fetch(self, url: str, *, limit: int = DOCUMENT_BYTES) -> bytes:
        """Return a small document completely; any status but 200 is an error."""
        try:
            answer = await self._request("GET", url, {"accept": "application/json"}, None, limit)
        except Unreachable as error:
            raise Unavailable(f"{url} cannot be fetched: {error}") from None
        if answer.status_code != 200 or not answer.whole:
            why = f"it answered {answer.status_code}" if answer.whole else f"it has more than {limit} bytes"
            raise Unavailable(f"{url} cannot be fetched: {why}")
        return answer.body

    async def call(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None, *, limit: int
    ) -> OutboundResponse:
        """Return the response to a request; no response, or one above the limit, raises Unavailable."""
        try:
            answer = await self._request(method, url, headers, content, limit)
        except Unreachable as error:
            raise Unavailable(f"{url} cannot be reached: {error}") from None
        if not answer.whole:
            raise Unavailable(f"{url} cannot be used: its response has more than {limit} bytes")
        return answer

    async def close(self) -> None:
        self._lookups.close()
        if self._transport is not None:
            await self._transport.aclose()
            self._transport = None

    async def _request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        content: bytes | None,
        limit: int,
        at: Stage | None = None,
        owner: str = OURS,
    ) -> OutboundResponse:
        try:
            destination = admitted(url, self._allowance)
        except Invalid:
            raise Unreachable("destination_refused") from None
        await self._wire()
        try:
            # One deadline for the whole request: a receiver that sends a byte now and then never hits a read timeout.
            async with asyncio.timeout(self._deadline):
                addresses = await self._addresses(destination, owner)
                for i, address in enumerate(addresses, 1):
                    try:
                        return await self._ask(method, destination, address, headers, content, limit, at)
                    except httpx2.ConnectError:
                        if i == len(addresses):
                            raise
        except (TimeoutError, httpx2.TimeoutException):
            raise Unreachable("timeout") from None
        except httpx2.ConnectError:
            raise Unreachable("cannot_connect") from None
        except httpx2.TransportError:
            raise Unreachable("broken_answer") from None
        raise Unreachable("cannot_resolve")

    async def _addresses(self, destination: Destination, owner: str) -> Sequence[str]:
        """Resolve a name; reject it if any address is not public, even if another one would be used."""
        if destination.address is not None:
            addresses: Sequence[str] = [destination.host]
        else:
            try:
                addresses = await self._looked_up(destination.host, destination.port, owner)
            except (OSError, UnicodeError):
                raise Unreachable("cannot_resolve") from None
        if not all(self._allowance.permits(destination, address) for address in addresses):
            raise Unreachable("destination_refused")
        return addresses[:MAX_ADDRESSES]

    async def _ask(
        self,
        method: str,
        destination: Destination,
        address: str,
        headers: Mapping[str, str],
        content: bytes | None,
        limit: int,
        at: Stage | None,
    ) -> OutboundResponse:
        extensions: dict[str, Any] = {
            "sni_hostname": destination.host,
            "target": destination.target.encode(),
            "timeout": dict.fromkeys(("connect", "read", "write", "pool"), self._deadline),
        }
        if at is not None:
            extensions["trace"] = _tracer(at)
        host = f"[{address}]" if ":" in address else address
        request = httpx2.Request(
            method,
            f"{destination.scheme}://{host}:{destination.port}/",
            headers={"host": destination.authority, "user-agent": USER_AGENT, "accept-encoding": "identity", **headers},
            content=content,
            extensions=extensions,
        )
        response = await (await self._wire()).handle_async_request(request)
        body = b""
        try:
            async for part in response.aiter_raw():
                body += part
                if len(body) > limit:
                    break
        finally:
            await response.aclose()
        return OutboundResponse(response.status_code, response.headers, body[:limit], len(body) <= limit)

    async def _wire(self) -> httpx2.AsyncHTTPTransport:
        """Return a bare transport: unlike a client it has no cookies or redirects and ignores the environment."""
        async with self._making:
            if self._transport is None:
                # Loading the system certificates is slow and would block the event loop.
                tls = self._tls if self._tls is not None else await asyncio.to_thread(ssl.create_default_context)
                self._transport = httpx2.AsyncHTTPTransport(
                    verify=tls,
                    trust_env=False,
                    http2=False,
                    limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
                )
            return self._transport

    async def _looked_up(self, host: str, port: int, owner: str) -> Sequence[str]:
        if self._resolve is not None:
            return await self._resolve(host, port)
        return await self._lookups.addresses(host, port, owner=owner)


def _tracer(at: Stage) -> Callable[[str, Any], Awaitable[None]]:
    async def trace(event: str, _info: Any) -> None:
        if event in _STAGES:
            at(_STAGES[event])

    return trace


def _seconds(text: str) -> float | None:
    """Parse a Retry-After in seconds; dates are ignored."""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 9 else None
