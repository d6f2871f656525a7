-- name: editable
-- The columns that an edit reads beyond the job state, and the fields of the eligibility key.
SELECT j.id, j.priority, j.tags, b.type, b.requires, b.repository, b.affinity_key, b.limits
FROM json_each(:ids) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value
CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq;

-- name: edit
UPDATE job SET priority = :priority, run_at = :run_at, deadline = :deadline, max_attempts = :max_attempts, tags = :tags,
  eligibility_key = :eligibility_key, base = :base, parked = 0, limit_name = NULL, limit_key = NULL, across_repositories = :across_repositories, across_keys = :across_keys, version = version + 1, updated_at = :now, verb = :verb, actor = :actor, reason = NULL,
  metadata = NULL, head = interlock_head(seq)
WHERE tenant = :tenant AND seq = :seq;
