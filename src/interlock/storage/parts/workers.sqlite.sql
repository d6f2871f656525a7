-- name: note
INSERT INTO worker (tenant, name, asks, first_seen_at, last_seen_at)
SELECT :tenant, n.value, a.value, :now, :now FROM json_each(:names) n CROSS JOIN json_each(:asks) a ON a.key = n.key WHERE TRUE
ON CONFLICT DO UPDATE SET asks = excluded.asks, last_seen_at = excluded.last_seen_at;

-- name: page
-- Workers with a presence row, and workers known only by their leases.
WITH leased AS MATERIALIZED (
  SELECT worker AS name, count(*) AS running, json_group_array(id ORDER BY id) AS ids FROM job INDEXED BY job_lease
  WHERE tenant = :tenant AND status = 'running' AND worker > :after GROUP BY worker
)
SELECT n.name, coalesce(w.asks, '[]'), w.first_seen_at, w.last_seen_at, coalesce(h.running, 0), coalesce(h.ids, '[]')
FROM (SELECT name FROM worker WHERE tenant = :tenant AND name > :after AND last_seen_at >= :since UNION SELECT name FROM leased) n
LEFT JOIN worker w ON w.tenant = :tenant AND w.name = n.name LEFT JOIN leased h ON h.name = n.name
ORDER BY n.name LIMIT :limit;

-- name: lease_of_worker
(SELECT 1 FROM job j INDEXED BY job_lease WHERE j.tenant = w.tenant AND j.status = 'running' AND j.worker = w.name);

-- name: old
SELECT w.tenant, w.name FROM worker w WHERE w.last_seen_at < :before AND NOT EXISTS {lease_of_worker} LIMIT :limit;

-- name: job_snapshot
-- A job with its approval, the pause of its type, the slots of its agent, and the workers present.
SELECT :now, v.id, v.type, v.status, v.run_at, v.deadline, v.finished_at, v.worker, v.lease_expires_at, v.cancel_requested_at,
  v.cancel_reason, v.error, v.requires, v.repository, v.affinity_key, v.agent_kind, v.agent_id, v.awaiting, v.awaiting_message, v.blocked,
  v.approval_id,
  CASE WHEN g.id IS NOT NULL THEN
    (SELECT count(*) FROM approval_vote x WHERE x.tenant = g.tenant AND x.approval_id = g.id AND x.decision = 'approve') END,
  g.required, g.kind, g.opened_at, g.expires_at,
  k.paused_at, k.paused_by, k.pause_reason,
  a.max_concurrency,
  CASE WHEN a.no IS NULL THEN '[]' ELSE (
    SELECT json_group_array(id) FROM (
      SELECT j.id FROM job j INDEXED BY job_of_agent
      WHERE j.tenant = :tenant AND j.agent_no = a.no AND j.agent_no IS NOT NULL AND j.blocked = 0 AND j.finished_at IS NULL
        AND (j.status = 'running' OR (a.strict AND j.slot_epoch IS a.strict_epoch) OR (j.status <> 'waiting_for_approval' AND j.awaiting = 0))
      ORDER BY j.id LIMIT :most)) END,
  CASE WHEN a.no IS NULL THEN 0 ELSE (
    SELECT count(*) FROM job j INDEXED BY job_blocked
    WHERE j.tenant = :tenant AND j.agent_no = a.no AND j.blocked = 1 AND j.finished_at IS NULL AND j.run_at <= :now
      AND (j.run_at, j.seq) < (v.run_at, v.seq)) END,
  CASE WHEN v.finished_at IS NOT NULL OR v.status = 'running' THEN '[]' ELSE (
    SELECT json_group_array(json_array(c.asks, json(c.names), c.count, c.seen)) FROM (
      SELECT w.asks, json_group_array(w.name ORDER BY w.last_seen_at DESC, w.name) AS names, count(*) AS count, max(w.last_seen_at) AS seen
      FROM worker w WHERE w.tenant = :tenant AND (w.last_seen_at > :lately OR w.name IN (
        SELECT j.worker FROM job j INDEXED BY job_lease
        WHERE j.tenant = :tenant AND j.status = 'running' AND j.lease_expires_at > :now))
      GROUP BY w.asks) c) END
FROM job_view v
LEFT JOIN approval g ON g.tenant = v.tenant AND g.id = v.approval_id
LEFT JOIN queue k ON k.tenant = v.tenant AND k.type = v.type AND k.paused_at IS NOT NULL
LEFT JOIN agent a ON a.tenant = v.tenant AND a.no = v.agent_no AND v.blocked
WHERE v.tenant = :tenant AND v.id = :id;

-- name: look_at_jobs
-- Whether each job waits for children, and the strict agent whose slot it waits for.
SELECT j.id, j.awaiting > 0, CASE WHEN j.blocked = 1 AND j.finished_at IS NULL THEN
  (SELECT a.no FROM agent a WHERE a.tenant = j.tenant AND a.no = j.agent_no AND a.strict AND a.max_concurrency IS NOT NULL) END
FROM json_each(:about) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value;

-- name: look_at_awaited
SELECT w.job_id, w.child_id FROM json_each(:about) i CROSS JOIN job_await w ON w.tenant = :tenant AND w.job_id = i.value;

-- name: look_at_holders
SELECT a.no, j.id FROM json_each(:about) i CROSS JOIN agent a ON a.tenant = :tenant AND a.no = i.value
CROSS JOIN job j INDEXED BY job_of_agent ON j.tenant = a.tenant AND j.agent_no = a.no AND j.agent_no IS NOT NULL AND j.blocked = 0
WHERE a.strict AND a.used >= a.max_concurrency AND j.finished_at IS NULL
  AND (j.status = 'running' OR j.slot_epoch IS a.strict_epoch OR (j.status <> 'waiting_for_approval' AND j.awaiting = 0));

-- name: bucket
-- The rules of a limit and the state of one of its buckets, which may not have been used yet.
SELECT f.rules, b.hold_reason, coalesce(b.used, 0), coalesce(b.levels, '{}'), coalesce(b.as_of, 0), b.held_until, CASE WHEN EXISTS (
  SELECT 1 FROM job j CROSS JOIN eligibility_key e ON e.tenant = j.tenant AND e.no = j.eligibility_key
  WHERE j.tenant = b.tenant AND j.seq = b.ticket ->> '$[0][2]' AND j.status IN ('queued', 'retry') AND j.run_at = b.ticket ->> '$[0][1]'
    AND j.priority = -(b.ticket ->> '$[0][0]') AND j.blocked = 0 AND j.awaiting = 0
    AND NOT EXISTS (SELECT 1 FROM queue q WHERE q.tenant = j.tenant AND q.type = e.type AND q.paused_at IS NOT NULL)) THEN b.ticket END
FROM flow_limit f LEFT JOIN flow_bucket b ON b.tenant = f.tenant AND b.name = f.name AND b.key = :key
WHERE f.tenant = :tenant AND f.name = :name;

-- name: limits_of_job
SELECT b.limits, j.priority, j.seq FROM job j JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq WHERE j.tenant = :tenant AND j.id = :id;

-- name: ahead_in_limit
-- The number of due jobs with a higher rank that name the bucket.
SELECT coalesce(sum((SELECT count(*) FROM job j INDEXED BY job_ready WHERE j.tenant = e.tenant AND j.eligibility_key = e.no
  AND j.run_at <= :now AND j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0
  AND (e.priority > :priority OR (j.run_at, j.seq) < (:run_at, :seq))
  AND (d.value ->> 1 = :key OR CASE j.limit_name WHEN :name THEN j.limit_key = :key ELSE EXISTS (
    SELECT 1 FROM job_body b, json_each(b.limits) x WHERE b.tenant = j.tenant AND b.seq = j.seq
      AND x.value ->> 'name' = :name AND x.value ->> 'key' = :key) END))), 0)
FROM eligibility_key e, json_each(e.flow) d WHERE e.tenant = :tenant AND e.flow <> '' AND d.value ->> 0 = :term AND coalesce(d.value ->> 1, :key) = :key
  AND e.priority >= :priority;
