-- Schedules, each with its next tick.

CREATE TABLE schedule (
  tenant         TEXT NOT NULL,
  name           TEXT NOT NULL,
  cron           TEXT,
  every_seconds  REAL CHECK (every_seconds >= 1),
  timezone       TEXT NOT NULL,
  starts_at      INTEGER,
  ends_at        INTEGER,
  job            TEXT NOT NULL,
  overlap        TEXT NOT NULL CHECK (overlap IN ('allow', 'skip', 'cancel')),
  catch_up       TEXT NOT NULL CHECK (catch_up IN ('none', 'last', 'all')),
  jitter_seconds REAL NOT NULL CHECK (jitter_seconds >= 0),
  next_at        INTEGER,
  last_at        INTEGER,
  last_job_id    TEXT,
  last_error     TEXT,
  paused_at      INTEGER,
  paused_by      TEXT,
  version        INTEGER NOT NULL CHECK (version > 0),
  created_at     INTEGER NOT NULL,
  created_by     TEXT NOT NULL,
  updated_at     INTEGER NOT NULL,
  PRIMARY KEY (tenant, name),
  CHECK ((cron IS NULL) <> (every_seconds IS NULL)),
  CHECK ((paused_at IS NULL) = (paused_by IS NULL)),
  CHECK ((last_at IS NULL) = (last_job_id IS NULL))
) WITHOUT ROWID;

CREATE INDEX schedule_due ON schedule (next_at) WHERE paused_at IS NULL;

-- A tick is looked at once: no update goes back before the last tick that created a job.
CREATE TRIGGER schedule_goes_forward BEFORE UPDATE ON schedule
WHEN NEW.last_at < OLD.last_at OR NEW.version < OLD.version
BEGIN
  SELECT RAISE(ABORT, 'interlock: a schedule does not go back to an earlier tick');
END;
