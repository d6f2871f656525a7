-- The fields of a Job in order, from body, state and checkpoint, followed by base, agent number and chain head.
-- CASE avoids the lookup of values that most jobs do not have.

CREATE VIEW job_view AS
SELECT j.tenant, j.id, j.seq, b.type, j.status, j.priority, b.payload, b.headers, b.traceparent, j.tags, b.agent_kind, b.agent_id,
  b.affinity_key, b.repository, b.requires, b.idempotency_key, b.webhook, b.parent_id, b.redrive_of, b.created_by, b.requested_by,
  j.run_at, j.deadline, j.timeout_seconds, b.backoff, b.expiry_delay_seconds, j.attempt, j.max_attempts, j.worker, j.fence,
  j.lease_expires_at, CASE WHEN j.status = 'running' THEN j.heartbeat_at END AS heartbeat_at, j.approval_id,
  CASE WHEN j.awaiting = 0 THEN '[]' ELSE
    (SELECT json_group_array(a.child_id) FROM job_await a WHERE a.tenant = j.tenant AND a.job_id = j.id)
  END AS awaiting,
  j.cancel_requested_at, j.cancel_reason,
  CASE WHEN j.fence > 0 OR b.redrive_of IS NOT NULL THEN
    (SELECT c.data FROM job_checkpoint c WHERE c.tenant = j.tenant AND c.job_id = j.id) END AS checkpoint,
  CASE WHEN j.fence > 0 OR b.redrive_of IS NOT NULL THEN
    (SELECT c.seq FROM job_checkpoint c WHERE c.tenant = j.tenant AND c.job_id = j.id) END AS checkpoint_seq,
  CASE WHEN j.status = 'succeeded' THEN
    (SELECT r.usage FROM job_result r WHERE r.tenant = j.tenant AND r.seq = j.seq) END AS usage,
  CASE WHEN j.status = 'succeeded' OR j.status = 'failed' THEN
    (SELECT r.result FROM job_result r WHERE r.tenant = j.tenant AND r.seq = j.seq) END AS result,
  CASE WHEN j.status = 'succeeded' THEN
    (SELECT r.result_summary FROM job_result r WHERE r.tenant = j.tenant AND r.seq = j.seq) END AS result_summary,
  j.error,
  j.sanitized
    OR CASE WHEN j.fence > 0 OR b.redrive_of IS NOT NULL THEN
      coalesce((SELECT c.sanitized FROM job_checkpoint c WHERE c.tenant = j.tenant AND c.job_id = j.id), 0) ELSE 0 END
    OR CASE WHEN j.status = 'succeeded' THEN
      coalesce((SELECT r.sanitized FROM job_result r WHERE r.tenant = j.tenant AND r.seq = j.seq), 0) ELSE 0 END AS sanitized,
  j.version, j.releases, b.created_at,
  CASE WHEN j.fence > 0 OR b.redrive_of IS NOT NULL THEN max(j.updated_at,
      coalesce((SELECT c.at FROM job_checkpoint c WHERE c.tenant = j.tenant AND c.job_id = j.id), 0))
    ELSE j.updated_at END AS updated_at,
  j.started_at, j.run_started_at, j.finished_at, j.blocked, j.base, j.agent_no, j.head
FROM job j CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq;
