-- The rules that every change of a job obeys, whether an operation or direct SQL makes it.

-- only_interlock_may_change_jobs() is 0 during an operation and 1 for direct SQL, whose side effects check_change
-- performs. That work is behind a view, because a trigger's body costs time even when its WHEN is false.
-- The most common transitions, claim and complete, are tested first.
CREATE TRIGGER rules_of_change AFTER UPDATE ON job
WHEN NOT (NEW.version = OLD.version + 1 AND NEW.attempt = OLD.attempt AND CASE
    WHEN OLD.status = 'queued' AND NEW.status = 'running' THEN NEW.fence > OLD.fence
    WHEN OLD.status = 'running' AND NEW.status = 'succeeded' THEN NEW.fence = OLD.fence
    ELSE 0 END)
  AND NOT (
  {legal OLD.status NEW} AND (NEW.verb <> 'acknowledge' OR OLD.acknowledged_at IS NULL)
  AND (NEW.version = OLD.version + 1 OR (NEW.version = OLD.version AND NEW.status = OLD.status))
  AND CASE WHEN NEW.status = 'running' AND OLD.status <> 'running' THEN NEW.fence > OLD.fence ELSE NEW.fence = OLD.fence END
  AND NEW.attempt = OLD.attempt + (NEW.status = 'retry' AND OLD.status = 'running'))
  OR only_interlock_may_change_jobs()
BEGIN
  INSERT INTO change_to_check VALUES (NEW.tenant, NEW.seq, OLD.status, OLD.version, OLD.fence, OLD.attempt, OLD.finished_at, OLD.blocked,
    OLD.worker, OLD.head, OLD.approval_id, OLD.error,
    (OLD.priority, OLD.deadline, OLD.timeout_seconds, OLD.max_attempts, OLD.tags)
      IS NOT (NEW.priority, NEW.deadline, NEW.timeout_seconds, NEW.max_attempts, NEW.tags),
    (OLD.status, OLD.priority, OLD.eligibility_key, OLD.base, OLD.run_at, OLD.deadline, OLD.timeout_seconds, OLD.attempt,
      OLD.max_attempts, OLD.worker, OLD.fence, OLD.lease_expires_at, OLD.lease_seconds, OLD.heartbeat_at, OLD.approval_id,
      OLD.releases, OLD.cancel_requested_at, OLD.cancel_reason, OLD.updated_at, OLD.started_at, OLD.run_started_at,
      OLD.finished_at, OLD.acknowledged_at, OLD.acknowledged_by, OLD.verb, OLD.actor, OLD.reason, OLD.metadata, OLD.error, OLD.tags, OLD.sanitized)
    IS NOT
    (NEW.status, NEW.priority, NEW.eligibility_key, NEW.base, NEW.run_at, NEW.deadline, NEW.timeout_seconds, NEW.attempt,
      NEW.max_attempts, NEW.worker, NEW.fence, NEW.lease_expires_at, NEW.lease_seconds, NEW.heartbeat_at, NEW.approval_id,
      NEW.releases, NEW.cancel_requested_at, NEW.cancel_reason, NEW.updated_at, NEW.started_at, NEW.run_started_at,
      NEW.finished_at, NEW.acknowledged_at, NEW.acknowledged_by, NEW.verb, NEW.actor, NEW.reason, NEW.metadata, NEW.error, NEW.tags, NEW.sanitized),
    OLD.acknowledged_at,
    OLD.acknowledged_at IS NULL AND NEW.acknowledged_at IS NOT NULL AND NEW.verb = 'acknowledge' AND NEW.acknowledged_by = NEW.actor
      AND NEW.version = OLD.version + 1
      AND (OLD.status, OLD.priority, OLD.eligibility_key, OLD.base, OLD.across_repositories, OLD.across_keys, OLD.slot_epoch, OLD.blocked, OLD.run_at,
        OLD.deadline, OLD.awaiting, OLD.timeout_seconds, OLD.attempt, OLD.max_attempts, OLD.worker, OLD.fence, OLD.lease_expires_at,
        OLD.lease_seconds, OLD.heartbeat_at, OLD.approval_id, OLD.releases, OLD.cancel_requested_at, OLD.cancel_reason, OLD.started_at,
        OLD.run_started_at, OLD.finished_at, OLD.head, OLD.error, OLD.tags, OLD.sanitized)
      IS
      (NEW.status, NEW.priority, NEW.eligibility_key, NEW.base, NEW.across_repositories, NEW.across_keys, NEW.slot_epoch, NEW.blocked, NEW.run_at,
        NEW.deadline, NEW.awaiting, NEW.timeout_seconds, NEW.attempt, NEW.max_attempts, NEW.worker, NEW.fence, NEW.lease_expires_at,
        NEW.lease_seconds, NEW.heartbeat_at, NEW.approval_id, NEW.releases, NEW.cancel_requested_at, NEW.cancel_reason, NEW.started_at,
        NEW.run_started_at, NEW.finished_at, NEW.head, NEW.error, NEW.tags, NEW.sanitized));
END;

CREATE TRIGGER rules_of_enqueue AFTER INSERT ON job
WHEN NEW.status <> 'queued' OR NEW.version <> 1 OR NEW.attempt <> 1 OR NEW.fence <> 0 OR only_interlock_may_change_jobs()
BEGIN
  INSERT INTO change_to_check (tenant, seq) VALUES (NEW.tenant, NEW.seq);
END;

-- The previous columns of a job, whether its options changed (optioned), whether any column besides its slot changed
-- (edited), and whether it was only acknowledged; all null for a new job.
CREATE VIEW change_to_check AS
SELECT tenant, seq, status, version, fence, attempt, finished_at, blocked, worker, head, approval_id, error, 0 AS optioned, 0 AS edited,
  acknowledged_at, 0 AS only_acknowledged
FROM job WHERE 0;

CREATE TRIGGER check_change INSTEAD OF INSERT ON change_to_check
BEGIN
  SELECT RAISE(ABORT, 'interlock: a new job is queued, at version 1, attempt 1 and fence 0')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND NEW.status IS NULL
    AND (j.status <> 'queued' OR j.version <> 1 OR j.attempt <> 1 OR j.fence <> 0);
  SELECT RAISE(ABORT, 'interlock: a job is not replaced by another')
  WHERE NEW.status IS NULL AND only_interlock_may_change_jobs() AND (SELECT count(*) - 1 FROM job)
    <> (SELECT coalesce(sum(CASE '' WHEN from_status THEN count WHEN to_status THEN -count END), 0) FROM queue_counter);
  SELECT RAISE(ABORT, 'interlock: what a job is created with (job_body) is written before the job')
  WHERE NEW.status IS NULL AND only_interlock_may_change_jobs()
    AND NOT EXISTS (SELECT 1 FROM job_body b WHERE b.tenant = NEW.tenant AND b.seq = NEW.seq);
  SELECT RAISE(ABORT, 'interlock: this job has ended, which is final; redrive makes a new job')
  WHERE NEW.finished_at IS NOT NULL AND NOT NEW.only_acknowledged;
  SELECT RAISE(ABORT, 'interlock: only an acknowledgement sets acknowledged_at and acknowledged_by')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.acknowledged_at IS NOT NEW.acknowledged_at AND NEW.only_acknowledged IS NOT 1;
  -- Heartbeats and slot changes do not change the version.
  SELECT RAISE(ABORT, 'interlock: every change of a job raises version by one')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.version <> NEW.version + 1
    AND (j.status <> NEW.status OR j.version <> NEW.version OR (only_interlock_may_change_jobs() AND (j.blocked = NEW.blocked OR NEW.edited)));
  SELECT RAISE(ABORT, 'interlock: this is not a legal move for the status the job is in')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND NEW.status IS NOT NULL AND NEW.finished_at IS NULL
    AND NOT {legal NEW.status j};
  SELECT RAISE(ABORT, 'interlock: attempt rises exactly when another try is scheduled')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq
    AND j.attempt <> NEW.attempt + (j.status = 'retry' AND NEW.status = 'running');
  SELECT RAISE(ABORT, 'interlock: fence rises exactly when a lease begins')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq
    AND CASE WHEN j.status = 'running' AND NEW.status <> 'running' THEN j.fence <= NEW.fence ELSE j.fence <> NEW.fence END;
  SELECT RAISE(ABORT, 'interlock: the worker of a job changes only when a lease begins')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.worker <> NEW.worker;
  SELECT RAISE(ABORT, 'interlock: a job has no concurrency slot of its agent and cannot be leased')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.status = 'running' AND NEW.blocked = 1;
  SELECT RAISE(ABORT, 'interlock: the head of a job is the hash of its history, which only the change itself writes')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.head <> NEW.head AND only_interlock_may_change_jobs();
  SELECT RAISE(ABORT, 'interlock: metadata is a JSON object without digests: the database adds those')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.metadata IS NOT NULL AND only_interlock_may_change_jobs()
    AND CASE WHEN json_valid(j.metadata) THEN json_type(j.metadata) <> 'object' OR json_type(j.metadata, '$.digests') IS NOT NULL ELSE 1 END;
  SELECT RAISE(ABORT, 'interlock: a job waits only for its own open approval, requested under its last lease')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.approval_id IS NOT NULL AND only_interlock_may_change_jobs()
    AND NOT EXISTS (SELECT 1 FROM approval a WHERE a.tenant = j.tenant AND a.id = j.approval_id AND a.job_id = j.id
      AND a.fence = j.fence AND a.status = 'open');
  SELECT RAISE(ABORT, 'interlock: awaiting is the number of unfinished children that the job waits for')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.finished_at IS NULL AND only_interlock_may_change_jobs()
    AND j.awaiting <> (SELECT count(*) FROM job_await a JOIN job c ON c.tenant = a.tenant AND c.id = a.child_id AND c.finished_at IS NULL
      WHERE a.tenant = j.tenant AND a.job_id = j.id);
  SELECT RAISE(ABORT, 'interlock: the eligibility key of a job must match its type, requirements, priority, repository and affinity key')
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND only_interlock_may_change_jobs()
    AND NOT EXISTS (SELECT 1 FROM eligibility_key r CROSS JOIN job_body b ON b.tenant = r.tenant AND b.seq = j.seq
      WHERE r.tenant = j.tenant AND r.no = j.eligibility_key AND r.base = j.base AND r.priority = j.priority AND r.type = b.type
        AND r.requires = b.requires AND r.repository IS b.repository AND r.affinity_key IS b.affinity_key);
  -- updated_at = -1 marks the job whose history may be written now (history_comes_with_its_change).
  UPDATE job SET updated_at = -1
  WHERE tenant = NEW.tenant AND seq = NEW.seq AND version IS NOT NEW.version AND only_interlock_may_change_jobs();
  -- LIMIT 1 keeps SQLite from reading the clock twice: the row must have the time that its hash covers.
  INSERT INTO job_history
  SELECT j.tenant, j.seq, j.version, NEW.status, j.status, j.verb, j.actor, coalesce(NEW.attempt, j.attempt), j.fence, j.reason,
    t.metadata, t.now, interlock_history_hash(NEW.head, j.tenant, j.id, j.version, NEW.status, j.status, j.verb, j.actor,
      coalesce(NEW.attempt, j.attempt), j.fence, j.reason, t.metadata, t.now)
  FROM job j CROSS JOIN (SELECT interlock_clock() AS now,
    interlock_metadata_of_change(NEW.tenant, NEW.seq, NEW.status, NEW.approval_id, NEW.error, NEW.optioned) AS metadata LIMIT 1) t
  WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.version IS NOT NEW.version AND only_interlock_may_change_jobs();
  INSERT INTO queue_counter
  SELECT j.tenant, j.base, interlock_clock() / 60000000 * 60000000, coalesce(NEW.status, ''), j.status, 1, j.seq
  FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.status IS NOT NEW.status AND only_interlock_may_change_jobs()
  ON CONFLICT DO UPDATE SET count = count + 1, last_seq = max(last_seq, excluded.last_seq);
  UPDATE job SET (updated_at, head, acknowledged_at) = (SELECT h.at, h.hash, CASE WHEN job.acknowledged_at IS NOT NULL THEN h.at END FROM job_history h
    WHERE h.tenant = job.tenant AND h.seq = job.seq AND h.version = job.version)
  WHERE tenant = NEW.tenant AND seq = NEW.seq AND (version IS NOT NEW.version OR updated_at < 0) AND only_interlock_may_change_jobs();
  -- Operations update the slots of the agents they touch; after direct SQL, recount them.
  INSERT INTO slots_to_recount
  SELECT j.tenant, j.agent_no FROM job j
  WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.agent_no IS NOT NULL AND only_interlock_may_change_jobs();
  UPDATE flow_bucket SET used = max(used - (NEW.status = 'running'), 0), wake_at = CASE WHEN parked THEN interlock_clock() END
  WHERE tenant = NEW.tenant AND NEW.status IS NOT NULL AND only_interlock_may_change_jobs()
    AND EXISTS (SELECT 1 FROM job j WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND (NEW.status <> 'running' OR j.status <> 'running'))
    AND (name, key) IN (SELECT d.value ->> 'name', coalesce(d.value ->> 'key', '') FROM job_body b, json_each(b.limits) d
      WHERE b.tenant = NEW.tenant AND b.seq = NEW.seq);
  INSERT INTO ended_to_announce
  SELECT j.tenant, j.seq, j.id FROM job j
  WHERE j.tenant = NEW.tenant AND j.seq = NEW.seq AND j.finished_at IS NOT NULL AND only_interlock_may_change_jobs();
END;

-- After direct SQL, remove a terminal job from job_await, as parent and as child. Operations do this themselves.
CREATE VIEW ended_to_announce AS SELECT tenant, seq, id FROM job WHERE 0;

CREATE TRIGGER announce_ended INSTEAD OF INSERT ON ended_to_announce
BEGIN
  UPDATE job SET awaiting = 0, blocked = 0 WHERE tenant = NEW.tenant AND seq = NEW.seq;
  DELETE FROM job_await WHERE tenant = NEW.tenant AND job_id = NEW.id;
  UPDATE job SET awaiting = awaiting - 1
  WHERE tenant = NEW.tenant AND id IN (SELECT job_id FROM job_await WHERE tenant = NEW.tenant AND child_id = NEW.id);
  INSERT INTO slots_to_recount
  SELECT p.tenant, p.agent_no FROM job_await a JOIN job p ON p.tenant = a.tenant AND p.id = a.job_id
  WHERE a.tenant = NEW.tenant AND a.child_id = NEW.id AND p.agent_no IS NOT NULL;
  DELETE FROM job_await WHERE tenant = NEW.tenant AND child_id = NEW.id;
END;

CREATE TRIGGER job_keeps_its_identity BEFORE UPDATE OF tenant, id, seq, agent_no, rowid, oid, _rowid_ ON job
BEGIN
  SELECT RAISE(ABORT, 'interlock: the identity of a job never changes');
END;

CREATE TRIGGER job_is_permanent BEFORE DELETE ON job
WHEN CASE OLD.status WHEN 'succeeded' THEN 0 WHEN 'failed' THEN 0 WHEN 'dead_letter' THEN 0 WHEN 'cancelled' THEN 0 ELSE 1 END
  OR only_interlock_may_change_jobs()
BEGIN
  SELECT RAISE(ABORT, 'interlock: only a job that has ended may be deleted, with all it owns: use interlock prune');
END;

-- A leftover body would replay its idempotency key with a deleted job.
CREATE TRIGGER deleted_jobs_go_whole_and_are_counted AFTER DELETE ON job
BEGIN
  DELETE FROM job_body WHERE tenant = OLD.tenant AND seq = OLD.seq;
  DELETE FROM job_result WHERE tenant = OLD.tenant AND seq = OLD.seq;
  INSERT INTO queue_counter VALUES (OLD.tenant, OLD.base, 0, OLD.status, '', 1, 0)
  ON CONFLICT DO UPDATE SET count = count + 1;
END;

CREATE TRIGGER body_never_changes BEFORE UPDATE ON job_body
BEGIN
  SELECT RAISE(ABORT, 'interlock: what a job was created with, its payload above all, never changes');
END;

-- An AFTER INSERT trigger cannot see whether REPLACE deleted a row, and a BEFORE INSERT check takes twice as long. So
-- the body must be inserted before the job, and a reused idempotency key must not leave another job without its body.
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

CREATE TRIGGER result_never_changes BEFORE UPDATE ON job_result
BEGIN
  SELECT RAISE(ABORT, 'interlock: what a job ended with never changes');
END;

-- The final transition covers the result, so only the operation that makes it may write one. REPLACE deletes rows
-- without firing delete triggers, so every table with immutable rows also has an insert trigger.
CREATE TRIGGER result_is_written_once BEFORE INSERT ON job_result WHEN only_interlock_may_change_jobs()
BEGIN
  SELECT RAISE(ABORT, 'interlock: what a job ended with never changes; only the operation that ends the job writes it');
END;

CREATE TRIGGER result_goes_with_its_job BEFORE DELETE ON job_result
WHEN EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND seq = OLD.seq)
BEGIN
  SELECT RAISE(ABORT, 'interlock: what a job ended with goes only with the job');
END;

-- The release that makes a job wait writes these rows; they are deleted when the job or the child is terminal.
CREATE TRIGGER await_comes_with_its_release BEFORE INSERT ON job_await WHEN only_interlock_may_change_jobs()
BEGIN
  SELECT RAISE(ABORT, 'interlock: only a release makes a job wait for children');
END;

CREATE TRIGGER await_never_changes BEFORE UPDATE ON job_await
BEGIN
  SELECT RAISE(ABORT, 'interlock: what a job waits for never changes');
END;

CREATE TRIGGER await_ends_with_a_job BEFORE DELETE ON job_await
WHEN only_interlock_may_change_jobs()
  AND EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND id = OLD.child_id AND finished_at IS NULL)
  AND EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND id = OLD.job_id AND finished_at IS NULL)
BEGIN
  SELECT RAISE(ABORT, 'interlock: a job waits for its children until they have ended');
END;
