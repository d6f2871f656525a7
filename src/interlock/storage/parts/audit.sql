-- name: histories
-- The histories of a page of jobs, in order of arrival.
SELECT j.seq, j.id, {transition}
FROM (SELECT seq, id FROM interlock.job WHERE tenant = :tenant AND seq > :after ORDER BY seq LIMIT :jobs) j
CROSS JOIN interlock.job_history h WHERE h.tenant = :tenant AND {of_job} ORDER BY j.seq, h.version;

-- name: transition
h.version, h.from_status, h.to_status, h.verb, h.actor, h.attempt, h.fence, h.reason, h.metadata, h.at, h.hash;

-- name: bare_job
-- A job without history within a range of positions.
SELECT j.id FROM interlock.job j WHERE j.tenant = :tenant AND {position} > :after AND ({position} <= :upto OR :upto IS NULL)
  AND NOT EXISTS (SELECT 1 FROM interlock.job_history h WHERE h.tenant = j.tenant AND {of_job}) LIMIT 1;

-- name: heads
-- A page of a tenant's chain heads, by job ID.
SELECT j.id, h.hash FROM interlock.job j JOIN interlock.job_history h ON h.tenant = j.tenant AND {of_job} AND h.version = j.version
WHERE j.tenant = :tenant AND j.id > :after ORDER BY j.id LIMIT :limit;

-- name: kept_steps
SELECT s.job_id, s.fence, s.seq, s.name, s.occurrence, s.function, s.fence, s.at, CASE WHEN s.sanitized THEN 1 ELSE 0 END,
  interlock.digest(s.result)
FROM interlock.job_step s WHERE s.tenant = :tenant AND s.job_id {in ids} ORDER BY s.job_id, s.fence, s.seq;

-- name: kept_approvals
SELECT a.job_id, a.status, a.closed_by, a.comment, a.data,
  a.id, a.fence, a.prompt, a.details, a.risk, a.schema, a.digest, a.required, a.on_deny, a.kind, a.opened_by, a.opened_at, a.expires_at,
  a.name, a.occurrence
FROM interlock.approval a WHERE a.tenant = :tenant AND a.job_id {in ids};

-- name: kept_votes
SELECT v.approval_id, v.voter, v.decision, v.comment, v.at FROM interlock.approval_vote v
WHERE v.tenant = :tenant AND v.job_id {in ids} ORDER BY v.at, v.voter;

-- name: log
SELECT seq, actor, action, object, details, at, hash FROM interlock.audit_log
WHERE tenant = :tenant AND seq > :after ORDER BY seq LIMIT :limit;

-- name: log_end
SELECT hash FROM interlock.audit_log WHERE tenant = :tenant ORDER BY seq DESC LIMIT 1;
