-- Jobs. job_body holds the columns that never change; job holds the mutable ones and is kept narrow.

-- A rowid table, unlike the others: its rows are updated often, and rowid lookups make updates a quarter cheaper than
-- comparing tenant and seq at every B-tree level. No table stores the rowids; VACUUM may change them.
-- across_repositories and across_keys are the eligibility key without the repository or the affinity key, if the job has
-- one: a worker that accepts any of them reads one index range for any number of them. head is the chain head. metadata is that of the last transition; for claim, complete and enqueue only the history
-- row has it.
CREATE TABLE job (
  tenant              TEXT NOT NULL,
  id                  TEXT NOT NULL,
  seq                 INTEGER NOT NULL,
  status              TEXT NOT NULL,
  priority            INTEGER NOT NULL,
  eligibility_key     INTEGER NOT NULL,
  base                INTEGER NOT NULL,
  across_repositories INTEGER,
  across_keys         INTEGER,
  agent_no            INTEGER,
  slot_epoch          INTEGER,
  blocked             INTEGER NOT NULL DEFAULT 0,
  limit_name          TEXT, -- the bucket in which it was parked; see flow.py
  limit_key           TEXT,
  parked              INTEGER NOT NULL DEFAULT 0,
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
  approval_id         TEXT,
  version             INTEGER NOT NULL,
  releases            INTEGER NOT NULL,
  cancel_requested_at INTEGER,
  cancel_reason       TEXT,
  updated_at          INTEGER NOT NULL,
  started_at          INTEGER,
  run_started_at      INTEGER,
  finished_at         INTEGER,
  acknowledged_at     INTEGER,
  acknowledged_by     TEXT,
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
  CONSTRAINT only_failures_are_acknowledged CHECK
    (acknowledged_at IS NULL AND acknowledged_by IS NULL
      OR acknowledged_at IS NOT NULL AND acknowledged_by IS NOT NULL AND (status = 'failed' OR status = 'dead_letter')),
  CONSTRAINT running_has_started CHECK (status <> 'running' OR (started_at IS NOT NULL AND run_started_at IS NOT NULL)),
  CONSTRAINT attempt_within_max CHECK (attempt BETWEEN 1 AND max_attempts AND max_attempts <= 100),
  CONSTRAINT priority_in_range CHECK (priority BETWEEN -1000 AND 1000)
);
CREATE UNIQUE INDEX job_id ON job (tenant, id);
CREATE INDEX job_ready ON job (tenant, eligibility_key, run_at, seq) WHERE status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0;
CREATE INDEX job_ready_base ON job (tenant, base, run_at, seq)
  WHERE eligibility_key <> base AND status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0;
CREATE INDEX job_ready_across_repositories ON job (tenant, across_repositories, run_at, seq)
  WHERE across_repositories IS NOT NULL AND status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0;
CREATE INDEX job_ready_across_keys ON job (tenant, across_keys, run_at, seq)
  WHERE across_keys IS NOT NULL AND status IN ('queued', 'retry') AND awaiting = 0 AND blocked = 0;
-- Jobs without a concurrency slot of their agent, and all unfinished jobs of each agent.
CREATE INDEX job_blocked ON job (tenant, agent_no, run_at, seq) WHERE blocked = 1 AND finished_at IS NULL;
CREATE INDEX job_line ON job (tenant, agent_no, eligibility_key, run_at, seq) WHERE blocked = 1 AND finished_at IS NULL;
CREATE INDEX job_of_agent ON job (tenant, agent_no, blocked) WHERE agent_no IS NOT NULL AND finished_at IS NULL;
-- Jobs that are or were parked in a bucket.
CREATE INDEX job_parked ON job (tenant, limit_name, limit_key, parked, eligibility_key, run_at, seq)
  WHERE limit_name IS NOT NULL AND (status = 'queued' OR status = 'retry');
CREATE INDEX job_deadline ON job (tenant, deadline)
  WHERE deadline IS NOT NULL AND status IN ('queued', 'retry', 'waiting_for_approval');
CREATE INDEX job_lease ON job (tenant, lease_expires_at) WHERE status = 'running';
-- Jobs in status retry, failed, dead_letter or cancelled, also by base: few rows, and the ones operators search for.
-- No IN: with more than two values it would build a temporary index at every write.
CREATE INDEX job_unsuccessful ON job (tenant, status, seq) WHERE status <> 'queued' AND status <> 'running' AND status <> 'succeeded' AND status <> 'waiting_for_approval';
CREATE INDEX job_unsuccessful_base ON job (tenant, status, base, seq) WHERE status <> 'queued' AND status <> 'running' AND status <> 'succeeded' AND status <> 'waiting_for_approval';
-- Failed and dead-letter jobs that were not acknowledged.
CREATE INDEX job_unacknowledged ON job (tenant, seq) WHERE (status = 'failed' OR status = 'dead_letter') AND acknowledged_at IS NULL;

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
  key_generation       INTEGER NOT NULL DEFAULT 0, -- 0: the key lasts as long as the job; else it ends, and the next job has the next one
  body_sha256          BLOB,
  backoff              TEXT,
  expiry_delay_seconds REAL,
  headers              TEXT,
  traceparent          TEXT,
  webhook              TEXT,
  limits               TEXT,
  budget               TEXT,
  payload              TEXT NOT NULL,
  PRIMARY KEY (tenant, seq)
) WITHOUT ROWID;
CREATE UNIQUE INDEX job_idempotency_key ON job_body (tenant, idempotency_key, key_generation) WHERE idempotency_key IS NOT NULL;
CREATE INDEX job_agent ON job_body (tenant, agent_kind, agent_id, seq) WHERE agent_kind IS NOT NULL;
CREATE INDEX job_parent ON job_body (tenant, parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX job_redrive ON job_body (tenant, redrive_of) WHERE redrive_of IS NOT NULL;
CREATE INDEX job_webhook ON job_body (tenant, seq) WHERE webhook IS NOT NULL;

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
  leased   TEXT NOT NULL,
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

-- A job as the API returns it, from its state, body, result and checkpoint; then its base, agent number and chain head.
-- CASE avoids the lookup of values that most jobs do not have.
CREATE VIEW job_view AS
SELECT {stored}, j.lease_expires_at, CASE WHEN j.status = 'running' THEN j.heartbeat_at END AS heartbeat_at,
  CASE WHEN j.awaiting = 0 THEN '[]' ELSE
    (SELECT json_group_array(a.child_id) FROM job_await a WHERE a.tenant = j.tenant AND a.job_id = j.id)
  END AS awaiting,
  CASE WHEN j.status = 'queued' AND j.fence > 0 THEN
    (SELECT CASE WHEN w.topic IS NULL THEN json_object('name', w.name, 'after', w.after_seq)
       ELSE json_object('topic', w.topic, 'after', w.after_seq) END
     FROM message_wait w WHERE w.tenant = j.tenant AND w.job_id = j.id AND w.fence = j.fence) END AS awaiting_message,
  CASE WHEN j.fence > 0 OR b.redrive_of IS NOT NULL THEN
    (SELECT c.data FROM job_checkpoint c WHERE c.tenant = j.tenant AND c.job_id = j.id) END AS checkpoint,
  CASE WHEN j.fence > 0 OR b.redrive_of IS NOT NULL THEN
    (SELECT c.seq FROM job_checkpoint c WHERE c.tenant = j.tenant AND c.job_id = j.id) END AS checkpoint_seq,
  CASE WHEN j.status = 'succeeded' THEN
    (SELECT r.usage FROM job_result r WHERE r.tenant = j.tenant AND r.seq = j.seq) END AS usage,
  CASE WHEN j.status = 'succeeded' OR j.status = 'failed' THEN
    (SELECT r.result FROM job_result r WHERE r.tenant = j.tenant AND r.seq = j.seq) END AS result,
  CASE WHEN j.status = 'succeeded' THEN
    (SELECT r.result_summary FROM job_result r WHERE r.tenant = j.tenant AND r.seq = j.seq) END AS result_summary,
  j.sanitized
    OR CASE WHEN j.fence > 0 OR b.redrive_of IS NOT NULL THEN
      coalesce((SELECT c.sanitized FROM job_checkpoint c WHERE c.tenant = j.tenant AND c.job_id = j.id), 0) ELSE 0 END
    OR CASE WHEN j.status = 'succeeded' THEN
      coalesce((SELECT r.sanitized FROM job_result r WHERE r.tenant = j.tenant AND r.seq = j.seq), 0) ELSE 0 END AS sanitized,
  CASE WHEN j.fence > 0 OR b.redrive_of IS NOT NULL THEN max(j.updated_at,
      coalesce((SELECT c.at FROM job_checkpoint c WHERE c.tenant = j.tenant AND c.job_id = j.id), 0))
    ELSE j.updated_at END AS updated_at,
  j.blocked, j.base, j.agent_no, j.head
FROM job j CROSS JOIN job_body b ON b.tenant = j.tenant AND b.seq = j.seq;
