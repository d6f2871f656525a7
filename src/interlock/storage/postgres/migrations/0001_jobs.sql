-- Jobs, their history, and two narrow index tables: ready (claimable jobs) and lease (running jobs).

-- Except for primary keys, all indexes are partial, some with a condition that every row satisfies. The planner
-- considers such an index only if the statement implies the condition. Without that, all ranges of a tenant look equal
-- to it while a table is still empty, and a lookup by id could scan the tenant's whole sequence.

create schema if not exists interlock;

do $$
begin
  if not exists (select from pg_roles where rolname = 'interlock_app') then  -- roles belong to the whole server
    create role interlock_app nologin;
  end if;
exception when duplicate_object or unique_violation then null;
when insufficient_privilege then
  raise exception 'interlock: % may not create roles: as a superuser, run: create role interlock_app; create role interlock_sweep; grant interlock_app, interlock_sweep to %',
    quote_ident(current_user), quote_ident(current_user) using errcode = 'insufficient_privilege';
end $$;
grant usage on schema interlock to interlock_app;

create function interlock.clock() returns timestamptz
  language sql stable parallel safe
  return coalesce(nullif(current_setting('interlock.clock', true), '')::timestamptz, now());
comment on function interlock.clock() is
  'The time of this transaction; a test may set interlock.clock to move it.';

create function interlock.current_tenant() returns text
  language sql stable parallel safe
  return nullif(current_setting('interlock.tenant', true), '');
comment on function interlock.current_tenant() is
  'The tenant this transaction acts for; null, so that no row is seen, when none was set.';

-- The order matters: statuses up to 'retry' wait for a worker, those from 'succeeded' on are terminal.
create type interlock.status as enum
  ('queued', 'retry', 'waiting_for_approval', 'running', 'succeeded', 'failed', 'dead_letter', 'cancelled');

create table interlock.epoch (
  only_row boolean primary key default true check (only_row),
  value    integer not null default 0 check (value >= 0)
);
insert into interlock.epoch default values;
comment on table interlock.epoch is 'Restore counter; raising it invalidates every fence issued before.';

create table interlock.tenant (
  tenant   text collate "C" primary key,
  registry integer not null default 0
);
comment on table interlock.tenant is 'Every tenant that has a job, a type or an agent.';

create sequence interlock.agent_no;
create table interlock.agent (
  tenant          text collate "C" not null,
  no              bigint  not null,
  max_concurrency integer check (max_concurrency between 1 and 1000000),
  used            integer not null default 0 check (used >= 0),
  strict          boolean not null default false,
  strict_epoch             integer not null default 0,
  implicit        boolean not null default false,
  next_due        timestamptz,
  created_at      timestamptz not null,
  updated_at      timestamptz not null,
  kind            text collate "C" not null,
  id              text collate "C" not null,
  backoff         text collate "C",
  defaults        text collate "C",
  primary key (tenant, no)
) with (fillfactor = 50);
create unique index agent_name on interlock.agent (tenant, kind, id) where kind is not null;
create index agent_due on interlock.agent (tenant, next_due) where next_due is not null;
create index agent_lease on interlock.agent (tenant) where defaults like '%"lease_seconds"%';
comment on table interlock.agent is
  'The entities that jobs run for. With a limit, used counts the assigned concurrency slots, and the row is their lock.';

create sequence interlock.eligibility_key_no;
create table interlock.eligibility_key (
  tenant       text collate "C" not null,
  no           bigint  not null,
  base         bigint  not null,
  type         text collate "C" not null,
  requires     text[] collate "C" not null,
  priority     integer not null,
  repository   text collate "C",
  affinity_key text collate "C",
  primary key (tenant, no)
);
create unique index eligibility_key_unique on interlock.eligibility_key (tenant, type, priority, requires, repository, affinity_key)
  nulls not distinct where type is not null;
create index eligibility_key_wide on interlock.eligibility_key (tenant, repository) where affinity_key is null;
create index eligibility_key_affinity on interlock.eligibility_key (tenant, affinity_key) where affinity_key is not null;
comment on table interlock.eligibility_key is
  'The distinct combinations of what decides who may claim a job; rows are only ever added. '
  'base is the route with the same type, requires and priority but no repository and no affinity key.';

create table interlock.queue (
  tenant       text collate "C" not null,
  type         text collate "C" not null,
  paused_at    timestamptz,
  paused_by    text collate "C",
  pause_reason text collate "C",
  primary key (tenant, type),
  check ((paused_at is null) = (paused_by is null))
);
comment on table interlock.queue is 'What operators set for all jobs of one type.';

-- Fixed-size columns that are never null come first: PostgreSQL reads them at a constant offset, and also the tenant
-- after them if it starts at a multiple of four. Then the columns that triggers read on every change, then the other
-- non-null columns, then the rest.
create table interlock.job (
  id                   uuid        not null,
  seq                  bigint      not null generated always as identity,
  eligibility_key                bigint      not null,
  base                 bigint      not null,
  fence                bigint      not null,
  run_at               timestamptz not null,
  created_at           timestamptz not null,
  updated_at           timestamptz not null,
  status               interlock.status not null,
  priority             integer     not null,
  attempt              integer     not null,
  max_attempts         integer     not null,
  version              integer     not null,
  releases             integer     not null,
  tenant               text collate "C" not null,
  type                 text collate "C" not null,
  head                 bytea       not null,
  verb                 text collate "C" not null,
  actor                text collate "C" not null,
  previous             interlock.status,
  agent_no                 bigint,
  parent_id            uuid,
  webhook              text collate "C",
  reason               text collate "C",
  metadata             text collate "C",
  worker               text collate "C",
  lease_seconds        double precision,
  lease_expires_at     timestamptz,
  run_started_at       timestamptz,
  timeout_seconds      double precision,
  sanitized            boolean     not null default false,
  created_by           text collate "C" not null,
  requires             text[] collate "C" not null,
  tags                 text[] collate "C" not null,
  payload              text collate "C" not null,
  started_at           timestamptz,
  finished_at          timestamptz,
  deadline             timestamptz,
  cancel_requested_at  timestamptz,
  expiry_delay_seconds double precision,
  slot_epoch            integer,
  approval_id              uuid,
  redrive_of           uuid,
  cancel_reason        text collate "C",
  error                text collate "C",
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
  result               text collate "C",
  result_summary       text collate "C",
  usage                text collate "C",
  primary key (tenant, id),
  constraint finished_exactly_when_ended check ((finished_at is not null) = (status >= 'succeeded')),
  constraint leased_exactly_when_running check
    ((worker is not null) = (status = 'running') and (lease_expires_at is not null) = (worker is not null)),
  constraint approval_exactly_when_waiting check ((approval_id is not null) = (status = 'waiting_for_approval')),
  constraint error_fits_status check
    (case when error is null then status not in ('failed', 'dead_letter') else status <> 'succeeded' end),
  constraint running_has_started check (worker is null or (started_at is not null and run_started_at is not null)),
  constraint attempt_within_max check (attempt between 1 and max_attempts and max_attempts <= 100),
  constraint priority_in_range check (abs(priority) <= 1000)
) with (fillfactor = 30);
create unique index job_idempotency_key on interlock.job (tenant, idempotency_key) where idempotency_key is not null;
-- Not unique: numbers come from a sequence, and a unique index would be searched twice for every new job.
create index job_seq on interlock.job (tenant, seq) where seq is not null;
create index job_parent on interlock.job (tenant, parent_id) where parent_id is not null;
create index job_agent on interlock.job (tenant, agent_kind, agent_id, seq) where agent_kind is not null;
comment on table interlock.job is
  'Every job: the truth that ready and lease only index. No column that changes is indexed, so updates stay in place.';

create table interlock.ready (
  tenant   text collate "C" not null,
  eligibility_key    bigint      not null,
  base     bigint      not null,
  run_at   timestamptz not null,
  seq      bigint      not null,
  job_id   uuid        not null,
  agent_no     bigint,
  deadline timestamptz,
  blocked  boolean     not null default false
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index ready_eligibility_key on interlock.ready (tenant, eligibility_key, run_at, seq) where not blocked;
create index ready_base on interlock.ready (tenant, base, run_at, seq) where eligibility_key <> base and not blocked;
create index ready_agent_no on interlock.ready (tenant, agent_no, blocked, run_at, seq) where agent_no is not null;
create index ready_deadline on interlock.ready (tenant, deadline) where deadline is not null;
comment on table interlock.ready is
  'One row for each queued or retrying job that waits only for its time, a concurrency slot of its agent, and a worker; '
  'kept by the triggers of job. Only rows that are not blocked are in the indexes that a claim reads.';

create table interlock.lease (
  tenant       text collate "C" not null,
  job_id       uuid        not null,
  fence        bigint      not null,
  worker       text collate "C" not null,
  seconds      double precision not null,
  expires_at   timestamptz not null,
  run_ends_at  timestamptz,
  heartbeat_at timestamptz,
  agent_no         bigint,
  primary key (tenant, job_id)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index lease_expiry on interlock.lease (tenant, expires_at) where expires_at is not null;
comment on table interlock.lease is 'One row for each running job: who holds it and until when; kept by the triggers of job, moved on by heartbeats.';

create table interlock.claim_result (
  tenant   text collate "C" not null,
  worker   text collate "C" not null,
  claim_id text collate "C" not null,
  job_ids  uuid[]      not null,
  fences   bigint[]    not null,
  at       timestamptz not null,
  primary key (tenant, worker, claim_id)
);
comment on table interlock.claim_result is 'What each named claim was granted, so that a repeated call gets the same jobs.';

create table interlock.job_await (
  tenant   text collate "C" not null,
  child_id uuid not null,
  job_id   uuid not null,
  deadline timestamptz,
  primary key (tenant, child_id, job_id)
);
create index job_await_parent on interlock.job_await (tenant, job_id);
create index job_await_deadline on interlock.job_await (tenant, deadline) where deadline is not null;
comment on table interlock.job_await is 'Children a released job still waits for.';

create table interlock.job_checkpoint (
  tenant text collate "C" not null,
  job_id uuid        not null,
  seq    bigint      not null,
  data   text collate "C" not null,
  sanitized boolean  not null,
  at     timestamptz not null,
  primary key (tenant, job_id)
);
comment on table interlock.job_checkpoint is 'The saved progress of a job: one value, numbered.';

create table interlock.queue_counter (
  tenant      text collate "C" not null,
  type        text collate "C" not null,
  minute      timestamptz not null,
  from_status interlock.status,
  to_status   interlock.status,
  count       bigint      not null,
  folded      boolean     not null default false
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index queue_counter_type on interlock.queue_counter (tenant, type);
create index queue_counter_unfolded on interlock.queue_counter (tenant) where not folded;
comment on table interlock.queue_counter is
  'How many jobs of a type went from one status to another, per minute; written by the triggers of job and merged by maintenance. '
  'What entered a status less what left it is how many are in it.';

create table interlock.job_history (
  tenant      text collate "C" not null,
  job_id      uuid        not null,
  version     integer     not null,
  from_status interlock.status,
  to_status   interlock.status not null,
  verb        text collate "C" not null,
  actor       text collate "C" not null,
  attempt     integer     not null,
  fence       bigint      not null,
  reason      text collate "C",
  metadata    text collate "C",
  at          timestamptz not null,
  hash        bytea       not null,
  primary key (tenant, job_id, version) with (fillfactor = 50)  -- room next to a job's first row for those that follow
);
comment on table interlock.job_history is
  'Every transition of every job, written by the triggers of job; each hash covers the row and the hash before it.';
