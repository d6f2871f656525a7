-- The job block index: the types, tags and creation times of each block of consecutive jobs, so that a list with a rare
-- filter skips most jobs. A maintenance task adds a block once it is full, so an enqueue costs nothing extra.

CREATE TABLE job_block (
  tenant    TEXT NOT NULL,
  first_seq INTEGER NOT NULL,
  last_seq  INTEGER NOT NULL,
  earliest  INTEGER NOT NULL,
  latest    INTEGER NOT NULL,
  PRIMARY KEY (tenant, first_seq)
) WITHOUT ROWID;

CREATE TABLE job_block_term (
  tenant    TEXT NOT NULL,
  kind      TEXT NOT NULL CHECK (kind IN ('type', 'tag')),
  word      TEXT NOT NULL,
  first_seq INTEGER NOT NULL,
  PRIMARY KEY (tenant, kind, word, first_seq)
) WITHOUT ROWID;
CREATE INDEX job_block_term_block ON job_block_term (tenant, first_seq);

CREATE TRIGGER terms_go_with_their_block AFTER DELETE ON job_block
BEGIN
  DELETE FROM job_block_term WHERE tenant = OLD.tenant AND first_seq = OLD.first_seq;
END;

CREATE TRIGGER note_new_tags AFTER UPDATE OF tags ON job WHEN NEW.tags <> OLD.tags
BEGIN
  INSERT OR IGNORE INTO job_block_term (tenant, kind, word, first_seq)
  SELECT NEW.tenant, 'tag', t.value, s.first_seq
  FROM (SELECT first_seq, last_seq FROM job_block WHERE tenant = NEW.tenant AND first_seq <= NEW.seq ORDER BY first_seq DESC LIMIT 1) s
  CROSS JOIN json_each(NEW.tags) t WHERE s.last_seq >= NEW.seq;
END;
