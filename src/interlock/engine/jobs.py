"""Producers and operators: enqueue, cancel, revoke, pause."""

from __future__ import annotations

from collections.abc import Sequence

from interlock import wire
from interlock.domain.decide import Cancel, Order, Revoke
from interlock.domain.job import Enqueued, Receipt, Refused
from interlock.domain.principal import Principal
from interlock.engine.answers import answered
from interlock.errors import Invalid
from interlock.storage.contract import Store
from interlock.wire import JobRequest, Limits


class Jobs:
    """What is asked of jobs from outside their runs."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits

    async def enqueue(self, who: Principal, request: JobRequest, *, traceparent: str | None = None) -> Enqueued:
        """Add one job; the same idempotency key with the same body answers the job that is there.

        The trace of the call goes along where the request names none; it is no part of what must be the same.
        """
        job = wire.new_job(request, created_by=who.actor, now=await self._now(request), limits=self._limits)
        if job.traceparent is None:
            job = job._replace(traceparent=traceparent)
        (answer,) = await self._store.enqueue(who.tenant, [job])
        return answered(answer)

    async def enqueue_batch(self, who: Principal, requests: Sequence[JobRequest]) -> list[Enqueued]:
        """Add all jobs or none; a refusal names the item."""
        wire.check_batch(requests, self._limits)
        now = await self._store.now()
        jobs = []
        for i, request in enumerate(requests):
            try:
                jobs.append(wire.new_job(request, created_by=who.actor, now=now, limits=self._limits))
            except Invalid as error:
                error.pointer = f"/jobs/{i}{error.pointer}"
                raise
        answers = await self._store.enqueue(who.tenant, jobs, whole=True)
        for i, answer in enumerate(answers):
            if isinstance(answer, Refused):
                if isinstance(answer.error, Invalid):
                    answer.error.pointer = f"/jobs/{i}{answer.error.pointer}"
                raise answer.error
        return [answer for answer in answers if isinstance(answer, Enqueued)]

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
