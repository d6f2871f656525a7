-- name: list
SELECT {effect} FROM interlock.job_effect e
WHERE e.tenant = :tenant AND e.job_id = :job_id AND e.seq > :after ORDER BY e.seq LIMIT :limit;

-- name: get
SELECT {effect} FROM interlock.job_effect e
WHERE e.tenant = :tenant AND e.job_id = :job_id AND e.name = :name AND e.occurrence = :occurrence;

-- name: last
SELECT e.seq FROM interlock.job_effect e WHERE e.tenant = :tenant AND e.job_id = :job_id ORDER BY e.seq DESC LIMIT 1;

-- name: add
INSERT INTO interlock.job_effect (tenant, job_id, seq, name, occurrence, key, state, attempt, fence, started_at)
VALUES (:tenant, :job_id, :seq, :name, :occurrence, :key, 'started', :attempt, :fence, :now);

-- name: begin_again
UPDATE interlock.job_effect SET state = 'started', key = :key, attempt = :attempt, fence = :fence, started_at = :now, ended_at = NULL
WHERE tenant = :tenant AND job_id = :job_id AND name = :name AND occurrence = :occurrence;

-- name: settle
UPDATE interlock.job_effect SET state = :state, result = :result, sanitized = :sanitized, fence = :fence, ended_at = :now
WHERE tenant = :tenant AND job_id = :job_id AND name = :name AND occurrence = :occurrence;

-- name: step
SELECT s.seq FROM interlock.job_step s
WHERE s.tenant = :tenant AND s.job_id = :job_id AND s.name = :name AND s.occurrence = :occurrence;

-- name: last_step
SELECT s.seq FROM interlock.job_step s WHERE s.tenant = :tenant AND s.job_id = :job_id ORDER BY s.seq DESC LIMIT 1;

-- name: add_step
INSERT INTO interlock.job_step (tenant, job_id, seq, name, occurrence, result, function, fence, at, sanitized)
VALUES (:tenant, :job_id, :seq, :name, :occurrence, :result, :function, :fence, :now, :sanitized);
