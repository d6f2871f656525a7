-- name: told
SELECT u.usage FROM interlock.run_usage u WHERE u.tenant = :tenant AND u.job_id = :id AND u.fence = :fence;

-- name: tell
INSERT INTO interlock.run_usage (tenant, job_id, fence, usage) VALUES (:tenant, :id, :fence, :usage)
ON CONFLICT (tenant, job_id) DO UPDATE SET fence = excluded.fence, usage = excluded.usage;

-- name: save_levels
UPDATE interlock.flow_bucket SET levels = :levels, as_of = :as_of WHERE tenant = :tenant AND name = :name AND key = :key;
