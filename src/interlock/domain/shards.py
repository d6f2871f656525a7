"""Which of several databases a tenant's jobs live on, and what an id tells of where its job was born."""

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
        """Whether the answer may be another one in a moment."""
        return self.phase == COPYING


COPYING: Final = "copying"
CLEARING: Final = "clearing"


def shard_of_id(id: str) -> int:
    """The number of the shard that an id was made on: ten bits after the variant of the UUID. A hint, no more."""
    return int(id[19:22], 16) & (MAX_SHARDS - 1)


def first_shard(tenant: str, shards: Sequence[str]) -> str:
    """Return the shard of a new tenant: evenly distributed, and the same on every server."""
    number = int.from_bytes(hashlib.sha256(tenant.encode()).digest()[:8])
    return shards[number % len(shards)]


def next_number(after: int, shard: int) -> int:
    """The first number above another that only this shard gives out: numbers of shards never meet."""
    number = after // MAX_SHARDS * MAX_SHARDS + shard
    return number if number > after else number + MAX_SHARDS
