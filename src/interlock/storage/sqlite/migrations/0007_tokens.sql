-- Bearer tokens: of the text of one only its SHA-256 is kept. And the key that seals the cookies they are in. Names are sorted JSON lists; null types or repositories mean any.

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
  -- Whoever works neither approves nor could make a token that does.
  CHECK (roles NOT LIKE '%"work"%'
    OR (roles NOT LIKE '%"approve"%' AND roles NOT LIKE '%"operate"%' AND roles NOT LIKE '%"admin"%')),
  CHECK (worker_id IS NULL OR roles LIKE '%"work"%')
) WITHOUT ROWID;

-- Found by its hash before the tenant is known.
CREATE UNIQUE INDEX token_hash ON token (hash);
CREATE UNIQUE INDEX token_key ON token (tenant, key) WHERE key IS NOT NULL;
CREATE INDEX token_newest ON token (tenant, created_at, id);
-- When it ended or will, for those that ever do.
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

-- REPLACE would delete whatever is in the way of a new row; a verb that finds its token there already leaves it as it is.
CREATE TRIGGER token_is_not_replaced BEFORE INSERT ON token
WHEN only_interlock_may_change_jobs() AND (EXISTS (SELECT 1 FROM token WHERE tenant = NEW.tenant AND (id = NEW.id OR key = NEW.key))
  OR EXISTS (SELECT 1 FROM token WHERE hash = NEW.hash))
BEGIN
  SELECT RAISE(ABORT, 'a token never changes but to be revoked, once');
END;

-- The key of cookies, forms and cursors, random and shown to nobody.
CREATE TABLE signing_key (
  only_row INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
  key      BLOB NOT NULL CHECK (length(key) = 32)
);
INSERT INTO signing_key (only_row, key) VALUES (1, randomblob(32));
