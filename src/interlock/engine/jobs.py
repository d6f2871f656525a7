"""Producers and operators: enqueue, edit, cancel, revoke, pause."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from interlock import wire
from interlock.domain.decide import AcknowledgeJob, CancelJob, Command, RevokeLease
from interlock.domain.edit import EditJob
from interlock.domain.job import Added, Enqueued, Receipt, Rejected
from interlock.domain.principal import Principal
from interlock.domain.webhook_format import STANDARD
from interlock.engine.queries import NO_QUEUE
from interlock.engine.registry import Accepted, TypeRegistry
from interlock.engine.results import answered
from interlock.errors import Error, Invalid, NotFound
from interlock.storage.contract import Store
from interlock.wire import JobRequest, Limits


class Jobs:
    """Operations on jobs from outside their runs."""

    def __init__(self, store: Store, limits: Limits, registers: TypeRegistry) -> None:
        self._store = store
        self._limits = limits
        self._registers = registers

    async def enqueue(
        self,
        who: Principal,
        request: JobRequest,
        *,
        traceparent: str | None = None,
        webhook_format: str = STANDARD,
        key_lifetime_seconds: float | None = None,
    ) -> Enqueued:
        """Enqueue one job; the same idempotency key with the same body returns the existing job.

        The caller's traceparent is used if the request has none; it is not part of the idempotency comparison. With
        `key_lifetime_seconds` the key is free again that long after the enqueue, and does not match keys without one.
        """
        (answer,) = await self._registers.enqueue(
            who,
            [request],
            whole=False,
            now=await self._now([request]),
            traceparent=traceparent,
            webhook_format=webhook_format,
            key_lifetime_seconds=key_lifetime_seconds,
        )
        return answered(answer).enqueued

    async def enqueue_batch(
        self,
        who: Principal,
        requests: Sequence[JobRequest],
        *,
        within: object = None,
        traceparent: str | None = None,
    ) -> list[Enqueued]:
        """Enqueue all jobs or none; `within` is the caller's open transaction. An error names the rejected item."""
        return [one.enqueued for one in await self._enqueue_whole(who, requests, traceparent, within=within)]

    async def add(self, who: Principal, request: JobRequest, *, traceparent: str | None = None) -> Added:
        """Enqueue one job whose text is already validated, and return it."""
        now = 0 if request.deadline is None else await self._store.now()
        (answer,) = await self._registers.enqueue(
            who, [request], whole=False, now=now, traceparent=traceparent, judged=True
        )
        (added,) = await self._with_jobs(who.tenant, [answered(answer)])
        return added

    async def add_batch(
        self, who: Principal, requests: Sequence[JobRequest], *, traceparent: str | None = None
    ) -> list[Added]:
        """Enqueue all jobs or none, with text that is already validated, and return them."""
        return await self._with_jobs(who.tenant, await self._enqueue_whole(who, requests, traceparent, judged=True))

    async def _enqueue_whole(
        self,
        who: Principal,
        requests: Sequence[JobRequest],
        traceparent: str | None,
        *,
        within: object = None,
        judged: bool = False,
    ) -> list[Accepted]:
        wire.check_batch(requests, self._limits, field="jobs")
        answers = await self._registers.enqueue(
            who,
            requests,
            whole=True,
            now=await self._now(requests),
            traceparent=traceparent,
            within=within,
            judged=judged,
        )
        for i, answer in enumerate(answers):
            if isinstance(answer, Rejected):
                raise _named(answer.error, f"/jobs/{i}")
        return [answer for answer in answers if isinstance(answer, Accepted)]

    async def _with_jobs(self, tenant: str, accepted: Sequence[Accepted]) -> list[Added]:
        """Return the current jobs; query only those whose state is not known."""
        jobs = [new.created(tenant, enqueued) for new, enqueued in accepted]
        unknown = list({enqueued.id: None for (_, enqueued), job in zip(accepted, jobs, strict=True) if job is None})
        found = dict(zip(unknown, await self._store.get(tenant, unknown), strict=True)) if unknown else {}
        added = []
        for (_, enqueued), job in zip(accepted, jobs, strict=True):
            found_job = job or found[enqueued.id]
            if found_job is None:  # pruned since, or its transaction has not committed
                raise NotFound(enqueued.id)
            added.append(Added(found_job, enqueued.replayed))
        return added

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
        """Change a job that is waiting for a worker; None leaves a field unchanged."""
        if deadline is not None and drop_deadline:
            raise Invalid("give a deadline or drop it, not both", pointer="/deadline")
        order = EditJob(
            id=wire.job_id(job_id),
            actor=who.actor,
            priority=wire.job_value("priority", priority),
            run_at=wire.job_value("run_at", run_at),
            deadline=wire.job_value("deadline", deadline),
            drop_deadline=drop_deadline,
            max_attempts=wire.job_value("max_attempts", max_attempts),
            tags=wire.job_value("tags", tags),
            expected_version=expected_version,
        )
        return await self._order(who, order)

    async def run_now(self, who: Principal, job_id: str) -> Receipt:
        """Make a queued or retrying job due; a job that is already due keeps its order."""
        return await self._order(who, EditJob(id=wire.job_id(job_id), actor=who.actor, due_now=True))

    async def acknowledge(self, who: Principal, job_id: str, *, comment: str | None = None) -> Receipt:
        """Record that a failed or dead-letter job was seen; it it needs no attention from then on."""
        order = AcknowledgeJob(wire.job_id(job_id), who.actor, wire.reason(comment, field="comment"))
        return await self._order(who, order)

    async def cancel(self, who: Principal, job_id: str, *, reason: str | None = None, force: bool = False) -> Receipt:
        """Cancel a job: immediately unless it is running; a running one by request, or immediately with `force`."""
        order = CancelJob(wire.job_id(job_id), who.actor, wire.reason(reason), force)
        return await self._order(who, order)

    async def revoke(self, who: Principal, job_id: str, *, reason: str | None = None) -> Receipt:
        """End the current lease as if it had expired; a repeated call revokes the lease that is current then."""
        (job,) = await self._store.get(who.tenant, [wire.job_id(job_id)])
        if job is None:
            raise NotFound(job_id)
        return await self._order(who, RevokeLease(job.id, who.actor, wire.reason(reason), below=job.fence + 1))

    async def pause(self, who: Principal, type: str, *, reason: str | None = None) -> None:
        """Stop leasing jobs of this type."""
        remark = wire.reason(reason)
        await self._store.registry.pause(
            who.tenant, await self._known_type(who.tenant, type), actor=who.actor, reason=remark
        )

    async def resume(self, who: Principal, type: str) -> None:
        """Lease jobs of this type again."""
        await self._store.registry.pause(
            who.tenant, await self._known_type(who.tenant, type), actor=None, reason=None, resumed_by=who.actor
        )

    async def _known_type(self, tenant: str, type: str) -> str:
        """Return the type if it is registered or has had a job; a misspelled type must not appear to be paused."""
        if not await self._store.registry.stats(tenant, wire.name(type, "type")):
            raise NotFound(type, resource="queue", hint=NO_QUEUE)
        return type

    async def _order(self, who: Principal, order: Command) -> Receipt:
        (answer,) = await self._store.carry_out(who.tenant, [order])
        return answered(answer)

    async def _now(self, requests: Sequence[JobRequest]) -> int:
        """Return the store's clock; skip the call if no rule needs it."""
        return await self._store.now() if any(request.deadline is not None for request in requests) else 0


def _named(error: Error, item: str) -> Error:
    """Add the index of the batch item to its error."""
    if isinstance(error, Invalid):
        return error.within(item)
    error.pointer = item
    return error
