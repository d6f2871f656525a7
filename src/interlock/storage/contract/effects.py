"""The store interface for effects."""

from __future__ import annotations

from typing import Protocol

from interlock.domain.effect import BeginEffect, Begun, Effect, SettleEffect
from interlock.domain.job import Rejected


class EffectStore(Protocol):
    """The part of a store for the effects of jobs."""

    async def begin(self, tenant: str, order: BeginEffect) -> Begun | Rejected:
        """Record under the current fence that an effect begins; return a known one unless it is not done."""
        ...

    async def settle(self, tenant: str, order: SettleEffect) -> Effect | Rejected:
        """Record the outcome of an effect under the current fence; the same outcome again changes nothing."""
        ...

    async def of_job(self, tenant: str, job_id: str, *, after: int = 0, limit: int) -> list[Effect]:
        """List effects with a higher number, in the order in which they began."""
        ...
