"""What a PostgreSQL database knows of itself as one of several, and of the tenants that live on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from interlock.domain.shards import Placement
from interlock.storage.postgres.connection import call

if TYPE_CHECKING:
    import asyncpg


class Listed(NamedTuple):
    """A shard as a database has it listed."""

    no: int
    name: str
    here: bool


class Holder(NamedTuple):
    """The job that holds an id, and an idempotency key if it was found by one."""

    key: str | None
    id: str
    seq: int
    body_sha256: bytes | None


class PostgresShards(ABC):
    """The part of a PostgreSQL store that a router over several of them asks for beyond the contract."""

    @abstractmethod
    async def _fetch(self, statement: str, *values: Any) -> list[asyncpg.Record]: ...

    async def shards(self) -> list[Listed]:
        """Every shard that is listed here, by number."""
        return [Listed(*row) for row in await self._fetch("select no, name, here from interlock.shard order by no")]

    async def assign_shard(self, tenant: str, offered: str) -> Placement:
        """Where a tenant lives, by this directory; one that is new is placed on the shard that is offered."""
        (row,) = await self._fetch(call("assign_shard", 2), tenant, offered)
        return Placement(*row)

    async def population(self) -> dict[str, int]:
        """How many tenants live on each shard that this directory names."""
        return {row["shard"]: row["tenants"] for row in await self._fetch(call("population", 0))}

    async def moves(self) -> dict[str, Placement]:
        """The tenants that are being moved."""
        return {tenant: Placement(*rest) for tenant, *rest in await self._fetch(call("moves", 0))}

    async def note_move(self, tenant: str, believed: str, placement: Placement) -> bool:
        """Write down how far a move has come; False if the tenant does not live where that is believed."""
        ((noted,),) = await self._fetch(
            "select interlock.note_move($1, $2, $3, $4, $5)", tenant, believed, *placement
        )  # fmt: skip
        return bool(noted)

    async def admit(self, tenant: str) -> bool:
        """Let a tenant live here that never did; whether it is new."""
        ((new,),) = await self._fetch("select interlock.admit($1)", tenant)
        return bool(new)

    async def may_change(self, tenant: str) -> bool:
        """Whether a tenant has not left, and no move has it alone just now."""
        ((may,),) = await self._fetch("select interlock.may_change($1)", tenant)
        return bool(may)

    async def holders(self, tenant: str, keys: Sequence[str], ids: Sequence[str]) -> list[Holder]:
        """Those jobs of this database that have one of the keys or ids."""
        rows = await self._fetch(call("holders", 3), tenant, list(keys), list(ids))
        return [Holder(*row) for row in rows]

    async def remembers_claim(self, tenant: str, worker: str, claim_id: str) -> bool:
        """Whether something granted under this claim still runs."""
        ((does,),) = await self._fetch("select interlock.remembers_claim($1, $2, $3)", tenant, worker, claim_id)
        return bool(does)
