"""Sessions: an encrypted cookie with the credential, readable by every server with the key."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from interlock.engine.sign_in import Flow
from interlock.errors import Invalid

IDLE_SECONDS: Final = 30 * 60.0
MAX_SESSION_SECONDS: Final = 24 * 3600.0
RENEW_SECONDS: Final = 60.0
SIGN_IN_SECONDS: Final = 10 * 60.0
MAX_COOKIE_LENGTH: Final = 3_800  # browsers drop cookies over 4096 bytes, name and flags included
T = TypeVar("T")
_JWE_HEADER: Final = {"alg": "dir", "enc": "A256GCM"}


class Session(msgspec.Struct, frozen=True):
    """A signed-in caller; a renewed cookie belongs to the same session."""

    id: str
    credential: str  # empty if a person signed in: the row in the database has the roles
    started_at: float
    used_at: float

    def __repr__(self) -> str:
        return "Session()"


class PendingSignIn(msgspec.Struct, frozen=True):
    """A sign-in that a browser has started at the identity provider."""

    flow: Flow
    replaces: str | None  # the session that ends when this one begins: its cookie is not sent with the response
    started_at: float

    def __repr__(self) -> str:
        return "PendingSignIn()"


class Sessions:
    """Encrypts and decrypts cookies; the credential inside is authenticated at every request.

    The ID is the secret of a row in the database, whose deletion ends the session on all servers.
    """

    def __init__(self, key: bytes | None = None, *, seconds: Callable[[], float] = time.time) -> None:
        self._seconds = seconds
        secret = key or secrets.token_bytes(32)
        self._form_key = _derived(secret, b"forms")
        self._cookie_key = _derived(secret, b"cookies")
        self._sign_in_key = _derived(secret, b"sign-ins")

    def begin(self, credential: str) -> tuple[str, str]:
        """Return the secret of a new session with a valid credential, and its cookie."""
        now = self._seconds()
        session = Session(secrets.token_urlsafe(32), credential, now, now)
        return session.id, self._encrypt(session)

    def start_sign_in(self, flow: Flow, session: Session | None) -> str:
        """Return the cookie of a sign-in at the identity provider."""
        pending = PendingSignIn(flow, None if session is None else session.id, self._seconds())
        return _encrypt(pending, self._sign_in_key)

    def read_sign_in(self, cookie: str | None) -> PendingSignIn | None:
        """Return the sign-in that this browser started in the last minutes, or None."""
        pending = None if cookie is None else _decrypt(cookie, self._sign_in_key, PendingSignIn)
        return None if pending is None or self._seconds() - pending.started_at >= SIGN_IN_SECONDS else pending

    def read(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie, or None if it is invalid or expired."""
        session = None if cookie is None else _decrypt(cookie, self._cookie_key, Session)
        if session is None:
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

    def form_token(self, session: Session | None) -> str:
        """Return the token that protects the forms of a session against cross-site requests."""
        return hmac.new(self._form_key, (session.id if session else "").encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, given: str | None, session: Session | None) -> bool:
        return hmac.compare_digest((given or "").encode("utf-8", "replace"), self.form_token(session).encode())

    def _encrypt(self, session: Session) -> str:
        cookie = _encrypt(session, self._cookie_key)
        if len(cookie) > MAX_COOKIE_LENGTH:
            raise Invalid(
                "credential is too long for a cookie: sign in with a token created by this server", pointer="/token"
            )
        return cookie


def _encrypt(value: msgspec.Struct, key: bytes) -> str:
    from joserfc import jwe

    return jwe.encrypt_compact(_JWE_HEADER, msgspec.json.encode(value), _jose_key(key))


def _decrypt(cookie: str, key: bytes, type: type[T]) -> T | None:
    from joserfc import jwe
    from joserfc.errors import JoseError

    if len(cookie) > MAX_COOKIE_LENGTH:
        return None
    try:
        plain = jwe.decrypt_compact(cookie, _jose_key(key), algorithms=list(_JWE_HEADER.values())).plaintext
        return msgspec.json.decode(plain or b"", type=type)
    except (JoseError, ValueError, msgspec.DecodeError):
        return None


def _jose_key(key: bytes) -> Any:
    # Imported late: it loads a cryptography library, which only signing in needs.
    from joserfc.jwk import OctKey

    return OctKey.import_key(key)


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hmac.digest(secret, b"interlock dashboard " + purpose, "sha256")
