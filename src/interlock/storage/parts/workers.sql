-- name: stopped
DELETE FROM interlock.worker WHERE tenant = :tenant AND name {in names};

-- name: forget
-- A worker that has polled again meanwhile, or holds a lease, stays.
DELETE FROM interlock.worker AS w
WHERE w.tenant = :tenant AND w.name {in names} AND w.last_seen_at < :before AND NOT EXISTS {lease_of_worker};

-- name: bucket
-- The rules of a limit and the state of one of its buckets, which may not have been used yet.
SELECT f.rules, b.hold_reason, coalesce(b.used, 0), coalesce(b.levels, '{}'), coalesce(b.as_of, 0), b.held_until, b.ticket
FROM interlock.flow_limit f LEFT JOIN interlock.flow_bucket b ON b.tenant = f.tenant AND b.name = f.name AND b.key = :key
WHERE f.tenant = :tenant AND f.name = :name;
