-- Limits and their buckets.

CREATE TABLE flow_limit (
  tenant     TEXT NOT NULL,
  name       TEXT NOT NULL,
  rules      TEXT NOT NULL, -- JSON
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  announced_at INTEGER, -- when channels were last told that the budget is spent
  PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

-- The state of each bucket. used is the number of running jobs that name it; levels has the amount of each unit at
-- as_of; ticket is the rank of a job that did not fit. parked is set while jobs may be parked in it; a claim shows the first
-- of these at wake_at.
CREATE TABLE flow_bucket (
  tenant      TEXT NOT NULL,
  name        TEXT NOT NULL,
  key         TEXT NOT NULL,
  used        INTEGER NOT NULL DEFAULT 0 CHECK (used >= 0),
  levels      TEXT NOT NULL DEFAULT '{}',
  as_of       INTEGER NOT NULL DEFAULT 0,
  held_until  INTEGER,
  held_by     TEXT,
  hold_reason TEXT,
  ticket      TEXT,
  parked      INTEGER NOT NULL DEFAULT 0,
  wake_at     INTEGER,
  turn        REAL,
  served      REAL,
  PRIMARY KEY (tenant, name, key)
) WITHOUT ROWID;
-- The next key of a fair limit, and the last that was served.
CREATE INDEX flow_bucket_turns ON flow_bucket (tenant, name, turn) WHERE turn IS NOT NULL;
CREATE INDEX flow_bucket_served ON flow_bucket (tenant, name, served) WHERE served IS NOT NULL;
CREATE INDEX flow_bucket_wakes ON flow_bucket (tenant, wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX flow_bucket_holds ON flow_bucket (tenant, name, key) WHERE held_until IS NOT NULL;

-- What a running job has reported of the usage of its current run, so that budgets count it before the run ends.
CREATE TABLE run_usage (
  tenant TEXT NOT NULL,
  job_id TEXT NOT NULL,
  fence  INTEGER NOT NULL,
  usage  TEXT NOT NULL, -- JSON
  PRIMARY KEY (tenant, job_id)
) WITHOUT ROWID;

-- A bucket shows only parked jobs that have a slot, so it must be looked at when one gets its slot.
CREATE TRIGGER wake_parked AFTER UPDATE OF blocked ON job WHEN OLD.blocked = 1 AND NEW.blocked = 0 AND NEW.parked = 1
BEGIN
  UPDATE flow_bucket SET wake_at = interlock_clock() WHERE tenant = NEW.tenant AND name = NEW.limit_name AND key = NEW.limit_key AND parked = 1;
END;
