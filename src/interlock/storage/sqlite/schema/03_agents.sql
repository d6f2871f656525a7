-- Agents and their concurrency slots, registered types and worker presence.
--
-- The first due jobs of a limited agent have a slot, and only they can be claimed. A slot belongs to a job that has
-- started, or is reserved for one of the first due jobs; a claim turns a reserved slot into a used one and does not
-- change their number.

-- Agents. For a limited agent, used counts the concurrency slots in use. While one is free, next_due is the run_at of
-- the next job without a slot.
CREATE TABLE agent (
  tenant          TEXT NOT NULL,
  no              INTEGER NOT NULL,
  kind            TEXT NOT NULL,
  id              TEXT NOT NULL,
  max_concurrency INTEGER CHECK (max_concurrency BETWEEN 1 AND 1000000),
  strict          INTEGER NOT NULL DEFAULT 0,
  strict_epoch    INTEGER NOT NULL DEFAULT 0,
  implicit        INTEGER NOT NULL DEFAULT 0,
  used            INTEGER NOT NULL DEFAULT 0 CHECK (used >= 0),
  next_due        INTEGER,
  backoff         TEXT,
  defaults        TEXT,
  created_at      INTEGER NOT NULL,
  updated_at      INTEGER NOT NULL,
  PRIMARY KEY (tenant, no)
) WITHOUT ROWID;
CREATE UNIQUE INDEX agent_name ON agent (tenant, kind, id);
CREATE INDEX agent_lease ON agent (tenant, kind, id) WHERE json_extract(defaults, '$.lease_seconds') IS NOT NULL;
CREATE INDEX agent_due ON agent (tenant, next_due) WHERE next_due IS NOT NULL;

-- Insert an agent here, with the number of freed slots, to assign its free slots to due jobs.
CREATE VIEW slots_to_release AS SELECT tenant, no AS agent_no, 0 AS freed FROM agent WHERE 0;
CREATE TRIGGER release_agent_slots INSTEAD OF INSERT ON slots_to_release
BEGIN
  UPDATE job SET blocked = 0 WHERE tenant = NEW.tenant AND seq IN (
    SELECT j.seq FROM job j INDEXED BY job_blocked WHERE j.tenant = NEW.tenant AND j.agent_no = NEW.agent_no AND j.blocked = 1 AND j.finished_at IS NULL
      AND j.run_at <= interlock_clock()
    ORDER BY j.run_at, j.seq
    LIMIT (SELECT max(coalesce(a.max_concurrency, 0) - a.used + NEW.freed, 0) FROM agent a WHERE a.tenant = NEW.tenant AND a.no = NEW.agent_no));
  UPDATE agent SET used = max(used - NEW.freed + changes(), 0),
    next_due = CASE WHEN used - NEW.freed + changes() < max_concurrency THEN (
      SELECT min(j.run_at) FROM job j INDEXED BY job_blocked WHERE j.tenant = NEW.tenant AND j.agent_no = NEW.agent_no AND j.blocked = 1 AND j.finished_at IS NULL) END
  WHERE tenant = NEW.tenant AND no = NEW.agent_no
    -- no update if every freed slot was assigned again and none is free
    AND NOT (changes() = NEW.freed AND used >= max_concurrency AND next_due IS NULL);
END;

-- Insert an agent here to reassign its slots, when a job may be due before one that already has a slot. Jobs that
-- neither run nor keep their slot lose it. A job keeps its slot if its agent was limited and strict when the job
-- stopped running, and has been strict ever since.
CREATE VIEW slots_to_assign AS SELECT tenant, no AS agent_no, 0 AS freed FROM agent WHERE 0;
CREATE TRIGGER assign_agent_slots INSTEAD OF INSERT ON slots_to_assign
BEGIN
  UPDATE job SET blocked = 1 WHERE tenant = NEW.tenant AND agent_no = NEW.agent_no AND agent_no IS NOT NULL AND blocked = 0 AND finished_at IS NULL
    AND (status = 'queued' OR status = 'retry') AND awaiting = 0
    AND EXISTS (SELECT 1 FROM agent a WHERE a.tenant = NEW.tenant AND a.no = NEW.agent_no AND a.max_concurrency IS NOT NULL
      AND NOT (a.strict AND job.slot_epoch IS a.strict_epoch));
  INSERT INTO slots_to_release VALUES (NEW.tenant, NEW.agent_no, NEW.freed + changes());
END;

-- Insert an agent here to recount its slots, after a new limit or a change by direct SQL.
CREATE VIEW slots_to_recount AS SELECT tenant, no AS agent_no FROM agent WHERE 0;
CREATE TRIGGER recount_slots INSTEAD OF INSERT ON slots_to_recount
BEGIN
  UPDATE job SET blocked = NOT blocked
  WHERE tenant = NEW.tenant AND agent_no = NEW.agent_no AND agent_no IS NOT NULL AND finished_at IS NULL
    AND (status = 'queued' OR status = 'retry') AND awaiting = 0 AND blocked <> (
      SELECT a.max_concurrency IS NOT NULL AND NOT (a.strict AND job.slot_epoch IS a.strict_epoch)
      FROM agent a WHERE a.tenant = NEW.tenant AND a.no = NEW.agent_no);
  UPDATE agent SET used = CASE WHEN max_concurrency IS NULL THEN 0 ELSE (
    SELECT count(*) FROM job j WHERE j.tenant = NEW.tenant AND j.agent_no = NEW.agent_no AND j.finished_at IS NULL
      AND (j.status = 'running' OR (agent.strict AND j.slot_epoch = agent.strict_epoch))) END
  WHERE tenant = NEW.tenant AND no = NEW.agent_no;
  INSERT INTO slots_to_release VALUES (NEW.tenant, NEW.agent_no, 0);
END;

CREATE TRIGGER limit_changes AFTER UPDATE OF max_concurrency, strict ON agent
WHEN NEW.max_concurrency IS NOT OLD.max_concurrency OR NEW.strict <> OLD.strict
BEGIN
  UPDATE agent SET strict_epoch = strict_epoch + 1 WHERE tenant = NEW.tenant AND no = NEW.no AND OLD.strict AND NOT NEW.strict;
  INSERT INTO slots_to_recount VALUES (NEW.tenant, NEW.no);
END;

CREATE TABLE job_type (
  tenant        TEXT NOT NULL,
  name          TEXT NOT NULL,
  schema        TEXT,
  requires      TEXT NOT NULL,
  defaults      TEXT,
  backoff       TEXT,
  lease_seconds REAL,
  created_at    INTEGER NOT NULL,
  updated_at    INTEGER NOT NULL,
  PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

-- Worker presence, for information only; asks is the JSON of the filters of the last claim.
CREATE TABLE worker (
  tenant        TEXT NOT NULL,
  name          TEXT NOT NULL,
  asks          TEXT NOT NULL,
  first_seen_at INTEGER NOT NULL,
  last_seen_at  INTEGER NOT NULL,
  PRIMARY KEY (tenant, name)
) WITHOUT ROWID;
