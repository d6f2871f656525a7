-- name: due
select tenant, name from interlock.due_schedules(:now, :limit);

-- name: equal
is not distinct from
