"""What every engine offers. The contract suite in tests/contract is its full description.

Every hot verb takes many items of one tenant, is one transaction, and answers each item on its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from interlock.domain.decide import Order
from interlock.domain.job import Beat, Checkpoint, Enqueued, Filter, HistoryRow, Job, NewJob, Pulse, Receipt, Refused
from interlock.domain.policy import ClaimAsk


class Due(NamedTuple):
    """What the clock has brought up, found across tenants: nothing but whose and which."""

    tenant: str
    job_id: str


class Verdict(NamedTuple):
    """The result of an audit: how much was read, and the first row that does not fit, if any."""

    jobs: int
    rows: int
    first_bad: str | None


class Store(Protocol):
    """One durable home for jobs."""

    async def enqueue(self, tenant: str, jobs: Sequence[NewJob], *, whole: bool = False) -> list[Enqueued | Refused]:
        """Add jobs in the order given. With `whole` a single refusal means that none is added."""
        ...

    async def claim(self, tenant: str, ask: ClaimAsk) -> list[Job]:
        """Grant up to `ask.limit` jobs: the best first, each with a fence above all before it."""
        ...

    async def heartbeat(self, tenant: str, beats: Sequence[Beat]) -> list[Pulse | Refused]:
        """Extend leases, each guarded by its fence, and save the checkpoints that came along."""
        ...

    async def checkpoint(self, tenant: str, checkpoints: Sequence[Checkpoint]) -> list[int | Refused]:
        """Save progress: the newest number wins, the same one again is fine, an older one is refused."""
        ...

    async def carry_out(self, tenant: str, orders: Sequence[Order]) -> list[Receipt | Refused]:
        """Decide and write each order under the lock of its job; a repeated finish gets its first receipt."""
        ...

    async def get(self, tenant: str, job_ids: Sequence[str]) -> list[Job | None]: ...

    async def find(self, tenant: str, filter: Filter) -> list[Job]:
        """Newest first, without payload, result and checkpoint."""
        ...

    async def history(self, tenant: str, job_id: str) -> list[HistoryRow]: ...

    async def pause(self, tenant: str, type: str, *, actor: str | None, reason: str | None) -> None:
        """Stop handing out jobs of a type; actor None lets it go on."""
        ...

    async def due_leases(self, limit: int) -> list[Due]: ...

    async def due_deadlines(self, limit: int) -> list[Due]: ...

    async def forget_claims(self, older_than_seconds: float, limit: int) -> int:
        """Drop the memory of named claims whose jobs no longer run under them."""
        ...

    async def now(self) -> int: ...

    async def verify(self, tenant: str | None = None) -> Verdict:
        """Recompute every chain of history, and compare its end with the job."""
        ...

    async def head(self) -> str:
        """One hash over the ends of all chains, to be kept elsewhere."""
        ...

    def watch(self) -> asyncio.Event:
        """Set when something may have become claimable, here or in another process; take it before looking."""
        ...

    async def facts(self) -> dict[str, str]:
        """What an operator wants to know of this database: version, durability, schema, clock."""
        ...

    async def close(self) -> None: ...
