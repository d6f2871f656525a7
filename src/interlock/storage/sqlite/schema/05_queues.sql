-- Queues: operator settings, counters, and the eligibility keys by which claims find jobs.

-- Operator settings for all jobs of one type.
CREATE TABLE queue (
  tenant       TEXT NOT NULL,
  type         TEXT NOT NULL,
  paused_at    INTEGER,
  paused_by    TEXT,
  pause_reason TEXT,
  PRIMARY KEY (tenant, type),
  CHECK ((paused_at IS NULL) = (paused_by IS NULL))
) WITHOUT ROWID;

-- Transitions per minute, by base eligibility key; status '' stands for creation or deletion.
-- No job counted as succeeded has a seq above last_seq.
CREATE TABLE queue_counter (
  tenant      TEXT NOT NULL,
  base        INTEGER NOT NULL,
  minute      INTEGER NOT NULL,
  from_status TEXT NOT NULL,
  to_status   TEXT NOT NULL,
  count       INTEGER NOT NULL,
  last_seq    INTEGER NOT NULL,
  PRIMARY KEY (tenant, base, minute, from_status, to_status)
) WITHOUT ROWID;

-- Distinct combinations of the fields that decide which workers can claim a job; rows are only added.
-- base is the key with the same type, requires and priority but no repository and no affinity key.
CREATE TABLE eligibility_key (
  tenant       TEXT NOT NULL,
  no           INTEGER NOT NULL,
  base         INTEGER NOT NULL,
  type         TEXT NOT NULL,
  requires     TEXT NOT NULL,
  priority     INTEGER NOT NULL,
  repository   TEXT,
  affinity_key TEXT,
  flow         TEXT NOT NULL DEFAULT '', -- JSON: limit and key of each bucket; empty without limits
  PRIMARY KEY (tenant, no)
) WITHOUT ROWID;
CREATE UNIQUE INDEX eligibility_key_once ON eligibility_key (tenant, type, priority, requires, coalesce(repository, ''), coalesce(affinity_key, ''), flow);
CREATE INDEX eligibility_key_bases ON eligibility_key (tenant, type) WHERE no = base;

-- Claims find jobs by eligibility key, and jobs get their seq from the tenant: both must be stable.
CREATE TRIGGER route_never_changes BEFORE UPDATE ON eligibility_key
BEGIN
  SELECT RAISE(ABORT, 'interlock: a route never changes; jobs are found by it');
END;

CREATE TRIGGER route_is_permanent BEFORE DELETE ON eligibility_key
BEGIN
  SELECT RAISE(ABORT, 'interlock: a route stays; jobs are found by it');
END;

CREATE TRIGGER route_is_not_replaced BEFORE INSERT ON eligibility_key
WHEN only_interlock_may_change_jobs() AND (EXISTS (SELECT 1 FROM eligibility_key WHERE tenant = NEW.tenant AND no = NEW.no)
  OR EXISTS (SELECT 1 FROM eligibility_key WHERE tenant = NEW.tenant AND type = NEW.type AND priority = NEW.priority AND requires = NEW.requires
    AND coalesce(repository, '') = coalesce(NEW.repository, '') AND coalesce(affinity_key, '') = coalesce(NEW.affinity_key, '') AND flow = NEW.flow))
BEGIN
  SELECT RAISE(ABORT, 'interlock: a route never changes; jobs are found by it');
END;
