-- name: to_redrive
-- A job to redrive, and whether it has a checkpoint and the step to resume after.
SELECT {job},
  EXISTS (SELECT 1 FROM job_checkpoint c WHERE c.tenant = v.tenant AND c.job_id = v.id),
  EXISTS (SELECT 1 FROM job_step s WHERE s.tenant = v.tenant AND s.job_id = v.id AND s.name = :step)
FROM job_view v WHERE v.tenant = :tenant AND v.id = :id;

-- name: redriven_as
SELECT b.id, b.seq FROM job_body b INDEXED BY job_redrive
WHERE b.tenant = :tenant AND b.redrive_of = :id AND b.redrive_of IS NOT NULL ORDER BY b.seq DESC LIMIT 1;

-- name: redriven
SELECT i.value FROM json_each(:ids) i WHERE EXISTS (SELECT 1 FROM job_body b INDEXED BY job_redrive
  WHERE b.tenant = :tenant AND b.redrive_of = i.value AND b.redrive_of IS NOT NULL);

-- name: dead_letters
-- Dead-letter jobs that were not redriven, newest first.
SELECT j.id FROM job j INDEXED BY job_unsuccessful
WHERE j.tenant = :tenant AND j.status = 'dead_letter' AND j.status <> 'queued' AND j.status <> 'running' AND j.status <> 'succeeded'
  AND j.status <> 'waiting_for_approval' AND NOT EXISTS (SELECT 1 FROM job_body b INDEXED BY job_redrive
    WHERE b.tenant = :tenant AND b.redrive_of = j.id AND b.redrive_of IS NOT NULL)
ORDER BY j.seq DESC LIMIT :limit;

-- name: retrying_after
-- Jobs in status retry whose error contains a text, newest first.
SELECT j.id FROM job j INDEXED BY job_unsuccessful
WHERE j.tenant = :tenant AND j.status = 'retry' AND j.status <> 'queued' AND j.status <> 'running' AND j.status <> 'succeeded'
  AND j.status <> 'waiting_for_approval' AND instr(j.error, :text)
ORDER BY j.seq DESC LIMIT :limit;

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

-- name: delete_approval_vote
DELETE FROM approval_vote INDEXED BY approval_vote_job WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids));

-- name: delete_approval
DELETE FROM approval INDEXED BY approval_of_lease WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids));

-- name: delete_outbox
-- Pending deliveries stay and are still sent.
DELETE FROM outbox INDEXED BY outbox_job WHERE tenant = :tenant AND job_id IN (SELECT value FROM json_each(:ids)) AND settled_at IS NOT NULL;

-- name: prunes
SELECT id, at, actor, cutoff, jobs, first_seq, last_seq, hash FROM prune WHERE tenant = :tenant ORDER BY at DESC, id DESC LIMIT :limit;

-- name: tenants
-- Includes tenants that appear only in the history, so that an audit does not skip them.
WITH RECURSIVE h (tenant) AS (
  SELECT min(tenant) FROM job_history
  UNION ALL
  SELECT (SELECT n.tenant FROM job_history n WHERE n.tenant > h.tenant ORDER BY n.tenant LIMIT 1) FROM h WHERE h.tenant IS NOT NULL
)
SELECT tenant FROM tenant UNION SELECT tenant FROM h WHERE tenant IS NOT NULL ORDER BY tenant;
