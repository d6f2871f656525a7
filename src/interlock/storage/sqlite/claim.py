"""Claim on SQLite, from top to bottom: expire what is due, choose the best jobs, lease them with their history.

- `_best` reads one index range per eligibility key and lets SQLite merge them: a third of the time of Python.
- `LeaseWriter` reads jobs in ranges of `seq`, because jobs that arrived together are mostly claimed together. Jobs that
  are as they were enqueued, without rare options, are built from few columns; all others are read from job_view.
- One UPDATE leases all jobs of a range. Jobs that make the same transition get their history hashes together.

Decision 0003 has the measurements.
"""

from __future__ import annotations

import heapq
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby, islice, repeat
from typing import Any, Final

import apsw

from interlock.domain import principal
from interlock.domain.decide import EnforceDeadline, ExpireLease
from interlock.domain.job import FIELDS, Job, job_maker
from interlock.domain.lifecycle import Status
from interlock.domain.policy import DEFAULT_LEASE_SECONDS, ClaimFilter
from interlock.domain.retry import SECOND
from interlock.storage.expired import ExpiredCounts, count_expired
from interlock.storage.job_columns import AT
from interlock.storage.sql_files import load
from interlock.storage.sqlite import transition_effects
from interlock.storage.sqlite.connection import Connection, Lease, LeasedJob, of_a_row
from interlock.storage.sqlite.eligibility_keys import EligibilityKeys, IndexRange, Span
from interlock.storage.sqlite.flow import FlowClaim, flow_of_agents
from interlock.storage.sqlite.history import hash_transitions
from interlock.storage.sqlite.job_row import to_job
from interlock.storage.sqlite.transition import carry_out_apart
from interlock.storage.wakeup import NextLook

log = logging.getLogger(__name__)

_SQL: Final = load("interlock.storage.sqlite", "claim.sql")
SWEEP_FIRST: Final = 100
RANGES_PER_STATEMENT: Final = 16
MOST_READ: Final = 1000
_READY: Final = {
    Span.ROUTE: _SQL["ready_on_key"],
    Span.BASE: _SQL["ready_on_base"],
    Span.ACROSS_REPOSITORIES: _SQL["ready_across_repositories"],
    Span.ACROSS_KEYS: _SQL["ready_across_keys"],
}
_ID, _SEQ, _TYPE, _KIND, _AGENT = AT["id"], AT["seq"], AT["type"], AT["agent_kind"], AT["agent_id"]
_STATUS, _DEADLINE, _TIMEOUT, _ATTEMPT = AT["status"], AT["deadline"], AT["timeout_seconds"], AT["attempt"]
_AWAITED: Final = AT["awaiting_message"]
_VERSION, _FENCE, _WORKER, _EXPIRES = AT["version"], AT["fence"], AT["worker"], AT["lease_expires_at"]
_HEARTBEAT, _STARTED, _RUN_STARTED, _UPDATED = (
    AT[name] for name in ("heartbeat_at", "started_at", "run_started_at", "updated_at")
)
# A job that was enqueued without rare options and is leased for the first time.
_KNOWN: Final = (
    "tenant", "id", "seq", "type", "priority", "payload", "agent_kind", "agent_id", "affinity_key", "repository",
    "requires", "created_by", "run_at", "max_attempts", "worker", "fence", "lease_expires_at", "created_at",
    "updated_at", "started_at", "run_started_at", "limits",
)  # fmt: skip
_AS_ENQUEUED: Final = {name: FIELDS[name].initial for name in Job._fields if name not in _KNOWN}
_leased_first: Final = job_maker(_KNOWN, _AS_ENQUEUED | {"status": Status.RUNNING, "version": 2, "tags": ()})

# A job as it was enqueued, without rare options: its seq, and the columns of job and job_body that describe it fully.
NewJobRow = tuple[int, tuple[Any, ...], tuple[Any, ...]]
# Worker, lease seconds, and the previous status, version, attempt and fence.
Move = tuple[str, float, str, int, int, int]


def claim(
    connection: Connection,
    eligibility_keys: EligibilityKeys,
    tenant: str,
    ask: ClaimFilter,
    claimants: Sequence[str],
    expired: ExpiredCounts,
    next_look: NextLook,
    careful: bool = False,
) -> list[Job]:
    """Expire a bounded number of leases and deadlines, then lease the best jobs that match the filter.

    With `careful`, set after a failed claim, lease each job in its own savepoint and skip jobs that cannot be leased.
    """
    db, now = connection.db, connection.now
    expired.clear()  # the previous attempt of this transaction may have failed
    if ask.claim_id is not None and (before := _leased_before(connection, tenant, ask)):
        return before
    ((epoch, last_eligibility_key, due, paused, agent_due, own_leases),) = connection.rows(
        _SQL["surroundings"], (tenant, now)
    )
    if due:
        _sweep(connection, tenant, expired)
    if agent_due:
        transition_effects.fill_slots(connection, tenant)
    eligibility_keys.refresh(connection, last_eligibility_key)
    index_ranges = eligibility_keys.index_ranges(ask)
    if paused:
        paused_types = {type for (type,) in connection.rows(_SQL["paused_types"], {"tenant": tenant})}
        index_ranges = [index_range for index_range in index_ranges if index_range.type not in paused_types]
    lease_seconds = ask.lease_seconds
    if lease_seconds is None and not own_leases:
        lease_seconds = DEFAULT_LEASE_SECONDS
    leased: list[Job] = []
    passed: set[int] = set()
    read = 0  # candidates to look at: more if limits admitted few of the last ones
    least = 0  # parked jobs to show at least, more than their buckets admit: other limits admitted none of the last
    flow = FlowClaim(connection, eligibility_keys, tenant, index_ranges) if any(r.flow for r in index_ranges) else None
    if flow is not None:
        flow.show_turns(index_ranges, ask.limit)
    while (wanted := ask.limit - len(leased)) > 0:
        if flow is not None:
            index_ranges = flow.open_ranges(index_ranges)
        count = wanted if careful else max(wanted, read)
        best = _best(connection, tenant, index_ranges, count + len(passed))
        seqs = [seq for seq in best if seq not in passed][: 1 if careful else count] if passed or careful else best
        if not seqs:
            if flow is None and index_ranges and flow_of_agents(connection, tenant):
                flow = FlowClaim(connection, eligibility_keys, tenant, index_ranges)
            if flow is not None and (flow.show_more(index_ranges, wanted, least) or flow.pass_slots(index_ranges)):
                continue
            break
        if flow is not None:
            looked_at = len(seqs)
            seqs = flow.admit(seqs, wanted)
            passed |= flow.skipped
            read = min((wanted - len(seqs)) * looked_at // max(len(seqs), looked_at // 16, 1), MOST_READ)
            least = 0 if seqs else read
            if not seqs:
                continue  # each job that does not fit closes a bucket, is parked or skipped
        workers = iter(claimants[len(leased) :]) if claimants else repeat(ask.worker)
        leases = LeaseWriter(connection, tenant, lease_seconds, epoch << 32, workers)
        try:
            some, late = (
                connection.alone(partial(leases.take, eligibility_keys, seqs))
                if careful
                else leases.take(eligibility_keys, seqs)
            )
        except Exception as error:
            if not (careful and of_a_row(error)):
                raise
            log.warning("claim skipped a job that violates a database constraint (%s); run interlock doctor", error)
            passed.update(seqs)
            continue
        leased += some
        if late:
            expired += count_expired(late, carry_out_apart(connection, tenant, late))
        if not some:  # expired jobs are no longer due; skip jobs that could not be read
            passed.update(seqs)
    if flow is not None:
        flow.save(job.seq for job in leased)
        if not leased:
            next_look.seconds = flow.opens_in()
    if ask.claim_id is not None and leased:
        pairs = json.dumps([(job.seq, job.fence) for job in leased])
        db.execute(_SQL["keep_claim"], _claim_key(tenant, ask) | {"leased": pairs, "now": now})
    return leased


def _sweep(connection: Connection, tenant: str, expired: ExpiredCounts) -> None:
    """Expire leases first, then deadlines: a job that just lost its lease may also be past its deadline."""
    facts = {"tenant": tenant, "now": connection.now, "limit": SWEEP_FIRST}
    leases = [ExpireLease(id) for (id,) in connection.rows(_SQL["expired_leases"], facts)]
    expired += count_expired(leases, carry_out_apart(connection, tenant, leases))
    late = [EnforceDeadline(id) for (id,) in connection.rows(_SQL["passed_deadlines"], facts)]
    expired += count_expired(late, carry_out_apart(connection, tenant, late))


def _best(connection: Connection, tenant: str, index_ranges: Sequence[IndexRange], most: int) -> list[int]:
    """Return the seqs of due jobs by priority, run_at and arrival."""
    best: list[int] = []
    for _, tier in groupby(index_ranges, lambda index_range: index_range.priority):
        parts = [_ready(connection, tenant, some, most - len(best)) for some in _batched(list(tier))]
        rows: Iterable[tuple[Any, ...]] = parts[0].fetchall() if len(parts) == 1 else heapq.merge(*parts)
        best += [seq for _, seq in islice(rows, most - len(best))]
        for cursor in parts:
            cursor.close()
        if len(best) == most:
            break
    return best


def _batched(index_ranges: list[IndexRange]) -> Iterator[list[IndexRange]]:
    return (index_ranges[i : i + RANGES_PER_STATEMENT] for i in range(0, len(index_ranges), RANGES_PER_STATEMENT))


def _ready(connection: Connection, tenant: str, index_ranges: Sequence[IndexRange], most: int) -> apsw.Cursor:
    """Merge index ranges lazily. SQLite needs a third of the time that a merge in Python takes."""
    statement = _merged(tuple(index_range.span for index_range in index_ranges))
    return connection.db.execute(
        statement, (tenant, connection.now, *(index_range.no for index_range in index_ranges), most)
    )


@lru_cache(256)
def _merged(spans: tuple[Span, ...]) -> str:
    return " UNION ALL ".join(_READY[span] for span in spans) + " ORDER BY run_at, seq LIMIT ?"


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
        if not (ranges := self._connection.ranges(seqs)):
            facts_of_all = {"tenant": self._tenant, "seqs": json.dumps(seqs)}
            listed = self._connection.rows(_SQL["unchanged_listed"], facts_of_all)
            return {row[0]: (row[0], row[1:9], row[8:]) for row in listed if row[1]}  # the body begins after a flag
        for first, last in ranges:
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
            (_, agent_kind, agent_id, created_by, created_at, payload, limits),
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
                limits,
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
        values[_AWAITED] = None
        values[_HEARTBEAT], values[_STARTED] = None, values[_STARTED] or now
        values[_RUN_STARTED] = values[_UPDATED] = now
        return to_job(values)

    def _next(self, fence: int) -> int:
        return max(fence, self._floor) + 1

    def _write(self) -> None:
        connection, tenant = self._connection, self._tenant
        leased: list[LeasedJob] = []
        edges: dict[tuple[int, str], int] = {}
        for (worker, lease), group in groupby(sorted(self._moves.items()), lambda item: item[0][:2]):
            actor = principal.worker(worker)
            seqs: list[int] = []
            for (_, _, status, version, attempt, fence), jobs in group:
                version, fence = version + 1, self._next(fence)
                ids, same, bases, agent_nos, heads = zip(*jobs, strict=True)
                move = (version, status, "running", "claim", actor, attempt, fence)
                hashes = hash_transitions(connection, same, heads, *move)
                current: Lease = ("running", attempt, fence, worker, version)
                leased += zip(ids, same, bases, agent_nos, hashes, repeat(current))
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


def _leased_before(connection: Connection, tenant: str, ask: ClaimFilter) -> list[Job]:
    """Return the jobs that the worker leased under this claim ID and still runs."""
    rows = connection.rows(_SQL["find_claim"], _claim_key(tenant, ask))
    return _jobs(connection, tenant, running_under(connection, tenant, ask.worker, rows[0][0])) if rows else []


def running_under(connection: Connection, tenant: str, worker: str, leased: str) -> list[int]:
    rows = connection.rows(_SQL["still_running"], {"tenant": tenant, "leased": leased, "worker": worker})
    return [seq for (seq,) in rows]


def _claim_key(tenant: str, ask: ClaimFilter) -> dict[str, object]:
    return {"tenant": tenant, "worker": ask.worker, "claim_id": ask.claim_id}


def _jobs(connection: Connection, tenant: str, seqs: Sequence[int]) -> list[Job]:
    if not seqs:
        return []
    rows = connection.rows(_SQL["jobs_by_seq"], {"tenant": tenant, "seqs": json.dumps(seqs)})
    return [to_job(row) for row in rows]


def forget_claims(connection: Connection, older_than: int, limit: int) -> int:
    """Delete old claim results whose leases have ended; check the others again later."""
    db, now = connection.db, connection.now
    gone, kept = [], []
    old = connection.rows(_SQL["old_claims"], {"before": now - older_than, "limit": limit})
    for tenant, worker, claim_id, leased in old:
        if running_under(connection, tenant, worker, leased):
            kept.append((now, tenant, worker, claim_id))
        else:
            gone.append((tenant, worker, claim_id))
    db.executemany(_SQL["remember_claim"], kept)
    db.executemany(_SQL["forget_claim"], gone)
    return len(gone)
