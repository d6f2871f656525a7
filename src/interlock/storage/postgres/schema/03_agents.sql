-- Agents with their limits, registered types, and worker presence. functions/concurrency.sql maintains the slots of agents.

create sequence interlock.agent_no;
create table interlock.agent (
  tenant          text collate "C" not null,
  no              bigint  not null,
  max_concurrency integer check (max_concurrency between 1 and 1000000),
  used            integer not null default 0 check (used >= 0),
  strict          boolean not null default false,
  strict_epoch    integer not null default 0,
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
comment on column interlock.agent.no is 'Number of the agent; jobs refer to it.';
comment on column interlock.agent.kind is 'Kind of the agent.';
comment on column interlock.agent.id is 'ID of the agent within its kind.';
comment on column interlock.agent.max_concurrency is 'Maximum number of active jobs; null means no limit.';
comment on column interlock.agent.strict is 'Whether a started job keeps its slot until it is terminal.';
comment on column interlock.agent.strict_epoch is 'Raised when strict is turned off, which releases the slots that waiting jobs kept.';
comment on column interlock.agent.used is 'Number of assigned slots of a limited agent.';
comment on column interlock.agent.next_due is 'With a free slot: time at which the next job becomes due.';
comment on column interlock.agent.implicit is 'Whether an enqueue created it.';
comment on column interlock.agent.backoff is 'JSON: default backoff of its jobs.';
comment on column interlock.agent.defaults is 'JSON: defaults for fields that its jobs do not set.';
comment on column interlock.agent.created_at is 'Time of creation.';
comment on column interlock.agent.updated_at is 'Time of the last registration.';

create table interlock.job_type (
  tenant        text collate "C" not null,
  name          text collate "C" not null,
  schema        text collate "C",
  requires      text[] collate "C" not null,
  defaults      text collate "C",
  backoff       text collate "C",
  lease_seconds double precision,
  created_at    timestamptz not null,
  updated_at    timestamptz not null,
  primary key (tenant, name)
);
comment on table interlock.job_type is 'Registered types: payload schema, required capabilities and defaults.';
comment on column interlock.job_type.name is 'Type of the jobs.';
comment on column interlock.job_type.schema is 'JSON Schema of the payload.';
comment on column interlock.job_type.requires is 'Capabilities that every job of the type requires.';
comment on column interlock.job_type.defaults is 'JSON: defaults for fields that its jobs do not set.';
comment on column interlock.job_type.backoff is 'JSON: default backoff of its jobs, after that of the agent.';
comment on column interlock.job_type.lease_seconds is 'Default lease of a claim.';
comment on column interlock.job_type.created_at is 'Time of the first registration.';
comment on column interlock.job_type.updated_at is 'Time of the last registration.';

create table interlock.worker (
  tenant        text collate "C" not null,
  name          text collate "C" not null,
  asks          text collate "C" not null,
  first_seen_at timestamptz not null,
  last_seen_at  timestamptz not null,
  primary key (tenant, name)
) with (fillfactor = 70);
comment on table interlock.worker is 'Worker presence: workers and the filters of their last claim. For information only.';
comment on column interlock.worker.name is 'Name of the worker.';
comment on column interlock.worker.asks is 'JSON: types, repositories, capabilities and affinity keys of its last claim.';
comment on column interlock.worker.first_seen_at is 'Time of the first claim.';
comment on column interlock.worker.last_seen_at is 'Time of the last claim, accurate to a few seconds.';

grant select, insert, delete on interlock.agent to interlock_app;
grant update (max_concurrency, strict, implicit, backoff, defaults, updated_at) on interlock.agent to interlock_app;
grant usage on sequence interlock.agent_no to interlock_app;
grant select, insert, update, delete on interlock.job_type, interlock.worker to interlock_app;
grant select on interlock.agent to interlock_sweep;
grant select (tenant, name, last_seen_at) on interlock.worker to interlock_sweep;
