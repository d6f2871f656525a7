-- name: to_redrive
-- A job to redrive, and whether it has a checkpoint and the step to resume after.
SELECT {job},
  EXISTS (SELECT 1 FROM job_checkpoint c WHERE c.tenant = v.tenant AND c.job_id = v.id),
  EXISTS (SELECT 1 FROM job_step s WHERE s.tenant = v.tenant AND s.job_id = v.id AND s.name = :step)
FROM job_view v WHERE v.tenant = :tenant AND v.id = :id;

-- name: step_results
-- The artifacts that hold large results of steps.
SELECT a.id, a.size FROM artifact a
WHERE a.tenant = :tenant AND a.job_id = :source AND substr(a.name, 1, 15) = 'interlock.step/' AND a.object_key IS NOT NULL;

-- name: copy_artifact
-- Both jobs share the stored object.
INSERT INTO artifact (tenant, job_id, fence, worker, id, name, size, sha256, content_type, object_key, url, created_at)
SELECT a.tenant, :target, a.fence, a.worker, :copy, a.name, a.size, a.sha256, a.content_type, a.object_key, a.url, a.created_at
FROM artifact a WHERE a.tenant = :tenant AND a.job_id = :source AND a.id = :id;

-- name: use_bytes
UPDATE artifact_usage SET bytes = bytes + :growth WHERE tenant = :tenant;

-- name: copy_messages
INSERT INTO job_message (tenant, job_id, seq, id, name, topic, payload, sender, at)
SELECT m.tenant, :target, m.seq, m.id, m.name, m.topic, m.payload, m.sender, m.at FROM job_message m
WHERE m.tenant = :tenant AND m.job_id = :source ON CONFLICT DO NOTHING;

-- name: copy_effects
-- Effects that are not done begin anew in the new job; the outcome of those only started is unknown there too.
INSERT INTO job_effect (tenant, job_id, seq, name, occurrence, key, state, result, sanitized, attempt, fence, started_at, ended_at)
SELECT e.tenant, :target, e.seq, e.name, e.occurrence, e.key, e.state, e.result, e.sanitized, e.attempt, 0, e.started_at, e.ended_at
FROM job_effect e WHERE e.tenant = :tenant AND e.job_id = :source AND e.state <> 'not_done';

-- name: copy_checkpoint
INSERT INTO job_checkpoint (tenant, job_id, seq, data, sanitized, at)
SELECT tenant, :target, seq, data, sanitized, at FROM job_checkpoint WHERE tenant = :tenant AND job_id = :source;

-- name: children_after
SELECT b.id, b.parent_id, b.seq, j.finished_at IS NULL, j.cancel_requested_at IS NOT NULL
FROM job_body b INDEXED BY job_parent CROSS JOIN job j ON j.tenant = b.tenant AND j.seq = b.seq
WHERE b.tenant = :tenant AND b.parent_id = :parent AND b.parent_id IS NOT NULL AND b.seq > :after ORDER BY b.seq LIMIT :limit;

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

-- name: delete_job_checkpoint
DELETE FROM job_checkpoint WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids));

-- name: delete_job_step
DELETE FROM job_step WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids));

-- name: delete_job_event
DELETE FROM job_event WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids));

-- name: delete_job_message
DELETE FROM job_message WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids));

-- name: delete_message_wait
DELETE FROM message_wait WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids));

-- name: delete_stream_chunk
DELETE FROM stream_chunk WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids));

-- name: delete_job_effect
DELETE FROM job_effect WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids));

-- name: delete_job_stream
DELETE FROM job_stream WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids));

-- name: delete_approval_vote
DELETE FROM approval_vote INDEXED BY approval_vote_job WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids));

-- name: delete_approval
DELETE FROM approval INDEXED BY approval_of_lease WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids));

-- name: delete_outbox
-- Pending deliveries stay and are still sent.
DELETE FROM outbox INDEXED BY outbox_job WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids)) AND settled_at IS NOT NULL;

-- name: delete_run_usage
DELETE FROM run_usage WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids));

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
