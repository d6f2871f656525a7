"""Lease selected jobs on SQLite: read them in ranges, and write them together with their history."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, repeat
from typing import Any, Final

from interlock.domain import principal
from interlock.domain.decide import EnforceDeadline
from interlock.domain.job import FIELDS, Job, job_maker
from interlock.domain.lifecycle import Status
from interlock.domain.policy import DEFAULT_LEASE_SECONDS
from interlock.domain.retry import SECOND
from interlock.storage.job_columns import AT
from interlock.storage.sql_files import load
from interlock.storage.sqlite import transition_effects
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.eligibility_keys import EligibilityKeys
from interlock.storage.sqlite.history_hash import hash_transitions
from interlock.storage.sqlite.job_row import to_job
from interlock.storage.sqlite.lease_cache import LeasedRow, LeaseRow

_SQL: Final = load("interlock.storage.sqlite", "claim.sql")
_ID, _SEQ, _TYPE, _KIND, _AGENT = AT["id"], AT["seq"], AT["type"], AT["agent_kind"], AT["agent_id"]
_STATUS, _DEADLINE, _TIMEOUT, _ATTEMPT = AT["status"], AT["deadline"], AT["timeout_seconds"], AT["attempt"]
_VERSION, _FENCE, _WORKER, _EXPIRES = AT["version"], AT["fence"], AT["worker"], AT["lease_expires_at"]
_HEARTBEAT, _STARTED, _RUN_STARTED, _UPDATED = (
    AT[name] for name in ("heartbeat_at", "started_at", "run_started_at", "updated_at")
)
# A job that was enqueued without rare options and is leased for the first time.
_KNOWN: Final = (
    "tenant", "id", "seq", "type", "priority", "payload", "agent_kind", "agent_id", "affinity_key", "repository",
    "requires", "created_by", "run_at", "max_attempts", "worker", "fence", "lease_expires_at", "created_at",
    "updated_at", "started_at", "run_started_at",
)  # fmt: skip
_AS_ENQUEUED: Final = {name: FIELDS[name].initial for name in Job._fields if name not in _KNOWN}
_leased_first: Final = job_maker(_KNOWN, _AS_ENQUEUED | {"status": Status.RUNNING, "version": 2, "tags": ()})

# An unchanged job without rare options: its seq, and a few columns of job and job_body that describe it fully.
NewJobRow = tuple[int, tuple[Any, ...], tuple[Any, ...]]
# Worker, lease seconds, and the previous status, version, attempt and fence.
Move = tuple[str, float, str, int, int, int]


class LeaseWriter:
    """The jobs that one claim leases, each to the next worker, and their batched writes."""

    def __init__(
        self, connection: Connection, tenant: str, lease_seconds: float | None, floor: int, workers: Iterator[str]
    ) -> None:
        self._connection, self._tenant, self._now = connection, tenant, connection.now
        self._floor, self._workers = floor, workers
        self._lease_of_all = lease_seconds
        self._by_type: dict[str, float] = {}
        self._by_agent: dict[tuple[str, str], float] = {}
        self._moves: dict[Move, list[tuple[str, int, int, int | None, bytes]]] = {}

    def take(self, eligibility_keys: EligibilityKeys, seqs: Sequence[int]) -> tuple[list[Job], list[EnforceDeadline]]:
        """Lease these jobs and return them; return jobs past their deadline as commands instead."""
        new_row = self._as_enqueued(seqs)
        changed = self._changed([seq for seq in seqs if seq not in new_row]) if len(new_row) < len(seqs) else {}
        if self._lease_of_all is None:
            self._learn_leases(new_row, changed)
        late: list[EnforceDeadline] = []
        if not changed:
            leased = self._lease_new(eligibility_keys, [new_row[seq] for seq in seqs if seq in new_row])
        else:
            leased = []
            for seq in seqs:
                if (facts := new_row.get(seq)) is not None:
                    leased += self._lease_new(eligibility_keys, [facts])
                elif (row := changed.get(seq)) is not None:
                    if row[_DEADLINE] is not None and row[_DEADLINE] <= self._now:
                        late.append(EnforceDeadline(row[_ID]))
                    else:
                        leased.append(self._lease_changed(row))
        self._write()
        return leased, late

    def _as_enqueued(self, seqs: Sequence[int]) -> dict[int, NewJobRow]:
        new_row: dict[int, NewJobRow] = {}
        for first, last in self._connection.ranges(seqs):
            where = (self._tenant, first, last)
            read = (self._connection.rows(_SQL[name], where) for name in ("unchanged", "bodies"))
            for facts in zip(range(first, last + 1), *read, strict=True):
                if facts[1][0] and facts[2][0]:
                    new_row[facts[0]] = facts
        return new_row

    def _changed(self, seqs: Sequence[int]) -> dict[int, tuple[Any, ...]]:
        """Return all columns of the other jobs, followed by base, agent number and chain head."""
        rows = self._connection.rows(_SQL["to_lease"], {"tenant": self._tenant, "seqs": json.dumps(seqs)})
        return {row[_SEQ]: row for row in rows}

    def _learn_leases(self, new_row: dict[int, NewJobRow], changed: dict[int, tuple[Any, ...]]) -> None:
        """Load the lease durations of the agents and types of these jobs; an agent's takes precedence."""
        connection, facts = self._connection, {"tenant": self._tenant}
        self._by_type = dict(connection.rows(_SQL["leases_of_types"], facts))
        named = {body[1:3] for _, _, body in new_row.values()} | {(r[_KIND], r[_AGENT]) for r in changed.values()}
        names = json.dumps([name for name in named if name[0] is not None])
        for kind, id, seconds in connection.rows(_SQL["leases_of_agents"], facts | {"names": names}):
            self._by_agent[kind, id] = seconds

    def _lease(self, type: str, agent_kind: str | None, agent_id: str | None) -> float:
        if self._lease_of_all is not None:
            return self._lease_of_all
        by_type = self._by_type.get(type, DEFAULT_LEASE_SECONDS)
        return self._by_agent.get((agent_kind or "", agent_id or ""), by_type) if self._by_agent else by_type

    def _lease_new(self, eligibility_keys: EligibilityKeys, new_row: Sequence[NewJobRow]) -> list[Job]:
        tenant, now, fence, lease_of_all = self._tenant, self._now, self._floor + 1, self._lease_of_all
        leased: list[Job] = []
        same: list[tuple[str, int, int, int | None, bytes]] = []
        last: tuple[str, float] | None = None
        expires_at = now
        for (
            seq,
            (_, id, priority, eligibility_key, agent_no, run_at, max_attempts, first_hash),
            (_, agent_kind, agent_id, created_by, created_at, payload),
        ) in new_row:
            base, type, requires, repository, affinity_key = eligibility_keys.encoded[eligibility_key]
            worker = next(self._workers)
            lease = self._lease(type, agent_kind, agent_id) if lease_of_all is None else lease_of_all
            if (worker, lease) != last:
                last, expires_at = (worker, lease), now + round(lease * SECOND)
                same = self._moves.setdefault((worker, lease, "queued", 1, 1, 0), [])
            same.append((id, seq, base, agent_no, first_hash))
            leased.append(_leased_first((
                tenant, id, seq, type, priority, payload, agent_kind, agent_id, affinity_key, repository, requires,
                created_by, run_at, max_attempts, worker, fence, expires_at, created_at, now, now, now,
            )))  # fmt: skip
        return leased

    def _lease_changed(self, row: tuple[Any, ...]) -> Job:
        *values, base, agent_no, head = row
        now, timeout, worker = self._now, values[_TIMEOUT], next(self._workers)
        lease = self._lease(values[_TYPE], values[_KIND], values[_AGENT])
        move = (worker, lease, values[_STATUS], values[_VERSION], values[_ATTEMPT], values[_FENCE])
        self._moves.setdefault(move, []).append((values[_ID], values[_SEQ], base, agent_no, head))
        values[_STATUS], values[_WORKER], values[_FENCE] = "running", worker, self._next(values[_FENCE])
        values[_EXPIRES] = now + round((lease if timeout is None else min(lease, timeout)) * SECOND)
        values[_VERSION] += 1
        values[_HEARTBEAT], values[_STARTED] = None, values[_STARTED] or now
        values[_RUN_STARTED] = values[_UPDATED] = now
        return to_job(values)

    def _next(self, fence: int) -> int:
        return max(fence, self._floor) + 1

    def _write(self) -> None:
        connection, tenant = self._connection, self._tenant
        leased: dict[str, LeasedRow] = {}
        edges: dict[tuple[int, str], int] = {}
        for (worker, lease), group in groupby(sorted(self._moves.items()), lambda item: item[0][:2]):
            actor = principal.worker(worker)
            seqs: list[int] = []
            for (_, _, status, version, attempt, fence), jobs in group:
                version, fence = version + 1, self._next(fence)
                ids, same, bases, agent_nos, heads = zip(*jobs, strict=True)
                move = (version, status, "running", "claim", actor, attempt, fence)
                hashes = hash_transitions(connection, same, heads, *move)
                row: LeaseRow = ("running", attempt, fence, worker, version)
                leased.update(zip(ids, zip(ids, same, bases, agent_nos, hashes, repeat(row)), strict=True))
                for base, n in Counter(bases).items():
                    edges[base, status] = edges.get((base, status), 0) + n
                seqs += same
            facts = {
                "tenant": tenant, "floor": self._floor, "worker": worker, "actor": actor, "now": self._now,
                "lease": round(lease * SECOND), "lease_seconds": lease,
            }  # fmt: skip
            connection.update(_SQL["lease_jobs"], facts, seqs)
        connection.leased.remember(tenant, leased, connection.rollbacks)
        started = ((job[1], move[2]) for move, jobs in self._moves.items() for job in jobs)
        transition_effects.record_leased(connection, tenant, edges, started)
