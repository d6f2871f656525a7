"""History in bounded parts: export and verification, the heads of its chains, and the audit log of operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final
from uuid import UUID

from interlock.domain import digests
from interlock.domain.audit import HistoryExport, VerifiedPart
from interlock.domain.digests import Kept, StepFields
from interlock.domain.job import HistoryRow
from interlock.domain.operator_log import LogRow
from interlock.storage import history_chain
from interlock.storage.contract import ChainVerification
from interlock.storage.dialect import OLDEST, Database, Steps, Transaction, reader, statements

SQL: Final = statements("audit")
_LARGEST_SEQ: Final = 1 << 62
_VALUES: Final = ("payload", "options", "result", "summary", "usage", "error", "checkpoint")
history_row: Final = reader(HistoryRow)


class Audit:
    """Audits the history of a tenant. `position` reads a cursor: chains are ordered by job number or job ID."""

    def __init__(self, database: Database, position: Callable[[str | None], int | str]) -> None:
        self._database = database
        self._position = position

    async def histories(self, tenant: str, *, after: int = 0, jobs: int) -> list[HistoryExport]:
        rows = await self._database.rows(tenant, SQL["histories"], after=after, jobs=jobs)
        by_job = groupby(rows, key=itemgetter(0))
        return [HistoryExport(seq, tuple(history_row(row) for _, *row in group)) for seq, group in by_job]

    async def verify_part(self, tenant: str, *, after: str | None = None, jobs: int) -> VerifiedPart:
        start = self._position(after)

        def body(tx: Transaction) -> Steps[VerifiedPart]:
            rows = [tuple(row) for row in (yield from tx.rows(SQL["chains"], after=start, jobs=jobs))]
            verdict = history_chain.verify(
                (row for *row, _ in rows), (yield from _kept(tx, sorted({row[1] for row in rows})))
            )
            last = rows[-1][-1] if verdict.jobs == jobs else None
            bare = yield from tx.rows(SQL["bare_job"], after=start, upto=last)
            return history_chain.part(tenant, verdict, [id for (id,) in bare], None if last is None else str(last))

        return await history_chain.with_log(tenant, await self._database.read(tenant, body), self.log)

    async def verify(self, tenant: str | None = None) -> ChainVerification:
        return await history_chain.verify_all(
            [tenant] if tenant is not None else await self.tenants(),
            lambda tenant, after: self.verify_part(tenant, after=after, jobs=history_chain.VERIFIED_BATCH_SIZE),
        )

    async def head(self, tenant: str | None = None) -> str:
        return await history_chain.head_of(
            await self.tenants() if tenant is None else [tenant], self.chain_ends, self.log_end
        )

    async def chain_ends(self, tenant: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """Return the chain heads of jobs by ID, starting after one."""
        return [(id, hash) for id, hash in await self._database.rows(tenant, SQL["heads"], after=after, limit=limit)]

    async def log(self, tenant: str, *, after: int = 0, limit: int) -> list[LogRow]:
        return [*map(LogRow._make, await self._database.rows(tenant, SQL["log"], after=after, limit=limit))]

    async def log_end(self, tenant: str) -> bytes | None:
        """Return the last hash of the audit log."""
        rows = await self._database.rows(tenant, SQL["log_end"])
        return bytes(rows[0][0]) if rows else None

    async def tenants(self) -> list[str]:
        return sorted(tenant for (tenant,) in await self._database.rows(None, SQL["tenants"]))


def by_seq(cursor: str | None) -> int:
    """Read the cursor of an engine whose chains are ordered by job number."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 20 and int(cursor) <= _LARGEST_SEQ):
        raise history_chain.invalid_cursor(cursor)
    return int(cursor)


def by_id(cursor: str | None) -> str:
    """Read the cursor of an engine whose chains are ordered by job ID."""
    try:
        return OLDEST[1] if cursor is None else str(UUID(cursor))
    except ValueError:
        raise history_chain.invalid_cursor(str(cursor)) from None


def _kept(tx: Transaction, ids: Sequence[str]) -> Steps[dict[str, Kept]]:
    """Compute the digests of the stored values of these jobs."""
    steps: defaultdict[str, dict[int, str]] = defaultdict(dict)
    saved = yield from tx.rows(SQL["kept_steps"], ids=ids)
    for (job_id, fence), some in groupby(saved, key=itemgetter(0, 1)):
        steps[job_id][fence] = digests.of_steps(StepFields._make(step) for _, _, *step in some) or ""
    votes: defaultdict[str, list[tuple[str, str, str | None, int]]] = defaultdict(list)
    for approval_id, voter, decision, comment, at in (yield from tx.rows(SQL["kept_votes"], ids=ids)):
        votes[approval_id].append((voter, decision, comment, at))
    requests: defaultdict[str, dict[int, str]] = defaultdict(dict)
    decisions: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for job_id, status, closed_by, comment, data, id, fence, *request in (
        yield from tx.rows(SQL["kept_approvals"], ids=ids)
    ):
        requests[job_id][fence] = digests.of_request(id, fence, *request)
        decisions[job_id][fence] = digests.of_decision(status, closed_by, comment, data, votes[id])
    found: dict[str, Kept] = {}
    for id, *values, saved_at in (yield from tx.rows(SQL["kept"], ids=ids)):
        of_values = dict(zip(_VALUES, values, strict=True))
        found[id] = Kept(of_values, saved_at, steps[id], requests[id], decisions[id])
    return found
