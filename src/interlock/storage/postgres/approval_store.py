"""Deciding about gates on PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from interlock.domain.approval import Approval, Ballot, GateFilter, Mint, judge, refuse_link
from interlock.domain.job import Refused
from interlock.domain.transition import Change
from interlock.errors import Error, NotFound
from interlock.storage.batch_split import turns
from interlock.storage.contract import Due
from interlock.storage.postgres import approvals, transition
from interlock.storage.postgres.connection import Conn

T = TypeVar("T")


class GateVerbs(ABC):
    """The part of a PostgreSQL store that keeps gates."""

    @abstractmethod
    async def _run(self, verb: Callable[[Conn], Awaitable[T]], *, repeatable: bool = True) -> T: ...

    @abstractmethod
    def _stir(self, tenant: str) -> None: ...

    async def decide(self, tenant: str, ballots: Sequence[Ballot]) -> list[Approval | Refused]:
        told = await self._run(lambda c: _decide(c, tenant, ballots))
        self._stir(tenant)
        return told

    async def mint(self, tenant: str, mints: Sequence[Mint]) -> list[Approval | Refused]:
        return await self._run(lambda c: _mint(c, tenant, mints))

    async def approvals(self, tenant: str, ids: Sequence[str]) -> list[Approval | None]:
        found = await self._run(lambda c: approvals.by_id(c, tenant, ids))
        return [found.get(id) for id in ids]

    async def find_approvals(self, tenant: str, filter: GateFilter) -> list[Approval]:
        return await self._run(lambda c: approvals.find(c, tenant, filter))

    async def gate_of_token(self, sha256: bytes) -> tuple[str, str] | None:
        return await self._run(lambda c: approvals.of_token(c, sha256))

    async def decisions(self, tenant: str, job_ids: Sequence[str]) -> dict[str, list[Approval]]:
        return await self._run(lambda c: approvals.decisions(c, tenant, job_ids))

    async def due_gates(self, limit: int) -> list[Due]:
        rows = await self._run(
            lambda c: c.fetch("select tenant, job_id from interlock.due_gates(interlock.clock(), $1)", limit)
        )
        return [Due(*row) for row in rows]


async def _decide(connection: Conn, tenant: str, ballots: Sequence[Ballot]) -> list[Approval | Refused]:
    """Count each ballot; two for one gate follow each other."""
    answers: dict[int, Approval | Refused] = {}
    async with connection.transaction():
        for turn in turns(ballots):
            answers |= zip(turn, await _one_each(connection, tenant, [ballots[i] for i in turn]), strict=True)
    return [answers[i] for i in range(len(ballots))]


async def _one_each(connection: Conn, tenant: str, ballots: Sequence[Ballot]) -> list[Approval | Refused]:
    ids = [ballot.id for ballot in ballots]
    job_ids = sorted({gate.job_id for gate in (await approvals.by_id(connection, tenant, ids)).values()})
    jobs, now = await transition.standings(connection, tenant, job_ids)
    gates = await approvals.by_id(connection, tenant, ids, lock=True)
    changes: list[Change] = []
    answers: list[Approval | Refused] = []
    for ballot in ballots:
        gate = gates.get(ballot.id)
        if gate is None or gate.job_id not in jobs:  # one that was opened a moment ago is told of to nobody yet
            answers.append(Refused(NotFound(ballot.id, what="approval")))
            continue
        ruling = judge(ballot, gate, jobs[gate.job_id], now)
        if isinstance(ruling, Error):
            answers.append(Refused(ruling))
            continue
        await approvals.record(connection, tenant, ruling)
        if ruling.change is not None:
            changes.append(ruling.change)
        answers.append(ruling.approval if ruling.refusal is None else Refused(ruling.refusal))
    await transition.write(connection, tenant, changes)
    return answers


async def _mint(connection: Conn, tenant: str, mints: Sequence[Mint]) -> list[Approval | Refused]:
    async with connection.transaction():
        gates = await approvals.by_id(connection, tenant, [mint.id for mint in mints], lock=True)
        now = int(await connection.fetchval("select interlock.clock()"))
        faults: dict[str, Error] = {}
        for mint in mints:
            gate = gates.get(mint.id)
            error = NotFound(mint.id, what="approval") if gate is None else refuse_link(gate, mint.actor, now)
            if error is not None:
                faults[mint.id] = error
                continue
            await approvals.mint(connection, tenant, mint.id, mint.token_sha256, mint.actor)
        gates = await approvals.by_id(connection, tenant, [mint.id for mint in mints])
        return [Refused(faults[mint.id]) if mint.id in faults else gates[mint.id] for mint in mints]
