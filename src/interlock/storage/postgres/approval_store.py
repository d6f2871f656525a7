"""Approvals and decisions on PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from interlock.domain.approval import Approval, ApprovalFilter, CastVote, CreateApprovalLink, judge, refuse_link
from interlock.domain.job import Rejected
from interlock.domain.transition import Transition
from interlock.errors import Error, NotFound
from interlock.storage.batch_split import split_by_job
from interlock.storage.contract import Due
from interlock.storage.postgres import approvals, transition
from interlock.storage.postgres.connection import Conn

T = TypeVar("T")


class PostgresApprovals(ABC):
    """The approval methods of the PostgreSQL store."""

    @abstractmethod
    async def _run(self, verb: Callable[[Conn], Awaitable[T]], *, repeatable: bool = True) -> T: ...

    @abstractmethod
    def _stir(self, tenant: str) -> None: ...

    async def decide(self, tenant: str, commands: Sequence[CastVote]) -> list[Approval | Rejected]:
        results = await self._run(lambda c: _decide(c, tenant, commands))
        self._stir(tenant)
        return results

    async def create_link(self, tenant: str, link_requests: Sequence[CreateApprovalLink]) -> list[Approval | Rejected]:
        return await self._run(lambda c: _create_links(c, tenant, link_requests))

    async def approvals(self, tenant: str, ids: Sequence[str]) -> list[Approval | None]:
        found = await self._run(lambda c: approvals.by_id(c, tenant, ids))
        return [found.get(id) for id in ids]

    async def find_approvals(self, tenant: str, filter: ApprovalFilter) -> list[Approval]:
        return await self._run(lambda c: approvals.find(c, tenant, filter))

    async def approval_of_token(self, sha256: bytes) -> tuple[str, str] | None:
        return await self._run(lambda c: approvals.of_token(c, sha256))

    async def decisions(self, tenant: str, job_ids: Sequence[str]) -> dict[str, list[Approval]]:
        return await self._run(lambda c: approvals.decisions(c, tenant, job_ids))

    async def due_approvals(self, limit: int) -> list[Due]:
        rows = await self._run(
            lambda c: c.fetch("select tenant, job_id from interlock.due_approvals(interlock.clock(), $1)", limit)
        )
        return [Due(*row) for row in rows]


async def _decide(connection: Conn, tenant: str, commands: Sequence[CastVote]) -> list[Approval | Rejected]:
    """Record each vote. Votes on the same approval are decided one after another."""
    answers: dict[int, Approval | Rejected] = {}
    async with connection.transaction():
        for batch in split_by_job(commands):
            answers |= zip(batch, await _one_each(connection, tenant, [commands[i] for i in batch]), strict=True)
    return [answers[i] for i in range(len(commands))]


async def _one_each(connection: Conn, tenant: str, commands: Sequence[CastVote]) -> list[Approval | Rejected]:
    ids = [command.id for command in commands]
    job_ids = sorted({approval.job_id for approval in (await approvals.by_id(connection, tenant, ids)).values()})
    jobs, now = await transition.job_states(connection, tenant, job_ids)
    current = await approvals.by_id(connection, tenant, ids, lock=True)
    changes: list[Transition] = []
    answers: list[Approval | Rejected] = []
    for command in commands:
        approval = current.get(command.id)
        if approval is None or approval.job_id not in jobs:  # created after the first read: no caller knows it yet
            answers.append(Rejected(NotFound(command.id, what="approval")))
            continue
        ruling = judge(command, approval, jobs[approval.job_id], now)
        if isinstance(ruling, Error):
            answers.append(Rejected(ruling))
            continue
        await approvals.record(connection, tenant, ruling)
        if ruling.change is not None:
            changes.append(ruling.change)
        answers.append(ruling.approval if ruling.refusal is None else Rejected(ruling.refusal))
    await transition.write(connection, tenant, changes)
    return answers


async def _create_links(
    connection: Conn, tenant: str, requests: Sequence[CreateApprovalLink]
) -> list[Approval | Rejected]:
    async with connection.transaction():
        current = await approvals.by_id(connection, tenant, [request.id for request in requests], lock=True)
        now = int(await connection.fetchval("select interlock.clock()"))
        faults: dict[str, Error] = {}
        for request in requests:
            approval = current.get(request.id)
            error = (
                NotFound(request.id, what="approval") if approval is None else refuse_link(approval, request.actor, now)
            )
            if error is not None:
                faults[request.id] = error
                continue
            await approvals.create_link(connection, tenant, request.id, request.token_sha256, request.actor)
        current = await approvals.by_id(connection, tenant, [request.id for request in requests])
        return [Rejected(faults[request.id]) if request.id in faults else current[request.id] for request in requests]
