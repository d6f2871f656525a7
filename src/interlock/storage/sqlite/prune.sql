-- name: next_jobs
-- The jobs that one prune step examines, with their chain heads.
SELECT j.seq, j.id, b.created_at, j.finished_at, j.head
FROM job j CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
WHERE j.tenant = :tenant AND j.seq > :after ORDER BY j.seq LIMIT :step;

-- name: note_prune
INSERT INTO prune (tenant, at, id, actor, cutoff, jobs, first_seq, last_seq, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: delete_job
DELETE FROM job WHERE tenant = :tenant AND seq IN (SELECT value FROM json_each(:seqs));

-- name: delete_job_history
DELETE FROM job_history WHERE tenant = :tenant AND seq IN (SELECT value FROM json_each(:seqs));

-- name: owned
-- Rows of jobs in one of the tables that need no other condition.
DELETE FROM {table} WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids));

-- name: delete_approval_vote
DELETE FROM approval_vote INDEXED BY approval_vote_job WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids));

-- name: delete_approval
DELETE FROM approval INDEXED BY approval_of_lease WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids));

-- name: delete_outbox
-- Pending deliveries stay and are still sent.
DELETE FROM outbox INDEXED BY outbox_job WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids)) AND settled_at IS NOT NULL;

-- name: delete_tree_budget
-- The budgets of trees end with their roots, unless a descendant is unfinished.
DELETE FROM flow_limit WHERE tenant = :tenant AND name >= 'tree:' AND name < 'tree;'
  AND NOT EXISTS (SELECT 1 FROM job j WHERE j.tenant = :tenant AND j.id = substr(flow_limit.name, 6))
  AND NOT EXISTS (
    WITH RECURSIVE below(seq, id) AS (
      SELECT b.seq, b.id FROM job_body b WHERE b.tenant = :tenant AND b.parent_id = substr(flow_limit.name, 6)
      UNION ALL SELECT b.seq, b.id FROM below CROSS JOIN job_body b ON b.tenant = :tenant AND b.parent_id = below.id)
    SELECT 1 FROM below CROSS JOIN job j ON j.tenant = :tenant AND j.seq = below.seq WHERE j.finished_at IS NULL)
  AND NOT EXISTS (SELECT 1 FROM flow_bucket b WHERE b.tenant = :tenant AND b.name = flow_limit.name AND (b.used > 0 OR b.parked = 1));

-- name: delete_tree_bucket
DELETE FROM flow_bucket WHERE tenant = :tenant AND name >= 'tree:' AND name < 'tree;'
  AND NOT EXISTS (SELECT 1 FROM flow_limit f WHERE f.tenant = :tenant AND f.name = flow_bucket.name);
