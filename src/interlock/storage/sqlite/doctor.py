"""Rows that break a rule, and a rehearsal, on SQLite."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import apsw

from interlock.domain.audit import history_hash
from interlock.domain.decide import Cancel, Order
from interlock.domain.digests import merge, of_options
from interlock.domain.job import Receipt, Refused
from interlock.domain.lifecycle import Status, Verb
from interlock.errors import AlreadyFinished
from interlock.storage import rehearsal
from interlock.storage.contract import NO_TERMS
from interlock.storage.contract.doctor import CANCELLED, ENDED, EVIDENCE, Fault
from interlock.storage.expired import Swept
from interlock.storage.sql_files import load
from interlock.storage.sqlite import claim, digests, enqueue, registry, transition, transition_effects
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.eligibility_keys import Routes

T = TypeVar("T")

_SQL: Final = load("interlock.storage.sqlite", "doctor.sql")


class _Undone(Exception):
    """Undoes a rehearsal; its text is what came of it."""


class DoctorVerbs(ABC):
    """The part of the store that checks itself."""

    @abstractmethod
    async def _write(self, verb: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    async def _read(self, query: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    async def carry_out(self, tenant: str, orders: Sequence[Order]) -> list[Receipt | Refused]: ...

    async def faults(self, tenant: str, limit: int) -> list[Fault]:
        facts = {"tenant": tenant, "limit": limit}
        return await self._read(lambda c: [Fault(tenant, *row) for row in c.rows(_SQL["faults"], facts)])

    async def repair(self, fault: Fault, actor: str) -> str:
        if fault.rule == "head_is_its_last_history":
            return EVIDENCE
        if fault.rule in ("slots_are_counted", "open_approval_has_a_waiting_job", "waits_for_living_children"):
            return await self._write(lambda c: _derive(c, fault))
        reason = f"doctor: broke the rule {fault.rule}"
        (answer,) = await self.carry_out(fault.tenant, [Cancel(fault.name, actor, reason, force=True)])
        if isinstance(answer, Receipt):
            return CANCELLED
        if isinstance(answer.error, AlreadyFinished):
            return ENDED
        return await self._write(lambda c: _end(c, fault, actor, reason))

    async def rehearse(self) -> str:
        try:
            await self._write(_rehearse)
        except _Undone as undone:
            return str(undone)
        raise AssertionError("a rehearsal was not undone")


def _derive(c: Connection, fault: Fault) -> str:
    """Put right what follows from other rows."""
    facts = {"tenant": fault.tenant, "name": fault.name, "now": c.now}
    if fault.rule == "slots_are_counted":
        for (line,) in c.rows(_SQL["line_of_agent"], facts):
            c.db.execute(_SQL["recount"], {"tenant": fault.tenant, "line": line})
        return "the slots of the agent were counted anew"
    if fault.rule == "open_approval_has_a_waiting_job":
        c.db.execute(_SQL["close_void"], facts)
        return "the approval was closed as void"
    c.db.execute(_SQL["wait_no_more"], facts)
    c.db.execute(_SQL["count_children"], facts)
    return "it waits no more for what has ended"


def _end(c: Connection, fault: Fault, actor: str, reason: str) -> str:
    """Cancel a job whose own row breaks a rule, so that no other change of it is possible."""
    found = c.rows(_SQL["broken_job"], {"tenant": fault.tenant, "name": fault.name})
    if not found:
        return ENDED
    seq, status, attempt, fence, base, line, version, head, gate_id = found[0]
    about = digests.of_transition(
        c, fault.tenant, fault.name, fence, status, Status.CANCELLED, Verb.CANCEL, gate_id
    )  # fmt: skip
    options = digests.options(c, fault.tenant, seq)
    repaired = options._replace(
        priority=min(max(options.priority, -1000), 1000),
        max_attempts=min(max(options.max_attempts, min(max(attempt, 1), 100)), 100),
    )
    if repaired != options:
        about["options"] = of_options(repaired)
    c.metadatas[seq] = metadata = merge(None, about)
    c.hashes[seq] = history_hash(
        head, fault.tenant, fault.name, version + 1, Status(status), Status.CANCELLED, Verb.CANCEL, actor, attempt,
        fence, reason, metadata, c.now,
    )  # fmt: skip
    ((rules,),) = c.rows(_SQL["rules_of_change"])
    c.db.execute("DROP TRIGGER rules_of_change")  # in this transaction, which nobody else writes beside
    facts = {"tenant": fault.tenant, "seq": seq, "version": version + 1, "now": c.now}
    c.db.execute(_SQL["end_broken"], facts | {"attempt": min(max(attempt, 1), 100), "actor": actor, "reason": reason})
    c.db.execute(rules)
    move = transition_effects.Move(seq, base, None, status, str(Status.CANCELLED), False)
    transition_effects.tell(c, fault.tenant, [move])
    transition.tell_parents(c, fault.tenant, [fault.name])
    if line is not None:
        c.db.execute(_SQL["recount"], {"tenant": fault.tenant, "line": line})
    return f"{CANCELLED}; its row was brought back into its rules"


def _rehearse(c: Connection) -> None:
    tenant, routes, step = rehearsal.TENANT, Routes(rehearsal.TENANT), "a limited agent"
    try:
        registry.set_agent(c, tenant, rehearsal.AGENT)
        step = "enqueue"
        jobs = rehearsal.jobs()
        rehearsal.judge(step, enqueue.enqueue(c, routes, tenant, jobs, True, NO_TERMS), 2)
        step = "edit"
        rehearsal.judge(step, transition.carry_out(c, tenant, [rehearsal.edit(jobs[1])], routes), 1)
        step = "claim"
        held = claim.claim(c, routes, tenant, rehearsal.ASK, (), Swept())
        rehearsal.judge(step, held, 1)
        step = "a new limit"
        registry.set_agent(c, tenant, rehearsal.WIDER)
        more = claim.claim(c, routes, tenant, rehearsal.ASK, (), Swept())
        rehearsal.judge(step, more, 1)
        step = "complete"
        rehearsal.judge(step, transition.carry_out(c, tenant, [rehearsal.complete(job) for job in held + more]), 2)
    except (apsw.SQLError, apsw.ConstraintError, ValueError) as error:
        raise _Undone(f"{step}: {error}") from error
    raise _Undone(rehearsal.OK)
