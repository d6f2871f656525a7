"""Types, agents and counters on PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from interlock.domain import operator_log
from interlock.domain.registry import Agent, Defaults, JobType, Minute, QueueStats, Registry
from interlock.errors import AgentInUse
from interlock.storage.postgres.connection import Conn, call
from interlock.storage.postgres.log import logged

if TYPE_CHECKING:
    import asyncpg


class PostgresRegistry(ABC):
    """The store methods for types, agents and counters."""

    @abstractmethod
    async def _fetch(self, statement: str, *values: Any, repeatable: bool = True) -> list[asyncpg.Record]: ...

    async def registry(self, tenant: str) -> Registry:
        ((version,),) = await self._fetch("select interlock.registry($1)", tenant)
        rows = await self._fetch(call("types", 1), tenant)
        return Registry(version, {row["name"]: _type(row) for row in rows})

    async def set_type(self, tenant: str, type: JobType, *, actor: str | None = None) -> JobType:
        d = type.defaults
        entry = None if actor is None else operator_log.set_type(actor, type)
        (row,) = await self._fetch(*logged(
            entry, call("set_type", 7), tenant, type.name, type.schema, list(type.requires), d.to_text(), d.backoff,
            d.lease_seconds,
        ))  # fmt: skip
        return _type(row)

    async def delete_type(self, tenant: str, name: str, *, actor: str | None = None) -> bool:
        entry = None if actor is None else operator_log.delete_type(actor, name)
        statement = "select interlock.drop_type($1, $2) as gone"
        ((gone, *_),) = await self._fetch(*logged(entry, statement, tenant, name, when="d.gone"), repeatable=False)
        return bool(gone)

    async def set_agent(self, tenant: str, agent: Agent, *, actor: str | None = None) -> Agent:
        entry = None if actor is None else operator_log.set_agent(actor, agent)
        return _agent((await self._fetch(*logged(entry, *_set_agent(tenant, agent))))[0])

    async def agents(self, tenant: str, after: tuple[str, str], limit: int) -> list[Agent]:
        return [_agent(row) for row in await self._fetch(call("agents", 4), tenant, *after, limit)]

    async def stalled_agents(self, tenant: str, *, limit: int) -> list[Agent]:
        return [_agent(row) for row in await self._fetch(call("stalled_agents", 2), tenant, limit)]

    async def agents_named(self, tenant: str, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Agent]:
        kinds, ids = zip(*names, strict=True)
        rows = await self._fetch(call("agents_named", 3), tenant, kinds, ids)
        return {(row["kind"], row["id"]): _agent(row) for row in rows}

    async def delete_agent(self, tenant: str, kind: str, id: str, *, actor: str | None = None) -> bool:
        entry = None if actor is None else operator_log.delete_agent(actor, kind, id)
        statement = "select interlock.drop_agent($1, $2, $3) as gone"
        ((gone, *_),) = await self._fetch(*logged(entry, statement, tenant, kind, id, when="d.gone"), repeatable=False)
        if gone is False:
            raise AgentInUse(kind, id)
        return bool(gone)

    async def stats(self, tenant: str, type: str | None = None) -> list[QueueStats]:
        return [QueueStats._make(row) for row in await self._fetch(call("stats", 2), tenant, type)]

    async def minutes(self, tenant: str) -> list[Minute]:
        return [Minute._make(row) for row in await self._fetch(call("minutes", 1), tenant)]

    async def fill_slots(self, limit: int) -> int:
        tenants = await self._fetch("select * from interlock.due_agents(interlock.clock(), $1)", limit)
        for (tenant,) in tenants:
            await self._fetch("select interlock.fill_slots($1)", tenant)
        return len(tenants)

    async def fold_counters(self, rows: int, limit: int) -> int:
        tenants = await self._fetch("select * from interlock.long_counters($1, $2)", rows, limit)
        for (tenant,) in tenants:
            await self._fetch("select interlock.fold_counters($1)", tenant)
        return len(tenants)


async def set_agent(connection: Conn, tenant: str, agent: Agent) -> None:
    """Create or update an agent on this connection."""
    await connection.fetch(*_set_agent(tenant, agent))


def _set_agent(tenant: str, agent: Agent) -> tuple[Any, ...]:
    d = agent.defaults
    limit = (agent.max_concurrency, agent.strict)
    return call("set_agent", 7), tenant, agent.kind, agent.id, *limit, d.to_text(), d.backoff


def _type(row: Any) -> JobType:
    return JobType(
        row["name"],
        row["schema"],
        tuple(row["requires"]),
        Defaults.from_text(row["defaults"]),
        row["created_at"],
        row["updated_at"],
    )


def _agent(row: Any) -> Agent:
    return Agent(
        row["kind"], row["id"], row["max_concurrency"], row["strict"], Defaults.from_text(row["defaults"]),
        row["implicit"], row["created_at"], row["updated_at"],
    )  # fmt: skip
