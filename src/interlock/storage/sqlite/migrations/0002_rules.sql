-- What the database refuses, and the history it writes. Functions of these names are registered by Interlock's own connections; any other
-- tool that tries to change a job reads the name as its error.

-- The verbs compute the hashes of many rows of history at once; only_interlock_may_change_jobs(seq) is the one of this job. For anybody
-- else it is null, nothing is written here, and check_change writes the row.
CREATE TRIGGER history_of_change AFTER UPDATE OF version ON job WHEN NEW.version <> OLD.version
BEGIN
  INSERT OR IGNORE INTO job_history VALUES (NEW.tenant, NEW.seq, NEW.version, OLD.status, NEW.status, NEW.verb, NEW.actor, OLD.attempt,
    NEW.fence, NEW.reason, NEW.metadata, NEW.updated_at, only_interlock_may_change_jobs(NEW.seq));
END;

CREATE TRIGGER history_of_birth AFTER INSERT ON job
BEGIN
  INSERT OR IGNORE INTO job_history VALUES (NEW.tenant, NEW.seq, NEW.version, NULL, NEW.status, NEW.verb, NEW.actor, NEW.attempt, NEW.fence,
    NEW.reason, NEW.metadata, NEW.updated_at, only_interlock_may_change_jobs(NEW.seq));
END;

-- While a verb is at work only_interlock_may_change_jobs() is 0; for any other change it is 1, and what follows from the change is done
-- by check_change. The work is behind a view, since a trigger's whole body costs time even when its WHEN is false.
-- The commonest moves, claim and complete, are found legal first.
CREATE TRIGGER rules_of_change AFTER UPDATE ON job
WHEN NOT (NEW.version = OLD.version + 1 AND NEW.attempt = OLD.attempt AND CASE
    WHEN OLD.status = 'queued' AND NEW.status = 'running' THEN NEW.fence > OLD.fence
    WHEN OLD.status = 'running' AND NEW.status = 'succeeded' THEN NEW.fence = OLD.fence
    ELSE 0 END)
  AND NOT (
  CASE OLD.status
    WHEN 'queued' THEN NEW.status = 'running' OR NEW.status = 'cancelled' OR NEW.status = 'queued'
    WHEN 'running' THEN 1
    WHEN 'retry' THEN NEW.status = 'running' OR NEW.status = 'retry' OR NEW.status = 'failed' OR NEW.status = 'cancelled'
    WHEN 'waiting_for_approval' THEN NEW.status = 'queued' OR NEW.status = 'failed' OR NEW.status = 'cancelled'
    ELSE 0 END
  AND (NEW.version = OLD.version + 1 OR (NEW.version = OLD.version AND NEW.status = OLD.status))
  AND CASE WHEN NEW.status = 'running' AND OLD.status <> 'running' THEN NEW.fence > OLD.fence ELSE NEW.fence = OLD.fence END
  AND NEW.attempt = OLD.attempt + (NEW.status = 'retry' AND OLD.status = 'running'))
  OR only_interlock_may_change_jobs()
BEGIN
  INSERT INTO change_to_check VALUES (NEW.tenant, NEW.seq, OLD.status, OLD.version, OLD.fence, OLD.attempt, OLD.finished_at, OLD.blocked,
    OLD.worker,
    (OLD.status, OLD.priority, OLD.route, OLD.base, OLD.run_at, OLD.deadline, OLD.timeout_seconds, OLD.attempt,
      OLD.max_attempts, OLD.worker, OLD.fence, OLD.lease_expires_at, OLD.lease_seconds, OLD.heartbeat_at, OLD.gate_id,
      OLD.releases, OLD.cancel_requested_at, OLD.cancel_reason, OLD.updated_at, OLD.started_at, OLD.run_started_at,
      OLD.finished_at, OLD.verb, OLD.actor, OLD.reason, OLD.metadata, OLD.error, OLD.tags, OLD.sanitized)
    IS NOT
    (NEW.status, NEW.priority, NEW.route, NEW.base, NEW.run_at, NEW.deadline, NEW.timeout_seconds, NEW.attempt,
      NEW.max_attempts, NEW.worker, NEW.fence, NEW.lease_expires_at, NEW.lease_seconds, NEW.heartbeat_at, NEW.gate_id,
      NEW.releases, NEW.cancel_requested_at, NEW.cancel_reason, NEW.updated_at, NEW.started_at, NEW.run_started_at,
      NEW.finished_at, NEW.verb, NEW.actor, NEW.reason, NEW.metadata, NEW.error, NEW.tags, NEW.sanitized));
END;

CREATE TRIGGER rules_of_birth AFTER INSERT ON job
WHEN NEW.status <> 'queued' OR NEW.version <> 1 OR NEW.attempt <> 1 OR NEW.fence <> 0 OR only_interlock_may_change_jobs()
BEGIN
  INSERT INTO change_to_check VALUES (NEW.tenant, NEW.seq, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
END;

-- The columns of a job as they were before the change, and whether anything else than its place was changed; all null for a birth.
CREATE VIEW change_to_check AS
SELECT tenant, seq, status, version, fence, attempt, finished_at, blocked, worker, 0 AS edited FROM job WHERE 0;

CREATE TRIGGER check_change INSTEAD OF INSERT ON change_to_check
BEGIN
  SELECT RAISE(ABORT, 'interlock: a job is born queued, at version 1, attempt 1 and fence 0')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND NEW.status IS NULL
    AND (j.status <> 'queued' OR j.version <> 1 OR j.attempt <> 1 OR j.fence <> 0);
  SELECT RAISE(ABORT, 'interlock: a job is not replaced by another')
  WHERE NEW.status IS NULL AND only_interlock_may_change_jobs() AND (SELECT count(*) - 1 FROM job)
    <> (SELECT coalesce(sum(CASE '' WHEN from_status THEN count WHEN to_status THEN -count END), 0) FROM tally);
  SELECT RAISE(ABORT, 'interlock: what a job is created with (job_body) is written before the job')
  WHERE NEW.status IS NULL AND only_interlock_may_change_jobs()
    AND NOT EXISTS (SELECT 1 FROM job_body b WHERE b.tenant = NEW.tenant AND b.seq = NEW.seq);
  SELECT RAISE(ABORT, 'interlock: this job has ended, which is final; redrive makes a new job')
  WHERE NEW.finished_at IS NOT NULL;
  -- Heartbeats, and whatever gives a place in a line or takes it back, leave the version as it is.
  SELECT RAISE(ABORT, 'interlock: every change of a job raises version by one')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.version <> NEW.version + 1
    AND (j.status <> NEW.status OR j.version <> NEW.version OR (only_interlock_may_change_jobs() AND (j.blocked = NEW.blocked OR NEW.edited)));
  SELECT RAISE(ABORT, 'interlock: this is not a legal move for the status the job is in')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND NOT CASE NEW.status
    WHEN 'queued' THEN j.status IN ('queued', 'running', 'cancelled')
    WHEN 'retry' THEN j.status IN ('retry', 'running', 'failed', 'cancelled')
    WHEN 'waiting_for_approval' THEN j.status IN ('queued', 'failed', 'cancelled')
    ELSE 1 END;
  SELECT RAISE(ABORT, 'interlock: attempt rises exactly when another try is scheduled')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq
    AND j.attempt <> NEW.attempt + (j.status = 'retry' AND NEW.status = 'running');
  SELECT RAISE(ABORT, 'interlock: fence rises exactly at a grant')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq
    AND CASE WHEN j.status = 'running' AND NEW.status <> 'running' THEN j.fence <= NEW.fence ELSE j.fence <> NEW.fence END;
  SELECT RAISE(ABORT, 'interlock: who holds a job changes only with a grant')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.worker <> NEW.worker;
  SELECT RAISE(ABORT, 'interlock: a job has no place in the line of its agent and cannot be granted')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.status = 'running' AND NEW.blocked = 1;
  -- A time before all times marks the job whose history may be written now (history_comes_with_its_change).
  UPDATE job SET updated_at = -1
  WHERE tenant = NEW.tenant AND seq = NEW.seq AND version IS NOT NEW.version AND only_interlock_may_change_jobs();
  INSERT INTO job_history
  SELECT j.tenant, j.seq, j.version, NEW.status, j.status, j.verb, j.actor, coalesce(NEW.attempt, j.attempt), j.fence, j.reason,
    j.metadata, interlock_clock(), interlock_history_hash(
      (SELECT h.hash FROM job_history h WHERE h.tenant = j.tenant AND h.seq = j.seq AND h.version = NEW.version),
      j.tenant, j.id, j.version, NEW.status, j.status, j.verb, j.actor, coalesce(NEW.attempt, j.attempt), j.fence, j.reason,
      j.metadata, interlock_clock())
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.version IS NOT NEW.version AND only_interlock_may_change_jobs();
  INSERT INTO tally
  SELECT j.tenant, j.base, interlock_clock() / 60000000 * 60000000, coalesce(NEW.status, ''), j.status, 1, j.seq
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.status IS NOT NEW.status AND only_interlock_may_change_jobs()
  ON CONFLICT DO UPDATE SET count = count + 1, last_seq = max(last_seq, excluded.last_seq);
  UPDATE job SET updated_at = interlock_clock()
  WHERE tenant = NEW.tenant AND seq = NEW.seq AND (version IS NOT NEW.version OR updated_at < 0) AND only_interlock_may_change_jobs();
  -- The verbs settle the lines they touch; whoever else changes a job has its line counted anew (0010_agents).
  INSERT INTO line_to_recount
  SELECT j.tenant, j.line FROM job j
  WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.line IS NOT NULL AND only_interlock_may_change_jobs();
  INSERT INTO ended_to_tell
  SELECT j.tenant, j.seq, j.id FROM job j
  WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.finished_at IS NOT NULL AND only_interlock_may_change_jobs();
END;

-- A job that has ended waits for nobody, and is waited for no more. The verbs see to that themselves.
CREATE VIEW ended_to_tell AS SELECT tenant, seq, id FROM job WHERE 0;
CREATE TRIGGER tell_ended INSTEAD OF INSERT ON ended_to_tell
BEGIN
  UPDATE job SET awaiting = 0, blocked = 0 WHERE tenant = NEW.tenant AND seq = NEW.seq;
  DELETE FROM job_await WHERE tenant = NEW.tenant AND job_id = NEW.id;
  UPDATE job SET awaiting = awaiting - 1
  WHERE tenant = NEW.tenant AND id IN (SELECT job_id FROM job_await WHERE tenant = NEW.tenant AND child_id = NEW.id);
  INSERT INTO line_to_recount
  SELECT p.tenant, p.line FROM job_await a JOIN job p ON p.tenant = a.tenant AND p.id = a.job_id
  WHERE a.tenant = NEW.tenant AND a.child_id = NEW.id AND p.line IS NOT NULL;
  DELETE FROM job_await WHERE tenant = NEW.tenant AND child_id = NEW.id;
END;

CREATE TRIGGER result_never_changes BEFORE UPDATE ON job_result
BEGIN
  SELECT RAISE(ABORT, 'interlock: what a job ended with never changes');
END;

-- REPLACE deletes a row and fires no trigger for that, so every table whose rows never change also looks at what is inserted.
CREATE TRIGGER result_is_written_once BEFORE INSERT ON job_result
WHEN only_interlock_may_change_jobs() AND (EXISTS (SELECT 1 FROM job_result WHERE tenant = NEW.tenant AND seq = NEW.seq)
  OR NOT EXISTS (SELECT 1 FROM job WHERE tenant = NEW.tenant AND seq = NEW.seq AND status IN ('succeeded', 'failed')))
BEGIN
  SELECT RAISE(ABORT, 'interlock: what a job ended with never changes; it is written when the job has ended');
END;

CREATE TRIGGER result_goes_with_its_job BEFORE DELETE ON job_result
WHEN EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND seq = OLD.seq)
BEGIN
  SELECT RAISE(ABORT, 'interlock: what a job ended with goes only with the job');
END;

CREATE TRIGGER job_keeps_its_identity BEFORE UPDATE OF tenant, id, seq, line, rowid, oid, _rowid_ ON job
BEGIN
  SELECT RAISE(ABORT, 'interlock: the identity of a job never changes');
END;

CREATE TRIGGER job_is_permanent BEFORE DELETE ON job
WHEN CASE OLD.status WHEN 'succeeded' THEN 0 WHEN 'failed' THEN 0 WHEN 'dead_letter' THEN 0 WHEN 'cancelled' THEN 0 ELSE 1 END
BEGIN
  SELECT RAISE(ABORT, 'interlock: only a job that has ended may be deleted');
END;

-- A body that stayed would answer for its idempotency key with a job that is gone.
CREATE TRIGGER deleted_jobs_go_whole_and_are_counted AFTER DELETE ON job
BEGIN
  DELETE FROM job_body WHERE tenant = OLD.tenant AND seq = OLD.seq;
  DELETE FROM job_result WHERE tenant = OLD.tenant AND seq = OLD.seq;
  INSERT INTO tally VALUES (OLD.tenant, OLD.base, 0, OLD.status, '', 1, 0)
  ON CONFLICT DO UPDATE SET count = count + 1;
END;

CREATE TRIGGER body_never_changes BEFORE UPDATE ON job_body
BEGIN
  SELECT RAISE(ABORT, 'interlock: what a job was created with, its payload above all, never changes');
END;

-- After the insertion nobody can tell whether a row was replaced, and to look before it takes twice as long. So what a job is created with
-- comes before the job, and no job is left without it by a key that another one takes.
CREATE TRIGGER body_comes_before_its_job AFTER INSERT ON job_body
WHEN only_interlock_may_change_jobs() AND (EXISTS (SELECT 1 FROM job WHERE tenant = NEW.tenant AND seq = NEW.seq)
  OR (NEW.idempotency_key IS NOT NULL AND EXISTS (SELECT 1 FROM job j WHERE j.tenant = NEW.tenant
    AND NOT EXISTS (SELECT 1 FROM job_body b WHERE b.tenant = j.tenant AND b.seq = j.seq))))
BEGIN
  SELECT RAISE(ABORT, 'interlock: what a job was created with, its payload above all, never changes; it is written before the job');
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

CREATE TRIGGER history_comes_with_its_change AFTER INSERT ON job_history
WHEN only_interlock_may_change_jobs() AND NOT EXISTS
  (SELECT 1 FROM job WHERE tenant = NEW.tenant AND seq = NEW.seq AND version = NEW.version AND updated_at = -1)
BEGIN
  SELECT RAISE(ABORT, 'interlock: history is append-only; a row is written by the change it tells of');
END;

CREATE TRIGGER history_goes_with_its_job BEFORE DELETE ON job_history
WHEN EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND seq = OLD.seq)
BEGIN
  SELECT RAISE(ABORT, 'interlock: history is append-only; its rows go only with their job');
END;
