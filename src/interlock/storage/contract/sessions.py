"""The store interface for sessions of the dashboard."""

from __future__ import annotations

from typing import Protocol

from interlock.domain.session import KnownPerson, NewSession, Session, SessionUse


class SessionStore(Protocol):
    """The part of a store for sessions; it only sees hashes of their secrets."""

    async def begin(self, tenant: str, new: NewSession) -> Session:
        """Store a new session, and the name and e-mail address of its person."""
        ...

    async def find(self, hash: bytes) -> SessionUse | None:
        """Return the session with this hash, of any tenant; the caller checks whether it has expired."""
        ...

    async def page(self, tenant: str, *, before: str | None = None, limit: int = 50) -> list[Session]:
        """List sessions of persons, newest first, starting after `before`."""
        ...

    async def end(self, tenant: str, id: str, *, actor: str) -> bool:
        """Delete a session; return whether it existed."""
        ...

    async def end_all(self, tenant: str, of_actor: str, *, actor: str) -> int:
        """Delete all sessions of one actor; return their number."""
        ...

    async def people(self, tenant: str, *, limit: int) -> list[KnownPerson]:
        """List persons, the last to sign in first."""
        ...

    async def forget(self, limit: int) -> int:
        """Delete expired sessions of all tenants."""
        ...
