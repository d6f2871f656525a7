-- Artifacts, orphaned objects, and bytes stored per tenant.

CREATE TABLE artifact (
  tenant       TEXT NOT NULL,
  job_id       TEXT NOT NULL,
  id           TEXT NOT NULL,
  name         TEXT NOT NULL,
  size         INTEGER,
  sha256       BLOB,
  content_type TEXT,
  object_key   TEXT,
  url          TEXT,
  fence        INTEGER NOT NULL,
  worker       TEXT NOT NULL,
  created_at   INTEGER NOT NULL,
  PRIMARY KEY (tenant, job_id, id),
  CONSTRAINT file_or_link CHECK
    ((url IS NULL) = (object_key IS NOT NULL) AND (url IS NULL) = (size IS NOT NULL) AND (url IS NULL) = (sha256 IS NOT NULL)
     AND (url IS NULL) = (content_type IS NOT NULL)),
  CONSTRAINT whole_hash CHECK (length(sha256) = 32),
  CONSTRAINT size_not_negative CHECK (size >= 0)
) WITHOUT ROWID;
CREATE UNIQUE INDEX artifact_name ON artifact (tenant, job_id, name);
CREATE INDEX artifact_newest ON artifact (tenant, job_id, created_at, id);
CREATE INDEX artifact_id ON artifact (tenant, id);
CREATE INDEX artifact_object ON artifact (tenant, object_key) WHERE object_key IS NOT NULL;

-- Objects of uploads in progress, abandoned uploads and replaced artifacts, deleted after collect_at.
-- A condemned object can never become an artifact, regardless of collect_at.
CREATE TABLE artifact_orphan (
  tenant     TEXT NOT NULL,
  object_key TEXT NOT NULL,
  collect_at INTEGER NOT NULL,
  condemned  INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant, object_key)
) WITHOUT ROWID;
CREATE INDEX artifact_orphan_due ON artifact_orphan (collect_at);

CREATE TABLE artifact_usage (
  tenant TEXT NOT NULL PRIMARY KEY,
  bytes  INTEGER NOT NULL CHECK (bytes >= 0)
) WITHOUT ROWID;
