"""Request headers. A repeated header that must be unique is rejected."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from interlock.api.problems import Refusal
from interlock.errors import Invalid, Malformed

# If one of these is repeated, two parsers could read different requests.
SINGLE: Final = frozenset(
    {"authorization", "content-encoding", "content-length", "content-range", "content-type", "host",
     "idempotency-key", "if-match", "interlock-fence", "interlock-link", "last-event-id", "origin", "range",
     "sec-fetch-site", "transfer-encoding"}
)  # fmt: skip
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ETAG: Final = re.compile(r'"(0|[1-9][0-9]{0,17})"')


class Headers:
    """The headers of one request."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[str, str] = {}
        for name_bytes, value_bytes in raw:
            name, value = name_bytes.decode("latin-1"), value_bytes.decode("latin-1")
            if name in self._values:
                if name in SINGLE:
                    raise Refusal("bad_request", f"the header {name} came twice", close=True)
                value = f"{self._values[name]}, {value}"
            self._values[name] = value

    def get(self, name: str) -> str | None:
        return self._values.get(name)

    @property
    def traceparent(self) -> str | None:
        """Return the W3C trace context, or None if it is malformed."""
        value = self.get("traceparent")
        return value if value is not None and _TRACEPARENT.fullmatch(value) else None

    @property
    def request_id(self) -> str | None:
        value = self.get("x-request-id")
        return value if value is not None and _REQUEST_ID.fullmatch(value) else None

    @property
    def length(self) -> int | None:
        """Return the declared length of the body; the HTTP parser has checked that it is a number."""
        value = self.get("content-length")
        return None if value is None else int(value)

    @property
    def has_body(self) -> bool:
        return self.get("transfer-encoding") is not None or self.get("content-length") not in (None, "0")

    def check_framing(self, http_version: str) -> None:
        """Reject framing that two parsers could read differently, which would allow request smuggling."""
        coding = self.get("transfer-encoding")
        if coding is None:
            return
        if coding.strip().lower() != "chunked" or http_version != "1.1":
            raise Refusal("bad_request", "the only transfer coding is chunked", close=True)
        if self.get("content-length") is not None:
            raise Refusal("bad_request", "a body is framed in one way, not two", close=True)

    def idempotency_key(self, of_body: str | None = None) -> str | None:
        """Return the key from the header or the body; reject two that differ."""
        of_header = _utf8(self.get("idempotency-key"))
        if None not in (of_header, of_body) and of_header != of_body:
            raise Invalid("header and body have different idempotency keys", pointer="/idempotency_key")
        return of_body if of_header is None else of_header

    def if_match(self) -> int | None:
        """Return the version that the caller expects, or None for any; a foreign ETag matches no version."""
        value = self.get("if-match")
        if value is None or value.strip() == "*":
            return None
        if found := _ETAG.fullmatch(value.strip()):
            return int(found[1])
        if re.fullmatch(r'(W/)?"[^"]*"', value.strip()):
            return 0  # no job has version 0
        raise Malformed('If-Match takes one ETag, such as "3"')

    @property
    def wants_link(self) -> bool:
        """Return whether the response may contain an approval link; requests on behalf of an agent opt out."""
        return (self.get("interlock-link") or "").strip().lower() != "none"

    def fence(self) -> int:
        """Return the fence of an upload, which is in a header because the body is the file."""
        value = self.get("interlock-fence")
        if value is None or not re.fullmatch(r"[0-9]{1,19}", value) or int(value) >= 2**63:
            raise Invalid("the header Interlock-Fence must be the fence of the lease", pointer="/fence")
        return int(value)


NO_HEADERS: Final = Headers(())


def _utf8(value: str | None) -> str | None:
    """Decode a header as UTF-8; keep it unchanged if it is not valid UTF-8."""
    if value is None:
        return None
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value
