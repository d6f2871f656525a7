-- name: faults
-- Jobs, agents and limits of a tenant that break a rule; one statement, so it reads one snapshot.
SELECT rule, name FROM (
  SELECT 'attempt_within_max' AS rule, j.id AS name FROM job j
  WHERE j.tenant = :tenant AND (j.attempt BETWEEN 1 AND j.max_attempts AND j.max_attempts <= 100) IS NOT 1
  UNION ALL
  SELECT 'finished_exactly_when_ended', j.id FROM job j
  WHERE j.tenant = :tenant AND (j.finished_at IS NOT NULL) <> (j.status IN ('succeeded', 'failed', 'dead_letter', 'cancelled'))
  UNION ALL
  SELECT 'leased_exactly_when_running', j.id FROM job j
  WHERE j.tenant = :tenant AND ((j.worker IS NOT NULL) <> (j.status = 'running') OR (j.lease_expires_at IS NOT NULL) <> (j.status = 'running'))
  UNION ALL
  SELECT 'approval_exactly_when_waiting', j.id FROM job j
  WHERE j.tenant = :tenant AND (j.approval_id IS NOT NULL) <> (j.status = 'waiting_for_approval')
  UNION ALL
  SELECT 'error_fits_status', j.id FROM job j
  WHERE j.tenant = :tenant AND CASE WHEN j.error IS NULL THEN j.status IN ('failed', 'dead_letter') ELSE j.status = 'succeeded' END
  UNION ALL
  SELECT 'running_has_started', j.id FROM job j
  WHERE j.tenant = :tenant AND j.status = 'running' AND (j.started_at IS NULL OR j.run_started_at IS NULL)
  UNION ALL
  SELECT 'priority_in_range', j.id FROM job j WHERE j.tenant = :tenant AND (j.priority BETWEEN -1000 AND 1000) IS NOT 1
  UNION ALL
  SELECT 'waits_for_an_open_approval', j.id FROM job j
  WHERE j.tenant = :tenant AND j.status = 'waiting_for_approval' AND j.approval_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM approval a WHERE a.tenant = j.tenant AND a.id = j.approval_id AND a.status = 'open')
  UNION ALL
  SELECT 'open_approval_has_a_waiting_job', a.job_id FROM approval a
  WHERE a.tenant = :tenant AND a.status = 'open'
    AND NOT EXISTS (SELECT 1 FROM job j WHERE j.tenant = a.tenant AND j.id = a.job_id AND j.approval_id = a.id)
  UNION ALL
  SELECT 'waits_for_living_children', j.id FROM job j
  WHERE j.tenant = :tenant AND (j.awaiting <> (SELECT count(*) FROM job_await w WHERE w.tenant = j.tenant AND w.job_id = j.id)
    OR (j.awaiting > 0 AND EXISTS (SELECT 1 FROM job_await w LEFT JOIN job c ON c.tenant = w.tenant AND c.id = w.child_id
      WHERE w.tenant = j.tenant AND w.job_id = j.id AND (c.id IS NULL OR c.finished_at IS NOT NULL))))
  UNION ALL
  SELECT 'head_is_its_last_history', j.id FROM job j
  WHERE j.tenant = :tenant AND ((SELECT max(h.version) FROM job_history h WHERE h.tenant = j.tenant AND h.seq = j.seq) IS NOT j.version
    OR (SELECT h.hash FROM job_history h WHERE h.tenant = j.tenant AND h.seq = j.seq AND h.version = j.version) IS NOT j.head)
  UNION ALL
  SELECT 'slots_are_counted', a.kind || '/' || a.id FROM agent a
  WHERE a.tenant = :tenant AND a.max_concurrency IS NOT NULL AND a.used <> (
    SELECT count(*) FROM job j WHERE j.tenant = a.tenant AND j.agent_no = a.no AND j.finished_at IS NULL
      AND (j.status = 'running' OR (j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0)
        OR (a.strict AND j.slot_epoch = a.strict_epoch AND (j.status = 'waiting_for_approval' OR j.awaiting > 0))))
  UNION ALL
  SELECT 'limits_are_counted', f.name || CASE f.key WHEN '' THEN '' ELSE '/' || f.key END FROM flow_bucket f LEFT JOIN (
    SELECT d.value ->> 'name' AS name, coalesce(d.value ->> 'key', '') AS key, count(*) AS n
    FROM job j INDEXED BY job_lease JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq, json_each(b.limits) d
    WHERE j.tenant = :tenant AND j.status = 'running' GROUP BY 1, 2) r ON r.name = f.name AND r.key = f.key
  WHERE f.tenant = :tenant AND f.used <> coalesce(r.n, 0)
) ORDER BY rule IN ('slots_are_counted', 'limits_are_counted'), name, rule LIMIT :limit;

-- name: job_of_agent_no
SELECT no FROM agent WHERE tenant = :tenant AND kind || '/' || id = :name;

-- name: recount
INSERT INTO slots_to_recount VALUES (:tenant, :agent_no);

-- name: recount_flow
UPDATE flow_bucket SET wake_at = CASE WHEN parked THEN interlock_clock() END, used = (
  SELECT count(*) FROM job j INDEXED BY job_lease JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq, json_each(b.limits) d
  WHERE j.tenant = :tenant AND j.status = 'running' AND d.value ->> 'name' = flow_bucket.name AND coalesce(d.value ->> 'key', '') = flow_bucket.key)
WHERE tenant = :tenant AND name || CASE key WHEN '' THEN '' ELSE '/' || key END = :name;

-- name: close_void
UPDATE approval SET status = 'void', closed_at = :now
WHERE tenant = :tenant AND job_id = :name AND status = 'open'
  AND NOT EXISTS (SELECT 1 FROM job j WHERE j.tenant = approval.tenant AND j.id = approval.job_id AND j.approval_id = approval.id);

-- name: wait_no_more
DELETE FROM job_await WHERE tenant = :tenant AND job_id = :name AND NOT EXISTS
  (SELECT 1 FROM job c WHERE c.tenant = job_await.tenant AND c.id = job_await.child_id AND c.finished_at IS NULL);

-- name: count_children
UPDATE job SET awaiting = (SELECT count(*) FROM job_await w WHERE w.tenant = job.tenant AND w.job_id = job.id)
WHERE tenant = :tenant AND id = :name;

-- name: broken_job
SELECT j.seq, j.status, j.attempt, j.fence, j.base, j.agent_no, max(j.version, coalesce(h.version, 0)), h.hash, j.approval_id FROM job j
LEFT JOIN job_history h ON h.tenant = j.tenant AND h.seq = j.seq
WHERE j.tenant = :tenant AND j.id = :name AND j.status NOT IN ('succeeded', 'failed', 'dead_letter', 'cancelled')
ORDER BY h.version DESC LIMIT 1;

-- name: rules_of_change
SELECT sql FROM sqlite_schema WHERE type = 'trigger' AND name = 'rules_of_change';

-- name: end_broken
UPDATE job SET status = 'cancelled', version = :version, attempt = :attempt,
  max_attempts = min(max(max_attempts, :attempt), 100), priority = min(max(priority, -1000), 1000),
  worker = NULL, lease_expires_at = NULL, approval_id = NULL, finished_at = :now, updated_at = :now, awaiting = 0, blocked = 0,
  verb = 'cancel', actor = :actor, reason = :reason, metadata = NULL, head = interlock_head(seq),
  cancel_requested_at = coalesce(cancel_requested_at, :now), cancel_reason = coalesce(cancel_reason, :reason)
WHERE tenant = :tenant AND seq = :seq;
