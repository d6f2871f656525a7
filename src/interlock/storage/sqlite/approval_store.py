"""Approval operations of the SQLite store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from interlock.domain.approval import Approval, ApprovalFilter, CastVote, CreateApprovalLink, judge, refuse_link
from interlock.domain.job import Rejected
from interlock.domain.transition import Transition
from interlock.errors import Error, NotFound
from interlock.storage.batch_split import split_by_job
from interlock.storage.contract import Due
from interlock.storage.sqlite import approvals, transition
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.eligibility_keys import EligibilityKeys

T = TypeVar("T")


class SQLiteApprovals(ABC):
    """Approval methods of the SQLite store."""

    @abstractmethod
    async def _write(self, verb: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    async def _read(self, query: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    def _stir(self, tenant: str) -> None: ...

    async def decide(self, tenant: str, commands: Sequence[CastVote]) -> list[Approval | Rejected]:
        results = await self._write(lambda c: _decide(c, tenant, commands))
        self._stir(tenant)
        return results

    async def create_link(self, tenant: str, link_requests: Sequence[CreateApprovalLink]) -> list[Approval | Rejected]:
        return await self._write(lambda c: [_create_links(c, tenant, create_link) for create_link in link_requests])

    async def approvals(self, tenant: str, ids: Sequence[str]) -> list[Approval | None]:
        found = await self._read(lambda c: approvals.by_id(c, tenant, ids))
        return [found.get(id) for id in ids]

    async def find_approvals(self, tenant: str, filter: ApprovalFilter) -> list[Approval]:
        return await self._read(lambda c: approvals.find(c, tenant, filter))

    async def approval_of_token(self, sha256: bytes) -> tuple[str, str] | None:
        return await self._read(lambda c: approvals.of_token(c, sha256))

    async def decisions(self, tenant: str, job_ids: Sequence[str]) -> dict[str, list[Approval]]:
        return await self._read(lambda c: approvals.decisions(c, tenant, job_ids))

    async def due_approvals(self, limit: int) -> list[Due]:
        return [Due._make(row) for row in await self._read(lambda c: approvals.due(c, limit))]


def _decide(connection: Connection, tenant: str, commands: Sequence[CastVote]) -> list[Approval | Rejected]:
    """Record each vote; votes on the same approval are applied one after the other."""
    answers: dict[int, Approval | Rejected] = {}
    for batch in split_by_job(commands):
        answers |= zip(batch, _one_each(connection, tenant, [commands[i] for i in batch]), strict=True)
    return [answers[i] for i in range(len(commands))]


def _one_each(connection: Connection, tenant: str, commands: Sequence[CastVote]) -> list[Approval | Rejected]:
    current = approvals.by_id(connection, tenant, [command.id for command in commands])
    jobs = transition.job_states(connection, tenant, [approval.job_id for approval in current.values()])
    changes: list[tuple[Transition, transition.Found]] = []
    answers: list[Approval | Rejected] = []
    for command in commands:
        approval = current.get(command.id)
        if approval is None:
            answers.append(Rejected(NotFound(command.id, what="approval")))
            continue
        here = jobs[approval.job_id]
        ruling = judge(command, approval, here.state, connection.now)
        if isinstance(ruling, Error):
            answers.append(Rejected(ruling))
            continue
        approvals.record(connection, tenant, ruling)
        if ruling.change is not None:
            changes.append((ruling.change, here))
        answers.append(ruling.approval if ruling.refusal is None else Rejected(ruling.refusal))
    transition.write(connection, tenant, changes, EligibilityKeys(tenant))
    return answers


def _create_links(connection: Connection, tenant: str, request: CreateApprovalLink) -> Approval | Rejected:
    approval = approvals.by_id(connection, tenant, [request.id]).get(request.id)
    error = (
        NotFound(request.id, what="approval")
        if approval is None
        else refuse_link(approval, request.actor, connection.now)
    )
    if error is not None:
        return Rejected(error)
    approvals.create_link(connection, tenant, request.id, request.token_sha256, request.actor)
    return approvals.by_id(connection, tenant, [request.id])[request.id]
