-- Jobs and their history. job_body holds the immutable columns; job holds the mutable ones and is kept narrow.

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

-- Agents. For a limited agent, used counts the concurrency slots in use. While one is free, next_due is the run_at of
-- the next job without a slot.
CREATE TABLE agent (
  tenant          TEXT NOT NULL,
  no              INTEGER NOT NULL,
  kind            TEXT NOT NULL,
  id              TEXT NOT NULL,
  max_concurrency INTEGER CHECK (max_concurrency BETWEEN 1 AND 1000000),
  strict          INTEGER NOT NULL DEFAULT 0,
  strict_epoch             INTEGER NOT NULL DEFAULT 0,
  implicit        INTEGER NOT NULL DEFAULT 0,
  used            INTEGER NOT NULL DEFAULT 0 CHECK (used >= 0),
  next_due        INTEGER,
  backoff         TEXT,
  defaults        TEXT,
  created_at      INTEGER NOT NULL,
  updated_at      INTEGER NOT NULL,
  PRIMARY KEY (tenant, no)
) WITHOUT ROWID;
CREATE UNIQUE INDEX agent_name ON agent (tenant, kind, id);
CREATE INDEX agent_lease ON agent (tenant, kind, id) WHERE json_extract(defaults, '$.lease_seconds') IS NOT NULL;
CREATE INDEX agent_due ON agent (tenant, next_due) WHERE next_due IS NOT NULL;

-- Transitions per minute, by base eligibility key; status '' stands for creation or deletion.
-- No job counted as succeeded has a seq above last_seq.
CREATE TABLE queue_counter (
  tenant      TEXT NOT NULL,
  base        INTEGER NOT NULL,
  minute      INTEGER NOT NULL,
  from_status TEXT NOT NULL,
  to_status   TEXT NOT NULL,
  count       INTEGER NOT NULL,
  last_seq    INTEGER NOT NULL,
  PRIMARY KEY (tenant, base, minute, from_status, to_status)
) WITHOUT ROWID;

-- Distinct combinations of the fields that decide which workers can claim a job; rows are only added.
-- base is the key with the same type, requires and priority but no repository and no affinity key.
CREATE TABLE eligibility_key (
  tenant       TEXT NOT NULL,
  no           INTEGER NOT NULL,
  base         INTEGER NOT NULL,
  type         TEXT NOT NULL,
  requires     TEXT NOT NULL,
  priority     INTEGER NOT NULL,
  repository   TEXT,
  affinity_key TEXT,
  PRIMARY KEY (tenant, no)
) WITHOUT ROWID;
CREATE UNIQUE INDEX eligibility_key_once ON eligibility_key (tenant, type, priority, requires, coalesce(repository, ''), coalesce(affinity_key, ''));

-- Operator settings for all jobs of one type.
CREATE TABLE queue (
  tenant       TEXT NOT NULL,
  type         TEXT NOT NULL,
  paused_at    INTEGER,
  paused_by    TEXT,
  pause_reason TEXT,
  PRIMARY KEY (tenant, type),
  CHECK ((paused_at IS NULL) = (paused_by IS NULL))
) WITHOUT ROWID;

-- A rowid table, unlike the others: its rows are updated often, and rowid lookups make updates a quarter cheaper than
-- comparing tenant and seq at every B-tree level. No table stores the rowids; VACUUM may change them.
-- head is the chain head. metadata is that of the last transition; for claim, complete and enqueue only the history
-- row has it.
CREATE TABLE job (
  tenant              TEXT NOT NULL,
  id                  TEXT NOT NULL,
  seq                 INTEGER NOT NULL,
  status              TEXT NOT NULL,
  priority            INTEGER NOT NULL,
  eligibility_key               INTEGER NOT NULL,
  base                INTEGER NOT NULL,
  agent_no                INTEGER,
  slot_epoch           INTEGER,
  blocked             INTEGER NOT NULL DEFAULT 0,
  run_at              INTEGER NOT NULL,
  deadline            INTEGER,
  awaiting            INTEGER NOT NULL DEFAULT 0,
  timeout_seconds     REAL,
  attempt             INTEGER NOT NULL,
  max_attempts        INTEGER NOT NULL,
  worker              TEXT,
  fence               INTEGER NOT NULL,
  lease_expires_at    INTEGER,
  lease_seconds       REAL,
  heartbeat_at        INTEGER,
  approval_id             TEXT,
  version             INTEGER NOT NULL,
  releases            INTEGER NOT NULL,
  cancel_requested_at INTEGER,
  cancel_reason       TEXT,
  updated_at          INTEGER NOT NULL,
  started_at          INTEGER,
  run_started_at      INTEGER,
  finished_at         INTEGER,
  verb                TEXT NOT NULL,
  actor               TEXT NOT NULL,
  reason              TEXT,
  metadata            TEXT,
  head                BLOB NOT NULL DEFAULT x'',
  error               TEXT,
  tags                TEXT NOT NULL DEFAULT '[]',
  sanitized           INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant, seq),
  -- No IN with more than two values in a CHECK: SQLite would build a temporary index for it at every write.
  -- The most common status comes first.
  CONSTRAINT status_is_known CHECK
    (CASE status WHEN 'running' THEN 1 WHEN 'succeeded' THEN 1 WHEN 'queued' THEN 1 WHEN 'retry' THEN 1
                 WHEN 'waiting_for_approval' THEN 1 WHEN 'failed' THEN 1 WHEN 'dead_letter' THEN 1
                 WHEN 'cancelled' THEN 1 ELSE 0 END),
  CONSTRAINT finished_exactly_when_ended CHECK
    ((finished_at IS NULL) = (CASE status WHEN 'running' THEN 1 WHEN 'succeeded' THEN 0 WHEN 'queued' THEN 1 WHEN 'retry' THEN 1
                                          WHEN 'waiting_for_approval' THEN 1 ELSE 0 END)),
  CONSTRAINT leased_exactly_when_running CHECK
    (CASE WHEN status = 'running' THEN worker IS NOT NULL AND lease_expires_at IS NOT NULL
          ELSE worker IS NULL AND lease_expires_at IS NULL END),
  CONSTRAINT has_a_slot_to_run CHECK (blocked = 0 OR (status <> 'running' AND agent_no IS NOT NULL)),
  CONSTRAINT approval_exactly_when_waiting CHECK ((approval_id IS NOT NULL) = (status = 'waiting_for_approval')),
  CONSTRAINT error_fits_status CHECK
    (CASE status WHEN 'running' THEN 1 WHEN 'succeeded' THEN error IS NULL WHEN 'failed' THEN error IS NOT NULL
                 WHEN 'dead_letter' THEN error IS NOT NULL ELSE 1 END),
  CONSTRAINT running_has_started CHECK (status <> 'running' OR (started_at IS NOT NULL AND run_started_at IS NOT NULL)),
  CONSTRAINT attempt_within_max CHECK (attempt BETWEEN 1 AND max_attempts AND max_attempts <= 100),
  CONSTRAINT priority_in_range CHECK (priority BETWEEN -1000 AND 1000)
);
CREATE UNIQUE INDEX job_id ON job (tenant, id);
CREATE INDEX job_ready ON job (tenant, eligibility_key, run_at, seq) WHERE status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0;
CREATE INDEX job_ready_base ON job (tenant, base, run_at, seq)
  WHERE eligibility_key <> base AND status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0;
-- Jobs without a concurrency slot of their agent, and all unfinished jobs of each agent.
CREATE INDEX job_blocked ON job (tenant, agent_no, run_at, seq) WHERE blocked = 1 AND finished_at IS NULL;
CREATE INDEX job_of_agent ON job (tenant, agent_no, blocked) WHERE agent_no IS NOT NULL AND finished_at IS NULL;
CREATE INDEX job_deadline ON job (tenant, deadline)
  WHERE deadline IS NOT NULL AND status IN ('queued', 'retry', 'waiting_for_approval');
CREATE INDEX job_lease ON job (tenant, lease_expires_at) WHERE status = 'running';

CREATE TABLE job_body (
  tenant               TEXT NOT NULL,
  id                   TEXT NOT NULL,
  seq                  INTEGER NOT NULL,
  type                 TEXT NOT NULL,
  created_at           INTEGER NOT NULL,
  created_by           TEXT NOT NULL,
  requested_by         TEXT,
  parent_id            TEXT,
  redrive_of           TEXT,
  agent_kind           TEXT,
  agent_id             TEXT,
  repository           TEXT,
  affinity_key         TEXT,
  requires             TEXT NOT NULL,
  idempotency_key      TEXT,
  body_sha256          BLOB,
  backoff              TEXT,
  expiry_delay_seconds REAL,
  headers              TEXT,
  traceparent          TEXT,
  webhook              TEXT,
  payload              TEXT NOT NULL,
  PRIMARY KEY (tenant, seq)
) WITHOUT ROWID;
CREATE UNIQUE INDEX job_idempotency_key ON job_body (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX job_agent ON job_body (tenant, agent_kind, agent_id, seq) WHERE agent_kind IS NOT NULL;
CREATE INDEX job_parent ON job_body (tenant, parent_id) WHERE parent_id IS NOT NULL;

-- Results of jobs that returned any.
CREATE TABLE job_result (
  tenant         TEXT NOT NULL,
  seq            INTEGER NOT NULL,
  result         TEXT,
  result_summary TEXT,
  usage          TEXT,
  sanitized      INTEGER NOT NULL,
  PRIMARY KEY (tenant, seq)
) WITHOUT ROWID;

-- The jobs leased under each claim ID, so that a repeated claim returns the same jobs.
CREATE TABLE claim_result (
  tenant   TEXT NOT NULL,
  worker   TEXT NOT NULL,
  claim_id TEXT NOT NULL,
  leased  TEXT NOT NULL,
  at       INTEGER NOT NULL,
  PRIMARY KEY (tenant, worker, claim_id)
) WITHOUT ROWID;

-- Unfinished children that a released job waits for.
CREATE TABLE job_await (
  tenant   TEXT NOT NULL,
  child_id TEXT NOT NULL,
  job_id   TEXT NOT NULL,
  PRIMARY KEY (tenant, child_id, job_id)
) WITHOUT ROWID;
CREATE INDEX job_await_parent ON job_await (tenant, job_id);

-- The last checkpoint of each job.
CREATE TABLE job_checkpoint (
  tenant TEXT NOT NULL,
  job_id TEXT NOT NULL,
  seq    INTEGER NOT NULL,
  data   TEXT NOT NULL,
  sanitized INTEGER NOT NULL,
  at     INTEGER NOT NULL,
  PRIMARY KEY (tenant, job_id)
) WITHOUT ROWID;

-- Every transition of every job, by the job's seq; each hash covers the row, the job ID and the previous hash.
CREATE TABLE job_history (
  tenant      TEXT NOT NULL,
  seq         INTEGER NOT NULL,
  version     INTEGER NOT NULL,
  from_status TEXT,
  to_status   TEXT NOT NULL,
  verb        TEXT NOT NULL,
  actor       TEXT NOT NULL,
  attempt     INTEGER NOT NULL,
  fence       INTEGER NOT NULL,
  reason      TEXT,
  metadata    TEXT,
  at          INTEGER NOT NULL,
  hash        BLOB NOT NULL,
  PRIMARY KEY (tenant, seq, version)
) WITHOUT ROWID;
