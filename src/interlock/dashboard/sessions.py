"""Who is signed in: a sealed cookie that carries the credential, so that any server with the key knows its bearer."""

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
LONGEST_SECONDS: Final = 24 * 3600.0
RENEW_SECONDS: Final = 60.0
MOST_ENDED: Final = 10_000
LONGEST_COOKIE: Final = 3_800  # browsers drop what is longer than 4096 with its name and flags
_SEAL: Final = {"alg": "dir", "enc": "A256GCM"}


class Session(msgspec.Struct, frozen=True):
    """One bearer's stay; a renewed cookie is of the same session."""

    id: str
    credential: str
    began_at: float
    used_at: float

    def __repr__(self) -> str:
        return "Session()"


class Sessions:
    """Seals and opens cookies; the credential inside is checked anew at every request.

    Nothing is kept but who signed out here: other servers let such a cookie go when it is idle, or its token revoked.
    """

    def __init__(self, key: bytes | None = None, *, seconds: Callable[[], float] = time.time) -> None:
        self._seconds = seconds
        secret = key or secrets.token_bytes(32)
        self._form_key = _derived(secret, b"forms")
        self._seal_key = _derived(secret, b"cookies")
        self._ended: dict[str, float] = {}  # until when; in the order they were ended

    def begin(self, credential: str) -> str:
        """A new cookie for a credential that was found good."""
        now = self._seconds()
        return self._sealed(Session(secrets.token_urlsafe(16), credential, now, now))

    def read(self, cookie: str | None) -> Session | None:
        """Whose cookie this is, if it is one of ours and still counts."""
        session = None if cookie is None or len(cookie) > LONGEST_COOKIE else self._opened(cookie)
        if session is None or session.id in self._ended:
            return None
        now = self._seconds()
        is_idle = now - session.used_at >= IDLE_SECONDS
        return None if is_idle or now - session.began_at >= LONGEST_SECONDS else session

    def renewed(self, session: Session) -> str | None:
        """A fresh cookie for a session that is being used; None while the old one is fresh enough."""
        now = self._seconds()
        if now - session.used_at < RENEW_SECONDS:
            return None
        return self._sealed(msgspec.structs.replace(session, used_at=now))

    def end(self, session: Session) -> None:
        now = self._seconds()
        while self._ended and (len(self._ended) >= MOST_ENDED or next(iter(self._ended.values())) <= now):
            del self._ended[next(iter(self._ended))]
        self._ended[session.id] = now + LONGEST_SECONDS

    def form_token(self, session: Session | None) -> str:
        """What every form of a session carries, and no other site can know."""
        return hmac.new(self._form_key, (session.id if session else "").encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, given: str | None, session: Session | None) -> bool:
        return hmac.compare_digest((given or "").encode("utf-8", "replace"), self.form_token(session).encode())

    def _sealed(self, session: Session) -> str:
        from joserfc import jwe

        cookie = jwe.encrypt_compact(_SEAL, msgspec.json.encode(session), self._jose_key())
        if len(cookie) > LONGEST_COOKIE:
            raise Invalid("this credential is too long for a cookie; sign in with a token made here", pointer="/token")
        return cookie

    def _opened(self, cookie: str) -> Session | None:
        from joserfc import jwe
        from joserfc.errors import JoseError

        try:
            plain = jwe.decrypt_compact(cookie, self._jose_key(), algorithms=list(_SEAL.values())).plaintext
            return msgspec.json.decode(plain or b"", type=Session)
        except (JoseError, ValueError, msgspec.DecodeError):
            return None

    def _jose_key(self) -> Any:
        # It loads a cryptography library, which only those who sign in should wait for.
        from joserfc.jwk import OctKey

        return OctKey.import_key(self._seal_key)


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hmac.digest(secret, b"interlock dashboard " + purpose, "sha256")
