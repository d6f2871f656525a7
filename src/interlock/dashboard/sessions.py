"""Sessions: an encrypted cookie with the credential, readable by every server with the key."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from interlock.errors import Invalid

IDLE_SECONDS: Final = 30 * 60.0
MAX_SESSION_SECONDS: Final = 24 * 3600.0
RENEW_SECONDS: Final = 60.0
MAX_ENDED: Final = 10_000
MAX_COOKIE_LENGTH: Final = 3_800  # browsers drop cookies over 4096 bytes, name and flags included
_JWE_HEADER: Final = {"alg": "dir", "enc": "A256GCM"}


class Session(msgspec.Struct, frozen=True):
    """A signed-in caller; a renewed cookie belongs to the same session."""

    id: str
    credential: str
    started_at: float
    used_at: float

    def __repr__(self) -> str:
        return "Session()"


class Sessions:
    """Encrypts and decrypts cookies; the credential inside is authenticated at every request.

    Only sign-outs are remembered, per process: other servers end such a session when it is idle or its token revoked.
    """

    def __init__(self, key: bytes | None = None, *, seconds: Callable[[], float] = time.time) -> None:
        self._seconds = seconds
        secret = key or secrets.token_bytes(32)
        self._form_key = _derived(secret, b"forms")
        self._cookie_key = _derived(secret, b"cookies")
        self._ended: dict[str, float] = {}  # session id → when it can be forgotten, oldest first

    def begin(self, credential: str) -> str:
        """Return a new cookie for a valid credential."""
        now = self._seconds()
        return self._encrypt(Session(secrets.token_urlsafe(16), credential, now, now))

    def read(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie, or None if it is invalid, expired or signed out."""
        session = None if cookie is None or len(cookie) > MAX_COOKIE_LENGTH else self._decrypt(cookie)
        if session is None or session.id in self._ended:
            return None
        now = self._seconds()
        is_idle = now - session.used_at >= IDLE_SECONDS
        return None if is_idle or now - session.started_at >= MAX_SESSION_SECONDS else session

    def renewed(self, session: Session) -> str | None:
        """Return a fresh cookie for a session in use; None while the old one is recent."""
        now = self._seconds()
        if now - session.used_at < RENEW_SECONDS:
            return None
        return self._encrypt(msgspec.structs.replace(session, used_at=now))

    def end(self, session: Session) -> None:
        now = self._seconds()
        while self._ended and (len(self._ended) >= MAX_ENDED or next(iter(self._ended.values())) <= now):
            del self._ended[next(iter(self._ended))]
        self._ended[session.id] = now + MAX_SESSION_SECONDS

    def form_token(self, session: Session | None) -> str:
        """Return the token that protects the forms of a session against cross-site requests."""
        return hmac.new(self._form_key, (session.id if session else "").encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, given: str | None, session: Session | None) -> bool:
        return hmac.compare_digest((given or "").encode("utf-8", "replace"), self.form_token(session).encode())

    def _encrypt(self, session: Session) -> str:
        from joserfc import jwe

        cookie = jwe.encrypt_compact(_JWE_HEADER, msgspec.json.encode(session), self._jose_key())
        if len(cookie) > MAX_COOKIE_LENGTH:
            raise Invalid(
                "credential is too long for a cookie: sign in with a token created by this server", pointer="/token"
            )
        return cookie

    def _decrypt(self, cookie: str) -> Session | None:
        from joserfc import jwe
        from joserfc.errors import JoseError

        try:
            plain = jwe.decrypt_compact(cookie, self._jose_key(), algorithms=list(_JWE_HEADER.values())).plaintext
            return msgspec.json.decode(plain or b"", type=Session)
        except (JoseError, ValueError, msgspec.DecodeError):
            return None

    def _jose_key(self) -> Any:
        # Imported late: it loads a cryptography library, which only signing in needs.
        from joserfc.jwk import OctKey

        return OctKey.import_key(self._cookie_key)


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hmac.digest(secret, b"interlock dashboard " + purpose, "sha256")
