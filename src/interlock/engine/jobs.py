"""Producers and operators: enqueue, edit, cancel, revoke, pause."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from interlock import wire
from interlock.domain.decide import Cancel, Order, Revoke
from interlock.domain.edit import Edit
from interlock.domain.job import MAX_ATTEMPTS, Enqueued, Receipt, Refused
from interlock.domain.principal import Principal
from interlock.engine.answers import answered
from interlock.engine.registry import Registers
from interlock.errors import Invalid
from interlock.storage.contract import Store
from interlock.wire import JobRequest, Limits


class Jobs:
    """What is asked of jobs from outside their runs."""

    def __init__(self, store: Store, limits: Limits, registers: Registers) -> None:
        self._store = store
        self._limits = limits
        self._registers = registers

    async def enqueue(self, who: Principal, request: JobRequest, *, traceparent: str | None = None) -> Enqueued:
        """Add one job; the same idempotency key with the same body answers the job that is there.

        The trace of the call goes along where the request names none; it is no part of what must be the same.
        """
        (answer,) = await self._registers.enqueue(
            who, [request], whole=False, now=await self._now(request), traceparent=traceparent
        )
        return answered(answer)

    async def enqueue_batch(
        self, who: Principal, requests: Sequence[JobRequest], *, within: object = None
    ) -> list[Enqueued]:
        """Add all jobs or none, with `within` inside a transaction of the caller's; a refusal names the item."""
        wire.check_batch(requests, self._limits)
        answers = await self._registers.enqueue(who, requests, whole=True, now=await self._store.now(), within=within)
        for i, answer in enumerate(answers):
            if isinstance(answer, Refused):
                raise answer.error.within(f"/jobs/{i}") if isinstance(answer.error, Invalid) else answer.error
        return [answer for answer in answers if isinstance(answer, Enqueued)]

    async def edit(
        self,
        who: Principal,
        job_id: str,
        *,
        priority: int | None = None,
        run_at: datetime | None = None,
        deadline: datetime | None = None,
        drop_deadline: bool = False,
        max_attempts: int | None = None,
        tags: Sequence[str] | None = None,
        expected_version: int | None = None,
    ) -> Receipt:
        """Change a job that waits for a worker; None leaves a field as it is."""
        if deadline is not None and drop_deadline:
            raise Invalid("give a deadline or drop it, not both", pointer="/deadline")
        order = Edit(
            id=wire.job_id(job_id),
            actor=who.actor,
            priority=None if priority is None else wire.whole(priority, "priority", -1000, 1000),
            run_at=wire.instant(run_at, "run_at"),
            deadline=wire.instant(deadline, "deadline"),
            drop_deadline=drop_deadline,
            max_attempts=None if max_attempts is None else wire.whole(max_attempts, "max_attempts", 1, MAX_ATTEMPTS),
            tags=None if tags is None else wire.names(tags, "tags"),
            expected_version=expected_version,
        )
        return await self._order(who, order)

    async def cancel(self, who: Principal, job_id: str, *, reason: str | None = None, force: bool = False) -> Receipt:
        """Stop a job: at once unless it runs, then by request, or by force."""
        order = Cancel(wire.job_id(job_id), who.actor, wire.remark(reason, "reason"), force)
        return await self._order(who, order)

    async def revoke(self, who: Principal, job_id: str, *, reason: str | None = None) -> Receipt:
        """End a lease now, as if it had expired."""
        return await self._order(who, Revoke(wire.job_id(job_id), who.actor, wire.remark(reason, "reason")))

    async def pause(self, who: Principal, type: str, *, reason: str | None = None) -> None:
        """Hand out no more jobs of this type."""
        await self._store.pause(
            who.tenant, wire.name(type, "type"), actor=who.actor, reason=wire.remark(reason, "reason")
        )

    async def resume(self, who: Principal, type: str) -> None:
        await self._store.pause(who.tenant, wire.name(type, "type"), actor=None, reason=None)

    async def _order(self, who: Principal, order: Order) -> Receipt:
        (answer,) = await self._store.carry_out(who.tenant, [order])
        return answered(answer)

    async def _now(self, request: JobRequest) -> int:
        """The store's clock, asked only where a rule looks at it."""
        return 0 if request.deadline is None else await self._store.now()
