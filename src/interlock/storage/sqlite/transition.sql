-- name: job_states
-- The job state that decide() reads, and the columns of Found.
SELECT {state}, j.seq, j.head, j.base, j.agent_no,
  CASE WHEN j.agent_no IS NULL THEN 0 WHEN j.status = 'waiting_for_approval' OR j.awaiting > 0
    THEN (SELECT a.strict AND j.slot_epoch IS a.strict_epoch FROM agent a WHERE a.tenant = j.tenant AND a.no = j.agent_no)
    ELSE NOT j.blocked END
FROM json_each(:ids) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value
CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
LEFT JOIN approval g ON g.tenant = j.tenant AND g.id = j.approval_id;

-- name: leased
-- The columns of each job that a completion reads.
SELECT j.id, j.seq, j.base, j.agent_no, j.head, j.status, j.attempt, j.fence, j.worker, j.version
FROM json_each(:ids) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value;

-- name: still_leased
-- The number of jobs in a range that are unchanged since they were leased.
SELECT count(*) FROM job WHERE tenant = ? AND seq BETWEEN ? AND ? AND status = 'running' AND fence = ? AND worker = ? AND version = ?;

-- name: complete
UPDATE job SET status = 'succeeded', version = version + 1, actor = 'worker:' || worker, worker = NULL, lease_expires_at = NULL,
  finished_at = :now, updated_at = :now, verb = 'complete', reason = NULL, metadata = NULL, error = NULL, head = interlock_head(seq)
WHERE tenant = :tenant AND seq IN (SELECT value FROM json_each(:seqs));

-- name: insert_result
INSERT INTO job_result (tenant, seq, result, result_summary, usage, sanitized) VALUES (?1, ?, ?, ?, ?, ?);

-- name: change
-- Write a transition; columns it does not set keep their values.
UPDATE job SET status = :status, version = version + 1, attempt = :attempt, releases = :releases, awaiting = :awaiting,
  worker = CASE WHEN :status = 'running' THEN worker END,
  lease_expires_at = CASE WHEN :status = 'running' THEN lease_expires_at END,
  approval_id = :approval_id, run_at = coalesce(:run_at, run_at), error = coalesce(:error, error),
  cancel_requested_at = coalesce(:cancel_requested_at, cancel_requested_at),
  cancel_reason = coalesce(:cancel_reason, cancel_reason), sanitized = sanitized OR :sanitized,
  -- a job that stops running or waiting must get a slot again, unless it keeps its slot
  blocked = CASE WHEN agent_no IS NULL OR :awaiting > 0 OR NOT (:status = 'queued' OR :status = 'retry') THEN 0
    WHEN status = :status THEN blocked
    ELSE (SELECT a.max_concurrency IS NOT NULL AND NOT (a.strict AND (job.status = 'running' OR job.slot_epoch IS a.strict_epoch))
          FROM agent a WHERE a.tenant = job.tenant AND a.no = job.agent_no) END,
  limit_name = CASE WHEN status = :status THEN limit_name END, limit_key = CASE WHEN status = :status THEN limit_key END,
  parked = CASE WHEN status = :status THEN parked ELSE 0 END,
  slot_epoch = CASE WHEN agent_no IS NOT NULL AND status = 'running' AND :status <> 'running'
    THEN (SELECT a.strict_epoch FROM agent a WHERE a.tenant = job.tenant AND a.no = job.agent_no AND a.strict AND a.max_concurrency IS NOT NULL)
    ELSE slot_epoch END,
  finished_at = :finished_at, updated_at = :now, verb = :verb, actor = :actor, reason = :reason, metadata = :metadata,
  head = interlock_head(seq)
WHERE tenant = :tenant AND seq = :seq;

-- name: acknowledge
UPDATE job SET acknowledged_at = :now, acknowledged_by = :actor, version = version + 1, updated_at = :now, verb = :verb, actor = :actor,
  reason = :reason, metadata = :metadata, head = interlock_head(seq)
WHERE tenant = :tenant AND seq = :seq;

-- name: newest_transition
SELECT j.id, h.version, h.from_status, h.to_status, h.verb, h.actor, h.attempt, h.fence, h.reason, h.metadata, h.at, h.hash
FROM job j CROSS JOIN job_history h ON h.tenant = j.tenant AND h.seq = j.seq
WHERE j.tenant = :tenant AND j.id = :id ORDER BY h.version DESC LIMIT 1;

-- name: lease_end
-- The history row that ended a lease.
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
UPDATE job SET awaiting = awaiting - 1, blocked = CASE WHEN awaiting > 1 OR agent_no IS NULL THEN 0
    ELSE (SELECT a.max_concurrency IS NOT NULL AND NOT (a.strict AND job.slot_epoch IS a.strict_epoch)
          FROM agent a WHERE a.tenant = job.tenant AND a.no = job.agent_no) END
WHERE tenant = ? AND id = ?;

-- name: agent_nos_of
SELECT DISTINCT j.agent_no FROM json_each(:ids) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value WHERE j.agent_no IS NOT NULL;
