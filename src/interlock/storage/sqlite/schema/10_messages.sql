-- Messages: the inboxes of jobs, and what released jobs wait for.

CREATE TABLE job_message (
  tenant  TEXT NOT NULL,
  job_id  TEXT NOT NULL,
  seq     INTEGER NOT NULL CHECK (seq > 0),
  id      TEXT NOT NULL,
  name    TEXT,
  topic   TEXT,
  payload TEXT,
  sender  TEXT NOT NULL,
  at      INTEGER NOT NULL,
  PRIMARY KEY (tenant, job_id, seq),
  CONSTRAINT name_or_topic CHECK ((name IS NULL) <> (topic IS NULL))
) WITHOUT ROWID;
CREATE UNIQUE INDEX job_message_id ON job_message (tenant, job_id, id, coalesce(topic, ''));
CREATE INDEX job_message_name ON job_message (tenant, job_id, name, seq);
CREATE INDEX job_message_topic ON job_message (tenant, job_id, topic, seq) WHERE topic IS NOT NULL;

-- Counts only while the job is queued and has this fence.
CREATE TABLE message_wait (
  tenant    TEXT NOT NULL,
  job_id    TEXT NOT NULL,
  fence     INTEGER NOT NULL,
  name      TEXT,
  topic     TEXT,
  after_seq INTEGER NOT NULL CHECK (after_seq >= 0),
  PRIMARY KEY (tenant, job_id),
  CONSTRAINT name_or_topic CHECK ((name IS NULL) <> (topic IS NULL))
) WITHOUT ROWID;
CREATE INDEX message_wait_topic ON message_wait (tenant, topic, job_id) WHERE topic IS NOT NULL;

-- Messages to topics: to recognize repeated ones, and for jobs that begin to wait before expires_at. delivered is the
-- number of jobs that waited, null until it is delivered to them; reached counts them meanwhile.
CREATE TABLE topic_message (
  tenant     TEXT NOT NULL,
  topic      TEXT NOT NULL,
  id         TEXT NOT NULL,
  payload    TEXT,
  sender     TEXT NOT NULL,
  at         INTEGER NOT NULL,
  expires_at INTEGER,
  delivered  INTEGER,
  reached    INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant, topic, id)
) WITHOUT ROWID;
CREATE INDEX topic_message_at ON topic_message (tenant, at);

CREATE TRIGGER topic_message_is_published BEFORE INSERT ON topic_message
WHEN only_interlock_may_change_jobs()
BEGIN
  SELECT RAISE(ABORT, 'interlock: a message is published by an operation');
END;

CREATE TRIGGER topic_message_changes_by_operations BEFORE UPDATE ON topic_message
WHEN only_interlock_may_change_jobs()
BEGIN
  SELECT RAISE(ABORT, 'interlock: a message to a topic never changes');
END;

CREATE TRIGGER topic_message_goes_when_it_is_old BEFORE DELETE ON topic_message
WHEN only_interlock_may_change_jobs()
BEGIN
  SELECT RAISE(ABORT, 'interlock: a message to a topic goes when it is old');
END;

CREATE TRIGGER message_never_changes BEFORE UPDATE ON job_message
BEGIN
  SELECT RAISE(ABORT, 'interlock: a message never changes');
END;

CREATE TRIGGER message_is_sent BEFORE INSERT ON job_message
WHEN only_interlock_may_change_jobs()
BEGIN
  SELECT RAISE(ABORT, 'interlock: a message is sent by an operation, which also makes the waiting job due');
END;

CREATE TRIGGER message_goes_with_its_job BEFORE DELETE ON job_message
WHEN EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock: a message goes only with its job');
END;

CREATE TRIGGER wait_begins_with_a_release BEFORE INSERT ON message_wait
WHEN only_interlock_may_change_jobs()
BEGIN
  SELECT RAISE(ABORT, 'interlock: a wait begins with a release');
END;

CREATE TRIGGER wait_changes_with_a_release BEFORE UPDATE ON message_wait
WHEN only_interlock_may_change_jobs()
BEGIN
  SELECT RAISE(ABORT, 'interlock: a wait begins with a release');
END;

CREATE TRIGGER wait_ends_with_its_message BEFORE DELETE ON message_wait
WHEN only_interlock_may_change_jobs() AND EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock: a wait ends with its message, or with its job');
END;
