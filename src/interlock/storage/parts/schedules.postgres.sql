-- name: due
select tenant, name from interlock.due_schedules(:now, :limit);
