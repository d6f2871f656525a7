"""Worker presence, and the snapshot that explains why a job does not run."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from functools import partial
from typing import Final, TypeVar

from interlock.domain.deadlock import Question, Rows, cycle
from interlock.domain.explain import JobSnapshot
from interlock.domain.lifecycle import Status
from interlock.domain.limits import Bucket, Limit, Wait, demands_of, term_of, wait_of
from interlock.domain.retry import SECOND
from interlock.domain.worker_presence import (
    LATELY_SECONDS,
    EligibleWorkers,
    Presence,
    WorkerSeen,
    filters_from_text,
    filters_to_text,
)
from interlock.storage.dialect import Database, Steps, Transaction, by_tenant, names, reader, statements
from interlock.storage.parts.registry import settle

T = TypeVar("T")
MAX_NAMED: Final = 10
SQL: Final = statements("workers")
_CLAIMABLE: Final = (Status.QUEUED, Status.RETRY)


def _eligible_workers(text: str) -> tuple[EligibleWorkers, ...]:
    return tuple(
        EligibleWorkers(filters_from_text(asks), tuple(named[:MAX_NAMED]), count, seen)
        for asks, named, count, seen in json.loads(text)
    )


_presence: Final = reader(Presence, asks=filters_from_text, job_ids=lambda ids: names(ids)[:MAX_NAMED])
_snapshot: Final = reader(JobSnapshot, eligible_workers=_eligible_workers)


class Workers:
    """Stores the presence of workers, and reads the surroundings of a job; see the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def note(self, tenant: str, seen_workers: Sequence[WorkerSeen]) -> None:
        def body(tx: Transaction) -> Steps[None]:
            asks = {seen.worker: filters_to_text(seen.asks) for seen in seen_workers if seen.asks}
            if asks:
                yield from tx.run(SQL["note"], names=[*asks], asks=[*asks.values()])
            if stopped := [seen.worker for seen in seen_workers if not seen.asks]:
                yield from tx.run(SQL["stopped"], names=stopped)

        await self._database.write(tenant, body)

    async def page(
        self, tenant: str, *, after: str = "", limit: int, within_seconds: float | None = None
    ) -> list[Presence]:
        since = 0 if within_seconds is None else await self._database.now() - round(within_seconds * SECOND)
        rows = await self._database.rows(tenant, SQL["page"], after=after, limit=limit, since=since, most=MAX_NAMED)
        return [*map(_presence, rows)]

    async def forget(self, older_than_seconds: float, limit: int) -> int:
        before = await self._database.now() - round(older_than_seconds * SECOND)
        old = await self._database.rows(None, SQL["old"], before=before, limit=limit)
        gone = 0
        for tenant, named in by_tenant(old).items():
            forget = partial(Transaction.run, statement=SQL["forget"], names=named, before=before)
            gone += await self._database.write(tenant, forget)
        return gone

    async def job_snapshot(self, tenant: str, job_id: str) -> JobSnapshot | None:
        def body(tx: Transaction) -> Steps[JobSnapshot | None]:
            lately = tx.now - round(LATELY_SECONDS * SECOND)
            row = yield from tx.one(SQL["job_snapshot"], id=job_id, lately=lately, most=MAX_NAMED)
            if row is None:
                return None
            found = _snapshot([*row, (), ()])
            if found.awaiting or found.blocked:
                found = found._replace(cycle=(yield from _search(tx, cycle(found.id))))
            if found.status in _CLAIMABLE and found.run_at <= found.now:
                found = found._replace(limits=(yield from _waits(tx, found)))
            return found

        await settle(self._database, tenant)
        return await self._database.read(tenant, body)


def _waits(tx: Transaction, job: JobSnapshot) -> Steps[tuple[Wait, ...]]:
    """Return the limits that do not admit a due job now."""
    row = yield from tx.one(SQL["limits_of_job"], id=job.id)
    if row is None or row[0] is None:
        return ()
    demanded, priority, seq = row
    rank, waits = (-priority, job.run_at, seq), []
    for demand in demands_of(demanded):
        found = yield from tx.one(SQL["bucket"], name=demand.name, key=demand.key)
        if found is None:
            continue
        rules, reason, *state = found
        limit, bucket = Limit.from_text(demand.name, rules), Bucket.from_row(*state)
        if (wait := wait_of(demand, limit, bucket, rank, job.now, reason=reason)) is not None:
            about = {
                "name": demand.name,
                "key": demand.key,
                "term": term_of(demand.name),
                "priority": priority,
                "run_at": job.run_at,
                "seq": seq,
            }
            ((ahead,),) = yield from tx.rows(SQL["ahead_in_limit"], **about)
            waits.append(wait._replace(ahead=int(ahead)))
    return tuple(waits)


def _search(tx: Transaction, questions: Generator[Question, Rows, T]) -> Steps[T]:
    """Answer the queries of a search for jobs that wait for each other, and return its result."""
    try:
        question = next(questions)
        while True:
            rows = yield from tx.rows(SQL[f"look_at_{question.look}"], about=question.about)
            question = questions.send(map(tuple, rows))
    except StopIteration as end:
        found: T = end.value
        return found
