"""The shard directory on PostgreSQL: this database as a shard, and the placement of tenants."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from interlock.domain.shards import Placement
from interlock.storage.postgres.connection import call

if TYPE_CHECKING:
    import asyncpg


class Listed(NamedTuple):
    """A shard as this database lists it."""

    no: int
    name: str
    here: bool


class Holder(NamedTuple):
    """The job that has an ID, and the idempotency key if it was found by one."""

    key: str | None
    key_generation: int
    id: str
    seq: int
    body_sha256: bytes | None
    created_at: int


class PostgresShards(ABC):
    """The store methods that a router over several shards needs beyond the contract."""

    @abstractmethod
    async def _fetch(self, statement: str, *values: Any) -> list[asyncpg.Record]: ...

    async def shards(self) -> list[Listed]:
        """List the shards in this directory, by number."""
        return [Listed(*row) for row in await self._fetch("select no, name, here from interlock.shard order by no")]

    async def assign_shard(self, tenant: str, offered: str) -> Placement:
        """Return the placement of a tenant; place a new tenant on the offered shard."""
        (row,) = await self._fetch(call("assign_shard", 2), tenant, offered)
        return Placement(*row)

    async def population(self) -> dict[str, int]:
        """Count the tenants on each shard of this directory."""
        return {row["shard"]: row["tenants"] for row in await self._fetch(call("population", 0))}

    async def moves(self) -> dict[str, Placement]:
        """Return the tenants that are being moved."""
        return {tenant: Placement(*rest) for tenant, *rest in await self._fetch(call("moves", 0))}

    async def admit(self, tenant: str) -> bool:
        """Admit a tenant that is new to this shard; return whether it is new."""
        ((new,),) = await self._fetch("select interlock.admit($1)", tenant)
        return bool(new)

    async def may_change(self, tenant: str) -> bool:
        """Return whether a tenant has not moved away and no move holds its lock."""
        ((may,),) = await self._fetch("select interlock.may_change($1)", tenant)
        return bool(may)

    async def holders(self, tenant: str, keys: Sequence[str], ids: Sequence[str]) -> list[Holder]:
        """Return the jobs of this database that have one of the keys or IDs."""
        rows = await self._fetch(call("holders", 3), tenant, list(keys), list(ids))
        return [Holder(*row) for row in rows]

    async def remembers_claim(self, tenant: str, worker: str, claim_id: str) -> bool:
        """Return whether a job leased under this claim ID still runs."""
        ((does,),) = await self._fetch("select interlock.remembers_claim($1, $2, $3)", tenant, worker, claim_id)
        return bool(does)
