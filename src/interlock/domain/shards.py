"""Placement of tenants on shards, and the shard number that every ID contains."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Sequence
from typing import Final, NamedTuple, Protocol

MAX_SHARDS: Final = 1024
ENTRY_POINTS: Final = "interlock.shards"


class ShardSupplier(Protocol):
    """Maps a tenant and type to shard names; a type of None means the whole tenant.

    Both may be plain or asynchronous. One that goes by type gives up the limits of agents and idempotency across its
    shards. It may also have a method `shards`, the names of all it will ever give: they are checked at the start.
    """

    def queue_shards(self, tenant: str, type: str | None) -> Sequence[str] | Awaitable[Sequence[str]]:
        """Every shard that may hold such jobs; those that are left from before, too."""
        ...

    def current_shard(self, tenant: str, type: str | None) -> str | Awaitable[str]:
        """The one that new jobs go to."""
        ...


class Placement(NamedTuple):
    """The directory's entry for a tenant: its shard, and during a move the other shard and the phase."""

    shard: str
    other: str | None = None
    phase: str | None = None

    @property
    def unsettled(self) -> bool:
        """Whether the placement may change at any moment, so that it must not be cached."""
        return self.phase == COPYING


COPYING: Final = "copying"
CLEARING: Final = "clearing"


def shard_of_id(id: str) -> int:
    """Return the number of the shard that created an ID: the ten bits after the UUID variant. Only a hint."""
    return int(id[19:22], 16) & (MAX_SHARDS - 1)


def first_shard(tenant: str, shards: Sequence[str]) -> str:
    """Return the shard of a new tenant: evenly distributed, and the same on every server."""
    number = int.from_bytes(hashlib.sha256(tenant.encode()).digest()[:8])
    return shards[number % len(shards)]


def next_number(after: int, shard: int) -> int:
    """Return the next number above `after` that belongs to this shard: shards never issue the same number."""
    number = after // MAX_SHARDS * MAX_SHARDS + shard
    return number if number > after else number + MAX_SHARDS
