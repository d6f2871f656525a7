"""Consistency checks and a test run on PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import asyncpg

from interlock.domain.decide import CancelJob, Command
from interlock.domain.job import Receipt, Rejected
from interlock.errors import AlreadyFinished
from interlock.storage import rehearsal
from interlock.storage.contract import NO_TERMS
from interlock.storage.contract.doctor import CANCELLED, ENDED, EVIDENCE, Fault
from interlock.storage.expired import ExpiredCounts
from interlock.storage.parts.registry import set_agent
from interlock.storage.postgres import claim, driver, enqueue, transition
from interlock.storage.postgres.connection import Conn, call
from interlock.storage.wakeup import NextLook

T = TypeVar("T")

DERIVED = {
    "slots_are_counted": "the slots of the agent were counted anew",
    "limits_are_counted": "the running jobs of the limit were counted anew",
    "lease_has_a_running_job": "the lease was deleted",
    "running_has_a_lease": "the lease was written anew; it ends when the worker does not renew it",
    "open_approval_has_a_waiting_job": "the approval was closed as void",
    "ready_when_it_waits": "it was put among the ready jobs",
    "ready_only_when_it_waits": "its row among the ready jobs was made anew",
    "waits_for_living_children": "it waits no more for what has ended",
}


class DoctorVerbs(ABC):
    """The self-check methods of the store."""

    @abstractmethod
    async def _fetch(self, statement: str, *values: Any, repeatable: bool = True) -> list[asyncpg.Record]: ...

    @abstractmethod
    async def _run(self, verb: Callable[[Conn], Awaitable[T]], *, repeatable: bool = True) -> T: ...

    @abstractmethod
    async def carry_out(self, tenant: str, orders: Sequence[Command]) -> list[Receipt | Rejected]: ...

    async def faults(self, tenant: str, limit: int) -> list[Fault]:
        return [Fault(tenant, row[0], row[1]) for row in await self._fetch(call("faults", 2), tenant, limit)]

    async def repair(self, fault: Fault, actor: str) -> str:
        tenant, rule, name = fault
        if rule == "head_is_its_last_history":
            return EVIDENCE
        if rule in DERIVED:
            ((done,),) = await self._fetch("select interlock.repair($1, $2, $3)", tenant, rule, name)
            return DERIVED[rule] if done else "nothing was left to do"
        reason = f"doctor: broke the rule {rule}"
        (answer,) = await self.carry_out(tenant, [CancelJob(name, actor, reason, force=True)])
        if isinstance(answer, Receipt):
            return CANCELLED
        if isinstance(answer.error, AlreadyFinished):
            return ENDED
        ((done,),) = await self._fetch("select interlock.end_broken($1, $2, $3, $4)", tenant, name, actor, reason)
        return f"{CANCELLED}; its row was brought back into its rules" if done else ENDED

    async def rehearse(self) -> str:
        return await self._run(_rehearse)


async def _rehearse(connection: Conn) -> str:
    tenant, step = rehearsal.TENANT, "the tenant"
    rollbacks = connection.transaction()
    await rollbacks.start()
    try:
        await connection.execute("select set_config('interlock.admitted', $1, true)", tenant)
        step = "a limited agent"
        await driver.run(connection, tenant, lambda tx: set_agent(tx, rehearsal.AGENT))
        step = "enqueue"
        jobs = rehearsal.jobs()
        rehearsal.judge(
            step, await enqueue.enqueue(connection, enqueue.EnqueueCache(), tenant, jobs, True, NO_TERMS), 2
        )
        step = "edit"
        rehearsal.judge(step, await transition.carry_out_whole(connection, tenant, [rehearsal.edit(jobs[1])]), 1)
        step = "claim"
        leased = await claim.claim(connection, tenant, rehearsal.ASK, (), ExpiredCounts(), NextLook())
        rehearsal.judge(step, leased, 1)
        step = "a new limit"
        await driver.run(connection, tenant, lambda tx: set_agent(tx, rehearsal.WIDER))
        more = await claim.claim(connection, tenant, rehearsal.ASK, (), ExpiredCounts(), NextLook())
        rehearsal.judge(step, more, 1)
        step = "complete"
        ends = [rehearsal.complete(job) for job in leased + more]
        rehearsal.judge(step, await transition.carry_out_whole(connection, tenant, ends), 2)
    except (asyncpg.PostgresError, ValueError) as error:
        return f"{step}: {error}"
    finally:
        await rollbacks.rollback()
    return rehearsal.OK
