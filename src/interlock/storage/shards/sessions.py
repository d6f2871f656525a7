"""Sharded sessions: on the shard for new jobs of their tenant."""

from __future__ import annotations

from interlock.domain.session import KnownPerson, NewSession, Session, SessionUse
from interlock.storage.shards.routing import Routing


class ShardedSessions:
    """Routes the calls of sessions."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def begin(self, tenant: str, new: NewSession) -> Session:
        return await self._routing.home(tenant, lambda store: store.sessions.begin(tenant, new))

    async def find(self, hash: bytes) -> SessionUse | None:
        return await self._routing.ask_all(lambda store: store.sessions.find(hash), lambda seen: seen.session.tenant)

    async def page(self, tenant: str, *, before: str | None = None, limit: int = 50) -> list[Session]:
        return await self._routing.home(tenant, lambda store: store.sessions.page(tenant, before=before, limit=limit))

    async def end(self, tenant: str, id: str, *, actor: str) -> bool:
        return any(await self._routing.each(tenant, lambda store: store.sessions.end(tenant, id, actor=actor)))

    async def end_all(self, tenant: str, of_actor: str, *, actor: str) -> int:
        return sum(
            await self._routing.each(tenant, lambda store: store.sessions.end_all(tenant, of_actor, actor=actor))
        )

    async def people(self, tenant: str, *, limit: int) -> list[KnownPerson]:
        return await self._routing.home(tenant, lambda store: store.sessions.people(tenant, limit=limit))

    async def forget(self, limit: int) -> int:
        return await self._routing.share("forget_sessions", limit, lambda store, some: store.sessions.forget(some))
