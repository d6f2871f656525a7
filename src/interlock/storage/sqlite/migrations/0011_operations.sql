-- Bulk operations: find, redrive and prune jobs.

CREATE INDEX job_redrive ON job_body (tenant, redrive_of) WHERE redrive_of IS NOT NULL;

-- Jobs in status retry, failed, dead_letter or cancelled, also by base: few rows, and the ones operators search for.
-- No IN: with more than two values it would build a temporary index at every write.
CREATE INDEX job_unsuccessful ON job (tenant, status, seq) WHERE status <> 'queued' AND status <> 'running' AND status <> 'succeeded' AND status <> 'waiting_for_approval';
CREATE INDEX job_unsuccessful_base ON job (tenant, status, base, seq) WHERE status <> 'queued' AND status <> 'running' AND status <> 'succeeded' AND status <> 'waiting_for_approval';

-- Records of prunes. hash covers the chain heads of the deleted jobs, by tenant and job, like `audit head`.
CREATE TABLE prune (
  tenant    TEXT NOT NULL,
  at        INTEGER NOT NULL,
  id        TEXT NOT NULL,
  actor     TEXT NOT NULL,
  cutoff    INTEGER NOT NULL,
  jobs      INTEGER NOT NULL CHECK (jobs > 0),
  first_seq INTEGER NOT NULL,
  last_seq  INTEGER NOT NULL,
  hash      BLOB NOT NULL CHECK (length(hash) = 32),
  PRIMARY KEY (tenant, at, id)
) WITHOUT ROWID;

CREATE TRIGGER prune_never_changes BEFORE UPDATE ON prune
BEGIN
  SELECT RAISE(ABORT, 'interlock: prune records are permanent; a row never changes');
END;

CREATE TRIGGER prune_is_not_replaced BEFORE INSERT ON prune
WHEN EXISTS (SELECT 1 FROM prune WHERE tenant = NEW.tenant AND at = NEW.at AND id = NEW.id)
BEGIN
  SELECT RAISE(ABORT, 'interlock: prune records are permanent; a row never changes');
END;

CREATE TRIGGER prune_is_permanent BEFORE DELETE ON prune
BEGIN
  SELECT RAISE(ABORT, 'interlock: prune records are permanent; no row is deleted');
END;
