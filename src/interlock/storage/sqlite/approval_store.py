"""Deciding about gates on SQLite."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from interlock.domain.approval import Approval, Ballot, GateFilter, Mint, judge, refuse_link
from interlock.domain.job import Refused
from interlock.domain.transition import Change
from interlock.errors import Error, NotFound
from interlock.storage.batch_split import turns
from interlock.storage.contract import Due
from interlock.storage.sqlite import approvals, transition
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.eligibility_keys import Routes

T = TypeVar("T")


class GateVerbs(ABC):
    """The part of a SQLite store that keeps gates."""

    @abstractmethod
    async def _write(self, verb: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    async def _read(self, query: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    def _stir(self, tenant: str) -> None: ...

    async def decide(self, tenant: str, ballots: Sequence[Ballot]) -> list[Approval | Refused]:
        told = await self._write(lambda c: _decide(c, tenant, ballots))
        self._stir(tenant)
        return told

    async def mint(self, tenant: str, mints: Sequence[Mint]) -> list[Approval | Refused]:
        return await self._write(lambda c: [_mint(c, tenant, mint) for mint in mints])

    async def approvals(self, tenant: str, ids: Sequence[str]) -> list[Approval | None]:
        found = await self._read(lambda c: approvals.by_id(c, tenant, ids))
        return [found.get(id) for id in ids]

    async def find_approvals(self, tenant: str, filter: GateFilter) -> list[Approval]:
        return await self._read(lambda c: approvals.find(c, tenant, filter))

    async def gate_of_token(self, sha256: bytes) -> tuple[str, str] | None:
        return await self._read(lambda c: approvals.of_token(c, sha256))

    async def decisions(self, tenant: str, job_ids: Sequence[str]) -> dict[str, list[Approval]]:
        return await self._read(lambda c: approvals.decisions(c, tenant, job_ids))

    async def due_gates(self, limit: int) -> list[Due]:
        return [Due._make(row) for row in await self._read(lambda c: approvals.due(c, limit))]


def _decide(connection: Connection, tenant: str, ballots: Sequence[Ballot]) -> list[Approval | Refused]:
    """Count each ballot; two for one gate follow each other."""
    answers: dict[int, Approval | Refused] = {}
    for turn in turns(ballots):
        answers |= zip(turn, _one_each(connection, tenant, [ballots[i] for i in turn]), strict=True)
    return [answers[i] for i in range(len(ballots))]


def _one_each(connection: Connection, tenant: str, ballots: Sequence[Ballot]) -> list[Approval | Refused]:
    gates = approvals.by_id(connection, tenant, [ballot.id for ballot in ballots])
    jobs = transition.standings(connection, tenant, [gate.job_id for gate in gates.values()])
    changes: list[tuple[Change, transition.Found]] = []
    answers: list[Approval | Refused] = []
    for ballot in ballots:
        gate = gates.get(ballot.id)
        if gate is None:
            answers.append(Refused(NotFound(ballot.id, what="approval")))
            continue
        here = jobs[gate.job_id]
        ruling = judge(ballot, gate, here.standing, connection.now)
        if isinstance(ruling, Error):
            answers.append(Refused(ruling))
            continue
        approvals.record(connection, tenant, ruling)
        if ruling.change is not None:
            changes.append((ruling.change, here))
        answers.append(ruling.approval if ruling.refusal is None else Refused(ruling.refusal))
    transition.write(connection, tenant, changes, Routes(tenant))
    return answers


def _mint(connection: Connection, tenant: str, mint: Mint) -> Approval | Refused:
    gate = approvals.by_id(connection, tenant, [mint.id]).get(mint.id)
    error = NotFound(mint.id, what="approval") if gate is None else refuse_link(gate, mint.actor, connection.now)
    if error is not None:
        return Refused(error)
    approvals.mint(connection, tenant, mint.id, mint.token_sha256, mint.actor)
    return approvals.by_id(connection, tenant, [mint.id])[mint.id]
