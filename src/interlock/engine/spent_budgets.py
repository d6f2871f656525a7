"""Spent budgets: they fail the jobs that they refuse, or ask approvers to raise them, and channels are told.

The question is an approval of a job that the server creates and runs itself, so it is listed, announced, expired and
recorded like any other. The key of that job allows one question until the budget changes or starts anew: after a
denial the budget stays spent.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from interlock import wire
from interlock.domain import principal
from interlock.domain.approval import Approval, ApprovalStatus, OnDeny, RequestApproval
from interlock.domain.budget import PREFIX, OnExceed
from interlock.domain.decide import CancelJob, CompleteJob, FailJob
from interlock.domain.job import Filter, Job, NewJob
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.limits import LimitState
from interlock.domain.policy import ClaimFilter
from interlock.domain.transition import error_text
from interlock.errors import Error, Invalid
from interlock.storage.contract import Store, Terms

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
ANNOUNCE_SECONDS: Final = 5.0
BATCH_SIZE: Final = 500
TYPE: Final = "interlock.raise_budget"
TAG: Final = "budget"
UNFINISHED: Final = tuple(status for status in Status if status not in TERMINAL)
CAPABILITY: Final = "interlock.server"  # no worker claims these jobs
WORKER: Final = "interlock"
ACTOR: Final = principal.system("budgets")
EXPIRY_SECONDS: Final = 7 * 86_400.0


class SpentBudgets:
    """The maintenance tasks of spent budgets."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def act(self) -> int:
        """Act for every spent budget; one that cannot be handled does not stop the others."""
        done, asking = 0, set[str]()
        for tenant, name in await self._store.limits.acting_budgets():
            try:
                found = await self._store.limits.get(tenant, name)
                if found is None or found.limit.budget is None:
                    continue
                if found.limit.budget.on_exceed is OnExceed.FAIL:
                    done += await self._store.limits.fail_refused(tenant, name, BATCH_SIZE)
                    continue
                asking.add(tenant)
                if await self._store.limits.refused(tenant, name, 1):
                    await self._ask(tenant, found)
            except Error as error:
                log.warning("cannot act for budget %s of tenant %s, retrying: %s", name, tenant, error)
        for tenant in sorted(asking):
            try:
                done += await self._continue(tenant)
            except Error as error:
                log.warning("cannot ask approvers of tenant %s for budgets, retrying: %s", tenant, error)
        return done

    async def announce(self) -> int:
        """Tell the channels that listen of budgets that are spent."""
        told = 0
        for tenant, name in await self._store.limits.watched_budgets():
            try:
                told += await self._store.limits.announce_spent(tenant, name)
            except Error as error:
                log.warning("cannot announce budget %s of tenant %s, retrying: %s", name, tenant, error)
        return told

    async def _ask(self, tenant: str, found: LimitState) -> None:
        """Create the job that asks, unless it was created before."""
        limit, name = found.limit, found.limit.name.removeprefix(PREFIX)
        assert limit.budget is not None
        began_at = limit.budget.began_at(await self._store.now())
        units = {unit: _short(amount) for unit, amount in limit.units.items()}
        job = NewJob(
            wire.new_id(await self._store.new_job_shard(tenant, TYPE)), TYPE,
            json.dumps({"budget": name, "raise_by": units}), priority=1000, max_attempts=100,
            requires=(CAPABILITY,), created_by=ACTOR, tags=(TAG,),
            idempotency_key=f"{TYPE}/{limit.created_at}/{limit.updated_at}/{began_at or 0}/{name}"[:200],
        )  # fmt: skip
        registry = await self._store.registry.read(tenant)
        await self._store.enqueue(tenant, [job], terms=Terms(registry.version))

    async def _continue(self, tenant: str) -> int:
        """Open the approval of each new job, and carry out what was decided."""
        ask = ClaimFilter(
            WORKER, types=frozenset({TYPE}), capabilities=frozenset({CAPABILITY}), limit=10, lease_seconds=60.0
        )
        jobs = await self._store.claim(tenant, ask)
        decided = await self._store.approvals.decisions(tenant, [job.id for job in jobs]) if jobs else {}
        for job in jobs:
            await self._run(tenant, job, decided.get(job.id, []))
        return len(jobs)

    async def _run(self, tenant: str, job: Job, decided: list[Approval]) -> None:
        asked = json.loads(job.payload or "{}")
        holder = (job.id, job.fence, job.worker or "")
        if job.created_by != ACTOR:
            failed = FailJob(
                *holder, error_text("only the server creates jobs of this type", "forbidden"), retryable=False
            )
            await self._store.carry_out(tenant, [failed])
            return
        decided = [one for one in decided if one.opened_by == ACTOR]
        if not decided and len(await _questions(self._store, tenant, asked["budget"])) == 1:
            await self._store.carry_out(tenant, [await self._question(tenant, holder, asked)])
            return
        if not decided or decided[-1].status is not ApprovalStatus.APPROVED:
            await self._store.carry_out(tenant, [CompleteJob(*holder, json.dumps({"raised": None}))])
            return
        amount = json.loads(decided[-1].data or "{}") or asked["raise_by"]
        try:
            raised = await self._store.limits.raise_budget(
                tenant, PREFIX + asked["budget"], amount, actor=decided[-1].closed_by or ACTOR, job_id=job.id
            )
        except Invalid as error:  # the budget has other units now
            failed = FailJob(*holder, error_text(str(error), "invalid_raise"), retryable=False)
            await self._store.carry_out(tenant, [failed])
            return
        result = {"raised": None if raised is None else amount}
        await self._store.carry_out(tenant, [CompleteJob(*holder, json.dumps(result))])

    async def _question(self, tenant: str, holder: tuple[str, int, str], asked: dict[str, Any]) -> RequestApproval:
        found = await self._store.limits.get(tenant, PREFIX + asked["budget"])
        more = ", ".join(f"{amount} {unit}" for unit, amount in asked["raise_by"].items())
        details: dict[str, Any] = {**asked}
        if found is not None:
            details |= {"amount": dict(found.limit.units), "available": dict(found.state.available)}
        return RequestApproval(
            *holder, wire.new_id(), f"Budget {asked['budget']} is spent. Raise it by {more}?", json.dumps(details),
            schema=json.dumps(_schema(asked["raise_by"])), on_deny=OnDeny.RESUME, expires_in_seconds=EXPIRY_SECONDS,
            opened_by=ACTOR,
        )  # fmt: skip


async def withdraw(store: Store, tenant: str, name: str, *, actor: str) -> None:
    """Cancel the open question of a budget that is deleted or no longer asks."""
    orders = [CancelJob(job.id, actor, "the budget no longer asks") for job in await _questions(store, tenant, name)]
    if orders:
        await store.carry_out(tenant, orders)


async def _questions(store: Store, tenant: str, name: str) -> list[Job]:
    """Return the unfinished jobs that ask for a budget."""
    listed = await store.find(tenant, Filter(statuses=UNFINISHED, type=TYPE, tags=(TAG,), limit=BATCH_SIZE))
    jobs = await store.get(tenant, [job.id for job in listed if job.created_by == ACTOR])
    return [job for job in jobs if job is not None and json.loads(job.payload or "{}").get("budget") == name]


def _schema(amounts: dict[str, float]) -> dict[str, Any]:
    """Return the schema of the amounts that an approver may choose instead."""
    units = {unit: {"type": "number", "exclusiveMinimum": 0, "default": amount} for unit, amount in amounts.items()}
    return {"type": "object", "properties": units, "additionalProperties": False}


def _short(amount: float) -> float:
    return int(amount) if amount == int(amount) else amount
