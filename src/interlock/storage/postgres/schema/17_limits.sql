-- Limits and their buckets.

create table interlock.flow_limit (
  tenant     text collate "C" not null,
  name       text collate "C" not null,
  rules      text collate "C" not null,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  announced_at timestamptz,
  primary key (tenant, name)
);
comment on table interlock.flow_limit is 'Limits on concurrency and rates, which jobs name.';
comment on column interlock.flow_limit.name is 'Its name, unique within the tenant.';
comment on column interlock.flow_limit.rules is 'JSON: concurrency, units per period, burst, and whether it has keys.';
comment on column interlock.flow_limit.created_at is 'Time of its creation.';
comment on column interlock.flow_limit.updated_at is 'Time of the last change.';
comment on column interlock.flow_limit.announced_at is 'Time at which channels were last told that the budget is spent.';

create table interlock.flow_bucket (
  tenant      text collate "C" not null,
  name        text collate "C" not null,
  key         text collate "C" not null,
  used        integer not null default 0 check (used >= 0),
  levels      text collate "C" not null default '{}',
  as_of       bigint not null default 0,
  held_until  timestamptz,
  held_by     text collate "C",
  hold_reason text collate "C",
  ticket      text collate "C",
  parked      boolean not null default false,
  wake_at     timestamptz,
  turn        double precision,
  served      double precision,
  primary key (tenant, name, key)
) with (fillfactor = 50);
create index flow_bucket_turns on interlock.flow_bucket (tenant, name, turn) where turn is not null;
create index flow_bucket_served on interlock.flow_bucket (tenant, name, served) where served is not null;
create index flow_bucket_wakes on interlock.flow_bucket (tenant, wake_at) where wake_at is not null;
create index flow_bucket_holds on interlock.flow_bucket (tenant, name, key) where held_until is not null;
comment on table interlock.flow_bucket is 'The state of a limit, or of one key of it.';
comment on column interlock.flow_bucket.name is 'The limit.';
comment on column interlock.flow_bucket.key is 'Its key; empty for a limit without keys.';
comment on column interlock.flow_bucket.used is 'Number of running jobs that name it.';
comment on column interlock.flow_bucket.levels is 'JSON: the amount of each unit at as_of; negative in debt.';
comment on column interlock.flow_bucket.as_of is 'Time of the levels, in microseconds since 1970.';
comment on column interlock.flow_bucket.held_until is 'No job that names it is leased before this time.';
comment on column interlock.flow_bucket.held_by is 'Principal that holds it.';
comment on column interlock.flow_bucket.hold_reason is 'Reason of the hold.';
comment on column interlock.flow_bucket.ticket is 'JSON: rank, cost and expiry of a job that was not admitted.';
comment on column interlock.flow_bucket.parked is 'Whether jobs may be parked in it.';
comment on column interlock.flow_bucket.turn is 'Of a fair limit, while it has room and parked jobs: the bucket with the lowest turn is next.';
comment on column interlock.flow_bucket.served is 'Of a fair limit: the turn after the last job.';
comment on column interlock.flow_bucket.wake_at is 'Time at which a claim shows the first of these.';

create table interlock.run_usage (
  job_id uuid   not null,
  fence  bigint not null,
  tenant text collate "C" not null,
  usage  text collate "C" not null,
  primary key (tenant, job_id)
);
comment on table interlock.run_usage is 'What running jobs have reported of the usage of their current runs.';
comment on column interlock.run_usage.job_id is 'Job that it belongs to.';
comment on column interlock.run_usage.fence is 'Fence of the run.';
comment on column interlock.run_usage.usage is 'JSON: numbers by name.';

grant select, insert, update, delete on interlock.flow_limit, interlock.flow_bucket, interlock.run_usage to interlock_app;
grant select (tenant, name, rules, updated_at, announced_at) on interlock.flow_limit to interlock_sweep;

-- Return the limits that have keys, whose idle buckets are deleted from time to time.
create function interlock.keyed_limits() returns table (tenant text, name text)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select f.tenant, f.name from flow_limit f where f.rules::json ->> 'keyed' = 'true'
    and not exists (select from tenant n where n.tenant = f.tenant and n.state = 'gone') order by f.tenant, f.name
$$;

-- Return the tenants that have limits or budgets, whose utilization is read from time to time.
create function interlock.limit_tenants() returns setof text
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select distinct f.tenant from flow_limit f where not starts_with(f.name, 'tree:')
    and not exists (select from tenant n where n.tenant = f.tenant and n.state = 'gone') order by f.tenant
$$;

-- Return the budgets that ask approvers or fail jobs when they are spent.
create function interlock.acting_budgets() returns table (tenant text, name text)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select f.tenant, f.name from flow_limit f where f.rules::json -> 'budget' ->> 'on_exceed' in ('ask', 'fail')
    and not exists (select from tenant n where n.tenant = f.tenant and n.state = 'gone') order by f.tenant, f.name
$$;

-- Return the budgets that channels listen to, unless they were told since its last change; a new period tells them again.
create function interlock.watched_budgets() returns table (tenant text, name text)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select f.tenant, f.name from (
    select distinct s.tenant from subscription s
    where s.ended_at is null and 'budget.spent' = any(s.events) and not exists (select from tenant n where n.tenant = s.tenant and n.state = 'gone')) w
  join flow_limit f on f.tenant = w.tenant and f.rules::json ->> 'budget' is not null
    and (f.announced_at is null or f.announced_at < f.updated_at or f.rules::json -> 'budget' ->> 'per' is not null)
    and (not starts_with(f.name, 'tree:') or exists (select from ready q where q.tenant = f.tenant and q.limit_name = f.name))
  order by f.tenant, f.name
$$;
