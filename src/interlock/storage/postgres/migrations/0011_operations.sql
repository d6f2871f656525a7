-- Bulk operations: find, redrive and prune jobs.

-- These columns never change.
drop index interlock.job_parent;
create index job_parent on interlock.job (tenant, parent_id, seq) where parent_id is not null;
create index job_redrive on interlock.job (tenant, redrive_of) where redrive_of is not null;

create table interlock.unsuccessful_job (
  seq    bigint not null,
  job_id uuid   not null,
  status text collate "C" not null,
  tenant text collate "C" not null,
  type   text collate "C" not null,
  primary key (tenant, status, seq)
);
create index unsuccessful_job_type on interlock.unsuccessful_job (tenant, status, type, seq);
comment on table interlock.unsuccessful_job is
  'One row for each job in retry, failed, dead_letter or cancelled, for lists; kept by the triggers of job.';
comment on column interlock.unsuccessful_job.tenant is 'Whose row this is; it leads every key.';
comment on column interlock.unsuccessful_job.seq is 'The order of arrival.';
comment on column interlock.unsuccessful_job.job_id is 'The job.';
comment on column interlock.unsuccessful_job.status is
  'Its status; as text, since row-level security allows no index search by an enumeration, which is not leakproof.';
comment on column interlock.unsuccessful_job.type is 'Its type.';

create table interlock.prune (
  id        uuid        not null,
  at        timestamptz not null,
  cutoff    timestamptz not null,
  first_seq bigint      not null,
  last_seq  bigint      not null,
  jobs      integer     not null check (jobs > 0),
  tenant    text collate "C" not null,
  actor     text collate "C" not null,
  hash      bytea       not null check (length(hash) = 32),
  primary key (tenant, at, id)
);
comment on table interlock.prune is 'What is kept of jobs that were deleted: one row for each step of a prune.';
comment on column interlock.prune.tenant is 'Whose row this is; it leads every key.';
comment on column interlock.prune.id is 'Names the step.';
comment on column interlock.prune.at is 'When.';
comment on column interlock.prune.actor is 'Who had them deleted.';
comment on column interlock.prune.cutoff is 'All of them had ended before this.';
comment on column interlock.prune.jobs is 'How many they were.';
comment on column interlock.prune.first_seq is 'The first of them in the order of arrival.';
comment on column interlock.prune.last_seq is 'The last of them.';
comment on column interlock.prune.hash is 'SHA-256 over the ends of their histories, by tenant and job, like audit head.';

create function interlock.refuse_prune_change() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: prune records are permanent; % is rejected', tg_op using errcode = 'insufficient_privilege';
end $$;
create trigger prune_never_changes before update or delete on interlock.prune for each row execute function interlock.refuse_prune_change();
create trigger prune_is_not_truncated before truncate on interlock.prune for each statement execute function interlock.refuse_prune_change();

do $$
declare
  name text;
begin
  foreach name in array array['unsuccessful_job', 'prune'] loop
    execute format('alter table interlock.%I enable row level security', name);
    execute format('alter table interlock.%I force row level security', name);
    execute format('create policy tenant_only on interlock.%I using (tenant = (select interlock.current_tenant()))', name);
    execute format('grant select on interlock.%I to interlock_app', name);
  end loop;
end $$;
