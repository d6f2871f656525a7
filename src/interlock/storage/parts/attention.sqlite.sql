-- name: failures
-- Failed and dead-letter jobs that were neither acknowledged nor redriven.
SELECT j.seq, j.id FROM job j INDEXED BY job_unacknowledged
WHERE j.tenant = :tenant AND (j.status = 'failed' OR j.status = 'dead_letter') AND j.acknowledged_at IS NULL AND j.seq < :before
  AND NOT EXISTS (SELECT 1 FROM job_body b INDEXED BY job_redrive
    WHERE b.tenant = :tenant AND b.redrive_of = j.id AND b.redrive_of IS NOT NULL)
ORDER BY j.seq DESC LIMIT :limit;

-- name: keys_of_waiting_jobs
-- A skip scan over the eligibility keys of waiting jobs, except those of paused types.
WITH RECURSIVE k (no) AS (
  SELECT min(eligibility_key) FROM job INDEXED BY job_ready
  WHERE tenant = :tenant AND status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0
  UNION ALL
  SELECT (SELECT n.eligibility_key FROM job n INDEXED BY job_ready
    WHERE n.tenant = :tenant AND n.eligibility_key > k.no AND n.status IN ('queued', 'retry') AND n.awaiting = 0 AND n.blocked = 0
    ORDER BY n.eligibility_key LIMIT 1)
  FROM k WHERE k.no IS NOT NULL LIMIT :most
)
SELECT e.no, e.type, e.requires, e.repository, e.affinity_key FROM k CROSS JOIN eligibility_key e ON e.tenant = :tenant AND e.no = k.no
WHERE NOT EXISTS (SELECT 1 FROM queue q WHERE q.tenant = :tenant AND q.type = e.type AND q.paused_at IS NOT NULL);

-- name: present_workers
SELECT DISTINCT w.asks FROM worker w WHERE w.tenant = :tenant AND (w.last_seen_at > :lately OR w.name IN (
  SELECT j.worker FROM job j INDEXED BY job_lease WHERE j.tenant = :tenant AND j.status = 'running' AND j.lease_expires_at > :now));

-- name: newest_of_keys
-- Of each key, those that became due last: a queue of a million jobs is not sorted.
SELECT j.seq, j.id FROM json_each(:keys) i CROSS JOIN job j ON j.tenant = :tenant AND j.seq IN (
  SELECT n.seq FROM job n INDEXED BY job_ready
  WHERE n.tenant = :tenant AND n.eligibility_key = i.value AND n.status IN ('queued', 'retry') AND n.awaiting = 0 AND n.blocked = 0
    AND n.run_at <= :now AND (n.deadline IS NULL OR n.deadline > :now) AND n.seq < :before
  ORDER BY n.run_at DESC, n.seq DESC LIMIT :most)
ORDER BY j.seq DESC LIMIT :limit;

-- name: some_of_keys
SELECT j.seq FROM json_each(:keys) i CROSS JOIN job j INDEXED BY job_ready ON j.tenant = :tenant AND j.eligibility_key = i.value
WHERE j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0 AND j.run_at <= :now
  AND (j.deadline IS NULL OR j.deadline > :now) LIMIT :limit;
