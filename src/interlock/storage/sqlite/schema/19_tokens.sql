-- Bearer tokens, stored as SHA-256 only, and the signing key for the cookies that carry them.
-- roles, types, repositories and capabilities are sorted JSON lists; null types or repositories mean any.

CREATE TABLE token (
  tenant       TEXT NOT NULL,
  id           TEXT NOT NULL,
  hash         BLOB NOT NULL CHECK (length(hash) = 32),
  description  TEXT,
  roles        TEXT NOT NULL CHECK (json_array_length(roles) > 0),
  worker_id    TEXT,
  types        TEXT,
  repositories TEXT,
  capabilities TEXT NOT NULL DEFAULT '[]',
  key          TEXT,
  created_at   INTEGER NOT NULL,
  created_by   TEXT NOT NULL,
  expires_at   INTEGER,
  last_used_at INTEGER,
  revoked_at   INTEGER,
  revoked_by   TEXT,
  PRIMARY KEY (tenant, id),
  CHECK ((revoked_at IS NULL) = (revoked_by IS NULL)),
  CHECK (expires_at IS NULL OR expires_at > created_at),
  -- A token with the work role can neither approve nor create a token that can.
  CHECK (roles NOT LIKE '%"work"%'
    OR (roles NOT LIKE '%"approve"%' AND roles NOT LIKE '%"operate"%' AND roles NOT LIKE '%"admin"%')),
  CHECK (worker_id IS NULL OR roles LIKE '%"work"%')
) WITHOUT ROWID;

-- Authentication looks up the hash before it knows the tenant.
CREATE UNIQUE INDEX token_hash ON token (hash);
CREATE UNIQUE INDEX token_key ON token (tenant, key) WHERE key IS NOT NULL;
CREATE INDEX token_newest ON token (tenant, created_at, id);

-- The earlier of revocation and expiry, for tokens that have either.
CREATE INDEX token_end ON token (min(coalesce(revoked_at, expires_at), coalesce(expires_at, revoked_at)))
  WHERE coalesce(revoked_at, expires_at) IS NOT NULL;

CREATE TRIGGER token_roles_are_known BEFORE INSERT ON token
WHEN EXISTS (SELECT 1 FROM json_each(NEW.roles) WHERE value NOT IN ('read', 'produce', 'work', 'operate', 'approve', 'admin'))
BEGIN
  SELECT RAISE(ABORT, 'a token has a role that does not exist');
END;

CREATE TRIGGER token_only_revoked BEFORE UPDATE ON token
WHEN OLD.tenant IS NOT NEW.tenant OR OLD.id IS NOT NEW.id OR OLD.hash IS NOT NEW.hash OR OLD.description IS NOT NEW.description
  OR OLD.roles IS NOT NEW.roles OR OLD.worker_id IS NOT NEW.worker_id OR OLD.types IS NOT NEW.types
  OR OLD.repositories IS NOT NEW.repositories OR OLD.capabilities IS NOT NEW.capabilities OR OLD.key IS NOT NEW.key
  OR OLD.created_at IS NOT NEW.created_at OR OLD.created_by IS NOT NEW.created_by OR OLD.expires_at IS NOT NEW.expires_at
  OR (OLD.revoked_at IS NOT NULL AND (OLD.revoked_at IS NOT NEW.revoked_at OR OLD.revoked_by IS NOT NEW.revoked_by))
BEGIN
  SELECT RAISE(ABORT, 'a token never changes but to be revoked, once');
END;

-- REPLACE would delete rows that conflict with the new row. Operations use ON CONFLICT DO NOTHING.
CREATE TRIGGER token_is_not_replaced BEFORE INSERT ON token
WHEN only_interlock_may_change_jobs() AND (EXISTS (SELECT 1 FROM token WHERE tenant = NEW.tenant AND (id = NEW.id OR key = NEW.key))
  OR EXISTS (SELECT 1 FROM token WHERE hash = NEW.hash))
BEGIN
  SELECT RAISE(ABORT, 'a token never changes but to be revoked, once');
END;

-- The random key that signs cookies, forms and cursors; it never leaves the server.
CREATE TABLE signing_key (
  only_row INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
  key      BLOB NOT NULL CHECK (length(key) = 32)
);
INSERT INTO signing_key (only_row, key) VALUES (1, randomblob(32));
