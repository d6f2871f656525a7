-- Registered types, and worker presence. (functions/concurrency.sql maintains the slots of agents.)

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
comment on table interlock.job_type is 'Registered types: the schema of their payload, what a worker must be able to do, and defaults.';
comment on column interlock.job_type.tenant is 'Whose row this is; it leads every key.';
comment on column interlock.job_type.name is 'The type of the jobs.';
comment on column interlock.job_type.schema is 'JSON Schema of the payload.';
comment on column interlock.job_type.requires is 'Capabilities every job of the type needs.';
comment on column interlock.job_type.defaults is 'JSON: defaults for fields that its jobs do not set.';
comment on column interlock.job_type.backoff is 'JSON: default backoff of its jobs, after that of the agent.';
comment on column interlock.job_type.lease_seconds is 'Default lease of a claim.';
comment on column interlock.job_type.created_at is 'When it was registered first.';
comment on column interlock.job_type.updated_at is 'When it was registered last.';

create table interlock.worker (
  tenant       text collate "C" not null,
  name         text collate "C" not null,
  asks         text collate "C" not null,
  first_seen_at timestamptz not null,
  last_seen_at timestamptz not null,
  primary key (tenant, name)
) with (fillfactor = 70);
comment on table interlock.worker is 'Workers that asked for jobs, and what they asked for last. Nothing depends on these rows.';
comment on column interlock.worker.tenant is 'Whose row this is; it leads every key.';
comment on column interlock.worker.name is 'The name the worker claims under.';
comment on column interlock.worker.asks is 'JSON: types, repositories, capabilities and affinity keys of its last claim.';
comment on column interlock.worker.first_seen_at is 'When it claimed first.';
comment on column interlock.worker.last_seen_at is 'When it claimed last, give or take a few seconds.';

do $$
declare
  name text;
begin
  foreach name in array array['job_type', 'worker'] loop
    execute format('alter table interlock.%I enable row level security', name);
    execute format('alter table interlock.%I force row level security', name);
    execute format('create policy tenant_only on interlock.%I using (tenant = (select interlock.current_tenant()))', name);
    execute format('grant select, insert, update, delete on interlock.%I to interlock_app', name);
  end loop;
end $$;
