"""Sessions of the dashboard: begun at sign-in, looked up at every request, ended on all servers at sign-out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from interlock import wire
from interlock.domain.principal import Principal
from interlock.domain.retry import SECOND
from interlock.domain.session import KnownPerson, NewSession, Session, SessionUse
from interlock.domain.token import fingerprint
from interlock.engine.ttl_cache import FRESH_SECONDS, MAX_REMEMBERED, TtlCache
from interlock.storage.contract.sessions import SessionStore

BATCH_SIZE: Final = 500
FORGET_EVERY_SECONDS: Final = 60.0
PEOPLE_SECONDS: Final = 10.0
MAX_PEOPLE: Final = 1_000
MAX_LISTED: Final = 200


class Sessions:
    """Sessions by the secret in their cookie; a server remembers one for less than a second."""

    def __init__(self, store: SessionStore, *, ticks: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._ticks = ticks
        self._known: TtlCache[bytes, SessionUse] = TtlCache(MAX_REMEMBERED)
        self._people: TtlCache[str, dict[str, KnownPerson]] = TtlCache(MAX_PEOPLE)

    async def begin(self, secret: str, who: Principal, *, life_seconds: float) -> Session:
        """Store a session; without a person, the token in the cookie determines its roles."""
        roles = None if who.person is None else tuple(sorted(who.roles))
        new = NewSession(wire.new_id(), fingerprint(secret), who.actor, life_seconds, roles, who.person)
        return await self._store.begin(who.tenant, new)

    async def find(self, secret: str) -> SessionUse | None:
        """Return the session of a secret, or None if it has ended or expired."""
        hash, now = fingerprint(secret), self._ticks()
        if (known := self._known.get(hash, now)) is not None:
            return known
        found = await self._store.find(hash)
        if found is None or not found.lives:
            return None
        left = (found.session.expires_at - found.now) / SECOND
        self._known.put(hash, found, now + min(FRESH_SECONDS, left))
        return found

    async def end(self, secret: str, who: Principal) -> None:
        """End a session, on other servers within a second."""
        found = await self._store.find(fingerprint(secret))
        if found is not None:
            await self._store.end(found.session.tenant, found.session.id, actor=who.actor or found.session.actor)
            self._known.forget(lambda known: known.session.id == found.session.id)

    async def end_all(self, who: Principal, actor: str) -> int:
        """End all sessions of an actor, on other servers within a second; those of others need the role admin."""
        if actor != who.actor:
            who.need("admin")
        ended = await self._store.end_all(who.tenant, actor, actor=who.actor)
        self._known.forget(lambda known: known.session.actor == actor)
        return ended

    async def list(self, who: Principal) -> list[Session]:
        """List the newest sessions of persons."""
        who.need("admin")
        return await self._store.page(who.tenant, limit=MAX_LISTED)

    async def people(self, tenant: str) -> dict[str, KnownPerson]:
        """Return the persons who signed in lately, by actor."""
        now = self._ticks()
        if (known := self._people.get(tenant, now)) is None:
            known = {one.actor: one for one in await self._store.people(tenant, limit=MAX_PEOPLE)}
            self._people.put(tenant, known, now + PEOPLE_SECONDS)
        return known

    async def forget(self) -> int:
        """Delete expired sessions."""
        return await self._store.forget(BATCH_SIZE)
