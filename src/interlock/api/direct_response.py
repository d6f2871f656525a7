"""One request and its response, as the HTTP server below the application sees them."""

from __future__ import annotations

from typing import Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

DIRECT_RESPONSE: Final = "interlock.cycle"  # in the scope, where our own server is below


class DirectResponse(RequestResponseCycle):
    """A cycle that can do in one step what ASGI does in several messages."""

    def hold(self, body: bytes) -> None:
        """Keep a body of which all is here."""
        self.body = body  # type: ignore[assignment]  # it is only ever read or replaced
        self.more_body = False
        self.message_event.set()

    def take_body(self) -> bytes | None:
        """Return the body if all of it has arrived. A later `receive` then waits for the disconnect."""
        if self.more_body or self.disconnected:
            return None
        body = bytes(self.body)
        self.body = bytearray()
        self.message_event.clear()
        self.flow.resume_reading()
        return body

    @property
    def is_clear(self) -> bool:
        """Whether a response can be written directly: the request is complete and the write buffer is not full."""
        return not (self.more_body or self.disconnected or self.response_started or self.flow.write_paused)

    def answer(self, status: int, headers: bytes, body: bytes) -> None:
        """Write status, headers and body in one packet. Requires `is_clear`."""
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        if self.scope["method"] == "HEAD":
            body = b""
        usual = b"".join([b"%b: %b\r\n" % one for one in self.default_headers])
        self.transport.write(b"%b%b%b\r\n%b" % (STATUS_LINE[status], usual, headers, body))
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
