-- name: any_limit
SELECT EXISTS (SELECT 1 FROM flow_limit WHERE tenant = ?);

-- name: flow_of_agents
SELECT EXISTS (SELECT 1 FROM flow_limit WHERE tenant = ?1) AND EXISTS (
  SELECT 1 FROM agent WHERE tenant = ?1 AND max_concurrency IS NOT NULL AND strict = 0 AND used >= max_concurrency);

-- name: limits
SELECT f.name, f.rules FROM json_each(:names) n CROSS JOIN flow_limit f ON f.tenant = :tenant AND f.name = n.value;

-- name: buckets
SELECT b.name, b.key, b.used, b.levels, b.as_of, b.held_until, b.ticket, b.parked, b.turn, b.served
FROM json_each(:names) n CROSS JOIN flow_bucket b ON b.tenant = :tenant AND b.name = n.value ->> 0 AND b.key = n.value ->> 1;

-- name: due_buckets
-- Buckets that may have room for their parked jobs.
SELECT name, key, used, levels, as_of, held_until, ticket, parked, turn, served FROM flow_bucket
WHERE tenant = :tenant AND wake_at <= :now AND wake_at IS NOT NULL ORDER BY wake_at;

-- name: next_wake
-- When the next bucket may have room for its parked jobs.
SELECT min(wake_at) FROM flow_bucket WHERE tenant = :tenant AND wake_at > :now AND wake_at IS NOT NULL;

-- name: still_waits
-- Whether a job waits as it did when it got its ticket, and could run.
SELECT EXISTS (SELECT 1 FROM job j CROSS JOIN eligibility_key e ON e.tenant = j.tenant AND e.no = j.eligibility_key
  WHERE j.tenant = :tenant AND j.seq = :seq AND j.status IN ('queued', 'retry') AND j.priority = :priority AND j.run_at = :run_at
    AND j.blocked = 0 AND j.awaiting = 0
    AND NOT EXISTS (SELECT 1 FROM queue q WHERE q.tenant = j.tenant AND q.type = e.type AND q.paused_at IS NOT NULL));

-- name: candidates
-- The rank and limits of jobs that a claim has chosen, in the same order.
SELECT j.priority, j.run_at, b.limits, j.limit_name, j.limit_key FROM json_each(:seqs) s CROSS JOIN job j ON j.tenant = :tenant AND j.seq = s.value
CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq ORDER BY s.key;

-- name: ended
-- The limits of jobs whose leases have ended, and the usage that they reported.
SELECT b.limits, j.id, j.fence, j.verb, j.run_started_at, CASE WHEN j.status = 'succeeded' THEN r.usage END, u.usage,
  EXISTS (SELECT 1 FROM job_step s INDEXED BY job_step_once WHERE s.tenant = :tenant AND s.job_id = j.id AND s.name = 'interlock.usage')
FROM json_each(:seqs) s CROSS JOIN job_body b ON b.tenant = :tenant AND b.seq = s.value
CROSS JOIN job j ON j.tenant = b.tenant AND j.seq = b.seq
LEFT JOIN job_result r ON r.tenant = b.tenant AND r.seq = b.seq
LEFT JOIN run_usage u ON u.tenant = j.tenant AND u.job_id = j.id AND u.fence = j.fence WHERE b.limits IS NOT NULL;

-- name: usage_steps
SELECT s.job_id, s.seq, s.name, s.occurrence, s.result, s.function, s.fence, s.at, s.sanitized FROM job_step s INDEXED BY job_step_once
WHERE s.tenant = :tenant AND s.job_id = :id AND s.name = :name ORDER BY s.seq;

-- name: limits_of
SELECT DISTINCT b.limits FROM json_each(:seqs) s CROSS JOIN job_body b ON b.tenant = :tenant AND b.seq = s.value WHERE b.limits IS NOT NULL;

-- name: save
INSERT INTO flow_bucket (tenant, name, key, used, levels, as_of, held_until, ticket, parked, wake_at, turn, served)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET used = excluded.used, levels = excluded.levels, as_of = excluded.as_of,
  held_until = excluded.held_until, ticket = excluded.ticket, parked = excluded.parked, wake_at = excluded.wake_at,
  turn = excluded.turn, served = excluded.served;

-- name: wake
-- Let the next claim look at the parked jobs of a bucket.
UPDATE flow_bucket SET wake_at = ? WHERE tenant = ? AND name = ? AND key = ? AND parked = 1;

-- name: places_of
-- The eligibility keys of jobs, and the buckets that show them.
SELECT seq, eligibility_key, limit_name, limit_key FROM job WHERE tenant = :tenant AND seq IN (SELECT value FROM json_each(:seqs));

-- name: park
UPDATE job SET eligibility_key = ?, base = ?, across_repositories = ?, across_keys = ?, parked = 1, limit_name = ?, limit_key = ?
WHERE tenant = ? AND seq = ?;

-- name: show
-- Show parked jobs of one eligibility key: claims find them by another one.
UPDATE job SET eligibility_key = ?, base = ?, across_repositories = ?, across_keys = ?, parked = 0
WHERE tenant = ? AND seq IN (SELECT value FROM json_each(?));

-- name: parked_keys
-- The eligibility keys of the jobs that are parked in each of these buckets.
WITH RECURSIVE k(i, name, key, no) AS (
  SELECT b.key, b.value ->> 0, b.value ->> 1, (SELECT min(j.eligibility_key) FROM job j INDEXED BY job_parked WHERE j.tenant = :tenant
    AND j.limit_name = b.value ->> 0 AND j.limit_key = b.value ->> 1 AND j.parked = 1 AND j.limit_name IS NOT NULL
    AND (j.status = 'queued' OR j.status = 'retry')) FROM json_each(:buckets) b
  UNION ALL
  SELECT k.i, k.name, k.key, (SELECT min(j.eligibility_key) FROM job j INDEXED BY job_parked WHERE j.tenant = :tenant
    AND j.limit_name = k.name AND j.limit_key = k.key AND j.parked = 1 AND j.limit_name IS NOT NULL
    AND (j.status = 'queued' OR j.status = 'retry') AND j.eligibility_key > k.no) FROM k WHERE k.no IS NOT NULL)
SELECT i, no FROM k WHERE no IS NOT NULL;

-- name: lines
-- Of each of these buckets, with an eligibility key shown and parked: how many jobs it shows, and the first that are parked.
SELECT (SELECT count(*) FROM (SELECT 1 FROM job j INDEXED BY job_parked WHERE j.tenant = :tenant AND j.limit_name = b.value ->> 0
      AND j.limit_key = b.value ->> 1 AND j.parked = 0 AND j.eligibility_key = b.value ->> 2 AND j.limit_name IS NOT NULL AND j.blocked = 0
      AND (j.status = 'queued' OR j.status = 'retry') LIMIT :most)),
  (SELECT json_group_array(x.seq) FROM (SELECT j.seq FROM job j INDEXED BY job_parked WHERE j.tenant = :tenant AND j.limit_name = b.value ->> 0
      AND j.limit_key = b.value ->> 1 AND j.parked = 1 AND j.eligibility_key = b.value ->> 3 AND j.limit_name IS NOT NULL AND j.blocked = 0
      AND (j.status = 'queued' OR j.status = 'retry') ORDER BY j.run_at, j.seq LIMIT :most) x)
FROM json_each(:lines) b ORDER BY b.key;

-- name: slot_holders
-- The jobs with a slot of an agent that is not strict and has no other, if they name limits.
SELECT a.no, j.seq, j.priority, j.run_at, j.limit_name, j.limit_key, b.limits FROM agent a
CROSS JOIN job j INDEXED BY job_of_agent ON j.tenant = a.tenant AND j.agent_no = a.no AND j.blocked = 0
CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
WHERE a.tenant = :tenant AND a.max_concurrency IS NOT NULL AND a.strict = 0 AND a.used >= a.max_concurrency
  AND j.agent_no IS NOT NULL AND j.finished_at IS NULL AND (j.status = 'queued' OR j.status = 'retry') AND j.awaiting = 0 AND b.limits IS NOT NULL
ORDER BY a.no, j.run_at, j.seq;

-- name: line_keys
-- The eligibility keys of the jobs that wait for a slot of an agent.
WITH RECURSIVE k(no) AS (
  SELECT min(j.eligibility_key) FROM job j INDEXED BY job_line WHERE j.tenant = :tenant AND j.agent_no = :agent_no AND j.blocked = 1 AND j.finished_at IS NULL
  UNION ALL
  SELECT (SELECT min(j.eligibility_key) FROM job j INDEXED BY job_line WHERE j.tenant = :tenant AND j.agent_no = :agent_no AND j.blocked = 1
    AND j.finished_at IS NULL AND j.eligibility_key > k.no) FROM k WHERE k.no IS NOT NULL)
SELECT no FROM k WHERE no IS NOT NULL;

-- name: line
-- The first due jobs of one eligibility key that wait for a slot of an agent.
SELECT j.run_at, j.seq FROM job j INDEXED BY job_line WHERE j.tenant = :tenant AND j.agent_no = :agent_no AND j.blocked = 1 AND j.finished_at IS NULL
  AND j.eligibility_key = :no AND j.run_at <= :now AND j.awaiting = 0 ORDER BY j.run_at, j.seq LIMIT :most;

-- name: block
UPDATE job SET blocked = ? WHERE tenant = ? AND seq = ?;

-- name: now_served
-- The turn of a fair limit that is served now; without parked jobs, the last one.
SELECT coalesce((SELECT min(turn) FROM flow_bucket INDEXED BY flow_bucket_turns WHERE tenant = :tenant AND name = :name AND turn IS NOT NULL),
  (SELECT max(served) FROM flow_bucket INDEXED BY flow_bucket_served WHERE tenant = :tenant AND name = :name AND served IS NOT NULL), 0);

-- name: first_turns
SELECT key, used, levels, as_of, held_until, ticket, parked, turn, served FROM flow_bucket INDEXED BY flow_bucket_turns
WHERE tenant = :tenant AND name = :name AND turn IS NOT NULL ORDER BY turn LIMIT :most;

-- name: heads
-- The rank and limits of parked jobs.
SELECT j.priority, j.run_at, j.seq, b.limits FROM job j CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
WHERE j.tenant = :tenant AND j.seq IN (SELECT value FROM json_each(:seqs));
