-- The history of jobs: every transition, chained by hashes. Only Interlock's connections register the functions that the
-- triggers of this schema call; in any other tool a change to a job fails with the function name as the error.

-- Every transition of every job, by the job's seq; each hash covers the row, the job ID and the previous hash.
-- A rowid table: new rows go to its end. Ordered by job they would go between those of other jobs, and a claim or finish
-- of 100 jobs would write 60 pages instead of 48.
CREATE TABLE job_history (
  tenant      TEXT NOT NULL,
  seq         INTEGER NOT NULL,
  version     INTEGER NOT NULL,
  from_status TEXT,
  to_status   TEXT NOT NULL,
  verb        TEXT NOT NULL,
  actor       TEXT NOT NULL,
  attempt     INTEGER NOT NULL,
  fence       INTEGER NOT NULL,
  reason      TEXT,
  metadata    TEXT,
  at          INTEGER NOT NULL,
  hash        BLOB NOT NULL,
  PRIMARY KEY (tenant, seq, version)
);

-- Operations compute history hashes in batches and write each as the head of its job;
-- only_interlock_may_change_jobs(seq) returns the metadata of the history row. Direct SQL does not change the head, so
-- this trigger writes nothing, and check_change writes the row.
CREATE TRIGGER history_of_change AFTER UPDATE OF version ON job WHEN NEW.version <> OLD.version AND NEW.head <> OLD.head
BEGIN
  INSERT INTO job_history VALUES (NEW.tenant, NEW.seq, NEW.version, OLD.status, NEW.status, NEW.verb, NEW.actor, OLD.attempt,
    NEW.fence, NEW.reason, CASE NEW.verb WHEN 'claim' THEN NULL ELSE only_interlock_may_change_jobs(NEW.seq) END, NEW.updated_at, NEW.head);
END;

CREATE TRIGGER history_of_enqueue AFTER INSERT ON job WHEN NEW.head <> x''
BEGIN
  INSERT INTO job_history VALUES (NEW.tenant, NEW.seq, NEW.version, NULL, NEW.status, NEW.verb, NEW.actor, NEW.attempt, NEW.fence,
    NEW.reason, only_interlock_may_change_jobs(NEW.seq), NEW.updated_at, NEW.head);
END;

CREATE TRIGGER history_never_changes BEFORE UPDATE ON job_history
BEGIN
  SELECT RAISE(ABORT, 'interlock: history is append-only; a row never changes');
END;

CREATE TRIGGER history_comes_with_its_change AFTER INSERT ON job_history
WHEN only_interlock_may_change_jobs() AND NOT EXISTS
  (SELECT 1 FROM job WHERE tenant = NEW.tenant AND seq = NEW.seq AND version = NEW.version AND updated_at = -1)
BEGIN
  SELECT RAISE(ABORT, 'interlock: history is append-only: only a transition writes a row');
END;

CREATE TRIGGER history_goes_with_its_job BEFORE DELETE ON job_history
WHEN EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND seq = OLD.seq)
BEGIN
  SELECT RAISE(ABORT, 'interlock: history is append-only; its rows go only with their job');
END;
