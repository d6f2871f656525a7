-- name: raise_registry
INSERT INTO tenant (tenant, next_seq, registry) VALUES (:tenant, 1, 1) ON CONFLICT DO UPDATE SET registry = registry + 1;

-- name: types
SELECT name, schema, requires, defaults, created_at, updated_at FROM job_type WHERE tenant = :tenant ORDER BY name;

-- name: set_type
INSERT INTO job_type (tenant, name, schema, requires, defaults, backoff, lease_seconds, created_at, updated_at)
VALUES (:tenant, :name, :schema, :requires, :defaults, :backoff, :lease_seconds, :now, :now)
ON CONFLICT DO UPDATE SET schema = excluded.schema, requires = excluded.requires, defaults = excluded.defaults,
  backoff = excluded.backoff, lease_seconds = excluded.lease_seconds, updated_at = excluded.updated_at
RETURNING name, schema, requires, defaults, created_at, updated_at;

-- name: drop_type
DELETE FROM job_type WHERE tenant = :tenant AND name = :name RETURNING name;

-- name: agents
-- Agents after a name, in order of name.
SELECT kind, id, max_concurrency, strict, defaults, implicit, created_at, updated_at FROM agent
WHERE tenant = :tenant AND (kind, id) > (:kind, :id) ORDER BY kind, id LIMIT :limit;

-- name: stalled_agents
-- Strict agents without a free slot, none of whose jobs runs or can be claimed now.
SELECT kind, id, max_concurrency, strict, defaults, implicit, created_at, updated_at FROM agent a
WHERE a.tenant = :tenant AND a.strict AND a.used >= a.max_concurrency AND NOT EXISTS (
  SELECT 1 FROM job j INDEXED BY job_of_agent
  WHERE j.tenant = :tenant AND j.agent_no = a.no AND j.agent_no IS NOT NULL AND j.blocked = 0 AND j.finished_at IS NULL
    AND (j.status = 'running' OR (j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.run_at <= :now)))
ORDER BY kind, id LIMIT :limit;

-- name: agent
SELECT kind, id, max_concurrency, strict, defaults, implicit, created_at, updated_at, no FROM agent
WHERE tenant = :tenant AND kind = :kind AND id = :id;

-- name: set_agent
-- The trigger limit_changes applies a new limit.
UPDATE agent SET max_concurrency = :max_concurrency, strict = :strict, defaults = :defaults, backoff = :backoff, implicit = 0,
  updated_at = :now
WHERE tenant = :tenant AND kind = :kind AND id = :id;

-- name: has_unfinished
SELECT EXISTS (SELECT 1 FROM job WHERE tenant = :tenant AND agent_no = :no AND agent_no IS NOT NULL AND finished_at IS NULL);

-- name: drop_agent
DELETE FROM agent WHERE tenant = :tenant AND no = :no;

-- name: names_of_types
SELECT r.type FROM queue_counter y CROSS JOIN eligibility_key r ON r.tenant = y.tenant AND r.no = y.base WHERE y.tenant = :tenant
UNION SELECT type FROM queue WHERE tenant = :tenant
UNION SELECT name FROM job_type WHERE tenant = :tenant;

-- name: moved
SELECT r.type, y.from_status, y.to_status, sum(y.count), sum(CASE WHEN y.minute > :recent THEN y.count ELSE 0 END)
FROM queue_counter y CROSS JOIN eligibility_key r ON r.tenant = y.tenant AND r.no = y.base
WHERE y.tenant = :tenant GROUP BY r.type, y.from_status, y.to_status;

-- name: minutes
-- Transitions of each type by minute; everything before the last hour is one row. Deletions are excluded: only
-- terminal jobs are deleted, and no column counts those.
SELECT r.type, CASE WHEN y.minute < :since THEN 0 ELSE y.minute END AS at,
  sum(y.count * ((y.to_status IN ('queued', 'retry')) - (y.from_status IN ('queued', 'retry')))),
  sum(y.count * ((y.to_status = 'running') - (y.from_status = 'running'))),
  sum(y.count * (y.from_status = '')),
  sum(y.count * (y.to_status = 'succeeded')),
  sum(y.count * (y.to_status IN ('failed', 'dead_letter', 'retry')))
FROM queue_counter y CROSS JOIN eligibility_key r ON r.tenant = y.tenant AND r.no = y.base
WHERE y.tenant = :tenant AND y.to_status <> '' GROUP BY r.type, at ORDER BY r.type, at;

-- name: later
-- Per base: the number of jobs due later, and the earliest run_at of a due job. The first SELECT covers jobs without
-- repository and affinity key, the second covers the others.
SELECT r.type,
  (SELECT count(*) FROM job j INDEXED BY job_ready WHERE j.tenant = r.tenant AND j.eligibility_key = r.no AND j.run_at > :now
    AND j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0),
  (SELECT min(j.run_at) FROM job j INDEXED BY job_ready WHERE j.tenant = r.tenant AND j.eligibility_key = r.no AND j.run_at <= :now
    AND j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0)
FROM eligibility_key r INDEXED BY eligibility_key_bases WHERE r.tenant = :tenant AND r.no = r.base
UNION ALL
SELECT r.type,
  (SELECT count(*) FROM job j INDEXED BY job_ready_base WHERE j.tenant = r.tenant AND j.base = r.no AND j.run_at > :now
    AND j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0 AND j.eligibility_key <> j.base),
  (SELECT min(j.run_at) FROM job j INDEXED BY job_ready_base WHERE j.tenant = r.tenant AND j.base = r.no AND j.run_at <= :now
    AND j.status IN ('queued', 'retry') AND j.awaiting = 0 AND j.blocked = 0 AND j.eligibility_key <> j.base)
FROM eligibility_key r INDEXED BY eligibility_key_bases WHERE r.tenant = :tenant AND r.no = r.base;

-- name: waiting_for_slot
SELECT r.type, sum(j.run_at > :now), sum(j.run_at <= :now)
FROM job j INDEXED BY job_blocked CROSS JOIN eligibility_key r ON r.tenant = j.tenant AND r.no = j.eligibility_key
WHERE j.tenant = :tenant AND j.blocked = 1 AND j.finished_at IS NULL GROUP BY r.type;

-- name: awaiting
SELECT b.type, count(*) FROM (SELECT DISTINCT job_id FROM job_await WHERE tenant = :tenant) w
CROSS JOIN job j ON j.tenant = :tenant AND j.id = w.job_id CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq GROUP BY b.type;

-- name: paused
SELECT type, paused_at, paused_by, pause_reason FROM queue WHERE tenant = :tenant;

-- name: fold
-- Merge minutes older than an hour into one row (minute 0).
INSERT INTO queue_counter SELECT tenant, base, 0, from_status, to_status, sum(count), max(last_seq) FROM queue_counter
WHERE tenant = :tenant AND minute > 0 AND minute < :before GROUP BY base, from_status, to_status
ON CONFLICT DO UPDATE SET count = count + excluded.count, last_seq = max(last_seq, excluded.last_seq);

-- name: drop_folded
DELETE FROM queue_counter WHERE tenant = :tenant AND minute > 0 AND minute < :before;

-- name: long_counters
SELECT t.tenant FROM tenant t
WHERE (SELECT count(*) FROM queue_counter y WHERE y.tenant = t.tenant AND y.minute > 0 AND y.minute < :before) > :rows LIMIT :limit;
