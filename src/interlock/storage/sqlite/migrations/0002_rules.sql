-- What the database refuses, and the history it writes when nobody else has. The two functions are registered by
-- Interlock's own connections; any other tool that tries to change a job reads their name as its error.

-- Interlock's verbs write their history rows in bulk; during those only_interlock_may_change_jobs() is 0. For every
-- other change it is 1 and the row is written here. The WHEN is false for a legal move of a verb, which then costs little.
CREATE TRIGGER rules_of_change AFTER UPDATE ON job
WHEN only_interlock_may_change_jobs()
  OR NOT (
    CASE OLD.status
      WHEN 'queued' THEN NEW.status = 'running' OR NEW.status = 'cancelled' OR NEW.status = 'queued'
      WHEN 'running' THEN 1
      WHEN 'retry' THEN NEW.status = 'running' OR NEW.status = 'retry' OR NEW.status = 'failed' OR NEW.status = 'cancelled'
      WHEN 'waiting_for_approval' THEN NEW.status = 'queued' OR NEW.status = 'failed' OR NEW.status = 'cancelled'
      ELSE 0 END
    AND (NEW.version = OLD.version + 1 OR (NEW.version = OLD.version AND NEW.status = OLD.status))
    AND CASE WHEN NEW.status = 'running' AND OLD.status <> 'running' THEN NEW.fence > OLD.fence ELSE NEW.fence = OLD.fence END
    AND NEW.attempt = OLD.attempt + (NEW.status = 'retry' AND OLD.status = 'running'))
BEGIN
  SELECT RAISE(ABORT, 'interlock: this job has ended, which is final; redrive makes a new job')
  WHERE CASE OLD.status WHEN 'succeeded' THEN 1 WHEN 'failed' THEN 1 WHEN 'dead_letter' THEN 1 WHEN 'cancelled' THEN 1 ELSE 0 END;
  SELECT RAISE(ABORT, 'interlock: this is not a legal move for the status the job is in')
  WHERE NOT CASE OLD.status
    WHEN 'queued' THEN NEW.status IN ('queued', 'running', 'cancelled')
    WHEN 'retry' THEN NEW.status IN ('retry', 'running', 'failed', 'cancelled')
    WHEN 'waiting_for_approval' THEN NEW.status IN ('queued', 'failed', 'cancelled')
    ELSE 1 END;
  SELECT RAISE(ABORT, 'interlock: every change of status raises version by one')
  WHERE NEW.version <> OLD.version + 1 AND (NEW.status <> OLD.status OR NEW.version <> OLD.version);
  SELECT RAISE(ABORT, 'interlock: fence rises exactly at a grant')
  WHERE CASE WHEN NEW.status = 'running' AND OLD.status <> 'running' THEN NEW.fence <= OLD.fence ELSE NEW.fence <> OLD.fence END;
  SELECT RAISE(ABORT, 'interlock: attempt rises exactly when another try is scheduled')
  WHERE NEW.attempt <> OLD.attempt + (NEW.status = 'retry' AND OLD.status = 'running');
  INSERT INTO job_history
  SELECT NEW.tenant, NEW.id, NEW.version, OLD.status, NEW.status, NEW.verb, NEW.actor, OLD.attempt, NEW.fence, NEW.reason,
    NEW.metadata, interlock_clock(), interlock_history_hash(
      (SELECT hash FROM job_history WHERE tenant = NEW.tenant AND job_id = NEW.id AND version = OLD.version),
      NEW.tenant, NEW.id, NEW.version, OLD.status, NEW.status, NEW.verb, NEW.actor, OLD.attempt, NEW.fence, NEW.reason,
      NEW.metadata, interlock_clock())
  WHERE NEW.version <> OLD.version AND only_interlock_may_change_jobs();
  UPDATE job SET updated_at = interlock_clock()
  WHERE tenant = NEW.tenant AND seq = NEW.seq AND NEW.version <> OLD.version AND only_interlock_may_change_jobs()
    AND updated_at <> interlock_clock();
END;

CREATE TRIGGER rules_of_birth BEFORE INSERT ON job
WHEN NEW.status <> 'queued' OR NEW.version <> 1 OR NEW.attempt <> 1 OR NEW.fence <> 0
BEGIN
  SELECT RAISE(ABORT, 'interlock: a job is born queued, at version 1, attempt 1 and fence 0');
END;

CREATE TRIGGER first_history AFTER INSERT ON job
WHEN only_interlock_may_change_jobs()
BEGIN
  INSERT INTO job_history VALUES (NEW.tenant, NEW.id, 1, NULL, NEW.status, NEW.verb, NEW.actor, 1, 0, NEW.reason, NEW.metadata,
    interlock_clock(), interlock_history_hash(NULL, NEW.tenant, NEW.id, 1, NULL, NEW.status, NEW.verb, NEW.actor, 1, 0,
      NEW.reason, NEW.metadata, interlock_clock()));
END;

CREATE TRIGGER job_keeps_its_identity BEFORE UPDATE OF tenant, id, seq ON job
BEGIN
  SELECT RAISE(ABORT, 'interlock: the identity of a job never changes');
END;

CREATE TRIGGER job_is_permanent BEFORE DELETE ON job
WHEN CASE OLD.status WHEN 'succeeded' THEN 0 WHEN 'failed' THEN 0 WHEN 'dead_letter' THEN 0 WHEN 'cancelled' THEN 0 ELSE 1 END
BEGIN
  SELECT RAISE(ABORT, 'interlock: only a job that has ended may be deleted');
END;

CREATE TRIGGER body_never_changes BEFORE UPDATE ON job_body
BEGIN
  SELECT RAISE(ABORT, 'interlock: what a job was created with, its payload above all, never changes');
END;

CREATE TRIGGER body_goes_with_its_job BEFORE DELETE ON job_body
WHEN EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND seq = OLD.seq)
BEGIN
  SELECT RAISE(ABORT, 'interlock: what a job was created with goes only with the job');
END;

CREATE TRIGGER history_never_changes BEFORE UPDATE ON job_history
BEGIN
  SELECT RAISE(ABORT, 'interlock: history is append-only; a row never changes');
END;

CREATE TRIGGER history_goes_with_its_job BEFORE DELETE ON job_history
WHEN EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock: history is append-only; its rows go only with their job');
END;
