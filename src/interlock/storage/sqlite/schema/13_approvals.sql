-- Approvals, their votes, and the hash of the approval link token.

CREATE TABLE approval (
  tenant          TEXT NOT NULL,
  id              TEXT NOT NULL,
  job_id          TEXT NOT NULL,
  fence           INTEGER NOT NULL,
  status          TEXT NOT NULL,
  prompt          TEXT NOT NULL,
  details         TEXT,
  risk            TEXT,
  schema          TEXT,
  digest          TEXT NOT NULL,
  required        INTEGER NOT NULL,
  on_deny         TEXT NOT NULL,
  kind            TEXT NOT NULL,
  name            TEXT,
  occurrence      INTEGER NOT NULL,
  opened_by       TEXT NOT NULL,
  opened_at       INTEGER NOT NULL,
  expires_at      INTEGER NOT NULL,
  closed_by       TEXT,
  closed_at       INTEGER,
  comment         TEXT,
  data            TEXT,
  token_sha256    BLOB,
  link_created_by TEXT,
  link_created_at INTEGER,
  PRIMARY KEY (tenant, id),
  CONSTRAINT status_is_known CHECK (status IN ('open', 'approved', 'denied', 'expired', 'void')),
  CONSTRAINT closed_exactly_when_not_open CHECK ((closed_at IS NULL) = (status = 'open')),
  CONSTRAINT decided_by_a_principal CHECK ((closed_by IS NOT NULL) = (status = 'approved' OR status = 'denied')),
  CONSTRAINT data_only_with_approval CHECK (data IS NULL OR (status = 'approved' AND required = 1)),
  CONSTRAINT link_only_for_one_vote CHECK (token_sha256 IS NULL OR (required = 1 AND length(token_sha256) = 32)),
  CONSTRAINT link_has_a_maker CHECK
    ((token_sha256 IS NULL) = (link_created_by IS NULL) AND (token_sha256 IS NULL) = (link_created_at IS NULL)),
  CONSTRAINT digest_is_sha256 CHECK (length(digest) = 64),
  CONSTRAINT required_in_range CHECK (required BETWEEN 1 AND 100),
  CONSTRAINT on_deny_is_known CHECK (on_deny IN ('fail', 'resume')),
  CONSTRAINT kind_is_known CHECK (kind = 'approval' OR (kind = 'question' AND required = 1 AND on_deny = 'resume'))
) WITHOUT ROWID;
CREATE UNIQUE INDEX approval_one_open ON approval (tenant, job_id) WHERE status = 'open';
CREATE UNIQUE INDEX approval_of_lease ON approval (tenant, job_id, fence);
CREATE UNIQUE INDEX approval_token ON approval (token_sha256) WHERE token_sha256 IS NOT NULL;
CREATE INDEX approval_newest ON approval (tenant, opened_at, id);
CREATE INDEX approval_open ON approval (tenant, opened_at, id) WHERE status = 'open';
CREATE INDEX approval_due ON approval (tenant, expires_at) WHERE status = 'open';

-- Votes, at most one per principal and approval.
CREATE TABLE approval_vote (
  tenant      TEXT NOT NULL,
  approval_id TEXT NOT NULL,
  voter       TEXT NOT NULL,
  job_id      TEXT NOT NULL,
  decision    TEXT NOT NULL,
  comment     TEXT,
  at          INTEGER NOT NULL,
  PRIMARY KEY (tenant, approval_id, voter),
  CONSTRAINT decision_is_known CHECK (decision IN ('approve', 'deny'))
) WITHOUT ROWID;
CREATE INDEX approval_vote_job ON approval_vote (tenant, job_id);

-- An approval closes when its job stops waiting. A decision closes it first; any other transition closes it here.
-- The condition calls the function only so that other tools fail with its name before any other error.
CREATE TRIGGER approval_closes_with_the_wait AFTER UPDATE OF approval_id ON job
WHEN OLD.approval_id IS NOT NULL AND only_interlock_may_change_jobs() IS NOT NULL
BEGIN
  UPDATE approval SET status = CASE NEW.verb WHEN 'expire' THEN 'expired' ELSE 'void' END, closed_at = interlock_clock()
  WHERE tenant = OLD.tenant AND id = OLD.approval_id AND id IS NOT NEW.approval_id AND status = 'open';
END;

-- A decision also makes a transition of its job. With direct SQL the only way to close an approval is to end the wait
-- of its job (trigger above).
CREATE TRIGGER approval_is_decided_with_its_job BEFORE UPDATE OF status, closed_by, closed_at, comment, data ON approval
WHEN only_interlock_may_change_jobs() AND OLD.status = 'open'
  AND EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND id = OLD.job_id AND approval_id = OLD.id)
BEGIN
  SELECT RAISE(ABORT, 'interlock: an approval is closed by the operation that moves its job on; decide it with interlock approvals');
END;

CREATE TRIGGER approval_comes_with_its_wait BEFORE INSERT ON approval WHEN only_interlock_may_change_jobs()
BEGIN
  SELECT RAISE(ABORT, 'interlock: an approval is not replaced by another, and only the operation that makes its job wait opens one');
END;

CREATE TRIGGER vote_is_cast_by_a_decision BEFORE INSERT ON approval_vote WHEN only_interlock_may_change_jobs()
BEGIN
  SELECT RAISE(ABORT, 'interlock: a vote never changes, and is cast only by deciding the approval');
END;

CREATE TRIGGER approval_is_decided_once BEFORE UPDATE ON approval WHEN OLD.status <> 'open'
BEGIN
  SELECT RAISE(ABORT, 'interlock: an approval is decided once; a closed one never changes');
END;

CREATE TRIGGER approval_keeps_its_question BEFORE UPDATE OF tenant, id, job_id, fence, prompt, details, risk, schema, digest, required,
  on_deny, kind, name, occurrence, opened_by, opened_at, expires_at ON approval
BEGIN
  SELECT RAISE(ABORT, 'interlock: what people are asked never changes');
END;

-- REPLACE would delete rows that conflict with the new row or link.
CREATE TRIGGER approval_is_not_replaced BEFORE INSERT ON approval
WHEN EXISTS (SELECT 1 FROM approval WHERE tenant = NEW.tenant AND id = NEW.id)
  OR EXISTS (SELECT 1 FROM approval WHERE tenant = NEW.tenant AND job_id = NEW.job_id AND (fence = NEW.fence OR status = 'open'))
  OR EXISTS (SELECT 1 FROM approval WHERE token_sha256 = NEW.token_sha256)
BEGIN
  SELECT RAISE(ABORT, 'interlock: an approval is not replaced by another');
END;

CREATE TRIGGER approval_link_is_of_one BEFORE UPDATE OF token_sha256 ON approval
WHEN EXISTS (SELECT 1 FROM approval WHERE token_sha256 = NEW.token_sha256 AND (tenant, id) <> (NEW.tenant, NEW.id))
BEGIN
  SELECT RAISE(ABORT, 'interlock: an approval is not replaced by another');
END;

CREATE TRIGGER approval_goes_with_its_job BEFORE DELETE ON approval
WHEN EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock: an approval goes only with its job');
END;

CREATE TRIGGER vote_never_changes BEFORE UPDATE ON approval_vote
BEGIN
  SELECT RAISE(ABORT, 'interlock: a vote never changes');
END;

CREATE TRIGGER vote_is_not_replaced BEFORE INSERT ON approval_vote
WHEN EXISTS (SELECT 1 FROM approval_vote WHERE tenant = NEW.tenant AND approval_id = NEW.approval_id AND voter = NEW.voter)
BEGIN
  SELECT RAISE(ABORT, 'interlock: a vote never changes');
END;

CREATE TRIGGER vote_goes_with_its_job BEFORE DELETE ON approval_vote
WHEN EXISTS (SELECT 1 FROM job WHERE tenant = OLD.tenant AND id = OLD.job_id)
BEGIN
  SELECT RAISE(ABORT, 'interlock: a vote goes only with its job');
END;
