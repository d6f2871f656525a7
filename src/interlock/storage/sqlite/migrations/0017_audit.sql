-- The audit log of operator actions, written in the transaction of the action; each hash covers the row and the
-- previous hash.

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
