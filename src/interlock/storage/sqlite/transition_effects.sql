-- name: count
INSERT INTO queue_counter VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET count = count + excluded.count, last_seq = max(last_seq, excluded.last_seq);

-- name: slotted_later
SELECT l.value ->> 0 FROM json_each(:agent_nos) l WHERE EXISTS (
  SELECT 1 FROM job j INDEXED BY job_of_agent
  WHERE j.tenant = :tenant AND j.agent_no = l.value ->> 0 AND j.agent_no IS NOT NULL AND j.blocked = 0 AND j.finished_at IS NULL
    AND j.run_at > l.value ->> 1 AND (j.status = 'queued' OR j.status = 'retry'));

-- name: limited
SELECT a.no, a.strict, a.max_concurrency, a.used, a.next_due
FROM json_each(:agent_nos) l CROSS JOIN agent a ON a.tenant = :tenant AND a.no = l.value WHERE a.max_concurrency IS NOT NULL;

-- name: without_slot
SELECT run_at, rowid FROM job INDEXED BY job_blocked WHERE tenant = ? AND agent_no = ? AND blocked = 1 AND finished_at IS NULL
ORDER BY run_at, seq LIMIT ?;

-- name: first_without_slot
-- The first job without a slot of each agent, if any.
SELECT l.value, j.run_at, j.rowid FROM json_each(:agent_nos) l CROSS JOIN job j ON j.rowid = (
  SELECT c.rowid FROM job c INDEXED BY job_blocked WHERE c.tenant = :tenant AND c.agent_no = l.value AND c.blocked = 1 AND c.finished_at IS NULL
  ORDER BY c.run_at, c.seq LIMIT 1);

-- name: give_slots
-- Uses rowids, which are stable within a transaction, to save one lookup per job.
UPDATE job SET blocked = 0 WHERE rowid IN (SELECT value FROM json_each(?));

-- name: save_slots
UPDATE agent SET used = ?, next_due = ? WHERE tenant = ? AND no = ?;

-- name: assign_slots
INSERT INTO slots_to_assign VALUES (?, ?, ?);

-- name: due_agents
SELECT no FROM agent WHERE tenant = :tenant AND next_due <= :now AND next_due IS NOT NULL ORDER BY no;

-- name: any_agent_due
SELECT EXISTS (SELECT 1 FROM agent WHERE tenant = :tenant AND next_due <= :now AND next_due IS NOT NULL);

-- name: any_subscriber
-- Whether a tenant has subscriptions, and whether any of its jobs has its own webhook.
SELECT EXISTS (SELECT 1 FROM subscription WHERE tenant = :tenant AND ended_at IS NULL),
  EXISTS (SELECT 1 FROM job_body INDEXED BY job_webhook WHERE tenant = :tenant AND webhook IS NOT NULL);

-- name: deliver
INSERT INTO transition_to_deliver VALUES (?, ?, ?, ?);
