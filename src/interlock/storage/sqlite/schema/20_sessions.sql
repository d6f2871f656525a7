-- Sessions of the dashboard, stored as SHA-256 only, and the persons who signed in with OpenID Connect.
-- roles is a sorted JSON list; null means those of the token in the cookie.

CREATE TABLE session (
  tenant           TEXT NOT NULL,
  id               TEXT NOT NULL,
  hash             BLOB NOT NULL CHECK (length(hash) = 32),
  actor            TEXT NOT NULL,
  roles            TEXT CHECK (json_array_length(roles) > 0 AND roles NOT LIKE '%"work"%'),
  authenticated_at INTEGER,
  created_at       INTEGER NOT NULL,
  expires_at       INTEGER NOT NULL CHECK (expires_at > created_at),
  PRIMARY KEY (tenant, id)
) WITHOUT ROWID;

-- Authentication looks up the hash before it knows the tenant.
CREATE UNIQUE INDEX session_hash ON session (hash);
CREATE INDEX session_end ON session (expires_at);
CREATE INDEX session_actor ON session (tenant, actor);

CREATE TRIGGER session_never_changes BEFORE UPDATE ON session
BEGIN
  SELECT RAISE(ABORT, 'a session never changes; it ends');
END;

CREATE TRIGGER session_roles_are_known BEFORE INSERT ON session
WHEN EXISTS (SELECT 1 FROM json_each(NEW.roles) WHERE value NOT IN ('read', 'produce', 'operate', 'approve', 'admin'))
BEGIN
  SELECT RAISE(ABORT, 'a session has a role that does not exist');
END;

CREATE TABLE person (
  tenant       TEXT NOT NULL,
  actor        TEXT NOT NULL,
  name         TEXT,
  email        TEXT,
  signed_in_at INTEGER NOT NULL,
  PRIMARY KEY (tenant, actor)
) WITHOUT ROWID;

CREATE INDEX person_latest ON person (tenant, signed_in_at);
