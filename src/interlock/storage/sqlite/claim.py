"""Claim on SQLite: merge the ranges that hold eligible jobs, grant the best, write history."""

from __future__ import annotations

import heapq
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby, islice, repeat
from typing import Any, Final

import apsw

from interlock.domain.decide import Expire, PassDeadline
from interlock.domain.job import Job
from interlock.domain.policy import DEFAULT_LEASE_SECONDS, ClaimAsk
from interlock.storage.expired import Swept, ended
from interlock.storage.sql_files import load
from interlock.storage.sqlite import transition_effects
from interlock.storage.sqlite.connection import Connection, of_a_row
from interlock.storage.sqlite.eligibility_keys import Leg, Routes, Span
from interlock.storage.sqlite.job_row import to_job
from interlock.storage.sqlite.lease_writer import Grants
from interlock.storage.sqlite.transition import carry_out_apart

log = logging.getLogger(__name__)

_SQL: Final = load("interlock.storage.sqlite", "claim.sql")
SWEEP_FIRST: Final = 100
LEGS_OF_A_STATEMENT: Final = 16
_READY: Final = {
    Span.ROUTE: _SQL["ready_on_route"],
    Span.BASE: _SQL["ready_on_base"],
    Span.ACROSS_REPOSITORIES: _SQL["ready_across_repositories"],
    Span.ACROSS_KEYS: _SQL["ready_across_keys"],
}


def claim(
    connection: Connection,
    routes: Routes,
    tenant: str,
    ask: ClaimAsk,
    takers: Sequence[str],
    swept: Swept,
    careful: bool = False,
) -> list[Job]:
    """Reprocess what the clock has brought up (bounded), then grant the best jobs this ask may have.

    With care, after a claim that failed, each job is granted by itself, and one that cannot be granted is passed over.
    """
    db, now = connection.db, connection.now
    swept.clear()  # a transaction that failed is begun again
    if ask.claim_id is not None and (before := _granted_before(connection, tenant, ask)):
        return before
    ((epoch, last_route, due, paused, line_due, own_leases),) = connection.rows(_SQL["surroundings"], (tenant, now))
    if due:
        _sweep(connection, tenant, swept)
    if line_due:
        transition_effects.join_lines(connection, tenant)
    routes.refresh(connection, last_route)
    legs = routes.legs(ask)
    if paused:
        paused_types = {type for (type,) in connection.rows(_SQL["paused_types"], {"tenant": tenant})}
        legs = [leg for leg in legs if leg.type not in paused_types]
    lease_seconds = ask.lease_seconds
    if lease_seconds is None and not own_leases:
        lease_seconds = DEFAULT_LEASE_SECONDS
    granted: list[Job] = []
    passed: set[int] = set()
    while (wanted := ask.limit - len(granted)) > 0:
        best = _best(connection, tenant, legs, wanted + len(passed))
        seqs = [seq for seq in best if seq not in passed][: 1 if careful else wanted] if passed or careful else best
        if not seqs:
            break
        workers = iter(takers[len(granted) :]) if takers else repeat(ask.worker)
        grants = Grants(connection, tenant, lease_seconds, epoch << 32, workers)
        try:
            some, late = connection.alone(partial(grants.take, routes, seqs)) if careful else grants.take(routes, seqs)
        except Exception as error:
            if not (careful and of_a_row(error)):
                raise
            log.warning(
                "a claim passes over a job that breaks a rule of the database (%s); run interlock doctor", error
            )
            passed.update(seqs)
            continue
        granted += some
        if late:
            swept += ended(late, carry_out_apart(connection, tenant, late))
        if not some:  # what has ended is not found again, and what cannot be read is not asked for again
            passed.update(seqs)
    if ask.claim_id is not None and granted:
        pairs = json.dumps([(job.seq, job.fence) for job in granted])
        db.execute(_SQL["keep_claim"], _claim_key(tenant, ask) | {"granted": pairs, "now": now})
    return granted


def _sweep(connection: Connection, tenant: str, swept: Swept) -> None:
    """End leases that have run out, then jobs that may no longer start, those that just lost their lease among them."""
    facts = {"tenant": tenant, "now": connection.now, "limit": SWEEP_FIRST}
    leases = [Expire(id) for (id,) in connection.rows(_SQL["expired_leases"], facts)]
    swept += ended(leases, carry_out_apart(connection, tenant, leases))
    late = [PassDeadline(id) for (id,) in connection.rows(_SQL["passed_deadlines"], facts)]
    swept += ended(late, carry_out_apart(connection, tenant, late))


def _best(connection: Connection, tenant: str, legs: Sequence[Leg], most: int) -> list[int]:
    """The seqs of due jobs, best first: by priority, then time, then arrival."""
    best: list[int] = []
    for _, tier in groupby(legs, lambda leg: leg.priority):
        parts = [_ready(connection, tenant, some, most - len(best)) for some in _batched(list(tier))]
        rows: Iterable[tuple[Any, ...]] = parts[0].fetchall() if len(parts) == 1 else heapq.merge(*parts)
        best += [seq for _, seq in islice(rows, most - len(best))]
        for cursor in parts:
            cursor.close()
        if len(best) == most:
            break
    return best


def _batched(legs: list[Leg]) -> Iterator[list[Leg]]:
    return (legs[i : i + LEGS_OF_A_STATEMENT] for i in range(0, len(legs), LEGS_OF_A_STATEMENT))


def _ready(connection: Connection, tenant: str, legs: Sequence[Leg], most: int) -> apsw.Cursor:
    """The ranges of these legs, merged by SQLite, which takes a third of what Python takes, as far as they are read."""
    statement = _merged(tuple(leg.span for leg in legs))
    return connection.db.execute(statement, (tenant, connection.now, *(leg.no for leg in legs), most))


@lru_cache(256)
def _merged(spans: tuple[Span, ...]) -> str:
    return " UNION ALL ".join(_READY[span] for span in spans) + " ORDER BY run_at, seq LIMIT ?"


def _granted_before(connection: Connection, tenant: str, ask: ClaimAsk) -> list[Job]:
    """What the same worker was granted under this claim id and still runs."""
    rows = connection.rows(_SQL["find_claim"], _claim_key(tenant, ask))
    return _jobs(connection, tenant, running_under(connection, tenant, ask.worker, rows[0][0])) if rows else []


def running_under(connection: Connection, tenant: str, worker: str, granted: str) -> list[int]:
    rows = connection.rows(_SQL["still_running"], {"tenant": tenant, "granted": granted, "worker": worker})
    return [seq for (seq,) in rows]


def _claim_key(tenant: str, ask: ClaimAsk) -> dict[str, object]:
    return {"tenant": tenant, "worker": ask.worker, "claim_id": ask.claim_id}


def _jobs(connection: Connection, tenant: str, seqs: Sequence[int]) -> list[Job]:
    if not seqs:
        return []
    rows = connection.rows(_SQL["jobs_by_seq"], {"tenant": tenant, "seqs": json.dumps(seqs)})
    return [to_job(row) for row in rows]


def forget_claims(connection: Connection, older_than: int, limit: int) -> int:
    """Drop named claims of that age whose jobs no longer run under them; look at the others again later."""
    db, now = connection.db, connection.now
    gone, kept = [], []
    old = connection.rows(_SQL["old_claims"], {"before": now - older_than, "limit": limit})
    for tenant, worker, claim_id, granted in old:
        if running_under(connection, tenant, worker, granted):
            kept.append((now, tenant, worker, claim_id))
        else:
            gone.append((tenant, worker, claim_id))
    db.executemany(_SQL["remember_claim"], kept)
    db.executemany(_SQL["forget_claim"], gone)
    return len(gone)
