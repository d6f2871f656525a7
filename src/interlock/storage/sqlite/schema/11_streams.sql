-- Streams: output of running jobs in chunks, numbered from 0 over all attempts.

CREATE TABLE job_stream (
  tenant     TEXT NOT NULL,
  job_id     TEXT NOT NULL,
  name       TEXT NOT NULL,
  chunks     INTEGER NOT NULL CHECK (chunks > 0),
  bytes      INTEGER NOT NULL CHECK (bytes > 0),
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (tenant, job_id, name)
) WITHOUT ROWID;

CREATE TABLE stream_chunk (
  tenant   TEXT NOT NULL,
  job_id   TEXT NOT NULL,
  name     TEXT NOT NULL,
  chunk_no INTEGER NOT NULL CHECK (chunk_no >= 0),
  attempt  INTEGER NOT NULL,
  fence    INTEGER NOT NULL,
  at       INTEGER NOT NULL,
  is_text  INTEGER NOT NULL,
  data     BLOB NOT NULL CHECK (length(data) BETWEEN 1 AND 65536),
  PRIMARY KEY (tenant, job_id, name, chunk_no)
);

CREATE TRIGGER chunk_never_changes BEFORE UPDATE ON stream_chunk
BEGIN
  SELECT RAISE(ABORT, 'interlock: streams are append-only; a chunk never changes');
END;

CREATE TRIGGER chunk_is_not_replaced BEFORE INSERT ON stream_chunk
WHEN EXISTS (SELECT 1 FROM stream_chunk WHERE tenant = NEW.tenant AND job_id = NEW.job_id AND name = NEW.name AND chunk_no = NEW.chunk_no)
BEGIN
  SELECT RAISE(ABORT, 'interlock: streams are append-only; a chunk never changes');
END;

CREATE TRIGGER chunk_belongs_to_a_run BEFORE INSERT ON stream_chunk
WHEN only_interlock_may_change_jobs() AND NOT EXISTS
  (SELECT 1 FROM job WHERE tenant = NEW.tenant AND id = NEW.job_id AND status = 'running' AND fence = NEW.fence)
BEGIN
  SELECT RAISE(ABORT, 'interlock: a chunk is appended under the lease of a running job');
END;

CREATE TRIGGER chunk_goes_with_its_job BEFORE DELETE ON stream_chunk
WHEN EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock: streams are append-only; they go only with their job');
END;

CREATE TRIGGER stream_is_not_replaced BEFORE INSERT ON job_stream
WHEN only_interlock_may_change_jobs()
BEGIN
  SELECT RAISE(ABORT, 'interlock: a stream begins and grows with its chunks');
END;

CREATE TRIGGER stream_grows_with_its_chunks BEFORE UPDATE ON job_stream
WHEN only_interlock_may_change_jobs()
BEGIN
  SELECT RAISE(ABORT, 'interlock: a stream begins and grows with its chunks');
END;

CREATE TRIGGER stream_goes_with_its_job BEFORE DELETE ON job_stream
WHEN EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock: streams are append-only; they go only with their job');
END;
