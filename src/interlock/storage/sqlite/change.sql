-- name: standings
-- What decisions look at, with the hash of the newest row of each job's history.
SELECT j.id, j.status, j.attempt, j.max_attempts, j.version, j.fence, j.worker, j.run_at, j.deadline, j.lease_expires_at,
  j.run_started_at, j.timeout_seconds, b.backoff, b.expiry_delay_seconds, j.releases, j.cancel_requested_at, j.cancel_reason,
  j.error, j.seq, h.hash
FROM json_each(:ids) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value
CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
CROSS JOIN job_history h ON h.tenant = j.tenant AND h.seq = j.seq AND h.version = j.version;

-- name: held_to_complete
SELECT j.id, j.seq, j.status, j.fence, j.worker, j.version, j.attempt, h.hash
FROM json_each(:ids) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value
CROSS JOIN job_history h ON h.tenant = j.tenant AND h.seq = j.seq AND h.version = j.version;

-- name: complete
UPDATE job SET status = 'succeeded', version = version + 1, actor = 'worker:' || worker, worker = NULL, lease_expires_at = NULL,
  finished_at = :now, updated_at = :now, verb = 'complete', reason = NULL, metadata = NULL, error = NULL
WHERE tenant = :tenant AND seq IN (SELECT value FROM json_each(:seqs));

-- name: insert_result
INSERT INTO job_result (tenant, seq, result, result_summary, usage, sanitized) VALUES (?, ?, ?, ?, ?, ?);

-- name: change
-- Writes a decided change; what a change leaves open stays as it is.
UPDATE job SET status = :status, version = version + 1, attempt = :attempt, releases = :releases, awaiting = :awaiting,
  worker = CASE WHEN :status = 'running' THEN worker END,
  lease_expires_at = CASE WHEN :status = 'running' THEN lease_expires_at END,
  gate_id = NULL, run_at = coalesce(:run_at, run_at), error = coalesce(:error, error),
  cancel_requested_at = coalesce(:cancel_requested_at, cancel_requested_at),
  cancel_reason = coalesce(:cancel_reason, cancel_reason), sanitized = sanitized OR :sanitized,
  finished_at = :finished_at, updated_at = :now, verb = :verb, actor = :actor, reason = :reason, metadata = :metadata
WHERE tenant = :tenant AND seq = :seq;

-- name: grant_end
-- The history row that ended a grant.
SELECT j.id, h.version, h.from_status, h.to_status, h.verb, h.actor, h.attempt, h.fence, h.reason, h.metadata, h.at, h.hash
FROM job j CROSS JOIN job_history h ON h.tenant = j.tenant AND h.seq = j.seq
WHERE j.tenant = :tenant AND j.id = :id AND h.fence = :fence AND h.from_status = 'running' AND h.to_status <> 'running';

-- name: children
SELECT b.id, j.finished_at IS NOT NULL, b.parent_id
FROM json_each(:ids) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value
CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq;

-- name: await_child
INSERT INTO job_await (tenant, child_id, job_id) VALUES (?, ?, ?);

-- name: anyone_awaits
SELECT EXISTS (SELECT 1 FROM job_await WHERE tenant = :tenant);

-- name: await_no_more
DELETE FROM job_await WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids));

-- name: child_ended
DELETE FROM job_await WHERE tenant = :tenant AND child_id IN (SELECT value FROM json_each(:ids)) RETURNING job_id;

-- name: one_child_less
UPDATE job SET awaiting = awaiting - 1 WHERE tenant = ? AND id = ?;

-- name: held
-- The facts a heartbeat and a checkpoint need of each job.
SELECT j.id, j.seq, j.status, j.fence, j.worker, j.lease_seconds, j.run_started_at, j.timeout_seconds, j.cancel_requested_at,
  j.cancel_reason, c.seq, c.data, EXISTS (SELECT 1 FROM queue q WHERE q.tenant = b.tenant AND q.type = b.type AND q.paused_at IS NOT NULL)
FROM json_each(:ids) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value
CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
LEFT JOIN job_checkpoint c ON c.tenant = j.tenant AND c.job_id = j.id;

-- name: beat
UPDATE job SET lease_expires_at = ?, heartbeat_at = ?, updated_at = ? WHERE tenant = ? AND seq = ?;

-- name: save_checkpoint
INSERT INTO job_checkpoint (tenant, job_id, seq, data, sanitized, at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET seq = excluded.seq, data = excluded.data, sanitized = excluded.sanitized, at = excluded.at;

-- name: pause
INSERT INTO queue (tenant, type, paused_at, paused_by, pause_reason) VALUES (:tenant, :type, :at, :actor, :reason)
ON CONFLICT DO UPDATE SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, pause_reason = excluded.pause_reason;
