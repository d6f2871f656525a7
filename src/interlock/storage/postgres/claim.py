"""Claim on PostgreSQL: one call, unless leases or deadlines have run out and are dealt with first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from interlock.domain.decide import Expire, PassDeadline
from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimAsk, Names
from interlock.storage.postgres import change
from interlock.storage.postgres.connection import Conn, call
from interlock.storage.swept import Swept, ended

SWEEP_FIRST: Final = 100
_STATUSES: Final = {str(status): status for status in Status}
_PLACE: Final = {name: place for place, name in enumerate(Job._fields)}
_TENANT: Final = _PLACE["tenant"]
_ID: Final = _PLACE["id"]
_STATUS: Final = _PLACE["status"]
_TAGS: Final = _PLACE["tags"]
_REQUIRES: Final = _PLACE["requires"]
_WORKER: Final = _PLACE["worker"]
_AWAITING: Final = _PLACE["awaiting"]
_UPDATED_AT: Final = _PLACE["updated_at"]
_RUN_STARTED_AT: Final = _PLACE["run_started_at"]
_CLAIM: Final = call("claim", 11)


async def claim(connection: Conn, tenant: str, ask: ClaimAsk, takers: Sequence[str], swept: Swept) -> list[Job]:
    """Grant the best jobs this ask may have, after a bounded sweep where one is due."""
    asked = _values(tenant, ask, takers)
    rows = await connection.fetch(_CLAIM, *asked, True)
    if len(rows) == 1 and rows[0][_ID] is None:
        await _sweep(connection, tenant, swept)
        rows = await connection.fetch(_CLAIM, *asked, False)
    jobs = (_granted(row, tenant, ask.worker) if row[_TENANT] is None else to_job(row) for row in rows)
    return sorted(jobs, key=lambda job: (-job.priority, job.run_at, job.seq))


def _values(tenant: str, ask: ClaimAsk, takers: Sequence[str]) -> tuple[Any, ...]:
    return (
        tenant, ask.worker, ask.limit, ask.lease_seconds, _list(ask.types), list(ask.capabilities),
        _list(ask.repositories), _list(ask.affinity_keys), ask.claim_id, list(takers) or None,
    )  # fmt: skip


def _list(names: Names | None) -> list[str] | None:
    return None if names is None else list(names)


async def _sweep(connection: Conn, tenant: str, swept: Swept) -> None:
    """End leases that have run out, then jobs that may no longer start, those that just lost their lease among them."""
    found = await connection.fetch("select id from interlock.expired_leases($1, $2)", tenant, SWEEP_FIRST)
    leases = [Expire(row[0]) for row in found]
    swept += ended(leases, await change.carry_out(connection, tenant, leases))
    found = await connection.fetch("select id from interlock.passed_deadlines($1, $2)", tenant, SWEEP_FIRST)
    late = [PassDeadline(row[0]) for row in found]
    swept += ended(late, await change.carry_out(connection, tenant, late))


def to_job(row: Any) -> Job:
    """A row of job_view as a job."""
    values = list(row)
    values[_STATUS] = _STATUSES[values[_STATUS]]
    return Job._make(values)


def _granted(row: Any, tenant: str, worker: str) -> Job:
    """A row that a claim has just granted, with what every job granted to this worker has."""
    values = list(row)
    values[_TENANT] = tenant
    values[_STATUS] = Status.RUNNING
    values[_TAGS] = values[_TAGS] or []
    values[_REQUIRES] = values[_REQUIRES] or []
    values[_WORKER] = values[_WORKER] or worker
    values[_AWAITING] = []
    values[_UPDATED_AT] = values[_RUN_STARTED_AT]
    return Job._make(values)
