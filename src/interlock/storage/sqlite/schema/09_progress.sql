-- Progress of running jobs: checkpoints, saved steps, which a replay returns, and events.

-- The last checkpoint of each job.
CREATE TABLE job_checkpoint (
  tenant    TEXT NOT NULL,
  job_id    TEXT NOT NULL,
  seq       INTEGER NOT NULL,
  data      TEXT NOT NULL,
  sanitized INTEGER NOT NULL,
  at        INTEGER NOT NULL,
  PRIMARY KEY (tenant, job_id)
) WITHOUT ROWID;

-- Only the worker that runs a job writes its checkpoint; the transition that ends the run covers it.
CREATE TRIGGER checkpoint_belongs_to_a_run BEFORE INSERT ON job_checkpoint
WHEN only_interlock_may_change_jobs()
  AND NOT EXISTS (SELECT 1 FROM job WHERE tenant = NEW.tenant AND id = NEW.job_id AND status = 'running')
BEGIN
  SELECT RAISE(ABORT, 'interlock: a checkpoint is saved while its job runs');
END;

CREATE TRIGGER checkpoint_changes_in_a_run BEFORE UPDATE ON job_checkpoint
WHEN only_interlock_may_change_jobs() AND (NEW.tenant <> OLD.tenant OR NEW.job_id <> OLD.job_id
  OR NOT EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND id = OLD.job_id AND status = 'running'))
BEGIN
  SELECT RAISE(ABORT, 'interlock: a checkpoint is saved while its job runs');
END;

CREATE TRIGGER checkpoint_goes_with_its_job BEFORE DELETE ON job_checkpoint
WHEN EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock: the checkpoint of a job goes only with the job');
END;

CREATE TABLE job_step (
  tenant     TEXT NOT NULL,
  job_id     TEXT NOT NULL,
  seq        INTEGER NOT NULL,
  name       TEXT NOT NULL,
  occurrence INTEGER NOT NULL,
  function   TEXT,
  fence      INTEGER NOT NULL,
  at         INTEGER NOT NULL,
  sanitized  INTEGER NOT NULL,
  result     TEXT NOT NULL,
  PRIMARY KEY (tenant, job_id, seq)
) WITHOUT ROWID;
CREATE UNIQUE INDEX job_step_once ON job_step (tenant, job_id, name, occurrence);

-- epoch and commit_seq order the events of all jobs so that no event appears before one that was already read.
-- at is when the worker recorded the event, between the start of its lease and its arrival.
CREATE TABLE job_event (
  tenant      TEXT NOT NULL,
  job_id      TEXT NOT NULL,
  seq         INTEGER NOT NULL,
  id          TEXT NOT NULL,
  epoch       INTEGER NOT NULL,
  commit_seq  INTEGER NOT NULL,
  fence       INTEGER NOT NULL,
  at          INTEGER NOT NULL,
  received_at INTEGER NOT NULL,
  sanitized   INTEGER NOT NULL,
  level       TEXT NOT NULL,
  message     TEXT NOT NULL,
  payload     TEXT,
  PRIMARY KEY (tenant, job_id, seq),
  CONSTRAINT level_is_known CHECK (CASE level WHEN 'info' THEN 1 WHEN 'warn' THEN 1 WHEN 'error' THEN 1 ELSE 0 END),
  CONSTRAINT recorded_before_arrival CHECK (at <= received_at)
) WITHOUT ROWID;
CREATE UNIQUE INDEX job_event_once ON job_event (tenant, job_id, id);
CREATE INDEX job_event_feed ON job_event (tenant, epoch, commit_seq, job_id, seq);

-- The last commit_seq per tenant, in its own table: events can be pruned, and numbers must never be reused.
CREATE TABLE event_commit_seq (
  tenant TEXT NOT NULL PRIMARY KEY,
  last   INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TRIGGER step_never_changes BEFORE UPDATE ON job_step
BEGIN
  SELECT RAISE(ABORT, 'interlock: a step is kept as it was first saved');
END;

-- REPLACE would delete rows that conflict with the new row.
CREATE TRIGGER step_is_not_replaced BEFORE INSERT ON job_step
WHEN EXISTS (SELECT 1 FROM job_step WHERE tenant = NEW.tenant AND job_id = NEW.job_id AND seq = NEW.seq)
  OR EXISTS (SELECT 1 FROM job_step WHERE tenant = NEW.tenant AND job_id = NEW.job_id AND name = NEW.name AND occurrence = NEW.occurrence)
BEGIN
  SELECT RAISE(ABORT, 'interlock: a step is kept as it was first saved');
END;

-- The transition that ends a run covers its steps, so no step may be added later.
CREATE TRIGGER step_belongs_to_a_run BEFORE INSERT ON job_step
WHEN only_interlock_may_change_jobs() AND NOT EXISTS
  (SELECT 1 FROM job WHERE tenant = NEW.tenant AND id = NEW.job_id AND status = 'running' AND fence = NEW.fence)
BEGIN
  SELECT RAISE(ABORT, 'interlock: a step is saved under the lease of a running job');
END;

CREATE TRIGGER step_goes_with_its_job BEFORE DELETE ON job_step
WHEN EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock: the steps of a job go only with the job');
END;

CREATE TRIGGER event_never_changes BEFORE UPDATE ON job_event
BEGIN
  SELECT RAISE(ABORT, 'interlock: events are append-only; a row never changes');
END;

CREATE TRIGGER event_is_not_replaced BEFORE INSERT ON job_event
WHEN EXISTS (SELECT 1 FROM job_event WHERE tenant = NEW.tenant AND job_id = NEW.job_id AND seq = NEW.seq)
  OR EXISTS (SELECT 1 FROM job_event WHERE tenant = NEW.tenant AND job_id = NEW.job_id AND id = NEW.id)
BEGIN
  SELECT RAISE(ABORT, 'interlock: events are append-only; a row never changes');
END;

CREATE TRIGGER event_goes_with_its_job BEFORE DELETE ON job_event
WHEN EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock: events are append-only; their rows go only with their job');
END;
