-- name: stopped
DELETE FROM interlock.worker WHERE tenant = :tenant AND name {in names};

-- name: forget
-- A worker that has polled again meanwhile, or holds a lease, stays.
DELETE FROM interlock.worker AS w
WHERE w.tenant = :tenant AND w.name {in names} AND w.last_seen_at < :before AND NOT EXISTS {lease_of_worker};

