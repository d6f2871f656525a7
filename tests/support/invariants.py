"""What must hold for every job in every store at every moment, read from outside the verbs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import apsw
import asyncpg

from interlock.domain.audit import history_hash
from interlock.domain.job import HistoryRow, Job
from interlock.domain.lifecycle import EDGES, TERMINAL, Status, Verb


def check_history(job: Job, rows: Sequence[HistoryRow]) -> None:
    """The history has no gap, every transition in it is legal, and it replays to the current job."""
    where = f"job {job.id}"
    assert [row.version for row in rows] == list(range(1, job.version + 1)), where
    status: Status | None = None
    fence, attempt, hash, cancelling = 0, 1, None, False
    for row in rows:
        assert row.job_id == job.id, where
        assert row.from_status == status, where
        assert row.verb in EDGES[status, row.to_status], f"{where}: {status} → {row.to_status} by {row.verb}"
        assert row.attempt == attempt <= job.max_attempts, where
        if row.verb == Verb.CLAIM:
            assert row.fence > fence, f"{where}: a fence was given twice"
            assert not cancelling, f"{where}: leased although a cancel was requested"
            fence = row.fence
        assert row.fence == fence, where
        hash = history_hash(hash, job.tenant, *row[:-1])
        assert row.hash == hash, where
        attempt += row.to_status == Status.RETRY and status == Status.RUNNING
        cancelling |= row.verb == Verb.CANCEL
        status = row.to_status
    assert (job.status, job.fence, job.attempt) == (status, fence, attempt), where
    assert (job.worker is not None) == (job.lease_expires_at is not None) == (status == Status.RUNNING), where
    assert (job.finished_at is not None) == (status in TERMINAL), where
    ends = [row for row in rows if row.to_status in TERMINAL and row.verb != Verb.ACKNOWLEDGE]
    assert len(ends) == (status in TERMINAL), f"{where}: ended more than once"


# Concurrency slots are those of running jobs, of waiting ones that have got one, and of jobs of strict agents that kept
# theirs and do not wait for a worker. One statement sees one moment, so this holds while others work, too.
_MISCOUNTED: Final = "an agent whose slots are counted wrong"

# On PostgreSQL two narrow tables index the truth in job; each query finds rows where they do not fit it.
_POSTGRES_FAULTS = {
    _MISCOUNTED: """
        select a.kind || '/' || a.id, a.used, c.n from interlock.agent a cross join lateral (
          select (select count(*) from interlock.lease l where l.tenant = a.tenant and l.agent_no = a.no)
            + (select count(*) from interlock.ready q where q.tenant = a.tenant and q.agent_no = a.no and not q.blocked)
            + (select count(*) from interlock.job j where j.tenant = a.tenant and j.agent_no = a.no and a.strict
                 and j.slot_epoch = a.strict_epoch and j.status <= 'waiting_for_approval'
                 and not exists (select from interlock.ready q where q.tenant = j.tenant and q.job_id = j.id)) as n) c
        where ($1::text is null or a.tenant = $1) and a.max_concurrency is not null and a.used <> c.n""",
    "a limit whose running jobs are counted wrong": """
        select b.name, b.key, b.used, r.n from interlock.flow_bucket b left join (
          select l.tenant, d ->> 'name' as name, coalesce(d ->> 'key', '') as key, count(*) as n
          from interlock.lease l join interlock.job j on j.tenant = l.tenant and j.id = l.job_id
          cross join lateral json_array_elements(j.limits::json) d group by 1, 2, 3) r on (r.tenant, r.name, r.key) = (b.tenant, b.name, b.key)
        where ($1::text is null or b.tenant = $1) and b.used <> coalesce(r.n, 0)""",
    "a parked job that nothing brings back": """
        select q.job_id from interlock.ready q
        left join interlock.flow_bucket b on (b.tenant, b.name, b.key) = (q.tenant, q.limit_name, q.limit_key)
        where ($1::text is null or q.tenant = $1) and q.parked and not q.blocked and q.limit_name not like 'tree:%' and (b.parked is not true
          or (b.wake_at is null and b.turn is null and b.used = 0 and not exists (select from interlock.ready s where s.tenant = q.tenant
            and s.limit_name = q.limit_name and s.limit_key = q.limit_key and not s.parked and not s.blocked)))""",
    "ready without a waiting job": """
        select q.job_id from interlock.ready q left join interlock.job j on j.tenant = q.tenant and j.id = q.job_id
        where ($1::text is null or q.tenant = $1) and (j.id is null or j.status > 'retry'
          or (j.seq, j.run_at) <> (q.seq, q.run_at) or j.deadline is distinct from q.deadline
          or case when q.parked then not exists (select from interlock.eligibility_key e
              where e.tenant = q.tenant and e.no = q.eligibility_key and e.parks = j.eligibility_key)
            else (j.eligibility_key, j.base) <> (q.eligibility_key, q.base) end)""",
    "twice in ready": """
        select q.job_id from interlock.ready q where ($1::text is null or q.tenant = $1)
        group by q.tenant, q.job_id having count(*) > 1""",
    "waiting and not in ready": """
        select j.id from interlock.job j where ($1::text is null or j.tenant = $1) and j.status <= 'retry'
          and not exists (select from interlock.job_await a where a.tenant = j.tenant and a.job_id = j.id)
          and not exists (select from interlock.ready q where q.tenant = j.tenant and q.job_id = j.id)""",
    "waiting for children and in ready": """
        select a.job_id from interlock.job_await a join interlock.ready q on q.tenant = a.tenant and q.job_id = a.job_id
        where ($1::text is null or a.tenant = $1)""",
    "waiting for a child that has ended": """
        select a.job_id from interlock.job_await a join interlock.job c on c.tenant = a.tenant and c.id = a.child_id
        join interlock.job j on j.tenant = a.tenant and j.id = a.job_id
        where ($1::text is null or a.tenant = $1) and (c.status >= 'succeeded' or j.status > 'retry')""",
    "running without its lease": """
        select j.id from interlock.job j where ($1::text is null or j.tenant = $1) and j.status = 'running'
          and not exists (select from interlock.lease l where l.tenant = j.tenant and l.job_id = j.id
            and l.fence = j.fence and l.worker = j.worker)""",
    "an open approval that its job does not wait for": """
        select a.id from interlock.approval a where ($1::text is null or a.tenant = $1) and a.status = 'open'
          and not exists (select from interlock.job j where j.tenant = a.tenant and j.id = a.job_id and j.approval_id = a.id)""",
    "unsuccessful and not in unsuccessful_job, or the other way round": """
        select coalesce(j.id, s.job_id) from (select * from interlock.job where status >= 'failed' or status = 'retry') j
        full join interlock.unsuccessful_job s
          on s.tenant = j.tenant and s.job_id = j.id and s.status = j.status::text and s.seq = j.seq and s.type = j.type
        where ($1::text is null or coalesce(j.tenant, s.tenant) = $1) and (j.id is null or s.job_id is null)""",
    "history of a job that is gone": """
        select h.job_id from interlock.job_history h where ($1::text is null or h.tenant = $1)
          and not exists (select from interlock.job j where j.tenant = h.tenant and j.id = h.job_id)""",
    "lease without a running job": """
        select l.job_id from interlock.lease l where ($1::text is null or l.tenant = $1)
          and not exists (select from interlock.job j where j.tenant = l.tenant and j.id = l.job_id and j.status = 'running')""",
}

_SQLITE_FAULTS = {
    _MISCOUNTED: """
        SELECT a.kind || '/' || a.id, a.used, c.n FROM agent a JOIN (
          SELECT b.tenant, b.no, (SELECT count(*) FROM job j WHERE j.tenant = b.tenant AND j.agent_no = b.no AND j.finished_at IS NULL
            AND (j.status = 'running' OR (j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0)
              OR (b.strict AND j.slot_epoch = b.strict_epoch AND (j.status = 'waiting_for_approval' OR j.awaiting > 0)))) AS n
          FROM agent b WHERE ?1 IS NULL OR b.tenant = ?1) c ON c.tenant = a.tenant AND c.no = a.no
        WHERE a.max_concurrency IS NOT NULL AND a.used <> c.n""",
    "a limit whose running jobs are counted wrong": """
        SELECT f.name, f.key, f.used, r.n FROM flow_bucket f LEFT JOIN (
          SELECT j.tenant, d.value ->> 'name' AS name, coalesce(d.value ->> 'key', '') AS key, count(*) AS n
          FROM job j JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq, json_each(b.limits) d
          WHERE j.status = 'running' GROUP BY 1, 2, 3) r ON (r.tenant, r.name, r.key) = (f.tenant, f.name, f.key)
        WHERE (?1 IS NULL OR f.tenant = ?1) AND f.used <> coalesce(r.n, 0)""",
    "a parked job that nothing brings back": """
        SELECT j.id FROM job j LEFT JOIN flow_bucket f ON (f.tenant, f.name, f.key) = (j.tenant, j.limit_name, j.limit_key)
        WHERE (?1 IS NULL OR j.tenant = ?1) AND j.parked = 1 AND j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0
          AND j.limit_name NOT LIKE 'tree:%' AND (f.parked IS NOT 1 OR (f.wake_at IS NULL AND f.turn IS NULL AND f.used = 0 AND NOT EXISTS (
            SELECT 1 FROM job s WHERE s.tenant = j.tenant AND s.limit_name = j.limit_name AND s.limit_key = j.limit_key AND s.parked = 0
              AND s.status IN ('queued', 'retry') AND s.blocked = 0)))""",
    "children counted wrongly": """
        SELECT j.id FROM job j WHERE (?1 IS NULL OR j.tenant = ?1) AND j.awaiting <>
          (SELECT count(*) FROM job_await a WHERE a.tenant = j.tenant AND a.job_id = j.id)""",
    "waiting for a child that has ended": """
        SELECT a.job_id FROM job_await a JOIN job c ON c.tenant = a.tenant AND c.id = a.child_id
        WHERE (?1 IS NULL OR a.tenant = ?1) AND c.finished_at IS NOT NULL""",
    "on another eligibility key than that of its body": """
        SELECT j.id FROM job j JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
        LEFT JOIN eligibility_key r ON r.tenant = j.tenant AND r.no = j.eligibility_key
        WHERE (?1 IS NULL OR j.tenant = ?1) AND (r.no IS NULL OR r.base <> j.base OR r.type <> b.type OR r.priority <> j.priority
          OR r.requires <> b.requires OR r.repository IS NOT b.repository OR r.affinity_key IS NOT b.affinity_key)""",
    "an open approval that its job does not wait for": """
        SELECT a.id FROM approval a WHERE (?1 IS NULL OR a.tenant = ?1) AND a.status = 'open'
          AND NOT EXISTS (SELECT 1 FROM job j WHERE j.tenant = a.tenant AND j.id = a.job_id AND j.approval_id = a.id)""",
    "without body": """
        SELECT j.id FROM job j WHERE (?1 IS NULL OR j.tenant = ?1)
          AND NOT EXISTS (SELECT 1 FROM job_body b WHERE b.tenant = j.tenant AND b.seq = j.seq AND b.id = j.id)""",
}


async def check_postgres(admin: asyncpg.Connection[Any], tenant: str | None = None) -> None:
    """What indexes the truth agrees with it; admin must see past row-level security."""
    for fault, query in _POSTGRES_FAULTS.items():
        rows = await admin.fetch(query, tenant)
        assert not rows, f"{fault}: {[tuple(map(str, row)) for row in rows[:5]]}"


async def check_slots(place: str | asyncpg.Connection[Any]) -> None:
    """The places that are counted as used are those that are used."""
    if isinstance(place, str):
        db = apsw.Connection(place, flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            db.set_busy_timeout(60_000)
            wrong = db.execute(_SQLITE_FAULTS[_MISCOUNTED], (None,)).fetchall()
        finally:
            db.close()
    else:
        wrong = [tuple(row) for row in await place.fetch(_POSTGRES_FAULTS[_MISCOUNTED], None)]
    assert not wrong, f"agent, used, counted: {wrong[:5]}"


def check_sqlite(path: Path | str, tenant: str | None = None, *, integrity: bool = False) -> None:
    """What is counted or copied in the file agrees with what it comes from."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        db.set_busy_timeout(60_000)
        for fault, query in _SQLITE_FAULTS.items():
            rows = db.execute(query, (tenant,)).fetchall()
            assert not rows, f"{fault}: {rows[:5]}"
        if integrity:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        db.close()
