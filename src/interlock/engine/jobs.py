"""Producers and operators: enqueue, edit, cancel, revoke, pause."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from interlock import wire
from interlock.domain.decide import CancelJob, Command, RevokeLease
from interlock.domain.edit import EditJob
from interlock.domain.job import MAX_ATTEMPTS, Added, Enqueued, Receipt, Rejected
from interlock.domain.principal import Principal
from interlock.domain.webhook_format import STANDARD
from interlock.engine.queries import NO_QUEUE
from interlock.engine.registry import Accepted, TypeRegistry
from interlock.engine.results import answered
from interlock.errors import Error, Invalid, NotFound
from interlock.storage.contract import Store
from interlock.wire import JobRequest, Limits


class Jobs:
    """What is asked of jobs from outside their runs."""

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
    ) -> Enqueued:
        """Add one job; the same idempotency key with the same body answers the job that is there.

        The trace of the call goes along where the request names none; it is no part of what must be the same.
        """
        (answer,) = await self._registers.enqueue(
            who,
            [request],
            whole=False,
            now=await self._now([request]),
            traceparent=traceparent,
            webhook_format=webhook_format,
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
        """Add all jobs or none, with `within` inside a transaction of the caller's; a refusal names the item."""
        return [one.enqueued for one in await self._enqueue_whole(who, requests, traceparent, within=within)]

    async def add(self, who: Principal, request: JobRequest, *, traceparent: str | None = None) -> Added:
        """Enqueue one job whose text was judged as a whole before, and show it."""
        now = 0 if request.deadline is None else await self._store.now()
        (answer,) = await self._registers.enqueue(
            who, [request], whole=False, now=now, traceparent=traceparent, judged=True
        )
        (added,) = await self._with_jobs(who.tenant, [answered(answer)])
        return added

    async def add_batch(
        self, who: Principal, requests: Sequence[JobRequest], *, traceparent: str | None = None
    ) -> list[Added]:
        """Enqueue all jobs or none, whose text was judged as a whole before, and show them."""
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
        """The jobs as they are; only what cannot be known without looking is looked up."""
        jobs = [new.created(tenant, enqueued) for new, enqueued in accepted]
        unknown = list({enqueued.id: None for (_, enqueued), job in zip(accepted, jobs, strict=True) if job is None})
        found = dict(zip(unknown, await self._store.get(tenant, unknown), strict=True)) if unknown else {}
        added = []
        for (_, enqueued), job in zip(accepted, jobs, strict=True):
            found_job = job or found[enqueued.id]
            if found_job is None:  # pruned since, or its transaction is not over
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
        """Change a job that waits for a worker; None leaves a field as it is."""
        if deadline is not None and drop_deadline:
            raise Invalid("give a deadline or drop it, not both", pointer="/deadline")
        order = EditJob(
            id=wire.job_id(job_id),
            actor=who.actor,
            priority=None if priority is None else wire.whole(priority, "priority", -1000, 1000),
            run_at=wire.instant(run_at, "run_at"),
            deadline=wire.instant(deadline, "deadline"),
            drop_deadline=drop_deadline,
            max_attempts=None if max_attempts is None else wire.whole(max_attempts, "max_attempts", 1, MAX_ATTEMPTS),
            tags=None if tags is None else wire.tags(tags),
            expected_version=expected_version,
        )
        return await self._order(who, order)

    async def run_now(self, who: Principal, job_id: str) -> Receipt:
        """Make a queued or retrying job due; one that is due already keeps its order."""
        return await self._order(who, EditJob(id=wire.job_id(job_id), actor=who.actor, due_now=True))

    async def cancel(self, who: Principal, job_id: str, *, reason: str | None = None, force: bool = False) -> Receipt:
        """Stop a job: at once unless it runs, then by request, or by force."""
        order = CancelJob(wire.job_id(job_id), who.actor, wire.remark(reason, "reason"), force)
        return await self._order(who, order)

    async def revoke(self, who: Principal, job_id: str, *, reason: str | None = None) -> Receipt:
        """End a lease now, as if it had expired: the one that is held now, should the call have to be repeated."""
        (job,) = await self._store.get(who.tenant, [wire.job_id(job_id)])
        if job is None:
            raise NotFound(job_id)
        return await self._order(
            who, RevokeLease(job.id, who.actor, wire.remark(reason, "reason"), below=job.fence + 1)
        )

    async def pause(self, who: Principal, type: str, *, reason: str | None = None) -> None:
        """Stop leasing jobs of this type."""
        remark = wire.remark(reason, "reason")
        await self._store.pause(who.tenant, await self._known_type(who.tenant, type), actor=who.actor, reason=remark)

    async def resume(self, who: Principal, type: str) -> None:
        """Lease jobs of this type again."""
        await self._store.pause(
            who.tenant, await self._known_type(who.tenant, type), actor=None, reason=None, resumed_by=who.actor
        )

    async def _known_type(self, tenant: str, type: str) -> str:
        """The type, if it is registered or has had a job; a misspelled one must not seem to be paused."""
        if not await self._store.stats(tenant, wire.name(type, "type")):
            raise NotFound(type, what="queue", hint=NO_QUEUE)
        return type

    async def _order(self, who: Principal, order: Command) -> Receipt:
        (answer,) = await self._store.carry_out(who.tenant, [order])
        return answered(answer)

    async def _now(self, requests: Sequence[JobRequest]) -> int:
        """The store's clock, asked only where a rule looks at it."""
        return await self._store.now() if any(request.deadline is not None for request in requests) else 0


def _named(error: Error, item: str) -> Error:
    """The refusal of one item of a batch, which says which one it is."""
    if isinstance(error, Invalid):
        return error.within(item)
    error.pointer = item
    return error
