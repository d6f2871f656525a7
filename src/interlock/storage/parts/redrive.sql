-- name: to_redrive
-- Some jobs, and whether they have a checkpoint.
SELECT {job}, EXISTS (SELECT 1 FROM interlock.job_checkpoint c WHERE c.tenant = v.tenant AND c.job_id = v.id)
FROM interlock.job_view v WHERE v.tenant = :tenant AND v.id {in ids};

-- name: has_step
SELECT 1 FROM interlock.job_step s WHERE s.tenant = :tenant AND s.job_id = :id AND s.name = :step LIMIT 1;

-- name: open_parents
-- Those of some jobs that may still get children.
SELECT j.id FROM interlock.job j
WHERE j.tenant = :tenant AND j.id {in ids} AND j.finished_at IS NULL AND j.cancel_requested_at IS NULL ORDER BY j.id {for share};

-- name: checkpoint
SELECT c.seq, c.data FROM interlock.job_checkpoint c WHERE c.tenant = :tenant AND c.job_id = :source;

-- name: copied
-- The steps to copy: all, or those up to the last one named :through.
s.tenant = :tenant AND s.job_id = :source AND (s.seq <= (SELECT max(n.seq)
  FROM interlock.job_step n WHERE n.tenant = :tenant AND n.job_id = :source AND n.name = :through) OR :through IS NULL);

-- name: steps
SELECT s.seq, s.name, s.occurrence, s.function, 0, s.at, CASE WHEN s.sanitized THEN 1 ELSE 0 END, interlock.digest(s.result)
FROM interlock.job_step s WHERE {copied} ORDER BY s.seq;

-- name: copy_steps
INSERT INTO interlock.job_step (tenant, job_id, seq, name, occurrence, result, function, fence, at, sanitized)
SELECT s.tenant, {target}, s.seq, s.name, s.occurrence, s.result, s.function, 0, s.at, s.sanitized
FROM interlock.job_step s WHERE {copied} ON CONFLICT DO NOTHING;

-- name: copy_checkpoint
INSERT INTO interlock.job_checkpoint (tenant, job_id, seq, data, sanitized, at)
SELECT c.tenant, {target}, c.seq, c.data, c.sanitized, c.at FROM interlock.job_checkpoint c
WHERE c.tenant = :tenant AND c.job_id = :source ON CONFLICT DO NOTHING;

-- name: copy_messages
INSERT INTO interlock.job_message (tenant, job_id, seq, id, name, topic, payload, sender, at)
SELECT m.tenant, {target}, m.seq, m.id, m.name, m.topic, m.payload, m.sender, m.at FROM interlock.job_message m
WHERE m.tenant = :tenant AND m.job_id = :source ON CONFLICT DO NOTHING;

-- name: copy_effects
-- Effects that are not done begin anew in the new job; the outcome of those only started is unknown there too.
INSERT INTO interlock.job_effect (tenant, job_id, seq, name, occurrence, key, state, result, sanitized, attempt, fence, started_at, ended_at)
SELECT e.tenant, {target}, e.seq, e.name, e.occurrence, e.key, e.state, e.result, e.sanitized, e.attempt, 0, e.started_at, e.ended_at
FROM interlock.job_effect e WHERE e.tenant = :tenant AND e.job_id = :source AND e.state <> 'not_done'
  AND NOT EXISTS (SELECT 1 FROM interlock.job_effect t WHERE t.tenant = :tenant AND t.job_id = {target});

-- name: large_results
-- The artifacts that hold large results of steps.
SELECT a.id, a.size FROM interlock.artifact a
WHERE a.tenant = :tenant AND a.job_id = :source AND substr(a.name, 1, length(:prefix)) = :prefix AND a.object_key IS NOT NULL;

-- name: copy_artifact
-- Both jobs share the stored object.
INSERT INTO interlock.artifact (tenant, job_id, fence, worker, id, name, size, sha256, content_type, object_key, url, created_at)
SELECT a.tenant, {target}, a.fence, a.worker, {copy}, a.name, a.size, a.sha256, a.content_type, a.object_key, a.url, a.created_at
FROM interlock.artifact a WHERE a.tenant = :tenant AND a.job_id = :source AND a.id = :id ON CONFLICT DO NOTHING;

-- name: redrives
-- The jobs that redrive a job, newest first.
SELECT b.id FROM {body} b {by job_redrive}
WHERE b.tenant = :tenant AND b.redrive_of = :id AND b.redrive_of IS NOT NULL ORDER BY b.seq DESC LIMIT :limit;

-- name: all_redrives
-- The jobs that redrive some jobs, oldest first.
SELECT b.redrive_of, b.id, b.seq FROM {body} b {by job_redrive}
WHERE b.tenant = :tenant AND b.redrive_of {in ids} AND b.redrive_of IS NOT NULL ORDER BY b.seq;
