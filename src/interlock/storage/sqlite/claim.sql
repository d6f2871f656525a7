-- name: surroundings
-- Inputs of a claim: the epoch, the last eligibility key, and whether there are expired leases or deadlines, paused
-- types, agents with a slot for a due job, and types or agents with their own lease_seconds.
SELECT (SELECT value FROM epoch), (SELECT coalesce(max(no), 0) FROM eligibility_key WHERE tenant = ?1),
  EXISTS (SELECT 1 FROM job WHERE tenant = ?1 AND status = 'running' AND lease_expires_at <= ?2)
    OR EXISTS (SELECT 1 FROM job INDEXED BY job_deadline WHERE tenant = ?1 AND deadline <= ?2 AND deadline IS NOT NULL
      AND status IN ('queued', 'retry', 'waiting_for_approval') AND status <> 'waiting_for_approval' AND awaiting = 0),
  EXISTS (SELECT 1 FROM queue WHERE tenant = ?1 AND paused_at IS NOT NULL),
  EXISTS (SELECT 1 FROM agent WHERE tenant = ?1 AND next_due <= ?2 AND next_due IS NOT NULL),
  EXISTS (SELECT 1 FROM job_type WHERE tenant = ?1 AND lease_seconds IS NOT NULL)
    OR EXISTS (SELECT 1 FROM agent INDEXED BY agent_lease WHERE tenant = ?1 AND json_extract(defaults, '$.lease_seconds') IS NOT NULL);

-- name: paused_types
SELECT type FROM queue WHERE tenant = :tenant AND paused_at IS NOT NULL;

-- name: ready_on_key
-- Due jobs of one eligibility key. A claim merges several of these with UNION ALL and reads them lazily.
SELECT run_at, seq FROM job INDEXED BY job_ready
WHERE tenant = ?1 AND run_at <= ?2 AND eligibility_key = ? AND status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0;

-- name: ready_on_base
-- Due jobs of all eligibility keys with the same base, for any repository and affinity key.
SELECT run_at, seq FROM job INDEXED BY job_ready_base
WHERE tenant = ?1 AND run_at <= ?2 AND base = ? AND status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0 AND eligibility_key <> base;

-- name: ready_across_repositories
-- Due jobs of all eligibility keys that differ only in their repository.
SELECT run_at, seq FROM job INDEXED BY job_ready_across_repositories
WHERE tenant = ?1 AND run_at <= ?2 AND across_repositories = ? AND status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0;

-- name: ready_across_keys
-- Due jobs of all eligibility keys that differ only in their affinity key.
SELECT run_at, seq FROM job INDEXED BY job_ready_across_keys
WHERE tenant = ?1 AND run_at <= ?2 AND across_keys = ? AND status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0;

-- name: to_lease
-- The jobs to lease, with base, agent number and chain head.
SELECT {job}, v.base, v.agent_no, v.head FROM json_each(:seqs) s CROSS JOIN job_view v ON v.tenant = :tenant AND v.seq = s.value
WHERE v.attempt BETWEEN 1 AND v.max_attempts;

-- name: unchanged
-- Whether each job of a range is unchanged since enqueue, and its state. Must return the same rows as bodies.
SELECT version = 1 AND attempt = 1 AND {plain_job}, id, priority, eligibility_key, agent_no, run_at, max_attempts, head
FROM job WHERE tenant = ? AND seq BETWEEN ? AND ? ORDER BY seq;

-- name: bodies
-- Whether each body has only the common columns, and their values.
SELECT {plain_body}, agent_kind, agent_id, created_by, created_at, payload, limits
FROM job_body WHERE tenant = ? AND seq BETWEEN ? AND ? ORDER BY seq;

-- name: unchanged_listed
-- The same as unchanged and bodies together, for jobs that are not in ranges.
SELECT j.seq, version = 1 AND attempt = 1 AND {plain_job} AND {plain_body}, j.id, priority, eligibility_key, agent_no, run_at, max_attempts, head,
  agent_kind, agent_id, created_by, created_at, payload, limits
FROM json_each(:seqs) s CROSS JOIN job j ON j.tenant = :tenant AND j.seq = s.value CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq;

-- name: lease_jobs
UPDATE job SET status = 'running', version = version + 1, fence = max(fence, :floor) + 1, worker = :worker,
  lease_expires_at = CASE WHEN timeout_seconds IS NULL THEN :now + :lease
    ELSE min(:now + :lease, :now + CAST(round(timeout_seconds * 1000000) AS INTEGER)) END,
  lease_seconds = :lease_seconds, heartbeat_at = NULL, started_at = coalesce(started_at, :now), run_started_at = :now,
  updated_at = :now, verb = 'claim', actor = :actor, reason = NULL, metadata = NULL, head = interlock_head(seq)
WHERE tenant = :tenant AND seq IN (SELECT value FROM json_each(:seqs));

-- name: jobs_by_seq
SELECT {job} FROM json_each(:seqs) s CROSS JOIN job_view v ON v.tenant = :tenant AND v.seq = s.value;

-- name: find_claim
SELECT leased FROM claim_result WHERE tenant = :tenant AND worker = :worker AND claim_id = :claim_id;

-- name: keep_claim
INSERT INTO claim_result (tenant, worker, claim_id, leased, at) VALUES (:tenant, :worker, :claim_id, :leased, :now)
ON CONFLICT DO UPDATE SET leased = excluded.leased, at = excluded.at;

-- name: still_running
-- Jobs of a claim that still run under the lease it issued.
SELECT j.seq FROM json_each(:leased) g CROSS JOIN job j ON j.tenant = :tenant AND j.seq = g.value ->> 0
WHERE j.status = 'running' AND j.fence = g.value ->> 1 AND j.worker = :worker;

-- name: old_claims
SELECT tenant, worker, claim_id, leased FROM claim_result WHERE at < :before LIMIT :limit;

-- name: remember_claim
UPDATE claim_result SET at = ? WHERE tenant = ? AND worker = ? AND claim_id = ?;

-- name: forget_claim
DELETE FROM claim_result WHERE tenant = ? AND worker = ? AND claim_id = ?;

-- name: expired_leases
SELECT id FROM job INDEXED BY job_lease WHERE tenant = :tenant AND status = 'running' AND lease_expires_at <= :now LIMIT :limit;

-- name: passed_deadlines
-- Jobs past their deadline that wait only for a worker.
SELECT id FROM job INDEXED BY job_deadline
WHERE tenant = :tenant AND deadline <= :now AND deadline IS NOT NULL
  AND status IN ('queued', 'retry', 'waiting_for_approval') AND status <> 'waiting_for_approval' AND awaiting = 0 LIMIT :limit;

-- name: leases_of_types
SELECT name, lease_seconds FROM job_type WHERE tenant = :tenant AND lease_seconds IS NOT NULL;

-- name: leases_of_agents
SELECT a.kind, a.id, json_extract(a.defaults, '$.lease_seconds') FROM json_each(:names) n CROSS JOIN agent a INDEXED BY agent_lease
  ON a.tenant = :tenant AND a.kind = n.value ->> 0 AND a.id = n.value ->> 1
WHERE json_extract(a.defaults, '$.lease_seconds') IS NOT NULL;
