-- name: usage_steps
SELECT s.job_id, s.seq, s.name, s.occurrence, s.result, s.function, s.fence, s.at, s.sanitized FROM job_step s INDEXED BY job_step_once
WHERE s.tenant = :tenant AND s.job_id = :id AND s.name = :step ORDER BY s.seq;

-- name: lock_bucket
SELECT b.used, b.levels, b.as_of, b.held_until, b.ticket FROM flow_bucket b WHERE b.tenant = :tenant AND b.name = :name AND b.key = :key;

-- name: budget
SELECT f.rules, b.used, b.levels, b.as_of, b.held_until, b.ticket FROM flow_limit f
JOIN flow_bucket b ON b.tenant = f.tenant AND b.name = f.name AND b.key = :key WHERE f.tenant = :tenant AND f.name = :name;
