"""Claim on PostgreSQL: one call, unless it must first expire leases or deadlines."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, Final

from interlock.domain.decide import EnforceDeadline, ExpireLease
from interlock.domain.job import FIELDS, Job, Kind
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter, Names
from interlock.storage.expired import ExpiredCounts, count_expired
from interlock.storage.job_columns import JOB, RARE, job_of
from interlock.storage.postgres import flow, transition
from interlock.storage.postgres.column_arrays import filled, is_empty, times
from interlock.storage.postgres.connection import Conn, call, of_a_row
from interlock.storage.wakeup import NextLook

log = logging.getLogger(__name__)

SWEEP_FIRST: Final = 100
# Columns that a claim returns for every job, and the less common ones in the order of interlock.rare_facts.
_FIELDS: Final = (
    "id", "seq", "type", "priority", "payload", "agent_kind", "agent_id", "idempotency_key", "created_by", "created_at",
    "run_at", "max_attempts", "worker", "rare",
)  # fmt: skip
_RARE: Final = (
    *RARE, "attempt", "fence", "lease_expires_at", "cancel_requested_at", "cancel_reason", "checkpoint",
    "checkpoint_seq", "usage", "result", "result_summary", "error", "sanitized", "version", "releases", "started_at",
)  # fmt: skip
_SECONDS: Final = tuple(name for name in RARE if FIELDS[name].kind is Kind.SECONDS)
_NONE: Final[dict[str, Iterable[Any]]] = dict.fromkeys(Job._fields, repeat(None))
_since: Final = itemgetter(Job._fields.index("run_at"), Job._fields.index("seq"))
_priority: Final = itemgetter(Job._fields.index("priority"))
_CLAIM: Final = call("claim", 12)
_LEASED_BEFORE: Final = call("leased_before", 3, columns=JOB)


async def claim(
    connection: Conn,
    tenant: str,
    ask: ClaimFilter,
    claimants: Sequence[str],
    expired: ExpiredCounts,
    next_look: NextLook,
) -> list[Job]:
    """Lease the best jobs that match the filter, after a bounded sweep if one is due."""
    asked = _values(tenant, ask, claimants)
    first, *answer = await _ask(connection, *asked, True)
    if first == "sweep":
        await _sweep(connection, tenant, expired)
        first, *answer = await _ask(connection, *asked, False)
    if first == "wake":
        async with connection.transaction():
            await flow.wake(connection, tenant)
    if first in ("limits", "wake"):
        async with connection.transaction():
            answer = await flow.claim(connection, asked, next_look)
    if first == "repeat":
        jobs = list(map(job_of, await connection.fetch(_LEASED_BEFORE, tenant, ask.worker, ask.claim_id)))
    else:
        jobs = _leased(tenant, ask.worker, *answer)
    jobs.sort(key=_since)
    jobs.sort(key=_priority, reverse=True)
    return jobs


def _rare(facts: str) -> dict[str, Any]:
    """Decode the less common columns; PostgreSQL writes 50.0 as 50 in JSON."""
    found = dict(zip(_RARE, json.loads(facts), strict=True))
    for name in _SECONDS:
        found[name] = None if found[name] is None else float(found[name])
    return found


async def _ask(connection: Conn, *asked: Any) -> Any:
    """Call claim. If a job that violates a constraint makes it fail, claim the others."""
    try:
        (row,) = await connection.fetch(_CLAIM, *asked, False)
    except Exception as error:
        if connection.is_in_transaction() or not of_a_row(error):
            raise
        log.warning("a claim passes over jobs that break a rule of the database (%s); run interlock doctor", error)
        (row,) = await connection.fetch(_CLAIM, *asked, True)
    return row


def _values(tenant: str, ask: ClaimFilter, claimants: Sequence[str]) -> tuple[Any, ...]:
    return (
        tenant, ask.worker, ask.limit, ask.lease_seconds, _list(ask.types), list(ask.capabilities),
        _list(ask.repositories), _list(ask.affinity_keys), ask.claim_id, list(claimants) or None,
    )  # fmt: skip


def _list(names: Names | None) -> list[str] | None:
    return None if names is None else list(names)


async def _sweep(connection: Conn, tenant: str, expired: ExpiredCounts) -> None:
    """Expire leases, then deadlines, including those of jobs that just lost their lease."""
    found = await connection.fetch("select id from interlock.expired_leases($1, $2)", tenant, SWEEP_FIRST)
    leases = [ExpireLease(row[0]) for row in found]
    expired += count_expired(leases, await transition.carry_out(connection, tenant, leases))
    found = await connection.fetch("select id from interlock.passed_deadlines($1, $2)", tenant, SWEEP_FIRST)
    late = [EnforceDeadline(row[0]) for row in found]
    expired += count_expired(late, await transition.carry_out(connection, tenant, late))


def _leased(tenant: str, worker: str, at: int, expires_at: int, fence: int, *arrays: Any) -> list[Job]:
    """Build just-leased jobs column by column: most columns have the same value in most jobs."""
    fields = dict(zip(_FIELDS, arrays, strict=True))
    rare = fields.pop("rare")
    if rare is None:
        return []
    fields["id"] = fields["id"][1:-1].split(",")
    at_once = fields["run_at"] == fields["created_at"]
    fields["created_at"] = times(fields["created_at"])
    fields["run_at"] = fields["created_at"] if at_once else times(fields["run_at"])
    fields["worker"] = filled(fields["worker"], repeat(worker))
    same = {
        "tenant": tenant, "status": Status.RUNNING, "tags": [], "requires": [], "awaiting": [], "attempt": 1,
        "fence": fence, "lease_expires_at": expires_at, "sanitized": False, "version": 2, "releases": 0,
        "updated_at": at, "started_at": at, "run_started_at": at, "blocked": False,
    }  # fmt: skip
    if not is_empty(rare):
        fields["limits"] = [facts if facts is not None and facts.startswith("[{") else None for facts in rare]
    columns = _NONE | {name: repeat(value) for name, value in same.items()} | fields
    jobs = list(map(Job._make, zip(*columns.values(), strict=False)))  # zip stops at the number of IDs
    if not is_empty(rare):
        for i, facts in enumerate(rare):
            if facts is not None and not facts.startswith("[{"):
                jobs[i] = jobs[i]._replace(**_rare(facts))
    return jobs
