-- Effects: calls with consequences outside the database, recorded before the call and after it.

CREATE TABLE job_effect (
  tenant     TEXT NOT NULL,
  job_id     TEXT NOT NULL,
  seq        INTEGER NOT NULL CHECK (seq > 0),
  name       TEXT NOT NULL,
  occurrence INTEGER NOT NULL,
  key        TEXT,
  state      TEXT NOT NULL,
  result     TEXT,
  sanitized  INTEGER NOT NULL DEFAULT 0,
  attempt    INTEGER NOT NULL,
  fence      INTEGER NOT NULL CHECK (fence >= 0),  -- of the lease that wrote it last; 0 if a redrive copied it
  started_at INTEGER NOT NULL,
  ended_at   INTEGER,
  PRIMARY KEY (tenant, job_id, name, occurrence),
  CONSTRAINT state_is_known CHECK (state IN ('started', 'done', 'not_done')),
  CONSTRAINT only_done_has_a_result CHECK (result IS NULL OR state = 'done'),
  CONSTRAINT started_has_not_ended CHECK ((state = 'started') = (ended_at IS NULL))
) WITHOUT ROWID;
CREATE UNIQUE INDEX job_effect_seq ON job_effect (tenant, job_id, seq);

CREATE TRIGGER effect_is_begun_by_its_lease BEFORE INSERT ON job_effect
WHEN only_interlock_may_change_jobs()
BEGIN
  SELECT RAISE(ABORT, 'interlock: an effect is written by the lease holder');
END;

CREATE TRIGGER effect_is_settled_by_its_lease BEFORE UPDATE ON job_effect
WHEN only_interlock_may_change_jobs()
BEGIN
  SELECT RAISE(ABORT, 'interlock: an effect is written by the lease holder');
END;

-- REPLACE would delete rows that conflict with the new row.
CREATE TRIGGER effect_is_not_replaced BEFORE INSERT ON job_effect
WHEN EXISTS (SELECT 1 FROM job_effect WHERE tenant = NEW.tenant AND job_id = NEW.job_id AND name = NEW.name AND occurrence = NEW.occurrence)
  OR EXISTS (SELECT 1 FROM job_effect WHERE tenant = NEW.tenant AND job_id = NEW.job_id AND seq = NEW.seq)
BEGIN
  SELECT RAISE(ABORT, 'interlock: an effect is recorded once');
END;

-- The rules hold for operations too. A redrive copies effects to its new job, which has only been created yet, with fence 0.
CREATE TRIGGER effect_begins_under_a_lease BEFORE INSERT ON job_effect
WHEN (NEW.fence > 0 AND NEW.state <> 'started') OR NOT EXISTS
  (SELECT 1 FROM job WHERE tenant = NEW.tenant AND id = NEW.job_id
   AND CASE WHEN NEW.fence > 0 THEN status = 'running' AND fence = NEW.fence ELSE version = 1 END)
BEGIN
  SELECT RAISE(ABORT, 'interlock: an effect begins as started, under the lease of a running job');
END;

CREATE TRIGGER effect_is_final_when_done BEFORE UPDATE ON job_effect
WHEN (NEW.tenant, NEW.job_id, NEW.name, NEW.occurrence, NEW.seq) IS NOT (OLD.tenant, OLD.job_id, OLD.name, OLD.occurrence, OLD.seq)
  OR NOT CASE OLD.state WHEN 'started' THEN NEW.state <> 'started' WHEN 'not_done' THEN NEW.state = 'started' ELSE 0 END
  OR (OLD.state = 'started' AND (NEW.attempt, NEW.key, NEW.started_at) IS NOT (OLD.attempt, OLD.key, OLD.started_at))
  OR NOT EXISTS (SELECT 1 FROM job WHERE tenant = NEW.tenant AND id = NEW.job_id AND status = 'running' AND fence = NEW.fence)
BEGIN
  SELECT RAISE(ABORT, 'interlock: an effect is started, then done or not done, under the lease of a running job; done is final');
END;

CREATE TRIGGER effect_goes_with_its_job BEFORE DELETE ON job_effect
WHEN EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock: an effect goes only with its job');
END;
