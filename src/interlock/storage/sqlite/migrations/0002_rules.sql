-- What the database refuses, and the history it writes when nobody else has. The two functions are registered by
-- Interlock's own connections; any other tool that tries to change a job reads their name as its error.

CREATE TRIGGER rules_of_change AFTER UPDATE ON job
WHEN NOT (
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
  SELECT RAISE(ABORT, CASE
    WHEN OLD.finished_at IS NOT NULL THEN 'interlock: this job has ended, which is final; redrive makes a new job'
    WHEN NEW.version <> OLD.version + 1 AND (NEW.status <> OLD.status OR NEW.version <> OLD.version)
      THEN 'interlock: every change of status raises version by one'
    WHEN NEW.attempt <> OLD.attempt + (NEW.status = 'retry' AND OLD.status = 'running')
      THEN 'interlock: attempt rises exactly when another try is scheduled'
    WHEN (NEW.fence <> OLD.fence) <> (NEW.status = 'running' AND OLD.status <> 'running')
      THEN 'interlock: fence rises exactly at a grant'
    ELSE 'interlock: this is not a legal move for the status the job is in' END);
END;

-- Interlock's verbs write their history rows in bulk; meanwhile only_interlock_may_change_jobs() is 0. For any other change
-- it is 1 and the row is written here, by way of a view, since a trigger's whole body costs time even when it is not run.
CREATE TRIGGER history_of_change AFTER UPDATE ON job
WHEN NEW.version <> OLD.version AND only_interlock_may_change_jobs()
BEGIN
  INSERT INTO unwritten_history VALUES (NEW.tenant, NEW.seq, NEW.version, OLD.status, OLD.attempt);
END;

CREATE VIEW unwritten_history AS
SELECT tenant, seq, version, status AS from_status, attempt FROM job WHERE 0;

CREATE TRIGGER write_history INSTEAD OF INSERT ON unwritten_history
BEGIN
  INSERT INTO job_history
  SELECT tenant, seq, version, NEW.from_status, status, verb, actor, NEW.attempt, fence, reason, metadata, interlock_clock(),
    interlock_history_hash(head, tenant, id, version, NEW.from_status, status, verb, actor, NEW.attempt, fence, reason,
      metadata, interlock_clock())
  FROM job WHERE tenant = NEW.tenant AND seq = NEW.seq;
  UPDATE job SET updated_at = h.at, head = h.hash
  FROM (SELECT at, hash FROM job_history WHERE tenant = NEW.tenant AND seq = NEW.seq AND version = NEW.version) h
  WHERE job.tenant = NEW.tenant AND job.seq = NEW.seq;
END;

CREATE TRIGGER rules_of_birth BEFORE INSERT ON job
WHEN NEW.status <> 'queued' OR NEW.version <> 1 OR NEW.attempt <> 1 OR NEW.fence <> 0
BEGIN
  SELECT RAISE(ABORT, 'interlock: a job is born queued, at version 1, attempt 1 and fence 0');
END;

CREATE TRIGGER history_of_birth AFTER INSERT ON job
WHEN only_interlock_may_change_jobs()
BEGIN
  UPDATE job SET head = NULL WHERE tenant = NEW.tenant AND seq = NEW.seq;
  INSERT INTO unwritten_history VALUES (NEW.tenant, NEW.seq, NEW.version, NULL, NEW.attempt);
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
WHEN EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND seq = OLD.seq)
BEGIN
  SELECT RAISE(ABORT, 'interlock: history is append-only; its rows go only with their job');
END;
