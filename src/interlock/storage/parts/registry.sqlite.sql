-- name: raise_version
INSERT INTO tenant (tenant, next_seq, registry) VALUES (:tenant, 1, 1) ON CONFLICT DO UPDATE SET registry = registry + 1;

-- name: announce_ready
-- On resume, deliver queue.ready for the first ready job of each range: no worker could claim them while paused.
INSERT INTO event_to_deliver
SELECT j.tenant, j.seq, 'queue.ready', j.status FROM queue k
CROSS JOIN eligibility_key r INDEXED BY eligibility_key_bases ON r.tenant = k.tenant AND r.type = k.type AND r.no = r.base
CROSS JOIN job j ON j.rowid IN (
  (SELECT i.rowid FROM job i INDEXED BY job_ready WHERE i.tenant = r.tenant AND i.eligibility_key = r.no AND i.run_at <= :now
    AND i.status IN ('queued', 'retry') AND i.awaiting = 0 AND i.blocked = 0 ORDER BY i.run_at LIMIT 1),
  (SELECT i.rowid FROM job i INDEXED BY job_ready_base WHERE i.tenant = r.tenant AND i.base = r.no AND i.run_at <= :now
    AND i.status IN ('queued', 'retry') AND i.awaiting = 0 AND i.blocked = 0 AND i.eligibility_key <> i.base ORDER BY i.run_at LIMIT 1))
WHERE k.tenant = :tenant AND k.type = :type AND k.paused_at IS NOT NULL;

-- name: create_agent
INSERT INTO agent (tenant, no, kind, id, implicit, created_at, updated_at)
VALUES (:tenant, (SELECT coalesce(max(no), 0) + 1 FROM agent WHERE tenant = :tenant), :kind, :id, 1, :now, :now);

-- name: agents_named
SELECT {agent} FROM json_each(:kinds) k CROSS JOIN json_each(:ids) i ON i.key = k.key
CROSS JOIN agent a ON a.tenant = :tenant AND a.kind = k.value AND a.id = i.value;

-- name: stalled_agents
-- Strict agents without a free slot, none of whose jobs runs or can be claimed now.
SELECT {agent} FROM agent a
WHERE a.tenant = :tenant AND a.strict AND a.used >= a.max_concurrency AND NOT EXISTS (
  SELECT 1 FROM job j INDEXED BY job_of_agent
  WHERE j.tenant = :tenant AND j.agent_no = a.no AND j.agent_no IS NOT NULL AND j.blocked = 0 AND j.finished_at IS NULL
    AND (j.status = 'running' OR (j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.run_at <= :now)))
ORDER BY a.kind, a.id LIMIT :limit;

-- name: has_unfinished
SELECT EXISTS (SELECT 1 FROM job WHERE tenant = :tenant AND agent_no = :no AND agent_no IS NOT NULL AND finished_at IS NULL);

-- name: moves
(SELECT r.type, c.minute, c.from_status, c.to_status, c.count
  FROM queue_counter c CROSS JOIN eligibility_key r ON r.tenant = c.tenant AND r.no = c.base WHERE c.tenant = :tenant);

-- name: epoch
0;

-- name: later
-- Per base: the number of jobs due later, and the earliest run_at of a due job. The first SELECT covers jobs without
-- repository and affinity key, the second covers the others.
SELECT r.type,
  (SELECT count(*) FROM job j INDEXED BY job_ready WHERE j.tenant = r.tenant AND j.eligibility_key = r.no AND j.run_at > :now
    AND j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0),
  (SELECT min(j.run_at) FROM job j INDEXED BY job_ready WHERE j.tenant = r.tenant AND j.eligibility_key = r.no AND j.run_at <= :now
    AND j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0)
FROM eligibility_key r INDEXED BY eligibility_key_bases
WHERE r.tenant = :tenant AND r.no = r.base AND (r.type = :type OR :type IS NULL)
UNION ALL
SELECT r.type,
  (SELECT count(*) FROM job j INDEXED BY job_ready_base WHERE j.tenant = r.tenant AND j.base = r.no AND j.run_at > :now
    AND j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0 AND j.eligibility_key <> j.base),
  (SELECT min(j.run_at) FROM job j INDEXED BY job_ready_base WHERE j.tenant = r.tenant AND j.base = r.no AND j.run_at <= :now
    AND j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0 AND j.eligibility_key <> j.base)
FROM eligibility_key r INDEXED BY eligibility_key_bases
WHERE r.tenant = :tenant AND r.no = r.base AND (r.type = :type OR :type IS NULL);

-- name: waiting_for_slot
SELECT r.type, sum(j.run_at > :now), sum(j.run_at <= :now)
FROM job j INDEXED BY job_blocked CROSS JOIN eligibility_key r ON r.tenant = j.tenant AND r.no = j.eligibility_key
WHERE j.tenant = :tenant AND j.blocked = 1 AND j.finished_at IS NULL AND (r.type = :type OR :type IS NULL) GROUP BY r.type;

-- name: awaiting_message
SELECT b.type, count(*) FROM message_wait w
CROSS JOIN job j ON j.tenant = w.tenant AND j.id = w.job_id AND j.fence = w.fence AND j.status = 'queued' AND j.run_at > :now
CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
WHERE w.tenant = :tenant AND (b.type = :type OR :type IS NULL) GROUP BY b.type;

-- name: awaiting
SELECT b.type, count(*) FROM (SELECT DISTINCT job_id FROM job_await WHERE tenant = :tenant) w
CROSS JOIN job j ON j.tenant = :tenant AND j.id = w.job_id CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
WHERE b.type = :type OR :type IS NULL GROUP BY b.type;

-- name: tenants_with_due_agents
-- Skip from one tenant with a due agent to the next: tenants without any cost nothing.
WITH RECURSIVE t (tenant) AS (
  SELECT min(tenant) FROM agent INDEXED BY agent_due WHERE next_due IS NOT NULL
  UNION ALL
  SELECT (SELECT n.tenant FROM agent n INDEXED BY agent_due WHERE n.tenant > t.tenant AND n.next_due IS NOT NULL ORDER BY n.tenant LIMIT 1)
  FROM t WHERE t.tenant IS NOT NULL
)
SELECT t.tenant FROM t WHERE EXISTS
  (SELECT 1 FROM agent a WHERE a.tenant = t.tenant AND a.next_due <= :now AND a.next_due IS NOT NULL) LIMIT :limit;

-- name: fold
-- Merge minutes older than an hour into one row (minute 0).
INSERT INTO queue_counter SELECT tenant, base, 0, from_status, to_status, sum(count), max(last_seq) FROM queue_counter
WHERE tenant = :tenant AND minute > 0 AND minute < :before GROUP BY base, from_status, to_status
ON CONFLICT DO UPDATE SET count = count + excluded.count, last_seq = max(last_seq, excluded.last_seq);

-- name: delete_folded
DELETE FROM queue_counter WHERE tenant = :tenant AND minute > 0 AND minute < :before;

-- name: long_counters
SELECT t.tenant FROM tenant t
WHERE (SELECT count(*) FROM queue_counter y WHERE y.tenant = t.tenant AND y.minute > 0 AND y.minute < :before) > :rows LIMIT :limit;

-- name: wake_behind_tickets
-- Let the next claim look at parked jobs that wait behind a ticket: its type may be paused now.
UPDATE flow_bucket SET wake_at = :now WHERE tenant = :tenant AND parked = 1 AND ticket IS NOT NULL;
