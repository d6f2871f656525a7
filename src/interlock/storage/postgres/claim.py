"""Claim on PostgreSQL: one call, unless leases or deadlines have run out and are dealt with first."""

from __future__ import annotations

from typing import Any, Final

from interlock.domain.decide import Expire, PassDeadline
from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimAsk, Names
from interlock.storage.postgres import change
from interlock.storage.postgres.connection import Conn, call

SWEEP_FIRST: Final = 100
_STATUSES: Final = {str(status): status for status in Status}
_STATUS: Final = Job._fields.index("status")
_CLAIM: Final = call("claim", 10)


async def claim(connection: Conn, tenant: str, ask: ClaimAsk) -> list[Job]:
    """Grant the best jobs this ask may have, after a bounded sweep where one is due."""
    rows = await connection.fetch(_CLAIM, *_values(tenant, ask), True)
    if len(rows) == 1 and rows[0][0] is None:
        await _sweep(connection, tenant)
        rows = await connection.fetch(_CLAIM, *_values(tenant, ask), False)
    return sorted(map(to_job, rows), key=lambda job: (-job.priority, job.run_at, job.seq))


def _values(tenant: str, ask: ClaimAsk) -> tuple[Any, ...]:
    return (
        tenant, ask.worker, ask.limit, ask.lease_seconds, _list(ask.types), list(ask.capabilities),
        _list(ask.repositories), _list(ask.affinity_keys), ask.claim_id,
    )  # fmt: skip


def _list(names: Names | None) -> list[str] | None:
    return None if names is None else list(names)


async def _sweep(connection: Conn, tenant: str) -> None:
    """End leases that have run out, then jobs that may no longer start, those that just lost their lease among them."""
    leases = await connection.fetch("select id from interlock.expired_leases($1, $2)", tenant, SWEEP_FIRST)
    await change.carry_out(connection, tenant, [Expire(row[0]) for row in leases])
    late = await connection.fetch("select id from interlock.passed_deadlines($1, $2)", tenant, SWEEP_FIRST)
    await change.carry_out(connection, tenant, [PassDeadline(row[0]) for row in late])


def to_job(row: Any) -> Job:
    """A row of job_view as a job."""
    values = list(row)
    values[_STATUS] = _STATUSES[values[_STATUS]]
    return Job._make(values)
