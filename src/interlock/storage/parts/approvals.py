"""Approvals: requests of jobs, votes, decisions and approval links."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from interlock.domain.approval import (
    Approval,
    ApprovalFilter,
    ApprovalStatus,
    CastVote,
    CreateApprovalLink,
    Decision,
    RequestApproval,
    Vote,
    VoteOutcome,
    digest,
    judge,
    refuse_link,
)
from interlock.domain.job import Rejected
from interlock.domain.retry import SECOND
from interlock.domain.transition import Transition
from interlock.errors import Error, NotFound
from interlock.storage.batch_split import split_by_job
from interlock.storage.contract.due import Due
from interlock.storage.dialect import NEWEST, OLDEST, Database, Steps, Transaction, columns, reader, statements

SQL: Final = statements("approvals", columns=columns(Approval, "a.", votes="{votes}"))


def _votes(text: str) -> tuple[Vote, ...]:
    return tuple(Vote(voter, Decision(given), comment, at) for voter, given, comment, at in json.loads(text))


_approval: Final = reader(Approval, votes=_votes)


class Approvals:
    """Stores approvals; see the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def decide(self, tenant: str, commands: Sequence[CastVote]) -> list[Approval | Rejected]:
        def body(tx: Transaction) -> Steps[list[Approval | Rejected]]:
            answers: dict[int, Approval | Rejected] = {}
            for batch in split_by_job(commands):  # votes on one approval are decided one after another
                answers |= zip(batch, (yield from _decide(tx, [commands[i] for i in batch])), strict=True)
            return [answers[i] for i in range(len(commands))]

        results = await self._database.write(tenant, body, guarded=True)
        self._database.wake(tenant)
        return results

    async def create_link(self, tenant: str, link_requests: Sequence[CreateApprovalLink]) -> list[Approval | Rejected]:
        def body(tx: Transaction) -> Steps[list[Approval | Rejected]]:
            answers: list[Approval | Rejected] = []
            current = yield from _locked(tx, [request.id for request in link_requests])
            for id, actor, sha256 in link_requests:
                approval = current.get(id)
                error = NotFound(id, resource="approval") if approval is None else refuse_link(approval, actor, tx.now)
                if error is None:
                    yield from tx.run(SQL["create_link"], id=id, sha256=sha256, actor=actor)
                    answers.append((yield from _get(tx, [id]))[id])
                else:
                    answers.append(Rejected(error))
            return answers

        return await self._database.write(tenant, body)

    async def get(self, tenant: str, ids: Sequence[str]) -> list[Approval | None]:
        rows = await self._database.rows(tenant, SQL["get"], ids=ids)
        found = {approval.id: approval for approval in map(_approval, rows)}
        return [found.get(id) for id in ids]

    async def find(self, tenant: str, filter: ApprovalFilter) -> list[Approval]:
        at, id = filter.before or (OLDEST if filter.urgent else NEWEST)
        values = {"at": at, "id": id, "limit": filter.limit}
        if filter.urgent:
            statement = SQL["find_urgent"]
        elif filter.job_id is not None:
            statement = SQL["find_of_job"]
            values |= {"job_id": filter.job_id, "fence": filter.fence, "status": filter.status}
        elif filter.status is ApprovalStatus.OPEN:
            statement = SQL["find_open"]
        else:
            statement = SQL["find"]
            values["status"] = filter.status
        return [*map(_approval, await self._database.rows(tenant, statement, **values))]

    async def of_token(self, sha256: bytes) -> tuple[str, str] | None:
        rows = await self._database.rows(None, SQL["of_token"], sha256=sha256)
        return (rows[0][0], rows[0][1]) if rows else None

    async def decisions(self, tenant: str, job_ids: Sequence[str]) -> dict[str, list[Approval]]:
        found: dict[str, list[Approval]] = {}
        for approval in map(_approval, await self._database.rows(tenant, SQL["decisions"], ids=job_ids)):
            found.setdefault(approval.job_id, []).append(approval)
        return found

    async def due(self, limit: int) -> list[Due]:
        return [Due(*row) for row in await self._database.rows(None, SQL["due"], limit=limit)]


def open_approvals(tx: Transaction, orders: Sequence[RequestApproval]) -> Steps[None]:
    """Insert the approvals that suspend these jobs; the same transaction then moves the jobs."""
    rows = yield from tx.rows(SQL["payloads"], ids=[order.id for order in orders])
    payloads = dict(rows)
    for o in orders:
        yield from tx.run(
            SQL["open"], id=o.approval_id, job_id=o.id, fence=o.fence, prompt=o.prompt, details=o.details, risk=o.risk,
            schema=o.schema, digest=digest(payloads[o.id], o.prompt, o.details, o.schema), required=o.required,
            on_deny=o.on_deny, opened_by=o.opened_by, expires_at=tx.now + round(o.expires_in_seconds * SECOND),
            kind=o.kind, name=o.name, occurrence=o.occurrence,
        )  # fmt: skip


def _decide(tx: Transaction, commands: Sequence[CastVote]) -> Steps[list[Approval | Rejected]]:
    ids = [command.id for command in commands]
    jobs = yield from tx.lock_jobs(sorted({approval.job_id for approval in (yield from _get(tx, ids)).values()}))
    current = yield from _locked(tx, ids)
    changes: list[Transition] = []
    answers: list[Approval | Rejected] = []
    for command in commands:
        approval = current.get(command.id)
        if approval is None or approval.job_id not in jobs:  # created after the first read: no caller knows it yet
            answers.append(Rejected(NotFound(command.id, resource="approval")))
            continue
        ruling = judge(command, approval, jobs[approval.job_id], tx.now)
        if isinstance(ruling, Error):
            answers.append(Rejected(ruling))
            continue
        yield from _record(tx, ruling)
        if ruling.change is not None:
            changes.append(ruling.change)
        answers.append(ruling.approval if ruling.refusal is None else Rejected(ruling.refusal))
    yield from tx.transition(changes)
    return answers


def _record(tx: Transaction, ruling: VoteOutcome) -> Steps[None]:
    """Write a vote and the resulting decision, before the transition of its job."""
    a, vote = ruling.approval, ruling.vote
    if vote is None:
        return
    yield from tx.run(SQL["vote"], id=a.id, job_id=a.job_id, **vote._asdict())
    if a.decision is not None:
        yield from tx.run(
            SQL["close"], id=a.id, status=a.status, by=a.closed_by, at=a.closed_at, comment=a.comment, data=a.data
        )


def _locked(tx: Transaction, ids: Sequence[str]) -> Steps[dict[str, Approval]]:
    """Return approvals that no other transaction changes until this one ends. Lock the job first to change it too."""
    yield from tx.rows(SQL["lock"], ids=ids)
    return (yield from _get(tx, ids))


def _get(tx: Transaction, ids: Sequence[str]) -> Steps[dict[str, Approval]]:
    rows = yield from tx.rows(SQL["get"], ids=ids)
    return {approval.id: approval for approval in map(_approval, rows)}
