"""Streamable HTTP: every message of a client is one request, with the credentials of the native API."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from interlock.api import auth, body
from interlock.api.body import Disconnected
from interlock.api.endpoint import TRAIL, Endpoint, refusal, send_answer
from interlock.api.headers import Headers
from interlock.api.problems import Refusal
from interlock.api.routes import AROUND_CHECKPOINT, JSON, Receive
from interlock.api.service import Service, Trail
from interlock.domain.principal import Principal
from interlock.errors import Fatal, Malformed
from interlock.faces.mcp.api_client import InProcessApi
from interlock.faces.mcp.arguments import Message, message
from interlock.faces.mcp.server import server_for
from interlock.wire import new_id

PATH: Final = "/mcp"
AROUND_TOOL: Final = 64 * 1024  # a message around the largest body of a tool
SESSION: Final = "mcp-session-id"
PASSED_ON: Final = ("authorization", "traceparent")
CANCELLED: Final = -32800

Key = tuple[str, str, str, str]


class McpEndpoint(Endpoint):
    """Answers each message on its own. A session is nothing but a name that a client gives its requests,
    by which it can take one back; so any server can answer any request."""

    def __init__(self, service: Service) -> None:
        super().__init__(service, PATH, [])
        self._under_way: dict[Key, asyncio.Task[None]] = {}

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        trail: Trail = scope[TRAIL]
        trail.route = PATH
        sending = _Sending(send)
        try:
            headers = trail.headers
            who = await self._caller(scope, headers, trail)
            given = await self._message(headers, receive, trail)
            with trail.seat.parked():  # the API request below is counted separately
                await self._converse(scope, headers, who, given, receive, sending)
        except Disconnected:
            trail.status = 499
        except Exception as error:
            if isinstance(error, Fatal):
                self._service.give_up(error)
            answer = refusal(error, trail)
            if not sending.has_begun:
                await send_answer(answer, send)

    async def _caller(self, scope: Any, headers: Headers, trail: Trail) -> Principal:
        who = await auth.authenticate(self._service, headers)
        trail.tenant, trail.actor = who.tenant, who.actor
        trail.seat.belongs_to(who.tenant)
        if scope["method"] != "POST":
            raise Refusal("method_not_allowed", "this path takes POST", headers={"allow": "POST"})
        return who

    async def _message(self, headers: Headers, receive: Receive, trail: Trail) -> Message:
        body.check_media_type(headers)
        largest = self._service.engine.limits.checkpoint + AROUND_CHECKPOINT + AROUND_TOOL
        raw = await self._bytes(headers, receive, trail, limit=largest)
        try:
            return message(raw.decode())
        except UnicodeDecodeError:
            raise Malformed("the message is not UTF-8") from None

    async def _converse(
        self, scope: Any, headers: Headers, who: Principal, given: Message, receive: Receive, sending: _Sending
    ) -> None:
        session = headers.get(SESSION) or ""
        if given.method == "initialize":
            sending.headers[SESSION] = new_id()
        if given.cancels is not None and (taken_back := self._under_way.get(_key(who, session, given.cancels))):
            taken_back.cancel()
        passed_on = {name: value for name in PASSED_ON if (value := headers.get(name)) is not None}
        native = InProcessApi(self._service, headers=passed_on, peer=(scope.get("client") or ("",))[0])
        answering = asyncio.create_task(_answer(server_for(native, who.roles), scope, given, sending))
        leaving = asyncio.create_task(_gone(receive))
        key = _key(who, session, given.id) if session and given.id is not None else None
        if key is not None:
            self._under_way.setdefault(key, answering)
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            has_left = not sending.has_ended and not answering.done()
        finally:
            if key is not None and self._under_way.get(key) is answering:
                del self._under_way[key]
            answering.cancel()
            leaving.cancel()
            (fault, _) = await asyncio.gather(answering, leaving, return_exceptions=True)
            await native.settled()
        if has_left:
            raise Disconnected
        if isinstance(fault, asyncio.CancelledError):
            await sending.cancelled(given.id)
        elif fault is not None:
            raise fault


async def _answer(server: Any, scope: Any, given: Message, sending: _Sending) -> None:
    """The library's part. It keeps nothing from one message to the next, so it lives as long as one."""
    waits = asyncio.Event()
    text = given.text.encode()
    texts = iter([text])

    async def receive() -> dict[str, Any]:
        for text in texts:
            return {"type": "http.request", "body": text, "more_body": False}
        await waits.wait()
        raise Disconnected  # unreachable: a disconnect cancels this task

    manager = StreamableHTTPSessionManager(
        server, stateless=True, json_response=True, max_request_body_size=len(text) + 1
    )
    async with manager.run():
        await manager.handle_request(dict(scope), receive, sending)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _key(who: Principal, session: str, id: str) -> Key:
    return (who.tenant, who.actor, session, id)


class _Sending:
    """A response being sent: its progress and its extra headers."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self.has_begun = False
        self.has_ended = False
        self.headers: dict[str, str] = {}

    async def __call__(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            more = [(name.encode(), value.encode()) for name, value in self.headers.items()]
            message = {**message, "status": int(message["status"]), "headers": [*message["headers"], *more]}
        else:
            self.has_ended = not message.get("more_body", False)
        await self._send(message)

    async def cancelled(self, id: str | None) -> None:
        """Send a response to a request that its client cancelled: HTTP requires one, although the client ignores it."""
        if self.has_begun:
            return
        error = {"code": CANCELLED, "message": "the request was cancelled"}
        content = msgspec.json.encode({"jsonrpc": "2.0", "id": msgspec.Raw((id or "null").encode()), "error": error})
        head = [(b"content-type", JSON.encode()), (b"content-length", str(len(content)).encode())]
        await self({"type": "http.response.start", "status": 200, "headers": head})
        await self({"type": "http.response.body", "body": content, "more_body": False})
