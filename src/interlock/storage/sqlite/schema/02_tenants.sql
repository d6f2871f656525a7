-- Tenants, and the epoch that a restore raises. SQLite has no roles and no row-level security: any user who can open the
-- file can read it. Isolation relies on the tenant column, which leads every key and is part of every statement.

CREATE TABLE epoch (
  only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
  value    INTEGER NOT NULL CHECK (value >= 0)
);
INSERT INTO epoch VALUES (1, 0);

-- next_seq is the seq of the tenant's next job. registry rises whenever a type or the defaults of an agent change.
CREATE TABLE tenant (
  tenant   TEXT NOT NULL PRIMARY KEY,
  next_seq INTEGER NOT NULL,
  registry INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TRIGGER tenant_counts_up BEFORE UPDATE ON tenant WHEN NEW.tenant <> OLD.tenant OR NEW.next_seq < OLD.next_seq
BEGIN
  SELECT RAISE(ABORT, 'interlock: the number of the next job of a tenant never falls');
END;

CREATE TRIGGER tenant_is_permanent BEFORE DELETE ON tenant
BEGIN
  SELECT RAISE(ABORT, 'interlock: a tenant stays');
END;
