-- name: get
SELECT f.name, f.rules, f.created_at, f.updated_at FROM interlock.flow_limit f WHERE f.tenant = :tenant AND f.name = :name {for update};

-- name: get_unlocked
SELECT f.name, f.rules, f.created_at, f.updated_at FROM interlock.flow_limit f WHERE f.tenant = :tenant AND f.name = :name;

-- name: page
SELECT f.name, f.rules, f.created_at, f.updated_at FROM interlock.flow_limit f
WHERE f.tenant = :tenant AND f.name > :after AND (substr(f.name, 1, 7) = 'budget:') = (:budgets = 1) AND substr(f.name, 1, 5) <> 'tree:' ORDER BY f.name LIMIT :limit;

-- name: set
INSERT INTO interlock.flow_limit (tenant, name, rules, created_at, updated_at) VALUES (:tenant, :name, :rules, :now, :now)
ON CONFLICT (tenant, name) DO UPDATE SET rules = excluded.rules, updated_at = excluded.updated_at;

-- name: delete
DELETE FROM interlock.flow_limit WHERE tenant = :tenant AND name = :name;

-- name: delete_buckets
DELETE FROM interlock.flow_bucket WHERE tenant = :tenant AND name = :name;

-- name: all_buckets
SELECT b.key, b.used, b.levels, b.as_of, b.held_until, b.ticket FROM interlock.flow_bucket b
WHERE b.tenant = :tenant AND b.name = :name ORDER BY b.key {for update};

-- name: save_bucket
UPDATE interlock.flow_bucket SET levels = :levels, as_of = :as_of, ticket = NULL, turn = NULL, wake_at = CASE WHEN parked THEN :now END
WHERE tenant = :tenant AND name = :name AND key = :key;

-- name: buckets
SELECT b.key, b.used, b.levels, b.as_of, b.held_until, b.ticket, b.held_by, b.hold_reason FROM interlock.flow_bucket b
WHERE b.tenant = :tenant AND b.name = :name AND b.key >= :after AND (b.key > :after OR :first = 1) ORDER BY b.key LIMIT :limit;

-- name: held
SELECT b.name, b.key, b.used, b.held_until, b.held_by, b.hold_reason FROM interlock.flow_bucket b
WHERE b.tenant = :tenant AND b.held_until > :now ORDER BY b.name, b.key LIMIT :limit;

-- name: sum_used
SELECT coalesce(sum(b.used), 0) FROM interlock.flow_bucket b WHERE b.tenant = :tenant AND b.name = :name;

-- name: hold
INSERT INTO interlock.flow_bucket (tenant, name, key, held_until, held_by, hold_reason) VALUES (:tenant, :name, :key, :until, :actor, :reason)
ON CONFLICT (tenant, name, key) DO UPDATE SET held_until = excluded.held_until, held_by = excluded.held_by, hold_reason = excluded.hold_reason
WHERE flow_bucket.held_until IS NULL OR flow_bucket.held_until < excluded.held_until;

-- name: release
UPDATE interlock.flow_bucket SET held_until = NULL, held_by = NULL, hold_reason = NULL, turn = NULL, wake_at = CASE WHEN parked THEN :now END
WHERE tenant = :tenant AND name = :name AND key = :key AND held_until IS NOT NULL;

-- name: unused
SELECT b.key, b.used, b.levels, b.as_of, b.held_until, b.ticket FROM interlock.flow_bucket b
WHERE b.tenant = :tenant AND b.name = :name AND b.key > :after AND b.used = 0 AND NOT b.parked ORDER BY b.key LIMIT :limit;

-- name: unannounced
-- Whether channels were not told that a budget is spent since its last change or the start of its period.
SELECT 1 FROM interlock.flow_limit WHERE tenant = :tenant AND name = :name AND {told_earlier};

-- name: mark_announced
UPDATE interlock.flow_limit SET announced_at = :now WHERE tenant = :tenant AND name = :name AND {told_earlier};

-- name: told_earlier
(announced_at IS NULL OR announced_at < updated_at OR announced_at < :since);
