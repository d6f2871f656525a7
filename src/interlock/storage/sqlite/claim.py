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
from interlock.domain.policy import ClaimAsk
from interlock.domain.retry import SECOND
from interlock.storage.sqlite.change import carry_out
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.routes import Leg, Routes
from interlock.storage.statements import load

_SQL: Final = load("interlock.storage.sqlite", "claim.sql")
_INSERT_HISTORY: Final = load("interlock.storage.sqlite", "enqueue.sql")["insert_history"]
EXPIRED_FIRST: Final = 100
_STATUS: Final = Job._fields.index("status")
_LISTS: Final = [Job._fields.index(name) for name in ("tags", "requires", "awaiting")]
_SANITIZED: Final = Job._fields.index("sanitized")


def claim(connection: Connection, routes: Routes, tenant: str, ask: ClaimAsk) -> list[Job]:
    """Reprocess expired leases (bounded), then grant the best jobs this ask may have."""
    db, now = connection.db, connection.now
    if ask.claim_id is not None and (before := _granted_before(connection, tenant, ask)):
        return before
    facts = {"tenant": tenant, "now": now, "limit": EXPIRED_FIRST}
    if expired := db.execute(_SQL["expired_leases"], facts).fetchall():
        carry_out(connection, tenant, [Expire(id) for (id,) in expired])
    routes.refresh(connection)
    paused = {type for (type,) in db.execute(_SQL["paused_types"], {"tenant": tenant})}
    legs = [leg for leg in routes.legs(ask) if leg.type not in paused]
    granted: list[int] = []
    fences: list[int] = []
    while len(granted) < ask.limit:
        seqs = list(islice(_best(connection, tenant, legs), ask.limit - len(granted)))
        if not seqs:
            break
        got = _grant(connection, tenant, ask, seqs)
        granted += [seq for seq, _ in got]
        fences += [fence for _, fence in got]
    jobs = _jobs(connection, tenant, granted)
    if ask.claim_id is not None:
        pairs = json.dumps(list(zip(granted, fences, strict=True)))
        db.execute(_SQL["keep_claim"], _claim_key(tenant, ask) | {"granted": pairs, "now": now})
    return jobs


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


def _grant(connection: Connection, tenant: str, ask: ClaimAsk, seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Grant these jobs, save for those whose deadline has passed: they end here."""
    db, now = connection.db, connection.now
    ((epoch,),) = db.execute(_SQL["epoch"]).fetchall()
    floor = epoch << 32
    actor = principal.worker(ask.worker)
    rows, granted, late = [], [], []
    found = db.execute(_SQL["standing_for_grant"], {"tenant": tenant, "seqs": json.dumps(seqs)})
    for id, seq, status, version, attempt, fence, deadline, hash in found.fetchall():
        if deadline is not None and deadline <= now:
            late.append(PassDeadline(id))
            continue
        fence = max(fence, floor) + 1
        fields = (tenant, id, version + 1, status, "running", "claim", actor, attempt, fence, None, None, now)
        rows.append((*fields, history_hash(hash, *fields)))
        granted.append((seq, fence))
    lease = round(ask.lease_seconds * SECOND)
    db.execute(
        _SQL["grant"],
        {"tenant": tenant, "seqs": json.dumps([seq for seq, _ in granted]), "floor": floor, "worker": ask.worker,
         "now": now, "lease": lease, "lease_seconds": ask.lease_seconds, "actor": actor},
    )  # fmt: skip
    db.executemany(_INSERT_HISTORY, rows)
    if late:
        carry_out(connection, tenant, late)
    return granted


def _granted_before(connection: Connection, tenant: str, ask: ClaimAsk) -> list[Job]:
    """What the same worker was granted under this claim id and still runs."""
    rows = connection.db.execute(_SQL["find_claim"], _claim_key(tenant, ask)).fetchall()
    return _jobs(connection, tenant, running_under(connection, tenant, ask.worker, rows[0][0])) if rows else []


def running_under(connection: Connection, tenant: str, worker: str, granted: str) -> list[int]:
    rows = connection.db.execute(_SQL["still_running"], {"tenant": tenant, "granted": granted, "worker": worker})
    return [seq for (seq,) in rows]


def _claim_key(tenant: str, ask: ClaimAsk) -> dict[str, object]:
    return {"tenant": tenant, "worker": ask.worker, "claim_id": ask.claim_id}


def _jobs(connection: Connection, tenant: str, seqs: Sequence[int]) -> list[Job]:
    if not seqs:
        return []
    rows = connection.db.execute(_SQL["jobs_by_seq"], {"tenant": tenant, "seqs": json.dumps(seqs)})
    return [to_job(row) for row in rows]


def to_job(row: tuple[Any, ...]) -> Job:
    """A row of job_view as a job."""
    values = list(row)
    values[_STATUS] = Status(values[_STATUS])
    for i in _LISTS:
        values[i] = () if values[i] == "[]" else tuple(json.loads(values[i]))
    values[_SANITIZED] = bool(values[_SANITIZED])
    return Job._make(values)


def forget_claims(connection: Connection, older_than: int, limit: int) -> int:
    """Drop named claims of that age whose jobs no longer run under them; look at the others again later."""
    db, now = connection.db, connection.now
    gone, kept = [], []
    for tenant, worker, claim_id, granted in db.execute(_SQL["old_claims"], {"before": now - older_than, "limit": limit}).fetchall():
        if running_under(connection, tenant, worker, granted):
            kept.append((now, tenant, worker, claim_id))
        else:
            gone.append((tenant, worker, claim_id))
    db.executemany(_SQL["remember_claim"], kept)
    db.executemany(_SQL["forget_claim"], gone)
    return len(gone)
