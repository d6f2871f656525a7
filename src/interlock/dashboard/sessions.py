"""Who is signed in: a random cookie that stands for a credential, kept in this process while it is used."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

IDLE_SECONDS: Final = 30 * 60.0
MOST_SESSIONS: Final = 10_000


@dataclass
class _Session:
    credential: str
    used_at: float

    def __repr__(self) -> str:
        return "_Session()"


class Sessions:
    """Sessions by the hash of their cookie; the credential behind one is checked anew at every request."""

    def __init__(self, *, ticks: Callable[[], float] = time.monotonic) -> None:
        self._ticks = ticks
        self._key = secrets.token_bytes(32)
        self._known: dict[bytes, _Session] = {}  # the least recently used first

    def begin(self, credential: str) -> str:
        """A new cookie for a credential that was found good."""
        self._forget_idle()
        while len(self._known) >= MOST_SESSIONS:
            del self._known[next(iter(self._known))]
        cookie = secrets.token_urlsafe(32)
        self._known[_hash(cookie)] = _Session(credential, self._ticks())
        return cookie

    def credential(self, cookie: str | None, *, used: bool) -> str | None:
        """What a cookie stands for; a page that only refreshes itself does not count as use."""
        self._forget_idle()
        if cookie is None or (session := self._known.get(_hash(cookie))) is None:
            return None
        if used:
            session.used_at = self._ticks()
            self._known[_hash(cookie)] = self._known.pop(_hash(cookie))
        return session.credential

    def end(self, cookie: str | None) -> None:
        if cookie is not None:
            self._known.pop(_hash(cookie), None)

    def form_token(self, cookie: str | None) -> str:
        """What every form of a session carries, and no other site can know."""
        return hmac.new(self._key, (cookie or "").encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, given: str | None, cookie: str | None) -> bool:
        return hmac.compare_digest((given or "").encode(), self.form_token(cookie).encode())

    def _forget_idle(self) -> None:
        oldest = self._ticks() - IDLE_SECONDS
        while self._known and (first := next(iter(self._known))) and self._known[first].used_at <= oldest:
            del self._known[first]


def _hash(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "surrogatepass")).digest()
