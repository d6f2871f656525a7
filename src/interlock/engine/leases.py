"""Workers: claim, stay alive, save progress, finish."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

from interlock import wire
from interlock.domain import text
from interlock.domain.decide import CancelAck, Complete, Fail, Finish, Release
from interlock.domain.job import Beat, Checkpoint, Job, Pulse, Receipt, Refused
from interlock.domain.policy import ClaimAsk
from interlock.domain.retry import LONGEST_RETRY_AFTER_SECONDS
from interlock.engine.answers import answered
from interlock.errors import Invalid
from interlock.storage.contract import Store
from interlock.wire import Limits

POLL_SECONDS: Final = 0.5
LONGEST_WAIT_SECONDS: Final = 60.0


class Leases:
    """What a worker does with jobs; every call carries the fence of its grant."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits

    async def claim(self, tenant: str, ask: ClaimAsk, *, wait_seconds: float = 0.0) -> list[Job]:
        """Up to ask.limit jobs; with wait_seconds, wait that long for the first."""
        self._check(ask)
        wire.seconds(wait_seconds, "wait_seconds", 0, LONGEST_WAIT_SECONDS)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        while True:
            changed = self._store.watch() if wait_seconds else None
            jobs = await self._store.claim(tenant, ask)
            left = deadline - loop.time()
            if jobs or changed is None or left <= 0:
                return jobs
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), min(left, POLL_SECONDS))

    async def heartbeat(self, tenant: str, beat: Beat) -> Pulse:
        """Extend a lease, with a checkpoint if there is one; tells of cancel requests and pauses."""
        self._check_beat(beat)
        (answer,) = await self._store.heartbeat(tenant, [beat])
        return answered(answer)

    async def heartbeats(self, tenant: str, beats: Sequence[Beat]) -> list[Pulse | Refused]:
        wire.check_batch(beats, self._limits)
        for beat in beats:
            self._check_beat(beat)
        return await self._store.heartbeat(tenant, beats)

    async def checkpoint(self, tenant: str, checkpoint: Checkpoint) -> int:
        """Save progress under the current fence; the number must rise."""
        (answer,) = await self._store.checkpoint(tenant, [self._mended(checkpoint)])
        return answered(answer)

    async def complete(self, tenant: str, order: Complete) -> Receipt:
        return await self._finished(tenant, self._mended_result(order))

    async def fail(self, tenant: str, order: Fail) -> Receipt:
        wire.seconds(order.retry_after_seconds, "retry_after_seconds", 0, LONGEST_RETRY_AFTER_SECONDS)
        return await self._finished(tenant, order)

    async def release(self, tenant: str, order: Release) -> Receipt:
        if sum(x is not None for x in (order.run_at, order.delay_seconds, order.children or None)) > 1:
            raise Invalid(
                "release at a time, after a delay or when children have ended, not several", pointer="/run_at"
            )
        wire.seconds(order.delay_seconds, "delay_seconds", 0, wire.LONGEST_DELAY_SECONDS)
        return await self._finished(tenant, order)

    async def cancel_ack(self, tenant: str, order: CancelAck) -> Receipt:
        return await self._finished(tenant, order)

    async def finishes(self, tenant: str, orders: Sequence[Finish]) -> list[Receipt | Refused]:
        """Many finishes at once, each with its own answer."""
        wire.check_batch(orders, self._limits)
        mended = [self._mended_result(o) if isinstance(o, Complete) else o for o in orders]
        return await self._store.carry_out(tenant, mended)

    async def _finished(self, tenant: str, order: Finish) -> Receipt:
        (answer,) = await self._store.carry_out(tenant, [order])
        return answered(answer)

    def _check(self, ask: ClaimAsk) -> None:
        wire.name(ask.worker, "worker")
        wire.whole(ask.limit, "limit", 1, self._limits.claim)
        wire.seconds(ask.lease_seconds, "lease_seconds", 1, self._limits.lease_seconds)
        if ask.claim_id is not None:
            wire.name(ask.claim_id, "claim_id")

    def _check_beat(self, beat: Beat) -> None:
        wire.seconds(beat.lease_seconds, "lease_seconds", 1, self._limits.lease_seconds)

    def _mended(self, checkpoint: Checkpoint) -> Checkpoint:
        data, mended = text.mend(checkpoint.data, what="checkpoint", limit=self._limits.checkpoint)
        return checkpoint._replace(data=data, sanitized=mended)

    def _mended_result(self, order: Complete) -> Complete:
        if order.result is None:
            return order
        result, mended = text.mend(order.result, what="result", limit=self._limits.result)
        return order._replace(result=result, sanitized=order.sanitized or mended)
