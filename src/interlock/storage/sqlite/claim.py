"""Claim on SQLite: merge the ranges that hold eligible jobs, grant the best, write history."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice, repeat
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
from interlock.storage.sqlite.routes import Leg, Routes, Span
from interlock.storage.statements import load
from interlock.storage.swept import Swept, ended

_SQL: Final = load("interlock.storage.sqlite", "claim.sql")
SWEEP_FIRST: Final = 100
_READY: Final = {
    Span.ROUTE: _SQL["ready_on_route"],
    Span.BASE: _SQL["ready_on_base"],
    Span.ACROSS_REPOSITORIES: _SQL["ready_across_repositories"],
    Span.ACROSS_KEYS: _SQL["ready_across_keys"],
}
_AT: Final = {name: i for i, name in enumerate(Job._fields)}
_STATUS, _DEADLINE, _TYPE = _AT["status"], _AT["deadline"], _AT["type"]
_TIMEOUT, _ATTEMPT, _VERSION, _FENCE = _AT["timeout_seconds"], _AT["attempt"], _AT["version"], _AT["fence"]
_WORKER, _EXPIRES, _HEARTBEAT = _AT["worker"], _AT["lease_expires_at"], _AT["heartbeat_at"]
_STARTED, _RUN_STARTED, _UPDATED = _AT["started_at"], _AT["run_started_at"], _AT["updated_at"]
_ID, _SEQ = _AT["id"], _AT["seq"]
_TAGS, _REQUIRES, _AWAITING = _AT["tags"], _AT["requires"], _AT["awaiting"]
_SANITIZED, _BLOCKED = _AT["sanitized"], _AT["blocked"]
_STATUSES: Final = {str(status): status for status in Status}


def claim(
    connection: Connection, routes: Routes, tenant: str, ask: ClaimAsk, takers: Sequence[str], swept: Swept
) -> list[Job]:
    """Reprocess what the clock has brought up (bounded), then grant the best jobs this ask may have."""
    db, now = connection.db, connection.now
    swept.clear()  # a transaction that failed is begun again
    if ask.claim_id is not None and (before := _granted_before(connection, tenant, ask)):
        return before
    ((epoch, last_route, due, paused, line_due),) = connection.rows(_SQL["surroundings"], (tenant, now))
    if due:
        _sweep(connection, tenant, swept)
    if line_due:
        moves.join_lines(connection, tenant)
    routes.refresh(connection, last_route)
    legs = routes.legs(ask)
    if paused:
        paused_types = {type for (type,) in connection.rows(_SQL["paused_types"], {"tenant": tenant})}
        legs = [leg for leg in legs if leg.type not in paused_types]
    granted: list[Job] = []
    workers = iter(takers) if takers else repeat(ask.worker)
    while len(granted) < ask.limit:
        seqs = list(islice(_best(connection, tenant, legs), ask.limit - len(granted)))
        if not seqs:
            break
        granted += _grant(connection, tenant, ask, seqs, epoch << 32, workers, swept)
    if ask.claim_id is not None and granted:
        pairs = json.dumps([(job.seq, job.fence) for job in granted])
        db.execute(_SQL["keep_claim"], _claim_key(tenant, ask) | {"granted": pairs, "now": now})
    return granted


def _sweep(connection: Connection, tenant: str, swept: Swept) -> None:
    """End leases that have run out, then jobs that may no longer start, those that just lost their lease among them."""
    facts = {"tenant": tenant, "now": connection.now, "limit": SWEEP_FIRST}
    leases = [Expire(id) for (id,) in connection.rows(_SQL["expired_leases"], facts)]
    swept += ended(leases, carry_out(connection, tenant, leases))
    late = [PassDeadline(id) for (id,) in connection.rows(_SQL["passed_deadlines"], facts)]
    swept += ended(late, carry_out(connection, tenant, late))


def _best(connection: Connection, tenant: str, legs: Sequence[Leg]) -> Iterator[int]:
    """The seqs of due jobs, best first: by priority, then time, then arrival; reads no further than asked."""
    now = connection.now
    for _, tier in groupby(legs, lambda leg: leg.priority):
        cursors = [connection.db.execute(_READY[leg.span], (tenant, leg.no, now)) for leg in tier]
        try:
            rows: Iterable[tuple[int, int]] = heapq.merge(*cursors) if len(cursors) > 1 else cursors[0]
            for _, seq in rows:
                yield seq
        finally:
            for cursor in cursors:
                cursor.close()


def _grant(
    connection: Connection,
    tenant: str,
    ask: ClaimAsk,
    seqs: Sequence[int],
    floor: int,
    workers: Iterator[str],
    swept: Swept,
) -> list[Job]:
    """Grant these jobs, each to the next worker, save for those whose deadline has passed: they end here."""
    now = connection.now
    leases = _leases(connection, tenant) if ask.lease_seconds is None else {}
    history, granted, late = [], [], []
    chosen, bases, origins = [], [], []
    alike: dict[tuple[str, float], list[int]] = {}
    for row in connection.db.execute(_SQL["to_grant"], {"tenant": tenant, "seqs": json.dumps(seqs)}):
        *values, base, head = row
        if values[_DEADLINE] is not None and values[_DEADLINE] <= now:
            late.append(PassDeadline(values[_ID]))
            continue
        worker, lease = next(workers), ask.lease_seconds or leases.get(values[_TYPE], DEFAULT_LEASE_SECONDS)
        seq, origin, attempt, timeout = values[_SEQ], values[_STATUS], values[_ATTEMPT], values[_TIMEOUT]
        version, fence, expires = values[_VERSION] + 1, max(values[_FENCE], floor) + 1, now + round(lease * SECOND)
        if timeout is not None:
            expires = min(expires, now + round(timeout * SECOND))
        actor = principal.worker(worker)
        hash = history_hash(
            head, tenant, values[_ID], version, origin, "running", "claim", actor, attempt, fence, None, None, now
        )
        history.append((seq, version, origin, actor, attempt, fence, hash))
        alike.setdefault((worker, lease), []).append(seq)
        chosen.append(seq)
        bases.append(base)
        origins.append(origin)
        values[_STATUS] = "running"
        values[_VERSION], values[_FENCE], values[_WORKER], values[_EXPIRES] = version, fence, worker, expires
        values[_HEARTBEAT], values[_STARTED] = None, values[_STARTED] or now
        values[_RUN_STARTED] = values[_UPDATED] = now
        granted.append(_job_of(values))
    for (worker, lease), some in alike.items():
        facts = {
            "tenant": tenant, "floor": floor, "worker": worker, "actor": principal.worker(worker), "now": now,
            "lease": round(lease * SECOND), "lease_seconds": lease,
        }  # fmt: skip
        connection.update(_SQL["grant"], facts, some)
    connection.insert(_SQL["insert_grant"], (tenant, now), history)
    moves.tell_granted(connection, tenant, chosen, bases, origins)
    if late:
        swept += ended(late, carry_out(connection, tenant, late))
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


def to_job(row: Sequence[Any]) -> Job:
    """A row of job_view as a job."""
    return _job_of(list(row))


def _job_of(values: list[Any]) -> Job:
    values[_STATUS] = _STATUSES[values[_STATUS]]
    for i in (_TAGS, _REQUIRES, _AWAITING):
        values[i] = () if values[i] == "[]" else tuple(json.loads(values[i]))
    values[_SANITIZED], values[_BLOCKED] = bool(values[_SANITIZED]), bool(values[_BLOCKED])
    return tuple.__new__(Job, values)


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
