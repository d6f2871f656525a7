"""Operators: redrive jobs, cancel trees of jobs, and run bulk actions."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Final

import msgspec

from interlock import wire
from interlock.domain import policy
from interlock.domain.decide import AcknowledgeJob, CancelJob, receipt_of
from interlock.domain.job import Enqueued, Filter, Job, Receipt, Rejected
from interlock.domain.lifecycle import TERMINAL, UNRESOLVED, Status
from interlock.domain.limits import check_copied
from interlock.domain.operations import START, Action, Bulk, Cascade, Child, Needs, Overrides, Redrive
from interlock.domain.principal import Principal
from interlock.domain.registry import Registry
from interlock.engine import schemas
from interlock.engine.results import answered
from interlock.errors import AlreadyFinished, Error, Invalid, NotFailed, NotFound, NotTerminal, UnknownType
from interlock.storage.contract import RegistryChanged, Store
from interlock.wire import Limits

BATCH_SIZE: Final = 1000
MAX_PAGES: Final = 100  # of a thousand jobs each: bounds a call that finds many jobs already done
FAMILY_BATCH_SIZE: Final = 500
TRIES: Final = 20
# The statuses in which each action changes a job.
CHANGED: Final = {
    Action.CANCEL: tuple(status for status in Status if status not in TERMINAL),
    Action.REDRIVE: tuple(status for status in Status if status in TERMINAL),
    Action.ACKNOWLEDGE: tuple(status for status in Status if status in UNRESOLVED),
}


class Operations:
    """Operator actions beyond a single transition."""

    def __init__(
        self,
        store: Store,
        limits: Limits,
        *,
        strict_types: bool = False,
        implicit_agents: bool = True,
    ) -> None:
        self._store = store
        self._limits = limits
        self._strict_types = strict_types
        self._implicit_agents = implicit_agents

    async def _new_id(self, tenant: str) -> str:
        return wire.new_id(await self._store.new_job_shard(tenant))

    async def redrive(
        self,
        who: Principal,
        job_id: str,
        *,
        start_from: str = START,
        priority: int | None = None,
        run_at: datetime | None = None,
        delay_seconds: float | None = None,
        max_attempts: int | None = None,
        tags: Sequence[str] | None = None,
        payload: bytes | None = None,
        needs: Needs | None = None,
        idempotency_key: str | None = None,
    ) -> Enqueued:
        """Redrive a terminal job as a new one, due now: from the start, from its checkpoint, or after a step.

        None leaves a field unchanged. The same idempotency key with the same arguments returns the existing job.
        """
        who.need("operate")
        if run_at is not None and delay_seconds is not None:
            raise Invalid("give run_at or delay_seconds, not both", pointer="/overrides/delay_seconds")
        try:
            overrides = Overrides(
                wire.job_value("priority", priority),
                wire.job_value("run_at", run_at),
                wire.job_value("delay_seconds", delay_seconds),
                wire.job_value("max_attempts", max_attempts),
                wire.job_value("tags", tags),
                wire.job_value("payload", payload, self._limits),
                None if needs is None else _named_needs(needs),
            )
        except Invalid as error:
            raise error.within("/overrides") from None
        new = await self._new_id(who.tenant)
        order = Redrive(wire.job_id(job_id), new, who.actor, wire.name(start_from, "from"), overrides)
        if idempotency_key is not None:
            order = order._replace(key=wire.name(idempotency_key, "idempotency_key"), body_sha256=_digest(order))
        (answer,) = await self._redrive(who.tenant, [order])
        return answered(answer)

    async def cancel_tree(
        self, who: Principal, job_id: str, *, reason: str | None = None, force: bool = False
    ) -> Cascade:
        """Cancel a job and all its descendants; a repeated call resumes where the previous one stopped.

        A job accepts no more children once it is cancelled or its cancellation is requested, so each level is closed
        before it is read.
        """
        id, remark = wire.job_id(job_id), wire.reason(reason)
        (answer,) = await self._store.carry_out(who.tenant, [CancelJob(id, who.actor, remark, force)])
        if isinstance(answer, Rejected) and not isinstance(answer.error, AlreadyFinished):
            raise answer.error
        stopped = 0
        async for family in self._descendants(who.tenant, id):
            orders = [
                CancelJob(child.id, who.actor, remark, force)
                for child in family
                if child.live and (force or not child.asked_to_stop)
            ]
            results = await self._store.carry_out(who.tenant, orders) if orders else []
            stopped += sum(isinstance(one, Receipt) for one in results)
        if isinstance(answer, Receipt):
            return Cascade(answer, stopped)
        if not stopped:
            raise answer.error
        return Cascade(receipt_of((await self._store.history(who.tenant, id))[-1]), stopped)

    async def bulk(
        self,
        who: Principal,
        action: Action,
        *,
        ids: Sequence[str] | None = None,
        filter: Filter | None = None,
        dry_run: bool = False,
        limit: int = BATCH_SIZE,
        reason: str | None = None,
        force: bool = False,
    ) -> Bulk:
        """Apply an action to the jobs that are listed or match, newest first; a rejected job does not stop the rest.

        Skip jobs whose cancellation is already requested, or that are already redriven or acknowledged. So the same
        call can be repeated and resumes where it stopped, or from `before_seq`, which avoids reading the skipped jobs
        again.
        """
        who.need("operate")
        wire.whole(limit, "limit", 1, BATCH_SIZE)
        remark = wire.reason(reason)
        if (ids is None) == (filter is None):
            raise Invalid("give ids or a filter, and not both", pointer="/ids")
        found, refused, before_seq = (
            await self._named(who.tenant, action, ids, limit)
            if ids is not None
            else await self._found(who.tenant, action, filter or Filter(), limit, force)
        )
        more = before_seq is not None
        if dry_run or not found:
            return Bulk(len(found), 0, more, before_seq, tuple(refused), tuple(job.id for job in found))
        if action is Action.CANCEL:
            answers: Sequence[Receipt | Enqueued | Rejected] = await self._store.carry_out(
                who.tenant, [CancelJob(job.id, who.actor, remark, force) for job in found]
            )
        elif action is Action.ACKNOWLEDGE:
            answers = await self._store.carry_out(
                who.tenant, [AcknowledgeJob(job.id, who.actor, remark) for job in found]
            )
        else:
            answers = await self._redrive(
                who.tenant,
                [Redrive(job.id, await self._new_id(who.tenant), who.actor, once=True) for job in found],
            )
        for job, answer in zip(found, answers, strict=True):
            if isinstance(answer, Rejected):
                refused.append((job.id, answer.error))
        done = sum(not isinstance(answer, Rejected) for answer in answers)
        return Bulk(len(found), done, more, before_seq, tuple(refused), tuple(job.id for job in found))

    async def _redrive(self, tenant: str, orders: Sequence[Redrive]) -> list[Enqueued | Rejected]:
        """Redrive against the current registry; validate only the changed fields of a job."""
        for _ in range(TRIES):
            registry = await self._store.registry.read(tenant)
            known = await self._store.get(tenant, [order.id for order in orders])
            checked: list[Redrive | Error] = [
                order if job is None else await self._checked(order, job, registry)
                for order, job in zip(orders, known, strict=True)
            ]
            good = [order for order in checked if isinstance(order, Redrive)]
            try:
                answers = iter(
                    await self._store.redrive(
                        tenant, good, registry=registry.version, implicit_agents=self._implicit_agents
                    )
                )
            except RegistryChanged:
                continue
            return [Rejected(order) if isinstance(order, Error) else next(answers) for order in checked]
        raise Invalid("the registry of types changes faster than a job can be checked against it; try again")

    async def _checked(self, order: Redrive, job: Job, registry: Registry) -> Redrive | Error:
        """Return the command with the type's values, or why it does not fit the registry."""
        type = registry.types.get(job.type)
        if type is None and self._strict_types:
            return UnknownType(job.type)
        payload, needs = order.overrides.payload, order.overrides.needs
        try:
            check_copied(job.limits, registry.limits)
        except Invalid as error:
            return error
        try:
            if payload is not None and type is not None and type.schema is not None:
                await schemas.check(type.schema, payload, what="payload")
            if needs is None:
                return order
            requires = tuple(sorted({*needs.requires, *(() if type is None else type.requires)}))
            policy.check_needs(job.type, requires, needs.repository, job.affinity_key)
        except Invalid as error:
            return error.within("/overrides")
        return order._replace(overrides=order.overrides._replace(needs=needs._replace(requires=requires)))

    async def _descendants(self, tenant: str, job_id: str) -> AsyncIterator[list[Child]]:
        """Yield all descendants of a job in bounded batches; each batch is yielded before its children are read."""
        waiting: list[tuple[Sequence[str], tuple[str, int] | None]] = [((job_id,), None)]
        while waiting:
            parents, after = waiting.pop()
            family = await self._store.children_after(tenant, parents, after, limit=FAMILY_BATCH_SIZE)
            if not family:
                continue
            yield family
            if len(family) == FAMILY_BATCH_SIZE:
                waiting.append((parents, (family[-1].parent_id, family[-1].seq)))
            waiting.append(([child.id for child in family], None))

    async def _named(
        self, tenant: str, action: Action, ids: Sequence[str], limit: int
    ) -> tuple[list[Job], list[tuple[str, Error]], None]:
        if len(ids) > limit:
            raise Invalid(f"{len(ids)} ids: the limit is {limit}", pointer="/ids")
        refused: list[tuple[str, Error]] = []
        known: dict[str, None] = {}
        for id in ids:
            try:
                known[wire.job_id(id)] = None
            except NotFound as error:
                refused.append((id, error))
        found: list[Job] = []
        for id, job in zip(known, await self._store.get(tenant, list(known)), strict=True):
            if job is None:
                refused.append((id, NotFound(id)))
            elif action is Action.CANCEL and job.status in TERMINAL and job.status is not Status.CANCELLED:
                refused.append((id, AlreadyFinished(id, f"it has ended as {job.status}")))
            elif action is Action.REDRIVE and job.status not in TERMINAL:
                refused.append((id, NotTerminal(id, job.status)))
            elif action is Action.ACKNOWLEDGE and job.status not in UNRESOLVED:
                refused.append((id, NotFailed(id, job.status)))
            else:
                found.append(job)
        return found, refused, None

    async def _found(
        self, tenant: str, action: Action, filter: Filter, limit: int, force: bool
    ) -> tuple[list[Job], list[tuple[str, Error]], int | None]:
        """Return up to `limit` matching jobs that the action would change, and where to resume if there are more."""
        wanted = CHANGED[action]
        statuses = tuple(status for status in filter.statuses or wanted if status in wanted)
        found: list[Job] = []
        page = filter._replace(statuses=statuses, limit=BATCH_SIZE)
        for _ in range(MAX_PAGES if statuses else 0):
            jobs = await self._store.find(tenant, page)
            for job in await self._not_done(tenant, action, jobs, force):
                if len(found) == limit:
                    return found, [], found[-1].seq
                found.append(job)
            if len(jobs) < BATCH_SIZE:
                return found, [], None
            page = page._replace(before_seq=jobs[-1].seq)
        return found, [], page.before_seq if statuses else None

    async def _not_done(self, tenant: str, action: Action, jobs: Sequence[Job], force: bool) -> list[Job]:
        if action is Action.CANCEL:
            return [job for job in jobs if force or job.cancel_requested_at is None]
        again = await self._store.redriven(tenant, [job.id for job in jobs])
        seen = {job.id for job in jobs if action is Action.ACKNOWLEDGE and job.acknowledged_at is not None}
        return [job for job in jobs if job.id not in again | seen]


def _named_needs(needs: Needs) -> Needs:
    repository = None if needs.repository is None else policy.repository(needs.repository)
    return Needs(repository, policy.names(needs.requires, what="requires"))


def _digest(order: Redrive) -> bytes:
    return hashlib.sha256(msgspec.json.encode(("redrive", order.id, order.origin, order.overrides))).digest()
