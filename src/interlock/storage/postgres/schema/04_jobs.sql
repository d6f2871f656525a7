-- Jobs, and the narrow tables that index them: ready (claimable jobs), lease (running jobs) and unsuccessful_job (for
-- lists).

-- Except for primary keys, all indexes are partial, some with a condition that every row satisfies. The planner
-- considers such an index only if the statement implies the condition. Without that, all ranges of a tenant look equal
-- to it while a table is still empty, and a lookup by id could scan the tenant's whole sequence.

-- The order matters: statuses up to 'retry' wait for a worker, those from 'succeeded' on are terminal.
create type interlock.status as enum
  ('queued', 'retry', 'waiting_for_approval', 'running', 'succeeded', 'failed', 'dead_letter', 'cancelled');

-- Fixed-size columns that are never null come first: PostgreSQL reads them at a constant offset, and also the tenant
-- after them if it starts at a multiple of four. What a job keeps from its creation is at both ends, above all the
-- payload, and what transitions change is in between: the log of an update omits the bytes that both versions begin
-- with and those that both end with.
create table interlock.job (
  id                   uuid        not null,
  seq                  bigint      not null generated always as identity,
  eligibility_key      bigint      not null,
  base                 bigint      not null,
  run_at               timestamptz not null,
  created_at           timestamptz not null,
  priority             integer     not null,
  max_attempts         integer     not null,
  releases             integer     not null,
  key_generation       integer     not null default 0,
  fence                bigint      not null,
  updated_at           timestamptz not null,
  status               interlock.status not null,
  attempt              integer     not null,
  version              integer     not null,
  tenant               text collate "C" not null,
  type                 text collate "C" not null,
  head                 bytea       not null,
  verb                 text collate "C" not null,
  actor                text collate "C" not null,
  previous             interlock.status,
  reason               text collate "C",
  metadata             text collate "C",
  worker               text collate "C",
  lease_seconds        double precision,
  lease_expires_at     timestamptz,
  run_started_at       timestamptz,
  started_at           timestamptz,
  finished_at          timestamptz,
  slot_epoch           integer,
  approval_id          uuid,
  acknowledged_at      timestamptz,
  cancel_requested_at  timestamptz,
  sanitized            boolean     not null default false,
  acknowledged_by      text collate "C",
  cancel_reason        text collate "C",
  error                text collate "C",
  result               text collate "C",
  result_summary       text collate "C",
  usage                text collate "C",
  created_by           text collate "C" not null,
  requires             text[] collate "C" not null,
  tags                 text[] collate "C" not null,
  payload              text collate "C" not null,
  agent_no             bigint,
  parent_id            uuid,
  webhook              text collate "C",
  timeout_seconds      double precision,
  deadline             timestamptz,
  expiry_delay_seconds double precision,
  redrive_of           uuid,
  agent_kind           text collate "C",
  agent_id             text collate "C",
  repository           text collate "C",
  affinity_key         text collate "C",
  idempotency_key      text collate "C",
  body_sha256          bytea,
  backoff              text collate "C",
  headers              text collate "C",
  traceparent          text collate "C",
  requested_by         text collate "C",
  limits               text collate "C",
  budget               text collate "C",
  primary key (tenant, id),
  constraint finished_exactly_when_ended check ((finished_at is not null) = (status >= 'succeeded')),
  constraint leased_exactly_when_running check
    ((worker is not null) = (status = 'running') and (lease_expires_at is not null) = (worker is not null)),
  constraint approval_exactly_when_waiting check ((approval_id is not null) = (status = 'waiting_for_approval')),
  constraint error_fits_status check
    (case when error is null then status not in ('failed', 'dead_letter') else status <> 'succeeded' end),
  constraint only_failures_are_acknowledged check
    ((acknowledged_at is null) = (acknowledged_by is null) and (acknowledged_at is null or status in ('failed', 'dead_letter'))),
  constraint running_has_started check (worker is null or (started_at is not null and run_started_at is not null)),
  constraint attempt_within_max check (attempt between 1 and max_attempts and max_attempts <= 100),
  constraint priority_in_range check (abs(priority) <= 1000)
) with (fillfactor = 30);
create unique index job_idempotency_key on interlock.job (tenant, idempotency_key, key_generation) where idempotency_key is not null;
-- Not unique: numbers come from a sequence, and a unique index would be searched twice for every new job.
create index job_seq on interlock.job (tenant, seq) where seq is not null;
create index job_parent on interlock.job (tenant, parent_id, seq) where parent_id is not null;
create index job_redrive on interlock.job (tenant, redrive_of) where redrive_of is not null;
create index job_agent on interlock.job (tenant, agent_kind, agent_id, seq) where agent_kind is not null;

-- The columns that a job was created with never change. Per statement: comparing this many columns per row is expensive.
create function interlock.refuse_identity() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: what a job was created with, its payload above all, never changes' using errcode = 'check_violation';
end $$;
create trigger guard_identity before update of tenant, id, seq, type, payload, headers, traceparent, created_at, created_by,
  requested_by, parent_id, redrive_of, idempotency_key, key_generation, body_sha256, agent_kind, agent_id, agent_no, repository, affinity_key, requires,
  webhook, backoff, expiry_delay_seconds, limits, budget on interlock.job for each statement execute function interlock.refuse_identity();

comment on table interlock.job is
  'All jobs; ready and lease are indexes of this table. No mutable column is indexed, so that updates are HOT updates.';
comment on column interlock.job.id is 'A UUIDv7. Not an order: use seq.';
comment on column interlock.job.seq is 'Order of arrival.';
comment on column interlock.job.eligibility_key is 'Eligibility key: its type, requires, priority, repository and affinity key.';
comment on column interlock.job.agent_no is 'Number of the agent that it runs for.';
comment on column interlock.job.slot_epoch is
  'Strict epoch of its agent when it last stopped running and kept its slot; null if it released the slot.';
comment on column interlock.job.base is 'Eligibility key without repository and affinity key.';
comment on column interlock.job.fence is 'Rises with every lease and is never reused; proves that a worker holds the current lease.';
comment on column interlock.job.run_at is 'Earliest start; in retry, of the next attempt.';
comment on column interlock.job.created_at is 'Time of the enqueue, by the database clock.';
comment on column interlock.job.updated_at is 'Time of the last change; set by the database.';
comment on column interlock.job.status is 'Status of the job; transitions are checked by the trigger guard_move.';
comment on column interlock.job.priority is 'Higher first, -1000 to 1000.';
comment on column interlock.job.attempt is 'Number of the attempt, from 1; every retry raises it by one.';
comment on column interlock.job.max_attempts is 'Maximum number of attempts, 1 to 100.';
comment on column interlock.job.version is 'Version of its newest history row; every transition raises it by one.';
comment on column interlock.job.releases is 'Number of releases.';
comment on column interlock.job.sanitized is 'Whether invalid Unicode from a worker was replaced.';
comment on column interlock.job.lease_expires_at is 'Initial expiry of the lease; heartbeats extend it in lease, not here.';
comment on column interlock.job.started_at is 'Start of the first run.';
comment on column interlock.job.run_started_at is 'Start of the newest run.';
comment on column interlock.job.finished_at is 'Time at which it became terminal.';
comment on column interlock.job.acknowledged_at is 'Time at which its failure was acknowledged; set by the database.';
comment on column interlock.job.acknowledged_by is 'Principal that acknowledged its failure.';
comment on column interlock.job.deadline is 'No run starts at or after this time.';
comment on column interlock.job.cancel_requested_at is 'Time of the first cancel request.';
comment on column interlock.job.previous is 'Status before the newest transition; null at creation.';
comment on column interlock.job.head is 'Chain head: hash of its newest history row.';
comment on column interlock.job.lease_seconds is 'Requested lease duration.';
comment on column interlock.job.timeout_seconds is 'Maximum duration of one run.';
comment on column interlock.job.expiry_delay_seconds is 'Delay after a lease expiry; null means none.';
comment on column interlock.job.approval_id is 'Approval that it waits for.';
comment on column interlock.job.parent_id is 'Parent job; a soft reference.';
comment on column interlock.job.redrive_of is 'Terminal job that this one redrives; a soft reference.';
comment on column interlock.job.limits is 'JSON: name, key and cost of each limit that a run reserves.';
comment on column interlock.job.budget is 'JSON: what the job and its descendants may use, by unit.';
comment on column interlock.job.type is 'Type, which names the task; the jobs of one type are a queue.';
comment on column interlock.job.worker is 'Lease holder.';
comment on column interlock.job.verb is 'Operation of the newest transition; copied into history.';
comment on column interlock.job.actor is 'Principal of the newest transition; copied into history.';
comment on column interlock.job.reason is 'Reason of the newest transition; copied into history.';
comment on column interlock.job.metadata is 'JSON: metadata of the newest transition, copied into history; that of an enqueue is only there.';
comment on column interlock.job.cancel_reason is 'Reason of the cancel request.';
comment on column interlock.job.error is 'JSON: message, kind and details of the last failed attempt.';
comment on column interlock.job.created_by is 'Principal that enqueued it.';
comment on column interlock.job.requires is 'Capabilities a worker must have, sorted.';
comment on column interlock.job.tags is 'Free-form tags for filters.';
comment on column interlock.job.agent_kind is 'Kind of the agent that it runs for.';
comment on column interlock.job.agent_id is 'ID of the agent that it runs for.';
comment on column interlock.job.repository is 'Only workers with access to this repository can claim the job.';
comment on column interlock.job.affinity_key is 'Only workers that accept this key can claim the job.';
comment on column interlock.job.idempotency_key is 'Idempotency key; a repeated request returns this job.';
comment on column interlock.job.key_generation is '0: the key is valid as long as the job exists; otherwise it expires, and the next job with the key has the next number.';
comment on column interlock.job.body_sha256 is 'SHA-256 of the request with the idempotency key.';
comment on column interlock.job.backoff is 'JSON: backoff policy; null means the default.';
comment on column interlock.job.headers is 'JSON object of strings, passed to the worker.';
comment on column interlock.job.traceparent is 'W3C trace context of the caller.';
comment on column interlock.job.webhook is 'URL that receives the terminal event.';
comment on column interlock.job.requested_by is 'Principal on whose behalf it was enqueued, as given by the caller; never trusted.';
comment on column interlock.job.result is 'Exact JSON text from the worker.';
comment on column interlock.job.result_summary is 'A short text for lists.';
comment on column interlock.job.usage is 'JSON: tokens and cost.';
comment on column interlock.job.payload is 'Exact JSON text of the request; immutable.';

create table interlock.ready (
  tenant              text collate "C" not null,
  eligibility_key     bigint      not null,
  base                bigint      not null,
  run_at              timestamptz not null,
  seq                 bigint      not null,
  job_id              uuid        not null,
  agent_no            bigint,
  deadline            timestamptz,
  blocked             boolean     not null default false,
  across_repositories bigint,
  across_keys         bigint,
  parked              boolean     not null default false,
  limit_name          text collate "C",
  limit_key           text collate "C"
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index ready_eligibility_key on interlock.ready (tenant, eligibility_key, run_at, seq) where not blocked;
create index ready_base on interlock.ready (tenant, base, run_at, seq) where eligibility_key <> base and not blocked;
create index ready_across_repositories on interlock.ready (tenant, across_repositories, run_at, seq)
  where across_repositories is not null and not blocked;
create index ready_across_keys on interlock.ready (tenant, across_keys, run_at, seq) where across_keys is not null and not blocked;
create index ready_agent_no on interlock.ready (tenant, agent_no, blocked, run_at, seq) where agent_no is not null;
create index ready_line on interlock.ready (tenant, agent_no, eligibility_key, run_at, seq) where blocked;
create index ready_parked on interlock.ready (tenant, limit_name, limit_key, parked, eligibility_key, run_at, seq) where limit_name is not null;
create index ready_deadline on interlock.ready (tenant, deadline) where deadline is not null;
comment on table interlock.ready is
  'One row for each queued or retrying job that waits only for its time, a concurrency slot of its agent, and a worker; '
  'kept by the triggers of job. Only rows that are not blocked are in the indexes that a claim reads.';
comment on column interlock.ready.eligibility_key is 'Eligibility key of the job.';
comment on column interlock.ready.base is 'Base of that key.';
comment on column interlock.ready.run_at is 'Time at which it is due.';
comment on column interlock.ready.seq is 'Order of arrival.';
comment on column interlock.ready.job_id is 'The job.';
comment on column interlock.ready.deadline is 'Deadline of the job.';
comment on column interlock.ready.agent_no is 'Agent that it runs for.';
comment on column interlock.ready.blocked is 'Whether it lacks a concurrency slot of its agent.';
comment on column interlock.ready.across_repositories is 'Eligibility key without the repository, if it has one.';
comment on column interlock.ready.across_keys is 'Eligibility key without the affinity key, if it has one.';
comment on column interlock.ready.parked is 'Whether it is parked in the bucket of a limit.';
comment on column interlock.ready.limit_name is 'Limit of the bucket in which it is or was parked.';
comment on column interlock.ready.limit_key is 'Key of that bucket.';

create table interlock.lease (
  tenant       text collate "C" not null,
  job_id       uuid        not null,
  fence        bigint      not null,
  worker       text collate "C" not null,
  seconds      double precision not null,
  expires_at   timestamptz not null,
  run_ends_at  timestamptz,
  heartbeat_at timestamptz,
  agent_no     bigint,
  primary key (tenant, job_id)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index lease_expiry on interlock.lease (tenant, expires_at) where expires_at is not null;
comment on table interlock.lease is 'One row for each running job: lease holder and expiry; maintained by the triggers of job, extended by heartbeats.';
comment on column interlock.lease.job_id is 'The running job.';
comment on column interlock.lease.fence is 'The fence of this lease.';
comment on column interlock.lease.worker is 'Lease holder.';
comment on column interlock.lease.seconds is 'Default extension by a heartbeat.';
comment on column interlock.lease.expires_at is 'Time of expiry, unless a heartbeat extends it.';
comment on column interlock.lease.run_ends_at is 'Time at which the timeout ends the run.';
comment on column interlock.lease.heartbeat_at is 'Time of the last heartbeat.';
comment on column interlock.lease.agent_no is 'Agent that the job runs for.';

create table interlock.claim_result (
  tenant   text collate "C" not null,
  worker   text collate "C" not null,
  claim_id text collate "C" not null,
  job_ids  uuid[]      not null,
  fences   bigint[]    not null,
  at       timestamptz not null,
  primary key (tenant, worker, claim_id)
);
alter table interlock.claim_result alter job_ids set storage external;  -- IDs hardly compress
comment on table interlock.claim_result is 'Jobs leased under each claim ID, so that a repeated claim returns the same jobs.';
comment on column interlock.claim_result.worker is 'Worker that claimed.';
comment on column interlock.claim_result.claim_id is 'Claim ID chosen by the worker.';
comment on column interlock.claim_result.job_ids is 'Leased jobs.';
comment on column interlock.claim_result.fences is 'The fence of each lease, in the same order.';
comment on column interlock.claim_result.at is 'Time of the last use.';

create table interlock.job_await (
  tenant   text collate "C" not null,
  child_id uuid not null,
  job_id   uuid not null,
  deadline timestamptz,
  primary key (tenant, child_id, job_id)
);
create index job_await_parent on interlock.job_await (tenant, job_id);
create index job_await_deadline on interlock.job_await (tenant, deadline) where deadline is not null;
comment on table interlock.job_await is 'Children that a released job waits for.';
comment on column interlock.job_await.child_id is 'Child that is not terminal.';
comment on column interlock.job_await.job_id is 'Parent that waits.';
comment on column interlock.job_await.deadline is 'Deadline of the parent.';

create table interlock.unsuccessful_job (
  seq    bigint not null,
  job_id uuid   not null,
  status text collate "C" not null,
  tenant text collate "C" not null,
  type   text collate "C" not null,
  acknowledged boolean not null default false,
  primary key (tenant, status, seq)
);
create index unsuccessful_job_type on interlock.unsuccessful_job (tenant, status, type, seq);
create index unsuccessful_job_unacknowledged on interlock.unsuccessful_job (tenant, status, seq) where not acknowledged;
comment on table interlock.unsuccessful_job is
  'One row for each job in retry, failed, dead_letter or cancelled, for lists; maintained by the triggers of job.';
comment on column interlock.unsuccessful_job.seq is 'Order of arrival.';
comment on column interlock.unsuccessful_job.job_id is 'The job.';
comment on column interlock.unsuccessful_job.status is
  'Its status; as text, since row-level security allows no index search by an enumeration, which is not leakproof.';
comment on column interlock.unsuccessful_job.type is 'Its type.';
comment on column interlock.unsuccessful_job.acknowledged is 'Whether its failure was acknowledged.';

grant usage on sequence interlock.job_seq_seq to interlock_app;
grant select, insert, update on interlock.job to interlock_app;
grant select on interlock.ready to interlock_app;  -- only the triggers of job and claim() write it, as the owner
grant select, update on interlock.lease to interlock_app;
grant select, insert, update, delete on interlock.claim_result to interlock_app;
grant select, insert on interlock.job_await to interlock_app;
grant select on interlock.unsuccessful_job to interlock_app;

-- The sweeper reads what it searches by.
grant select on interlock.ready, interlock.lease, interlock.claim_result, interlock.job_await to interlock_sweep;
grant select (tenant, id, seq) on interlock.job to interlock_sweep;
grant select on sequence interlock.job_seq_seq to interlock_sweep;
