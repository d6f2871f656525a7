"""One request and its answer, as the server below the application has them."""

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
        """The body, if all of it has arrived; whoever receives afterwards waits for the caller to go away."""
        if self.more_body or self.disconnected:
            return None
        body = bytes(self.body)
        self.body = bytearray()
        self.message_event.clear()
        self.flow.resume_reading()
        return body

    @property
    def is_clear(self) -> bool:
        """Whether nothing stands between an answer and its reader: all was sent, and what went out was read."""
        return not (self.more_body or self.disconnected or self.response_started or self.flow.write_paused)

    def answer(self, status: int, headers: bytes, body: bytes) -> None:
        """Send a whole answer at once, which takes one packet instead of two; only where the way is clear."""
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
