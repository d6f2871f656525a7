-- name: surroundings
-- What a claim must know first: the epoch, the newest route, whether leases or deadlines have passed and types are paused.
SELECT (SELECT value FROM epoch), (SELECT coalesce(max(no), 0) FROM route WHERE tenant = ?1),
  EXISTS (SELECT 1 FROM job WHERE tenant = ?1 AND status = 'running' AND lease_expires_at <= ?2)
    OR EXISTS (SELECT 1 FROM job INDEXED BY job_deadline WHERE tenant = ?1 AND deadline <= ?2 AND deadline IS NOT NULL
      AND status IN ('queued', 'retry', 'waiting_for_approval') AND status <> 'waiting_for_approval' AND awaiting = 0),
  EXISTS (SELECT 1 FROM queue WHERE tenant = ?1 AND paused_at IS NOT NULL),
  EXISTS (SELECT 1 FROM agent WHERE tenant = ?1 AND next_due <= ?2 AND next_due IS NOT NULL);

-- name: paused_types
SELECT type FROM queue WHERE tenant = :tenant AND paused_at IS NOT NULL;

-- name: ready_on_route
-- Due jobs of one route, best first; read lazily, so no more than needed is touched.
SELECT run_at, seq FROM job INDEXED BY job_ready
WHERE tenant = ? AND route = ? AND run_at <= ? AND status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0
ORDER BY run_at, seq;

-- name: ready_on_base
-- The same for all routes that share a base, whatever their repository and affinity key.
SELECT run_at, seq FROM job INDEXED BY job_ready_base
WHERE tenant = ? AND base = ? AND run_at <= ? AND status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0 AND route <> base
ORDER BY run_at, seq;

-- name: ready_across_repositories
-- The same for all routes that differ only in their repository.
SELECT run_at, seq FROM job INDEXED BY job_ready_across_repositories
WHERE tenant = ? AND across_repositories = ? AND run_at <= ? AND status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0
ORDER BY run_at, seq;

-- name: ready_across_keys
-- The same for all routes that differ only in their affinity key.
SELECT run_at, seq FROM job INDEXED BY job_ready_across_keys
WHERE tenant = ? AND across_keys = ? AND run_at <= ? AND status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0
ORDER BY run_at, seq;

-- name: to_grant
-- The jobs about to be granted, with the hash of the newest row of each one's history.
SELECT {job}, v.base, h.hash FROM json_each(:seqs) s CROSS JOIN job_view v ON v.tenant = :tenant AND v.seq = s.value
CROSS JOIN job_history h ON h.tenant = v.tenant AND h.seq = v.seq AND h.version = v.version;

-- name: grant
UPDATE job SET status = 'running', version = version + 1, fence = max(fence, :floor) + 1, worker = :worker,
  lease_expires_at = CASE WHEN timeout_seconds IS NULL THEN :now + :lease
    ELSE min(:now + :lease, :now + CAST(round(timeout_seconds * 1000000) AS INTEGER)) END,
  lease_seconds = :lease_seconds, heartbeat_at = NULL, started_at = coalesce(started_at, :now), run_started_at = :now,
  updated_at = :now, verb = 'claim', actor = :actor, reason = NULL, metadata = NULL
WHERE tenant = :tenant AND seq IN (SELECT value FROM json_each(:seqs));

-- name: insert_grant
INSERT INTO job_history (tenant, at, seq, version, from_status, to_status, verb, actor, attempt, fence, hash)
VALUES (?1, ?2, ?, ?, ?, 'running', 'claim', ?, ?, ?, ?);

-- name: jobs_by_seq
SELECT {job} FROM json_each(:seqs) s CROSS JOIN job_view v ON v.tenant = :tenant AND v.seq = s.value;

-- name: find_claim
SELECT granted FROM claim WHERE tenant = :tenant AND worker = :worker AND claim_id = :claim_id;

-- name: keep_claim
INSERT INTO claim (tenant, worker, claim_id, granted, at) VALUES (:tenant, :worker, :claim_id, :granted, :now)
ON CONFLICT DO UPDATE SET granted = excluded.granted, at = excluded.at;

-- name: still_running
-- Which of the jobs granted under a claim still run under that very grant.
SELECT j.seq FROM json_each(:granted) g CROSS JOIN job j ON j.tenant = :tenant AND j.seq = g.value ->> 0
WHERE j.status = 'running' AND j.fence = g.value ->> 1 AND j.worker = :worker;

-- name: old_claims
SELECT tenant, worker, claim_id, granted FROM claim WHERE at < :before LIMIT :limit;

-- name: remember_claim
UPDATE claim SET at = ? WHERE tenant = ? AND worker = ? AND claim_id = ?;

-- name: forget_claim
DELETE FROM claim WHERE tenant = ? AND worker = ? AND claim_id = ?;

-- name: expired_leases
SELECT id FROM job INDEXED BY job_lease WHERE tenant = :tenant AND status = 'running' AND lease_expires_at <= :now LIMIT :limit;

-- name: passed_deadlines
-- Jobs that only wait for a worker, and may no longer start.
SELECT id FROM job INDEXED BY job_deadline
WHERE tenant = :tenant AND deadline <= :now AND deadline IS NOT NULL
  AND status IN ('queued', 'retry', 'waiting_for_approval') AND status <> 'waiting_for_approval' AND awaiting = 0 LIMIT :limit;

-- name: leases_of_types
SELECT name, lease_seconds FROM job_type WHERE tenant = :tenant AND lease_seconds IS NOT NULL;
