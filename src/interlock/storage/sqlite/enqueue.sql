-- name: take_seqs
-- Reserve seqs and return the first.
INSERT INTO tenant (tenant, next_seq) VALUES (:tenant, :count + 1)
ON CONFLICT DO UPDATE SET next_seq = next_seq + :count
RETURNING next_seq - :count;

-- name: insert_job
INSERT INTO job (tenant, updated_at, seq, id, run_at, head, status, attempt, fence, version, releases, verb,
  priority, agent_no, blocked, deadline, timeout_seconds, max_attempts, actor, tags, eligibility_key, base, across_repositories, across_keys)
VALUES (?1, ?2, ?, ?, ?, ?, 'queued', 1, 0, 1, 0, 'enqueue', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_parked_job
-- The same for jobs that are parked in a bucket.
INSERT INTO job (tenant, updated_at, seq, id, run_at, head, status, attempt, fence, version, releases, verb,
  priority, agent_no, blocked, deadline, timeout_seconds, max_attempts, actor, tags, eligibility_key, base, across_repositories, across_keys,
  parked, limit_name, limit_key)
VALUES (?1, ?2, ?, ?, ?, ?, 'queued', 1, 0, 1, 0, 'enqueue', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_body
INSERT INTO job_body (tenant, created_at, seq, id, payload, type, created_by, agent_kind, agent_id, requires)
VALUES (?1, ?2, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_full_body
INSERT INTO job_body (tenant, created_at, seq, id, payload, type, created_by, agent_kind, agent_id, requires, {more}, key_generation)
VALUES (?1, ?2, ?, ?, ?, ?, ?, ?, ?, ?, {more_values}, ?);

-- name: by_key
-- The jobs with these idempotency keys, the newest of each last.
SELECT b.idempotency_key, b.key_generation, b.id, b.seq, b.body_sha256, b.created_at
FROM json_each(:keys) k CROSS JOIN job_body b ON b.tenant = :tenant AND b.idempotency_key = k.value ORDER BY b.key_generation;

-- name: open_parents
-- The parents that exist, and whether they can still have children.
SELECT j.id, j.finished_at IS NULL AND j.cancel_requested_at IS NULL
FROM json_each(:ids) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value;

-- name: limits_of
-- The limits of parents, which name the budgets of their trees.
SELECT b.id, b.limits FROM json_each(:ids) i CROSS JOIN job j ON j.tenant = :tenant AND j.id = i.value
CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq;

-- name: insert_tree_budget
INSERT INTO flow_limit (tenant, created_at, updated_at, name, rules) VALUES (?1, ?2, ?2, ?, ?);

-- name: eligibility_keys
SELECT no, base, type, requires, priority, repository, affinity_key, flow FROM eligibility_key WHERE tenant = :tenant AND no > :after ORDER BY no;

-- name: last_eligibility_key
SELECT coalesce(max(no), 0) FROM eligibility_key WHERE tenant = :tenant;

-- name: insert_eligibility_key
INSERT INTO eligibility_key (tenant, no, base, type, requires, priority, repository, affinity_key, flow) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: registry
SELECT coalesce((SELECT registry FROM tenant WHERE tenant = :tenant), 0);

-- name: agents
SELECT a.kind, a.id, a.no, a.max_concurrency IS NOT NULL
FROM json_each(:names) n CROSS JOIN agent a ON a.tenant = :tenant AND a.kind = n.value ->> 0 AND a.id = n.value ->> 1;

-- name: make_agent
INSERT INTO agent (tenant, no, kind, id, implicit, created_at, updated_at)
VALUES (:tenant, (SELECT coalesce(max(no), 0) + 1 FROM agent WHERE tenant = :tenant), :kind, :id, 1, :now, :now);
