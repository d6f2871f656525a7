-- Queues: operator settings, counters, and the eligibility keys by which claims find jobs.

create sequence interlock.eligibility_key_no;
create table interlock.eligibility_key (
  tenant              text collate "C" not null,
  no                  bigint  not null,
  base                bigint  not null,
  type                text collate "C" not null,
  requires            text[] collate "C" not null,
  priority            integer not null,
  repository          text collate "C",
  affinity_key        text collate "C",
  across_repositories bigint,
  across_keys         bigint,
  flow                text collate "C" not null default '',
  parks               bigint,
  -- Lookup columns of a claim, which never reads the keys, repositories and capabilities of other workers. A worker that
  -- has all required capabilities has the first one. They are columns because row-level security prevents an index search
  -- by an expression that is not leakproof.
  found_by_key        text collate "C" not null generated always as (coalesce(affinity_key, '')) stored,
  found_by_repository text collate "C" not null generated always as (coalesce(repository, '')) stored,
  found_by_need       text collate "C" not null generated always as (coalesce(requires[1], '')) stored,
  primary key (tenant, no)
);
create unique index eligibility_key_found on interlock.eligibility_key (tenant, found_by_key, found_by_repository, found_by_need, type, priority, requires, flow)
  where found_by_key is not null;
create index eligibility_key_bases on interlock.eligibility_key (tenant, type) where no = base;
create unique index eligibility_key_parks on interlock.eligibility_key (tenant, parks) where parks is not null;
create index eligibility_key_bound on interlock.eligibility_key (tenant) where no <> base;
comment on table interlock.eligibility_key is
  'Distinct combinations of the fields that decide which workers can claim a job; rows are only added. '
  'base is the route with the same type, requires and priority but no repository and no affinity key.';
comment on column interlock.eligibility_key.no is 'Number of the key.';
comment on column interlock.eligibility_key.base is 'The same key without repository and affinity key; itself if it has neither.';
comment on column interlock.eligibility_key.type is 'Type of its jobs.';
comment on column interlock.eligibility_key.requires is 'Capabilities its jobs require, sorted.';
comment on column interlock.eligibility_key.priority is 'Priority of its jobs.';
comment on column interlock.eligibility_key.repository is 'Repository of its jobs.';
comment on column interlock.eligibility_key.affinity_key is 'Affinity key of its jobs.';
comment on column interlock.eligibility_key.across_repositories is 'The same key without its repository, if it has one.';
comment on column interlock.eligibility_key.across_keys is 'The same key without its affinity key, if it has one.';
comment on column interlock.eligibility_key.flow is 'JSON: the limits of its jobs, and the key of those without keys; empty without limits.';
comment on column interlock.eligibility_key.parks is 'Eligibility key by which claims find its jobs; those that have this one are parked in a bucket.';
comment on column interlock.eligibility_key.found_by_key is 'Its affinity key; empty if it has none.';
comment on column interlock.eligibility_key.found_by_repository is 'Its repository; empty if it has none.';
comment on column interlock.eligibility_key.found_by_need is 'The first capability its jobs require; empty if they require none.';

create table interlock.queue (
  tenant       text collate "C" not null,
  type         text collate "C" not null,
  paused_at    timestamptz,
  paused_by    text collate "C",
  pause_reason text collate "C",
  primary key (tenant, type),
  check ((paused_at is null) = (paused_by is null))
);
comment on table interlock.queue is 'Operator settings for all jobs of one type.';
comment on column interlock.queue.type is 'The type of the jobs.';
comment on column interlock.queue.paused_at is 'Time since which no job of this type is leased.';
comment on column interlock.queue.paused_by is 'Principal that paused it.';
comment on column interlock.queue.pause_reason is 'Reason of the pause.';

create table interlock.queue_counter (
  tenant      text collate "C" not null,
  type        text collate "C" not null,
  minute      timestamptz not null,
  from_status interlock.status,
  to_status   interlock.status,
  count       bigint      not null,
  folded      boolean     not null default false,
  last_seq    bigint
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index queue_counter_type on interlock.queue_counter (tenant, type);
create index queue_counter_unfolded on interlock.queue_counter (tenant) where not folded;
comment on table interlock.queue_counter is
  'Number of transitions of a type by minute and statuses; written by the triggers of job and merged by maintenance. '
  'What entered a status less what left it is how many are in it.';
comment on column interlock.queue_counter.type is 'The type of the jobs.';
comment on column interlock.queue_counter.minute is 'Minute of the transitions; the oldest minutes are merged into one.';
comment on column interlock.queue_counter.from_status is 'The previous status; null at creation.';
comment on column interlock.queue_counter.to_status is 'New status; null for deletions.';
comment on column interlock.queue_counter.count is 'Number of transitions.';
comment on column interlock.queue_counter.folded is 'Whether the row is already a sum of others.';
comment on column interlock.queue_counter.last_seq is 'Highest seq of these jobs; null if unknown.';

grant select, insert on interlock.eligibility_key to interlock_app;
grant usage on sequence interlock.eligibility_key_no to interlock_app;
grant select, insert, update on interlock.queue to interlock_app;
grant select on interlock.queue_counter to interlock_app;
grant select on interlock.queue_counter, interlock.eligibility_key to interlock_sweep;
