"""Cache of request heads that a connection repeats: parsed and checked once, then recognized by their bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from interlock.api.headers import Headers
from interlock.api.problems import Refusal

KNOWN: Final = "interlock.headers"  # set in the scope if the head was cached
MAX_HEADS: Final = 4  # per connection; most callers have one
LARGEST_HEAD: Final = 2048

_BREAK: Final = b"\r\n"
_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: ([0-9]{1,9})(?=\r|\Z)", re.IGNORECASE)
# Only plain paths without a query; every other request is parsed in full.
_LINE: Final = re.compile(rb"(POST|PUT|PATCH|DELETE|GET) ((?:/[A-Za-z0-9_~-]+)+) HTTP/1\.1")
_UNUSUAL: Final = ("transfer-encoding", "upgrade", "expect", "proxy-connection")


class ParsedHead(NamedTuple):
    """A request that arrived in one piece."""

    method: str
    path: bytes
    raw_headers: list[tuple[bytes, bytes]]
    headers: Headers
    body: bytes


class HeadCache:
    """Heads this connection has sent before. Compares exact bytes; any difference means a full parse.

    Only the path and the length of the body may differ.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[list[tuple[bytes, bytes]], Headers]] = {}

    def whole(self, data: bytes) -> ParsedHead | None:
        """Return the request if these bytes are all of it and its head is cached."""
        line, end = data.find(_BREAK), data.find(_END)
        length = _LENGTH.search(data, line, end)
        if length is None:
            return None
        known = self._known.get(data[line : length.start()] + data[length.end() : end])
        if known is None or len(data) != end + len(_END) + int(length[1]):
            return None
        asked = _LINE.fullmatch(data, 0, line)
        if asked is None:
            return None
        raw_headers, headers = known
        return ParsedHead(
            asked[1].decode(), asked[2], [*raw_headers, (b"content-length", length[1])],
            headers.with_length(length[1].decode()), data[end + len(_END) :],
        )  # fmt: skip

    def remember(self, data: bytes, raw_headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Cache the head of a request that arrived in one piece and was parsed completely, if it is an ordinary one."""
        line, end = data.find(_BREAK), data.find(_END)
        head = data[line:end]
        # Require one CRLF per header and no bare LF, which only the parser accepts as a line break.
        if len(head) > LARGEST_HEAD or not head.count(b"\n") == head.count(_BREAK) == len(raw_headers):
            return
        length = _LENGTH.search(head)
        if length is None or len(data) != end + len(_END) + int(length[1]):
            return
        head = head[: length.start()] + head[length.end() :]
        if head in self._known:
            return
        try:
            headers = Headers(raw_headers)
        except Refusal:
            return
        if any(headers.get(name) is not None for name in _UNUSUAL) or not _stays_open(headers):
            return
        if len(self._known) >= MAX_HEADS:
            del self._known[next(iter(self._known))]
        others = [one for one in raw_headers if one[0] != b"content-length"]
        self._known[head] = (others, headers)


def _stays_open(headers: Headers) -> bool:
    return (headers.get("connection") or "keep-alive").lower() == "keep-alive"
