"""Consistency checks, repairs and the rehearsal on SQLite."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import apsw

from interlock.domain.audit import history_hash
from interlock.domain.decide import CancelJob, Command
from interlock.domain.digests import merge, of_options
from interlock.domain.job import Receipt, Rejected
from interlock.domain.lifecycle import Status, Verb
from interlock.errors import AlreadyFinished
from interlock.storage import rehearsal
from interlock.storage.contract import NO_TERMS
from interlock.storage.contract.doctor import CANCELLED, ENDED, EVIDENCE, Fault
from interlock.storage.expired import ExpiredCounts
from interlock.storage.parts.registry import set_agent
from interlock.storage.sql_files import load
from interlock.storage.sqlite import claim, digests, driver, enqueue, transition, transition_effects
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.eligibility_keys import EligibilityKeys
from interlock.storage.wakeup import NextLook

T = TypeVar("T")

_SQL: Final = load("interlock.storage.sqlite", "doctor.sql")
DERIVED: Final = frozenset(
    {"slots_are_counted", "limits_are_counted", "open_approval_has_a_waiting_job", "waits_for_living_children"}
)


class _RolledBack(Exception):
    """Rolls back a rehearsal; the message is its outcome."""


class DoctorVerbs(ABC):
    """Doctor methods of the SQLite store."""

    @abstractmethod
    async def _write(self, verb: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    async def _read(self, query: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    async def carry_out(self, tenant: str, orders: Sequence[Command]) -> list[Receipt | Rejected]: ...

    async def faults(self, tenant: str, limit: int) -> list[Fault]:
        facts = {"tenant": tenant, "limit": limit}
        return await self._read(lambda c: [Fault(tenant, *row) for row in c.rows(_SQL["faults"], facts)])

    async def repair(self, fault: Fault, actor: str) -> str:
        if fault.rule == "head_is_its_last_history":
            return EVIDENCE
        if fault.rule in DERIVED:
            return await self._write(lambda c: _derive(c, fault))
        reason = f"doctor: broke the rule {fault.rule}"
        (answer,) = await self.carry_out(fault.tenant, [CancelJob(fault.name, actor, reason, force=True)])
        if isinstance(answer, Receipt):
            return CANCELLED
        if isinstance(answer.error, AlreadyFinished):
            return ENDED
        return await self._write(lambda c: _end(c, fault, actor, reason))

    async def rehearse(self) -> str:
        try:
            await self._write(_rehearse)
        except _RolledBack as rollbacks:
            return str(rollbacks)
        raise AssertionError("a rehearsal was not undone")


def _derive(c: Connection, fault: Fault) -> str:
    """Recompute values that are derived from other rows."""
    facts = {"tenant": fault.tenant, "name": fault.name, "now": c.now}
    if fault.rule == "slots_are_counted":
        for (agent_no,) in c.rows(_SQL["job_of_agent_no"], facts):
            c.db.execute(_SQL["recount"], {"tenant": fault.tenant, "agent_no": agent_no})
        return "the slots of the agent were counted anew"
    if fault.rule == "limits_are_counted":
        c.db.execute(_SQL["recount_flow"], facts)
        return "the running jobs of the limit were counted anew"
    if fault.rule == "open_approval_has_a_waiting_job":
        c.db.execute(_SQL["close_void"], facts)
        return "the approval was closed as void"
    c.db.execute(_SQL["wait_no_more"], facts)
    c.db.execute(_SQL["count_children"], facts)
    return "it waits no more for what has ended"


def _end(c: Connection, fault: Fault, actor: str, reason: str) -> str:
    """Cancel a job whose own row violates a constraint, which makes every other change fail."""
    found = c.rows(_SQL["broken_job"], {"tenant": fault.tenant, "name": fault.name})
    if not found:
        return ENDED
    seq, status, attempt, fence, base, agent_no, version, head, approval_id = found[0]
    about = digests.of_transition(
        c, fault.tenant, fault.name, fence, status, Status.CANCELLED, Verb.CANCEL, approval_id
    )  # fmt: skip
    options = digests.options(c, fault.tenant, seq)
    repaired = options | {
        "priority": min(max(options["priority"], -1000), 1000),
        "max_attempts": min(max(options["max_attempts"], min(max(attempt, 1), 100)), 100),
    }
    if repaired != options:
        about["options"] = of_options(tuple(repaired.values()))
    c.metadatas[seq] = metadata = merge(None, about)
    c.hashes[seq] = history_hash(
        head, fault.tenant, fault.name, version + 1, Status(status), Status.CANCELLED, Verb.CANCEL, actor, attempt,
        fence, reason, metadata, c.now,
    )  # fmt: skip
    ((rules,),) = c.rows(_SQL["rules_of_change"])
    c.db.execute("DROP TRIGGER rules_of_change")  # safe: this transaction holds the write lock
    facts = {"tenant": fault.tenant, "seq": seq, "version": version + 1, "now": c.now}
    c.db.execute(_SQL["end_broken"], facts | {"attempt": min(max(attempt, 1), 100), "actor": actor, "reason": reason})
    c.db.execute(rules)
    move = transition_effects.StatusChange(seq, base, None, status, str(Status.CANCELLED), False)
    transition_effects.record(c, fault.tenant, [move])
    transition.notify_parents(c, fault.tenant, [fault.name])
    if agent_no is not None:
        c.db.execute(_SQL["recount"], {"tenant": fault.tenant, "agent_no": agent_no})
    return f"{CANCELLED}; its row was brought back into its rules"


def _rehearse(c: Connection) -> None:
    tenant, eligibility_keys, step = rehearsal.TENANT, EligibilityKeys(rehearsal.TENANT), "a limited agent"
    try:
        driver.run(c, tenant, lambda tx: set_agent(tx, rehearsal.AGENT), c.now)
        step = "enqueue"
        jobs = rehearsal.jobs()
        rehearsal.judge(step, enqueue.enqueue(c, eligibility_keys, tenant, jobs, True, NO_TERMS), 2)
        step = "edit"
        rehearsal.judge(step, transition.carry_out(c, tenant, [rehearsal.edit(jobs[1])], eligibility_keys), 1)
        step = "claim"
        leased = claim.claim(c, eligibility_keys, tenant, rehearsal.ASK, (), ExpiredCounts(), NextLook())
        rehearsal.judge(step, leased, 1)
        step = "a new limit"
        driver.run(c, tenant, lambda tx: set_agent(tx, rehearsal.WIDER), c.now)
        more = claim.claim(c, eligibility_keys, tenant, rehearsal.ASK, (), ExpiredCounts(), NextLook())
        rehearsal.judge(step, more, 1)
        step = "complete"
        rehearsal.judge(step, transition.carry_out(c, tenant, [rehearsal.complete(job) for job in leased + more]), 2)
    except (apsw.SQLError, apsw.ConstraintError, ValueError) as error:
        raise _RolledBack(f"{step}: {error}") from error
    raise _RolledBack(rehearsal.OK)
