"""Claim on SQLite: merge the ranges that hold eligible jobs, grant the best, write history."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, Final

from interlock.domain import principal
from interlock.domain.audit import history_hash
from interlock.domain.decide import Expire, PassDeadline
from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from interlock.domain.policy import DEFAULT_LEASE_SECONDS, ClaimAsk
from interlock.domain.retry import SECOND
from interlock.storage.sqlite import moves
from interlock.storage.sqlite.change import carry_out
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.routes import Leg, Routes
from interlock.storage.statements import load

_SQL: Final = load("interlock.storage.sqlite", "claim.sql")
_INSERT_HISTORY: Final = load("interlock.storage.sqlite", "enqueue.sql")["insert_history"]
SWEEP_FIRST: Final = 100
_STATUS: Final = Job._fields.index("status")
_STATUSES: Final = {str(status): status for status in Status}
_LISTS: Final = [Job._fields.index(name) for name in ("tags", "requires", "awaiting")]
_GRANTED: Final = [
    Job._fields.index(name)
    for name in ("status", "version", "fence", "worker", "lease_expires_at", "heartbeat_at", "started_at",
                 "run_started_at", "updated_at")
]  # fmt: skip
_FLAGS: Final = [Job._fields.index(name) for name in ("sanitized", "blocked")]


def claim(connection: Connection, routes: Routes, tenant: str, ask: ClaimAsk) -> list[Job]:
    """Reprocess what the clock has brought up (bounded), then grant the best jobs this ask may have."""
    db, now = connection.db, connection.now
    if ask.claim_id is not None and (before := _granted_before(connection, tenant, ask)):
        return before
    ((epoch, last_route, due, paused, line_due),) = connection.rows(_SQL["surroundings"], (tenant, now))
    if due:
        _sweep(connection, tenant)
    if line_due:
        moves.join_lines(connection, tenant)
    routes.refresh(connection, last_route)
    legs = routes.legs(ask)
    if paused:
        paused_types = {type for (type,) in connection.rows(_SQL["paused_types"], {"tenant": tenant})}
        legs = [leg for leg in legs if leg.type not in paused_types]
    granted: list[Job] = []
    while len(granted) < ask.limit:
        seqs = list(islice(_best(connection, tenant, legs), ask.limit - len(granted)))
        if not seqs:
            break
        granted += _grant(connection, tenant, ask, seqs, epoch << 32)
    if ask.claim_id is not None and granted:
        pairs = json.dumps([(job.seq, job.fence) for job in granted])
        db.execute(_SQL["keep_claim"], _claim_key(tenant, ask) | {"granted": pairs, "now": now})
    return granted


def _sweep(connection: Connection, tenant: str) -> None:
    """End leases that have run out, then jobs that may no longer start, those that just lost their lease among them."""
    facts = {"tenant": tenant, "now": connection.now, "limit": SWEEP_FIRST}
    carry_out(connection, tenant, [Expire(id) for (id,) in connection.rows(_SQL["expired_leases"], facts)])
    carry_out(connection, tenant, [PassDeadline(id) for (id,) in connection.rows(_SQL["passed_deadlines"], facts)])


def _best(connection: Connection, tenant: str, legs: Sequence[Leg]) -> Iterator[int]:
    """The seqs of due jobs, best first: by priority, then time, then arrival; reads no further than asked."""
    now = connection.now
    for _, tier in groupby(legs, lambda leg: leg.priority):
        cursors = [
            connection.db.execute(_SQL["ready_on_base" if leg.whole_base else "ready_on_route"], (tenant, leg.no, now))
            for leg in tier
        ]
        try:
            rows: Iterable[tuple[int, int]] = heapq.merge(*cursors) if len(cursors) > 1 else cursors[0]
            for _, seq in rows:
                yield seq
        finally:
            for cursor in cursors:
                cursor.close()


def _grant(connection: Connection, tenant: str, ask: ClaimAsk, seqs: Sequence[int], floor: int) -> list[Job]:
    """Grant these jobs, save for those whose deadline has passed: they end here."""
    db, now = connection.db, connection.now
    worker, actor = ask.worker, principal.worker(ask.worker)
    leases = _leases(connection, tenant) if ask.lease_seconds is None else {}
    rows, granted, moved, late = [], [], [], []
    by_lease: dict[float, list[int]] = {}
    for row in connection.rows(_SQL["to_grant"], {"tenant": tenant, "seqs": json.dumps(seqs)}):
        job = Job._make(row[:-3])  # raw: read for its facts only
        if job.deadline is not None and job.deadline <= now:
            late.append(PassDeadline(job.id))
            continue
        lease = ask.lease_seconds or leases.get(job.type, DEFAULT_LEASE_SECONDS)
        version, fence, expires = job.version + 1, max(job.fence, floor) + 1, now + round(lease * SECOND)
        if job.timeout_seconds is not None:
            expires = min(expires, now + round(job.timeout_seconds * SECOND))
        move = (job.status, "running", "claim", actor, job.attempt, fence, None, None, now)
        hash = history_hash(row[-1], tenant, job.id, version, *move)
        rows.append((tenant, job.seq, version, *move, hash))
        by_lease.setdefault(lease, []).append(job.seq)
        moved.append(moves.Move(job.id, job.seq, row[-3], row[-2], job.status, "running", version))
        granted.append(
            _granted(row, (Status.RUNNING, version, fence, worker, expires, None, job.started_at or now, now, now))
        )
    for lease, some in by_lease.items():
        facts = {
            "tenant": tenant, "seqs": json.dumps(some), "floor": floor, "worker": worker, "actor": actor, "now": now,
            "lease": round(lease * SECOND), "lease_seconds": lease,
        }  # fmt: skip
        db.execute(_SQL["grant"], facts)
    db.executemany(_INSERT_HISTORY, rows)
    moves.tell(connection, tenant, moved)
    if late:
        carry_out(connection, tenant, late)
    return granted


def _leases(connection: Connection, tenant: str) -> dict[str, float]:
    """How long the leases of types are that say so."""
    return dict(connection.rows(_SQL["leases_of_types"], {"tenant": tenant}))


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


def _granted(row: Sequence[Any], grant: Sequence[object]) -> Job:
    """A row of job_view as the job it becomes with this grant."""
    values = _values(row[:-3])
    for i, value in zip(_GRANTED, grant, strict=True):
        values[i] = value
    return Job._make(values)


def to_job(row: Sequence[Any]) -> Job:
    """A row of job_view as a job."""
    return Job._make(_values(row))


def _values(row: Sequence[Any]) -> list[Any]:
    values = list(row)
    values[_STATUS] = _STATUSES[values[_STATUS]]
    for i in _LISTS:
        values[i] = () if values[i] == "[]" else tuple(json.loads(values[i]))
    for i in _FLAGS:
        values[i] = bool(values[i])
    return values


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
