-- name: leased
-- The columns of each job that heartbeats and checkpoints read.
SELECT j.id, j.seq, j.status, j.fence, j.worker, j.lease_seconds, j.run_started_at, j.timeout_seconds, j.cancel_requested_at,
  j.cancel_reason, c.seq, c.data, EXISTS (SELECT 1 FROM queue q WHERE q.tenant = b.tenant AND q.type = b.type AND q.paused_at IS NOT NULL),
  b.limits,
  coalesce((SELECT max(m.seq) FROM job_message m WHERE m.tenant = j.tenant AND m.job_id = j.id), 0)
FROM json_each(:ids) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value
CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
LEFT JOIN job_checkpoint c ON c.tenant = j.tenant AND c.job_id = j.id;

-- name: heartbeat
UPDATE job SET lease_expires_at = ?, heartbeat_at = ?, updated_at = ? WHERE tenant = ? AND seq = ?;

-- name: save_checkpoint
INSERT INTO job_checkpoint (tenant, job_id, seq, data, sanitized, at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET seq = excluded.seq, data = excluded.data, sanitized = excluded.sanitized, at = excluded.at;
