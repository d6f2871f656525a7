"""The store interface for jobs that need attention."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from interlock.domain.attention import Need


class Place(NamedTuple):
    """A job and its order of arrival."""

    seq: int
    id: str


class AttentionStore(Protocol):
    """The part of a store that finds jobs that need attention.

    These are failed and dead-letter jobs, neither acknowledged nor redriven, and due jobs that no present worker could
    claim. Jobs of paused types, and jobs that wait for anything but a worker, are not among them. `need` selects one of
    the two kinds.
    """

    async def page(
        self, tenant: str, *, need: Need | None = None, before_seq: int | None = None, limit: int
    ) -> list[Place]:
        """List them, newest first; of more than 10,000 due jobs of a kind, those that became due last."""
        ...

    async def count(self, tenant: str, *, need: Need | None = None, most: int) -> int:
        """Count them, up to `most`."""
        ...
