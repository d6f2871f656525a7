-- name: due
SELECT tenant, name FROM schedule INDEXED BY schedule_due
WHERE paused_at IS NULL AND next_at <= :now ORDER BY next_at LIMIT :limit;

-- name: equal
IS
