-- name: waiting
-- The number of due jobs that name a limit.
SELECT coalesce(sum((SELECT count(*) FROM job j INDEXED BY job_ready WHERE j.tenant = e.tenant AND j.eligibility_key = e.no
  AND j.run_at <= :now AND j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0)), 0)
FROM eligibility_key e, json_each(e.flow) d WHERE e.tenant = :tenant AND e.flow <> '' AND d.value ->> 0 = :name;

-- name: waiting_in_tree
-- The number of due jobs of a tree.
WITH RECURSIVE below(id) AS (
  SELECT :root
  UNION ALL SELECT b.id FROM below CROSS JOIN job_body b ON b.tenant = :tenant AND b.parent_id = below.id)
SELECT count(*) FROM below CROSS JOIN job j ON j.tenant = :tenant AND j.id = below.id
WHERE j.run_at <= :now AND j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0;

-- name: waiting_by_key
-- The number of due jobs that name a limit with keys, by key. A parked job has its bucket at hand.
SELECT w.key, count(*) FROM (
  SELECT CASE j.limit_name WHEN :name THEN j.limit_key ELSE (SELECT x.value ->> 'key' FROM job_body b, json_each(b.limits) x
    WHERE b.tenant = j.tenant AND b.seq = j.seq AND x.value ->> 'name' = :name) END AS key
  FROM eligibility_key e, json_each(e.flow) d CROSS JOIN job j INDEXED BY job_ready ON j.tenant = e.tenant AND j.eligibility_key = e.no
  WHERE e.tenant = :tenant AND e.flow <> '' AND d.value ->> 0 = :name
    AND j.run_at <= :now AND j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0) w
WHERE w.key BETWEEN :first AND :last GROUP BY w.key;

-- name: named
-- Whether an unfinished job names the limit.
SELECT EXISTS (SELECT 1 FROM eligibility_key e, json_each(e.flow) d JOIN job j ON j.tenant = e.tenant AND j.eligibility_key = e.no
  WHERE e.tenant = :tenant AND e.flow <> '' AND d.value ->> 0 = :name AND j.finished_at IS NULL);

-- name: worker_names_it
-- Whether a running job of a worker, or of one of its instances, names the bucket.
SELECT EXISTS (SELECT 1 FROM job j INDEXED BY job_lease JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq, json_each(b.limits) d
  WHERE j.tenant = :tenant AND j.status = 'running' AND (:worker = '' OR j.worker = :worker OR substr(j.worker, 1, length(:worker) + 1) = :worker || '/')
    AND d.value ->> 'name' = :name AND coalesce(d.value ->> 'key', '') = :key);

-- name: running
-- The limits of jobs that name a limit and run since a time.
SELECT b.limits FROM job j INDEXED BY job_lease JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
WHERE j.tenant = :tenant AND j.status = 'running' AND j.run_started_at >= :since AND EXISTS (SELECT 1 FROM json_each(b.limits) d WHERE d.value ->> 'name' = :name);

-- name: keyed
-- The limits that have keys.
SELECT tenant, name FROM flow_limit WHERE json_extract(rules, '$.keyed') ORDER BY tenant, name;

-- name: delete_idle
-- Delete buckets that have not changed since they were read.
DELETE FROM flow_bucket WHERE tenant = :tenant AND name = :name AND (key, as_of) IN (
  SELECT k.value, a.value FROM json_each(:keys) k JOIN json_each(:as_ofs) a ON a.key = k.key)
  AND used = 0 AND parked = 0 AND (held_until IS NULL OR held_until <= :now);

-- name: acting_budgets
-- The budgets that ask approvers or fail jobs when they are spent.
SELECT tenant, name FROM flow_limit WHERE json_extract(rules, '$.budget.on_exceed') IN ('ask', 'fail') ORDER BY tenant, name;

-- name: due_under
-- The due jobs that name a limit, with their limits.
SELECT j.id, b.limits FROM eligibility_key e, json_each(e.flow) d
CROSS JOIN job j INDEXED BY job_ready ON j.tenant = e.tenant AND j.eligibility_key = e.no
CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
WHERE e.tenant = :tenant AND e.flow <> '' AND d.value ->> 0 = :name
  AND j.run_at <= :now AND j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0 ORDER BY j.id LIMIT :limit;

-- name: watched_budgets
-- The budgets that channels listen to, unless they were told since its last change; a new period tells them again.
SELECT f.tenant, f.name FROM (SELECT DISTINCT tenant FROM subscription WHERE ended_at IS NULL AND instr(events, '"budget.spent"')) s
CROSS JOIN flow_limit f ON f.tenant = s.tenant AND json_extract(f.rules, '$.budget') IS NOT NULL
  AND (f.announced_at IS NULL OR f.announced_at < f.updated_at OR json_extract(f.rules, '$.budget.per') IS NOT NULL)
  AND (substr(f.name, 1, 5) <> 'tree:' OR EXISTS (SELECT 1 FROM job j INDEXED BY job_parked
    WHERE j.tenant = f.tenant AND j.limit_name = f.name AND (j.status = 'queued' OR j.status = 'retry')))
ORDER BY f.tenant, f.name;

-- name: parked_under
-- Jobs that a claim refused because of a tree's budget, with their limits.
SELECT j.id, b.limits FROM job j INDEXED BY job_parked CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
WHERE j.tenant = :tenant AND j.limit_name = :name AND (j.status = 'queued' OR j.status = 'retry') LIMIT :limit;

-- name: parked_trees
-- The trees of which jobs were parked because of their budget; one index entry is read for each.
WITH RECURSIVE trees(name, n) AS (
  SELECT (SELECT min(j.limit_name) FROM job j INDEXED BY job_parked WHERE j.tenant = :tenant
    AND j.limit_name >= 'tree:' AND j.limit_name < 'tree;' AND (j.status = 'queued' OR j.status = 'retry')), 1
  UNION ALL SELECT (SELECT min(j.limit_name) FROM job j INDEXED BY job_parked WHERE j.tenant = :tenant
    AND j.limit_name > trees.name AND j.limit_name < 'tree;' AND (j.status = 'queued' OR j.status = 'retry')), trees.n + 1
  FROM trees WHERE trees.name IS NOT NULL AND trees.n < :limit)
SELECT name FROM trees WHERE name IS NOT NULL;

-- name: tenants
-- The tenants that have limits or budgets.
SELECT DISTINCT tenant FROM flow_limit WHERE substr(name, 1, 5) <> 'tree:' ORDER BY tenant;

-- name: running_ids
-- Jobs that name a limit and run.
SELECT j.id FROM job j INDEXED BY job_lease JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
WHERE j.tenant = :tenant AND j.status = 'running' AND EXISTS (SELECT 1 FROM json_each(b.limits) d WHERE d.value ->> 'name' = :name)
ORDER BY j.seq LIMIT :limit;

-- name: announce_spent
-- One delivery for each channel that listens, about the first of these jobs that its filters select. Channels without
-- filters by job get one even if there is none.
INSERT INTO outbox (tenant, id, channel, event, at, next_try_at, budget, job_id, type, job_status, attempt, version, agent_kind, agent_id, tags)
SELECT s.tenant, printf('%08x-%04x-7%03x-%04x-%012x', (:now / 1000) >> 16, (:now / 1000) & 65535,
    random() & 4095, 32768 | (random() & 16383), random() & 281474976710655),
  s.channel, 'budget.spent', :now, :now, :name, j.id, coalesce(b.type, ''), j.status, coalesce(j.attempt, 0), coalesce(j.version, 0),
  b.agent_kind, b.agent_id, coalesce(j.tags, '[]')
FROM subscription s
LEFT JOIN job j ON j.tenant = s.tenant AND j.seq = (
  SELECT x.seq FROM job x CROSS JOIN job_body y ON y.tenant = x.tenant AND y.seq = x.seq
  WHERE x.tenant = s.tenant AND x.id IN (SELECT value FROM json_each(:ids))
    AND (s.types IS NULL OR EXISTS (SELECT 1 FROM json_each(s.types) t WHERE t.value = y.type))
    AND (s.tags IS NULL OR EXISTS (SELECT 1 FROM json_each(s.tags) t JOIN json_each(x.tags) u ON t.value = u.value))
  ORDER BY x.seq LIMIT 1)
LEFT JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq
WHERE s.tenant = :tenant AND s.ended_at IS NULL AND instr(s.events, '"budget.spent"') AND (s.expires_at IS NULL OR s.expires_at > :now)
  AND (j.id IS NOT NULL OR (s.types IS NULL AND s.tags IS NULL));
