-- name: version
SELECT coalesce((SELECT registry FROM interlock.tenant WHERE tenant = :tenant), 0);

-- name: types
SELECT {type} FROM interlock.job_type y WHERE y.tenant = :tenant ORDER BY y.name;

-- name: limits
SELECT f.name, f.rules, f.created_at, f.updated_at FROM interlock.flow_limit f WHERE f.tenant = :tenant AND substr(f.name, 1, 5) <> 'tree:';

-- name: set_type
INSERT INTO interlock.job_type AS y (tenant, name, schema, requires, defaults, backoff, lease_seconds, created_at, updated_at)
VALUES (:tenant, :name, :schema, :requires, :defaults, :backoff, :lease_seconds, :now, :now)
ON CONFLICT (tenant, name) DO UPDATE SET schema = excluded.schema, requires = excluded.requires, defaults = excluded.defaults,
  backoff = excluded.backoff, lease_seconds = excluded.lease_seconds, updated_at = excluded.updated_at
RETURNING {type_set};

-- name: delete_type
DELETE FROM interlock.job_type WHERE tenant = :tenant AND name = :name;

-- name: pause
INSERT INTO interlock.queue (tenant, type, paused_at, paused_by, pause_reason) VALUES (:tenant, :type, :at, :actor, :reason)
ON CONFLICT (tenant, type) DO UPDATE
SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, pause_reason = excluded.pause_reason;

-- name: agents
-- Agents after a name, in order of name.
SELECT {agent} FROM interlock.agent a
WHERE a.tenant = :tenant AND a.kind >= :kind AND (a.kind, a.id) > (:kind, :id) ORDER BY a.kind, a.id LIMIT :limit;

-- name: agent
SELECT a.no, a.defaults FROM interlock.agent a WHERE a.tenant = :tenant AND a.kind = :kind AND a.id = :id {for update};

-- name: set_agent
UPDATE interlock.agent SET max_concurrency = :max_concurrency, strict = :strict, defaults = :defaults, backoff = :backoff,
  implicit = FALSE, updated_at = :now
WHERE tenant = :tenant AND kind = :kind AND id = :id RETURNING {agent_set};

-- name: delete_agent
DELETE FROM interlock.agent WHERE tenant = :tenant AND no = :no;

-- name: any_agent_due
SELECT EXISTS (SELECT 1 FROM interlock.agent WHERE tenant = :tenant AND next_due <= :now AND next_due IS NOT NULL);

-- name: moved
-- How often jobs went from one status to another, ever and recently.
SELECT y.type, y.from_status, y.to_status, CAST(sum(y.count) AS bigint),
  CAST(sum(CASE WHEN y.minute > :recent THEN y.count ELSE 0 END) AS bigint)
FROM {moves} y WHERE y.type = :type OR :type IS NULL GROUP BY y.type, y.from_status, y.to_status;

-- name: minutes
-- Transitions of each type by minute; everything before the last hour is one row. Deletions are left out: only
-- terminal jobs are deleted, and no column counts those.
SELECT y.type, CASE WHEN y.minute < :since THEN {epoch} ELSE y.minute END AS at,
  CAST(sum(CASE WHEN y.to_status IN ('queued', 'retry') THEN y.count ELSE 0 END
    - CASE WHEN y.from_status IN ('queued', 'retry') THEN y.count ELSE 0 END) AS bigint),
  CAST(sum(CASE WHEN y.to_status = 'running' THEN y.count ELSE 0 END
    - CASE WHEN y.from_status = 'running' THEN y.count ELSE 0 END) AS bigint),
  CAST(sum(CASE WHEN y.from_status = '' THEN y.count ELSE 0 END) AS bigint),
  CAST(sum(CASE WHEN y.to_status = 'succeeded' THEN y.count ELSE 0 END) AS bigint),
  CAST(sum(CASE WHEN y.to_status IN ('failed', 'dead_letter', 'retry') THEN y.count ELSE 0 END) AS bigint)
FROM {moves} y WHERE y.to_status <> '' GROUP BY y.type, at ORDER BY y.type, at;

-- name: queues
SELECT type, paused_at, paused_by, pause_reason FROM interlock.queue WHERE tenant = :tenant AND (type = :type OR :type IS NULL);

-- name: names_of_types
SELECT name FROM interlock.job_type WHERE tenant = :tenant AND (name = :type OR :type IS NULL);
