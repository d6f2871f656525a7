-- Records of operator actions: prunes and the audit log.

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

CREATE TABLE audit_log (
  tenant  TEXT NOT NULL,
  seq     INTEGER NOT NULL CHECK (seq > 0),
  actor   TEXT NOT NULL,
  action  TEXT NOT NULL,
  object  TEXT NOT NULL,
  details TEXT,
  at      INTEGER NOT NULL,
  hash    BLOB NOT NULL CHECK (length(hash) = 32),
  PRIMARY KEY (tenant, seq)
) WITHOUT ROWID;

CREATE TRIGGER log_never_changes BEFORE UPDATE ON audit_log
BEGIN
  SELECT RAISE(ABORT, 'interlock: the audit log is append-only; a row never changes');
END;

CREATE TRIGGER log_is_permanent BEFORE DELETE ON audit_log
BEGIN
  SELECT RAISE(ABORT, 'interlock: the audit log is append-only; no row goes');
END;

CREATE TRIGGER log_comes_with_its_change BEFORE INSERT ON audit_log WHEN only_interlock_may_change_jobs()
BEGIN
  SELECT RAISE(ABORT, 'interlock: the audit log is append-only; a row is written by the operation it records');
END;
