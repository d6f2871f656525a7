-- page_of_jobs filters ({fits}) the seqs that another statement finds ({found}), newest first, in the range {within}.
-- With the block index, {job_blocks} and {by_block} read matching job blocks newest first; otherwise they are empty.
-- {tagged} is a cheap test that skips most jobs without the tag before their other columns are read.

-- name: page_of_jobs
SELECT {list} FROM ({found} LIMIT -1) c CROSS JOIN job_view v ON v.tenant = :tenant AND v.seq = c.seq WHERE {fits} LIMIT :limit;

-- name: newest
SELECT c.seq FROM {job_blocks}job c WHERE c.tenant = :tenant AND {within} AND {tagged} ORDER BY {by_block}c.seq DESC;

-- name: newest_of_type
SELECT c.seq FROM {job_blocks}job_body c WHERE c.tenant = :tenant AND {within} AND c.type = :type ORDER BY {by_block}c.seq DESC;

-- name: of_agent
SELECT c.seq FROM {job_blocks}job_body c INDEXED BY job_agent
WHERE c.tenant = :tenant AND c.agent_kind = :agent_kind AND c.agent_id = :agent_id AND c.agent_kind IS NOT NULL AND {within}
ORDER BY {by_block}c.seq DESC;

-- name: unsuccessful
-- Jobs in status retry, failed, dead_letter or cancelled.
SELECT c.seq FROM {job_blocks}job c INDEXED BY job_unsuccessful
WHERE c.tenant = :tenant AND c.status = :status AND c.status <> 'queued' AND c.status <> 'running' AND c.status <> 'succeeded' AND c.status <> 'waiting_for_approval' AND {within} AND {tagged}
ORDER BY {by_block}c.seq DESC;

-- name: unsuccessful_of_base
SELECT c.seq FROM {job_blocks}job c INDEXED BY job_unsuccessful_base
WHERE c.tenant = :tenant AND c.status = :status AND c.base = :base AND c.status <> 'queued' AND c.status <> 'running' AND c.status <> 'succeeded' AND c.status <> 'waiting_for_approval' AND {within}
ORDER BY {by_block}c.seq DESC;

-- name: leased
SELECT c.seq FROM job c INDEXED BY job_lease WHERE c.tenant = :tenant AND c.status = 'running' AND {within} ORDER BY c.seq DESC;

-- name: waiting
SELECT c.seq FROM approval a INDEXED BY approval_open CROSS JOIN job c ON c.tenant = a.tenant AND c.id = a.job_id
WHERE a.tenant = :tenant AND a.status = 'open' AND {within} ORDER BY c.seq DESC;

-- name: of_parent
SELECT c.seq FROM job_body c INDEXED BY job_parent
WHERE c.tenant = :tenant AND c.parent_id = :parent_id AND c.parent_id IS NOT NULL AND {within} ORDER BY c.seq DESC;

-- name: due_some_time
-- Jobs that wait for run_at, a concurrency slot or children. With a type, blocked and waiting jobs of other types
-- are included.
SELECT j.seq FROM job j INDEXED BY job_ready
WHERE j.tenant = :tenant AND j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0 AND :type IS NULL
UNION ALL
SELECT j.seq FROM eligibility_key r CROSS JOIN job j INDEXED BY job_ready ON j.tenant = r.tenant AND j.eligibility_key = r.no
WHERE r.tenant = :tenant AND r.type = :type AND j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0
UNION ALL
SELECT j.seq FROM job j INDEXED BY job_blocked WHERE j.tenant = :tenant AND j.blocked = 1 AND j.finished_at IS NULL
UNION ALL
SELECT j.seq FROM (SELECT DISTINCT job_id FROM job_await WHERE tenant = :tenant) w CROSS JOIN job j ON j.tenant = :tenant AND j.id = w.job_id
LIMIT :most;

-- name: named
SELECT value AS seq FROM json_each(:seqs) c WHERE {within};

-- name: last_succeeded
-- An upper bound of the seqs of succeeded jobs.
SELECT coalesce(max(y.last_seq), 0) FROM queue_counter y WHERE y.tenant = :tenant AND y.to_status = 'succeeded';

-- name: how_many_unsuccessful
SELECT count(*) FROM (SELECT 1 FROM job c INDEXED BY job_unsuccessful WHERE c.tenant = :tenant AND c.status IN ({statuses})
  AND c.status <> 'queued' AND c.status <> 'running' AND c.status <> 'succeeded' AND c.status <> 'waiting_for_approval' LIMIT :most);

-- name: bases
SELECT DISTINCT base FROM eligibility_key WHERE tenant = :tenant AND type = :type LIMIT :limit;
