-- name: set
-- An update keeps the past: what was created, and whether the schedule is paused. With the same times, it also keeps
-- the next tick, which may be due, or missed during a pause.
INSERT INTO interlock.schedule (tenant, name, cron, every_seconds, timezone, starts_at, ends_at, job, overlap, catch_up,
  jitter_seconds, next_at, paused_at, paused_by, version, created_at, created_by, updated_at)
VALUES (:tenant, :name, :cron, :every_seconds, :timezone, :starts_at, :ends_at, :job, :overlap, :catch_up,
  :jitter_seconds, :next_at, :paused_at, :paused_by, 1, :created_at, :created_by, :now)
ON CONFLICT (tenant, name) DO UPDATE SET cron = excluded.cron, every_seconds = excluded.every_seconds,
  timezone = excluded.timezone, starts_at = excluded.starts_at, ends_at = excluded.ends_at, job = excluded.job,
  overlap = excluded.overlap, catch_up = excluded.catch_up, jitter_seconds = excluded.jitter_seconds,
  next_at = CASE WHEN (schedule.cron, schedule.every_seconds, schedule.timezone, schedule.starts_at, schedule.ends_at)
      {equal} (excluded.cron, excluded.every_seconds, excluded.timezone, excluded.starts_at, excluded.ends_at)
    THEN schedule.next_at ELSE excluded.next_at END,
  version = schedule.version + 1, updated_at = excluded.updated_at;

-- name: get
SELECT {columns} FROM interlock.schedule s WHERE s.tenant = :tenant AND s.name = :name;

-- name: page
SELECT {columns} FROM interlock.schedule s WHERE s.tenant = :tenant AND s.name > :after ORDER BY s.name LIMIT :limit;

-- name: delete
DELETE FROM interlock.schedule WHERE tenant = :tenant AND name = :name;

-- name: pause
UPDATE interlock.schedule SET paused_at = :now, paused_by = :actor, updated_at = :now, version = version + 1
WHERE tenant = :tenant AND name = :name AND paused_at IS NULL;

-- name: resume
UPDATE interlock.schedule SET paused_at = NULL, paused_by = NULL, next_at = :next_at, updated_at = :now, version = version + 1
WHERE tenant = :tenant AND name = :name AND paused_at IS NOT NULL;

-- name: advance
UPDATE interlock.schedule SET next_at = :next_at, last_job_id = coalesce(:job_id, last_job_id),
  last_at = CASE WHEN :job_id IS NULL OR :tick < last_at THEN last_at ELSE :tick END, last_error = :error
WHERE tenant = :tenant AND name = :name AND version = :version AND next_at = :expected AND paused_at IS NULL;
