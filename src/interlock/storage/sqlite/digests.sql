-- name: job
-- The columns of a job that its transition digests need, by seq.
SELECT id, status, fence, version, error, metadata, verb FROM job WHERE tenant = ? AND seq = ?;

-- name: payload
SELECT payload FROM job_body WHERE tenant = ? AND seq = ?;

-- name: options
SELECT {options} FROM job j CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq WHERE j.tenant = ? AND j.seq = ?;

-- name: checkpoint
SELECT interlock_digest_fields(seq, data) FROM job_checkpoint WHERE tenant = ? AND job_id = ?;

-- name: steps
-- The steps saved under one lease; fence 0 selects steps copied by a redrive.
SELECT seq, name, occurrence, function, fence, at, sanitized, digest(result) FROM job_step WHERE tenant = ? AND job_id = ? AND fence = ? ORDER BY seq;

-- name: any_progress
-- Whether any job in a range of IDs has a checkpoint or steps.
SELECT EXISTS (SELECT 1 FROM job_checkpoint WHERE tenant = ?1 AND job_id BETWEEN ?2 AND ?3)
  OR EXISTS (SELECT 1 FROM job_step WHERE tenant = ?1 AND job_id BETWEEN ?2 AND ?3);

-- name: request
SELECT id, fence, prompt, details, risk, schema, digest, required, on_deny, kind, opened_by, opened_at, expires_at, name, occurrence
FROM approval WHERE tenant = ? AND job_id = ? AND fence = ?;

-- name: decision
SELECT status, closed_by, comment, data FROM approval WHERE tenant = ? AND id = ?;

-- name: votes
SELECT voter, decision, comment, at FROM approval_vote WHERE tenant = ? AND approval_id = ? ORDER BY at, voter;
