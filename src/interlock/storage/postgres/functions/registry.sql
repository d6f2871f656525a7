-- Raise the registry version, against which enqueue validates jobs.
create or replace function interlock.raise_registry(p_tenant text) returns void language sql as $$
  insert into interlock.tenant (tenant, registry) values (p_tenant, 1)
  on conflict (tenant) do update set registry = interlock.tenant.registry + 1
$$;

create or replace function interlock.registry(p_tenant text) returns integer language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return coalesce((select x.registry from interlock.tenant x where x.tenant = p_tenant), 0);
end $$;

create or replace function interlock.types(p_tenant text) returns setof interlock.job_type language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select y.* from interlock.job_type y where y.tenant = p_tenant order by y.name;
end $$;

create or replace function interlock.set_type(
  p_tenant text, p_name text, p_schema text, p_requires text[], p_defaults text, p_backoff text, p_lease_seconds double precision
) returns setof interlock.job_type language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  perform interlock.raise_registry(p_tenant);
  return query insert into interlock.job_type as y (tenant, name, schema, requires, defaults, backoff, lease_seconds, created_at, updated_at)
    values (p_tenant, p_name, p_schema, p_requires, p_defaults, p_backoff, p_lease_seconds, interlock.clock(), interlock.clock())
    on conflict (tenant, name) do update set schema = excluded.schema, requires = excluded.requires, defaults = excluded.defaults,
      backoff = excluded.backoff, lease_seconds = excluded.lease_seconds, updated_at = excluded.updated_at
    returning y.*;
end $$;

create or replace function interlock.drop_type(p_tenant text, p_name text) returns boolean language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  perform interlock.raise_registry(p_tenant);
  delete from interlock.job_type y where y.tenant = p_tenant and y.name = p_name;
  return found;
end $$;

-- List agents by name, starting after one.
create or replace function interlock.agents(p_tenant text, p_after_kind text, p_after_id text, p_limit integer)
returns setof interlock.agent language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select a.* from interlock.agent a where a.tenant = p_tenant and a.kind >= p_after_kind and (a.kind, a.id) > (p_after_kind, p_after_id)
    order by a.kind, a.id limit p_limit;
end $$;

-- List strict agents without a free slot and without any job that runs or can be claimed.
create or replace function interlock.stalled_agents(p_tenant text, p_limit integer) returns setof interlock.agent language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select a.* from interlock.agent a
    where a.tenant = p_tenant and a."strict" and a.max_concurrency is not null and a.used >= a.max_concurrency
      and not exists (select from interlock.lease l where l.tenant = p_tenant and l.agent_no = a.no)
      and not exists (select from interlock.ready q
        where q.tenant = p_tenant and q.agent_no = a.no and q.blocked <= false and q.run_at <= interlock.clock())
    order by a.kind, a.id limit p_limit;
end $$;

create or replace function interlock.agents_named(p_tenant text, p_kinds text[], p_ids text[]) returns setof interlock.agent language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select a.* from unnest(p_kinds, p_ids) as u(kind, id) join interlock.agent a on a.tenant = p_tenant and a.kind = u.kind and a.id = u.id;
end $$;

-- The trigger relimit applies a new limit.
create or replace function interlock.set_agent(
  p_tenant text, p_kind text, p_id text, p_max_concurrency integer, p_strict boolean, p_defaults text, p_backoff text
) returns setof interlock.agent language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  perform interlock.ensure_agent(p_tenant, p_kind, p_id, true);
  if exists (select from interlock.agent a where a.tenant = p_tenant and a.kind = p_kind and a.id = p_id
             and a.defaults is distinct from p_defaults) then
    perform interlock.raise_registry(p_tenant);
  end if;
  return query update interlock.agent a set max_concurrency = p_max_concurrency, "strict" = p_strict, defaults = p_defaults, backoff = p_backoff,
      implicit = false, updated_at = interlock.clock()
    where a.tenant = p_tenant and a.kind = p_kind and a.id = p_id returning a.*;
end $$;

-- Return null if the agent does not exist, false if it has unfinished jobs.
create or replace function interlock.drop_agent(p_tenant text, p_kind text, p_id text) returns boolean language plpgsql as $$
declare
  gone bigint;
  had_defaults boolean;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  select a.no, a.defaults is not null into gone, had_defaults from interlock.agent a where a.tenant = p_tenant and a.kind = p_kind and a.id = p_id for update;
  if gone is null then
    return null;
  end if;
  if exists (select from interlock.ready q where q.tenant = p_tenant and q.agent_no = gone)
      or exists (select from interlock.lease l where l.tenant = p_tenant and l.agent_no = gone)
      or exists (select from interlock.waiting_with_slot(p_tenant, gone)) then
    return false;
  end if;
  if had_defaults then
    perform interlock.raise_registry(p_tenant);
  end if;
  delete from interlock.agent a where a.tenant = p_tenant and a.no = gone;
  return true;
end $$;

-- Sum up the counter rows that triggers wrote; minutes older than an hour become one row. Rows locked by another
-- process are skipped.
create or replace function interlock.fold_counters(p_tenant text) returns void language plpgsql security definer
  set search_path = interlock, pg_temp as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  with old as (
    delete from queue_counter y using (
      select x.ctid as at from queue_counter x where x.tenant = p_tenant and (not x.folded or x.minute < interlock.clock() - interval '61 minutes')
      limit 5000 for update skip locked) o
    where y.ctid = o.at returning y.*
  )
  insert into queue_counter (tenant, type, minute, from_status, to_status, count, last_seq, folded)
  select o.tenant, o.type, case when o.minute < interlock.clock() - interval '60 minutes' then 'epoch'::timestamptz else o.minute end as m,
    o.from_status, o.to_status, sum(o.count), case when bool_and(o.last_seq is not null) then max(o.last_seq) end, true
  from old o group by o.tenant, o.type, m, o.from_status, o.to_status having sum(o.count) > 0;
end $$;

-- Return the transitions of each type per minute; everything before the last hour is one row. Deletions are left out:
-- only terminal jobs are deleted, and these counts do not depend on them.
create or replace function interlock.minutes(p_tenant text)
returns table (type text, minute timestamptz, waiting bigint, running bigint, enqueued bigint, succeeded bigint, failed bigint) language plpgsql as $$
declare
  since timestamptz := date_trunc('minute', interlock.clock()) - interval '59 minutes';
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query
  select y.type, case when y.minute < since then 'epoch'::timestamptz else y.minute end as at,
    (coalesce(sum(y.count) filter (where y.to_status in ('queued', 'retry')), 0)
      - coalesce(sum(y.count) filter (where y.from_status in ('queued', 'retry')), 0))::bigint,
    (coalesce(sum(y.count) filter (where y.to_status = 'running'), 0) - coalesce(sum(y.count) filter (where y.from_status = 'running'), 0))::bigint,
    coalesce(sum(y.count) filter (where y.from_status is null), 0)::bigint,
    coalesce(sum(y.count) filter (where y.to_status = 'succeeded'), 0)::bigint,
    coalesce(sum(y.count) filter (where y.to_status in ('failed', 'dead_letter', 'retry')), 0)::bigint
  from interlock.queue_counter y where y.tenant = p_tenant and y.to_status is not null group by y.type, at order by y.type, at;
end $$;

-- Count the jobs of each type by location. One statement, so that the counts are consistent.
create or replace function interlock.stats(p_tenant text, p_type text)
returns table (type text, ready bigint, delayed bigint, blocked bigint, in_progress bigint, waiting_for_approval bigint, dead_letter bigint,
  succeeded bigint, failed bigint, cancelled bigint, oldest_ready_at timestamptz, enqueued double precision, started double precision,
  successes double precision, failures double precision, paused_at timestamptz, paused_by text, pause_reason text) language plpgsql as $$
declare
  t timestamptz := interlock.clock();
begin
  perform set_config('interlock.tenant', p_tenant, true);
  if exists (select from interlock.agent a where a.tenant = p_tenant and a.next_due <= t) then
    perform interlock.fill_slots(p_tenant);
  end if;
  return query
  with moved as materialized (
    select y.type, y.from_status as f, y.to_status as s, sum(y.count)::bigint as n,
      coalesce(sum(y.count) filter (where y.minute > t - interval '5 minutes'), 0)::double precision as lately
    from interlock.queue_counter y where y.tenant = p_tenant and (p_type is null or y.type = p_type) group by y.type, y.from_status, y.to_status
  ), now_in as (
    select x.type, x.status, sum(x.n)::bigint as n from (
      select m.type, m.s as status, m.n from moved m where m.s is not null
      union all select m.type, m.f, -m.n from moved m where m.f is not null) x group by x.type, x.status
  ), later as (
    select r.type, sum(q.n)::bigint as n, min(q.due) as due from interlock.eligibility_key r cross join lateral (
      select (select count(*) from interlock.ready q where q.tenant = p_tenant and q.eligibility_key = r.no and not q.blocked and q.run_at > t) as n,
        (select q.run_at from interlock.ready q where q.tenant = p_tenant and q.eligibility_key = r.no and not q.blocked and q.run_at <= t
         order by q.run_at limit 1) as due
      union all
      select (select count(*) from interlock.ready q
              where q.tenant = p_tenant and q.base = r.no and q.eligibility_key <> q.base and not q.blocked and q.run_at > t),
        (select q.run_at from interlock.ready q
         where q.tenant = p_tenant and q.base = r.no and q.eligibility_key <> q.base and not q.blocked and q.run_at <= t
         order by q.run_at limit 1)) q
    where r.tenant = p_tenant and r.no = r.base and (p_type is null or r.type = p_type) group by r.type
  ), waiting_for_slot as (
    select r.type, count(*) filter (where q.run_at > t) as later, count(*) filter (where q.run_at <= t) as due
    from interlock.ready q join interlock.eligibility_key r on r.tenant = q.tenant and r.no = q.eligibility_key
    where q.tenant = p_tenant and q.agent_no is not null and q.blocked and (p_type is null or r.type = p_type) group by r.type
  ), awaiting as (
    select j.type, count(*) as n from interlock.job j
    where j.tenant = p_tenant and j.id in (select w.job_id from interlock.job_await w where w.tenant = p_tenant)
      and (p_type is null or j.type = p_type) group by j.type
  ), names as (
    select m.type from moved m union select k.type from interlock.queue k where k.tenant = p_tenant
    union select y.name from interlock.job_type y where y.tenant = p_tenant
  ), sums as (
    select n.type,
      coalesce(sum(i.n) filter (where i.status in ('queued', 'retry')), 0) as waiting,
      coalesce(sum(i.n) filter (where i.status = 'running'), 0)::bigint as running,
      coalesce(sum(i.n) filter (where i.status = 'waiting_for_approval'), 0)::bigint as awaiting_approval,
      coalesce(sum(i.n) filter (where i.status = 'dead_letter'), 0)::bigint as dead,
      coalesce(sum(i.n) filter (where i.status = 'succeeded'), 0)::bigint as succeeded,
      coalesce(sum(i.n) filter (where i.status = 'failed'), 0)::bigint as failed,
      coalesce(sum(i.n) filter (where i.status = 'cancelled'), 0)::bigint as cancelled
    from names n left join now_in i on i.type = n.type where p_type is null or n.type = p_type group by n.type
  )
  select s.type,
    (s.waiting - coalesce(l.n, 0) - coalesce(u.later, 0) - coalesce(u.due, 0) - coalesce(a.n, 0))::bigint,
    coalesce(l.n, 0) + coalesce(u.later, 0), coalesce(u.due, 0) + coalesce(a.n, 0), s.running, s.awaiting_approval, s.dead, s.succeeded, s.failed, s.cancelled,
    l.due,
    coalesce((select sum(m.lately) / 5 from moved m where m.type = s.type and m.f is null), 0),
    coalesce((select sum(m.lately) / 5 from moved m where m.type = s.type and m.s = 'running'), 0),
    coalesce((select sum(m.lately) / 5 from moved m where m.type = s.type and m.s = 'succeeded'), 0),
    coalesce((select sum(m.lately) / 5 from moved m where m.type = s.type and m.s in ('failed', 'dead_letter', 'retry')), 0),
    k.paused_at, k.paused_by, k.pause_reason
  from sums s left join later l on l.type = s.type left join waiting_for_slot u on u.type = s.type left join awaiting a on a.type = s.type
  left join interlock.queue k on k.tenant = p_tenant and k.type = s.type order by s.type;
end $$;
