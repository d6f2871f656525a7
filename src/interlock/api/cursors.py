"""Pagination cursors, authenticated so that only the same list of the same tenant accepts them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

import msgspec

from interlock.errors import Invalid

_SEAL: Final = 16
_MAX_LENGTH: Final = 1000

Place = list[int | str]


class Cursors:
    """Signs positions in lists with one key, the same on every server of a deployment."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def signing_key(self, tenant: str, what: str, place: Place) -> str:
        body = msgspec.json.encode(place)
        return base64.urlsafe_b64encode(self._mac(tenant, what, body) + body).rstrip(b"=").decode()

    def open(self, tenant: str, what: str, cursor: str | None) -> Place | None:
        """Return the position; raise Invalid for a forged cursor, or one of another tenant or list."""
        if cursor is None:
            return None
        try:
            if len(cursor) > _MAX_LENGTH:
                raise ValueError
            sealed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
            mac, body = sealed[:_SEAL], sealed[_SEAL:]
            if not hmac.compare_digest(mac, self._mac(tenant, what, body)):
                raise ValueError
            return msgspec.json.decode(body, type=Place)
        except (ValueError, binascii.Error, msgspec.DecodeError):
            raise Invalid("this is not a cursor of this list; start without one", pointer="/cursor") from None

    def _mac(self, tenant: str, what: str, body: bytes) -> bytes:
        given = msgspec.json.encode([tenant, what]) + b"\n" + body
        return hmac.new(self._key, given, hashlib.sha256).digest()[:_SEAL]
