-- Limits. A claim with limits takes several calls in one transaction: lock the buckets, choose jobs, let the domain
-- decide which of them fit, and lease these. Buckets are locked before rows of ready, so that two claims see the heads of
-- a limit one after the other. Rows of ready are never waited for.
--
-- Buckets are locked in one order, whatever the collation of the database: those without a key first, then by limit and
-- key. A claim that already holds some never waits for more. A parked job has a row of ready with another eligibility key,
-- which no claim reads.

-- Return the eligibility keys of a worker, and lock the buckets without keys that they name.
create or replace function interlock.flow_terms(
  p_tenant text, p_types text[], p_capabilities text[], p_repositories text[], p_affinity_keys text[],
  out keys bigint[], out ranks integer[], out flows text[], out bound boolean, out lease_set boolean, out floor bigint, out at bigint,
  out buckets text, out limits text, out served text
) language plpgsql security definer set search_path = interlock, pg_temp as $$
declare
  terms record;
  names text[];
  limited text[];
begin
  p_tenant := set_config('interlock.tenant', p_tenant, true);
  terms := terms_of_claim(p_tenant, p_types, p_capabilities, p_repositories, p_affinity_keys, false);
  select coalesce(array_agg(x.name order by x.name) filter (where x.keyless), '{}'), array_agg(x.name) into names, limited from (
    select b ->> 0 as name, bool_or(json_array_length(b) = 2) as keyless
    from unnest(terms.flows) f cross join lateral json_array_elements(nullif(f, '')::json) b group by 1) x;
  buckets := lock_buckets(p_tenant, names, array(select '' from unnest(names)));
  limits := (select json_agg(json_build_array(f.name, f.rules)) from flow_limit f where f.tenant = p_tenant and f.name = any(limited));
  served := now_served(p_tenant, limited);
  keys := terms.keys; ranks := terms.ranks; flows := terms.flows; bound := terms.bound; lease_set := terms.lease_set; floor := terms.floor;
  -- The clock after the locks: a later claim never sees an earlier time than the one before it.
  at := flow_clock();
end $$;

-- The usual case in one call: if all limits of the best jobs have room for them together, and those with keys limit only
-- concurrency, charge these, take the jobs out of ready and return them. Jobs of a limit without keys that is full or on
-- hold are not read. Else return null and change nothing; then a claim goes through the jobs in order (functions below).
create or replace function interlock.take_with_room(
  p_tenant text, p_keys bigint[], p_ranks integer[], p_flows text[], p_bound boolean, p_any_repository boolean, p_any_key boolean, p_limit integer
) returns uuid[] language plpgsql as $$
declare
  names text[]; of_keys text[]; keyed boolean; found_buckets integer; seen integer;
  full_ones text[]; held text[];
  at bigint; ats tid[]; ids uuid[];
  fitting record;
  key_names text[]; bucket_keys text[]; counts integer[];
begin
  select coalesce(array_agg(distinct b ->> 0) filter (where json_array_length(b) = 2), '{}'),
    array_agg(distinct b ->> 0) filter (where json_array_length(b) <> 2) into names, of_keys
  from (select distinct f from unnest(p_flows) f where f <> '') x cross join lateral json_array_elements(x.f::json) b;
  keyed := of_keys is not null;
  if exists (select from agent a where a.tenant = p_tenant and a.max_concurrency is not null and not a."strict" and a.used >= a.max_concurrency)
    -- Jobs of a fair limit wait for their turn, perhaps before the best that claims see.
    or exists (select from flow_bucket b where b.tenant = p_tenant and b.name = any(of_keys) and b.turn is not null) then
    return null;
  end if;
  perform from flow_bucket b where b.tenant = p_tenant and b.name = any(names) and b.key = '' order by b.name for no key update;
  get diagnostics found_buckets = row_count;
  at := flow_clock();  -- after the locks: a later claim never sees an earlier time than the one before it
  if found_buckets < cardinality(names) then
    return null;
  end if;
  select array_agg(b.name) filter (where micros(b.held_until) > at),
    array_agg(b.name) filter (where b.used >= (f.rules::json ->> 'concurrency')::integer) into held, full_ones
  from flow_bucket b join flow_limit f on f.tenant = p_tenant and f.name = b.name
  where b.tenant = p_tenant and b.name = any(names) and b.key = '';
  -- A job that lacks room in one of several limits must be noted in the others.
  if exists (select from flow_bucket b join flow_limit f on f.tenant = p_tenant and f.name = b.name
      where b.tenant = p_tenant and b.name = any(names) and b.key = '' and b.name <> all(coalesce(held, '{}'))
        and (b.ticket is not null or f.rules like '%"budget"%'))
    or (full_ones is not null and exists (select from unnest(p_flows) f where f <> '' and json_array_length(f::json) > 1)) then
    return null;
  end if;
  if held is not null or full_ones is not null then
    select array_agg(k.key), array_agg(k.rank) into p_keys, p_ranks from unnest(p_keys, p_ranks, p_flows) k(key, rank, flow)
    where k.flow = '' or not exists (select from json_array_elements(k.flow::json) b where json_array_length(b) = 2 and b ->> 0 = any(held || full_ones));
  end if;
  select r.ats, r.ids into ats, ids from best_ready(p_tenant, p_keys, p_ranks, p_bound, p_any_repository, p_any_key, p_limit, p_limit) r;
  seen := cardinality(ids);
  if seen is null or (keyed and seen < p_limit) then  -- parked jobs may have room
    return null;
  end if;
  if keyed then
    select f.ats, f.ids, f.names, f.keys, f.counts into fitting from fit_in_keys(p_tenant, ats, ids, p_limit) f;
    if fitting.ids is null then  -- some keys have more jobs than room: look at more keys
      select r.ats, r.ids into ats, ids from best_ready(p_tenant, p_keys, p_ranks, p_bound, p_any_repository, p_any_key,
        greatest(p_limit, least(p_limit * 10, 1000)), greatest(p_limit, least(p_limit * 10, 1000))) r;
      select f.ats, f.ids, f.names, f.keys, f.counts into fitting from fit_in_keys(p_tenant, ats, ids, p_limit) f;
    end if;
    if fitting.ids is null or (fitting.names is not null and not have_room(p_tenant, fitting.names, fitting.keys, fitting.counts)) then
      return null;
    end if;
    ats := fitting.ats; ids := fitting.ids; seen := cardinality(ids);
    key_names := fitting.names; bucket_keys := fitting.keys; counts := fitting.counts;
  end if;
  select l.ats, l.ids into ats, ids from lock_ready(p_tenant, ats, ids, null) l;
  if cardinality(ids) is distinct from seen then
    return null;
  end if;
  with demanded as materialized (
    select d ->> 'name' as name, x.n, d -> 'cost' as cost
    from (select j.limits, count(*)::integer as n from job j where j.tenant = p_tenant and j.id = any(ids) and j.limits is not null group by j.limits) x
    cross join lateral json_array_elements(x.limits::json) d where coalesce(d ->> 'key', '') = ''
  ), charged as materialized (
    select b.name, f.rules::json as rules, b.used + (select sum(d.n) from demanded d where d.name = b.name)::integer as used, u.levels, u.fit
    from flow_bucket b join flow_limit f on f.tenant = p_tenant and f.name = b.name cross join lateral (
      select jsonb_object_agg(r.key, v.amount - v.cost)::text as levels, coalesce(bool_and(v.cost <= v.amount), true) as fit
      from json_each_text(f.rules::json -> 'units') r cross join lateral (
        select (f.rules::json -> 'burst' ->> r.key)::double precision as burst, (b.levels::json ->> r.key)::double precision as level,
          coalesce((select sum(d.n * (d.cost ->> r.key)::double precision) from demanded d where d.name = b.name), 0) as cost) c
      cross join lateral (select c.cost, least(c.burst, coalesce(c.level, c.burst) + r.value::double precision
        * (greatest(at - b.as_of, 0) / 1e6::double precision / (f.rules::json ->> 'per_seconds')::double precision)) as amount) v) u
    where b.tenant = p_tenant and b.key = '' and b.name in (select d.name from demanded d)
  ), saved as (
    update flow_bucket b set used = c.used, levels = coalesce(c.levels, b.levels), as_of = greatest(at, b.as_of) from charged c
    where b.tenant = p_tenant and b.name = c.name and b.key = ''
      and (select bool_and(a.fit and a.used <= coalesce((a.rules ->> 'concurrency')::integer, a.used)) from charged a)
    returning 1)
  select count(*) into found_buckets from saved;
  if found_buckets < (select count(distinct d ->> 'name') from (select distinct j.limits from job j where j.tenant = p_tenant and j.id = any(ids)) x
      cross join lateral json_array_elements(x.limits::json) d where coalesce(d ->> 'key', '') = '') then
    return null;
  end if;
  if key_names is not null then  -- one that shows fewer jobs than it may admit wakes
    update flow_bucket b set used = b.used + u.n, as_of = greatest(at, b.as_of),
      wake_at = case when b.parked and b.used + u.n < u.concurrency then clock() else b.wake_at end
    from (select u.*, f.concurrency from unnest(key_names, bucket_keys, counts) u(name, key, n)
      join (select f.name, (f.rules::json ->> 'concurrency')::integer as concurrency from flow_limit f
        where f.tenant = p_tenant and f.name = any(key_names)) f on f.name = u.name offset 0) u
    where b.tenant = p_tenant and b.name = u.name and b.key = u.key;
  end if;
  delete from ready q where q.ctid = any(ats);
  return ids;
end $$;

-- Choose the best jobs that fit in their buckets with keys together, as these are before they are locked, with the number of
-- jobs of each. Return nothing if there are fewer than p_limit, if one names several keys, or if one lacked room before, and
-- must be parked.
create or replace function interlock.fit_in_keys(
  p_tenant text, p_ats tid[], p_ids uuid[], p_limit integer, out ats tid[], out ids uuid[], out names text[], out keys text[], out counts integer[]
) language plpgsql as $$
declare
  crowded boolean;
begin
  with placed as materialized (
    select u.no, u.at, u.id, d.name, d.key, d.n, f.concurrency, b.used, row_number() over (partition by d.name, d.key order by u.no) as place
    from unnest(p_ats, p_ids) with ordinality u(at, id, no)
    cross join lateral (select x.limits from job x where x.tenant = p_tenant and x.id = u.id offset 0) j
    left join lateral (
      select min(e ->> 'name') collate "C" as name, min(e ->> 'key') collate "C" as key, count(*) as n from json_array_elements(j.limits::json) e
      where coalesce(e ->> 'key', '') <> '') d on true
    left join lateral (
      select (f.rules::json ->> 'concurrency')::integer as concurrency from flow_limit f where f.tenant = p_tenant and f.name = d.name offset 0) f on true
    left join lateral (
      select x.used from flow_bucket x where x.tenant = p_tenant and x.name = d.name and x.key = d.key offset 0) b on true
  ), chosen as materialized (
    select p.* from placed p where p.name is null or p.place + coalesce(p.used, 0) <= p.concurrency order by p.no limit p_limit)
  select (select array_agg(c.at order by c.no) from chosen c), (select array_agg(c.id order by c.no) from chosen c),
    (select coalesce(bool_or(p.n > 1 or p.used >= p.concurrency), false) from placed p where p.no <= (select max(c.no) from chosen c)),
    (select array_agg(x.name order by x.name, x.key) from (select distinct c.name, c.key from chosen c where c.name is not null) x),
    (select array_agg(x.key order by x.name, x.key) from (select distinct c.name, c.key from chosen c where c.name is not null) x),
    (select array_agg(x.n order by x.name, x.key) from (
      select c.name, c.key, count(*)::integer as n from chosen c where c.name is not null group by 1, 2) x)
  into ats, ids, crowded, names, keys, counts;
  if crowded or coalesce(cardinality(ids), 0) < p_limit then
    ats := null; ids := null;
  end if;
end $$;

-- Lock buckets with keys, in their order, and return whether each has room for so many jobs and only limits concurrency.
create or replace function interlock.have_room(p_tenant text, p_names text[], p_keys text[], p_counts integer[]) returns boolean
language plpgsql as $$
declare
  at bigint;
begin
  if (select count(*) from flow_limit f where f.tenant = p_tenant and f.name = any(p_names) and f.rules::json ->> 'units' = '{}'
      and f.rules::json ->> 'fair' is null) < (select count(distinct n) from unnest(p_names) n) then
    return false;
  end if;
  if exists (select from unnest(p_names, p_keys) u(name, key)
      where not exists (select from flow_bucket b where b.tenant = p_tenant and b.name = u.name and b.key = u.key)) then
    perform lock_buckets(p_tenant, p_names, p_keys);
  else
    perform lock_known(p_tenant, p_names, p_keys);
  end if;
  at := flow_clock();
  return not exists (
    select from unnest(p_names, p_keys, p_counts) u(name, key, n)
    join (select f.name, (f.rules::json ->> 'concurrency')::integer as concurrency from flow_limit f
      where f.tenant = p_tenant and f.name = any(p_names)) f on f.name = u.name
    left join flow_bucket b on b.tenant = p_tenant and b.name = u.name and b.key = u.key
    where b.name is null or b.ticket is not null or micros(b.held_until) > at or b.used + u.n > f.concurrency);
end $$;

create or replace function interlock.flow_clock() returns bigint language sql volatile as $$
  select case when coalesce(current_setting('interlock.clock', true), '') <> '' then interlock.micros(interlock.clock())
    else interlock.micros(clock_timestamp()) end
$$;

-- Return a ticket, unless its job does not wait any more as it did when it got it, or its type is paused.
create or replace function interlock.live_ticket(p_tenant text, p_ticket text) returns text language plpgsql stable as $$
begin
  if p_ticket is null then
    return null;
  end if;
  return (select p_ticket from (select p_ticket::json -> 0 as rank) t
    join interlock.job j on j.tenant = p_tenant and j.seq = (t.rank ->> 2)::bigint and j.priority = -(t.rank ->> 0)::integer
      and interlock.micros(j.run_at) = (t.rank ->> 1)::bigint and j.status in ('queued', 'retry')
    where not exists (select from interlock.ready q where q.tenant = p_tenant and q.agent_no = j.agent_no and q.blocked
        and q.run_at = j.run_at and q.seq = j.seq)
      and not exists (select from interlock.queue k where k.tenant = p_tenant and k.type = j.type and k.paused_at is not null));
end $$;

-- The state of a bucket, as Bucket.from_row reads it, after its name and key.
create or replace function interlock.bucket_row(b interlock.flow_bucket) returns json language sql stable as $$
  select json_build_array(b.name, b.key, b.used, b.levels, b.as_of, interlock.micros(b.held_until), interlock.live_ticket(b.tenant, b.ticket),
    b.parked, b.turn, b.served)
$$;

-- Return when the next bucket may have room for its parked jobs.
create or replace function interlock.flow_next(p_tenant text) returns bigint language sql stable as $$
  select interlock.micros(min(b.wake_at)) from interlock.flow_bucket b where b.tenant = p_tenant and b.wake_at > interlock.clock()
$$;

-- The turns of fair limits that are served now; without parked jobs, the last ones.
create or replace function interlock.now_served(p_tenant text, p_names text[]) returns text language plpgsql stable as $$
begin
  if not exists (select from interlock.flow_limit f where f.tenant = p_tenant and f.name = any(p_names) and f.rules like '%"fair"%') then
    return null;
  end if;
  return (select json_object_agg(f.name, coalesce(
      (select b.turn from interlock.flow_bucket b where b.tenant = p_tenant and b.name = f.name and b.turn is not null order by b.turn limit 1),
      (select b.served from interlock.flow_bucket b where b.tenant = p_tenant and b.name = f.name and b.served is not null
       order by b.served desc limit 1), 0))
    from interlock.flow_limit f where f.tenant = p_tenant and f.name = any(p_names) and f.rules::json ->> 'fair' = 'true');
end $$;

-- Lock buckets in their order, and create missing ones.
create or replace function interlock.lock_buckets(p_tenant text, p_names text[], p_keys text[]) returns text language plpgsql as $$
begin
  insert into interlock.flow_bucket (tenant, name, key) select p_tenant, u.name, u.key from unnest(p_names, p_keys) u(name, key)
  order by u.key <> '', u.name collate "C", u.key collate "C" on conflict (tenant, name, key) do update set used = flow_bucket.used where false;
  return (select json_agg(interlock.bucket_row(b)) from unnest(p_names, p_keys) u(name, key)
    join interlock.flow_bucket b on b.tenant = p_tenant and b.name = u.name and b.key = u.key);
end $$;

-- Lock buckets with keys for a claim, and return them, with the rules of trees: the eligibility key does not name these.
-- A claim that holds some already (not p_wait) passes over those that another transaction holds: to wait for them could
-- deadlock.
create or replace function interlock.flow_lock(
  p_tenant text, p_names text[], p_keys text[], p_wait boolean, out at bigint, out buckets text, out limits text)
language plpgsql security definer set search_path = interlock, pg_temp as $$
declare
  patience text := current_setting('lock_timeout');
begin
  p_tenant := set_config('interlock.tenant', p_tenant, true);
  if p_wait then
    buckets := lock_buckets(p_tenant, p_names, p_keys);
  else
    begin
      perform set_config('lock_timeout', '5ms', true);
      insert into flow_bucket (tenant, name, key) select p_tenant, u.name, u.key from unnest(p_names, p_keys) u(name, key)
      where not exists (select from flow_bucket b where b.tenant = p_tenant and b.name = u.name and b.key = u.key)
      order by u.name collate "C", u.key collate "C" on conflict do nothing;
      perform set_config('lock_timeout', patience, true);
    exception when lock_not_available then
      null;  -- another transaction is creating one of them
    end;
    buckets := (select json_agg(bucket_row(b)) from (
      select b.* from unnest(p_names, p_keys) u(name, key) cross join lateral (
        select b.* from flow_bucket b where b.tenant = p_tenant and b.name = u.name and b.key = u.key for no key update skip locked) b) b);
  end if;
  limits := (select json_agg(json_build_array(f.name, f.rules)) from flow_limit f
    where f.tenant = p_tenant and f.name = any(p_names) and starts_with(f.name, 'tree:'));
  at := flow_clock();
end $$;

-- Return the best jobs under these eligibility keys, with their rank and limits. With p_lock, lock them: all their buckets
-- are locked already.
create or replace function interlock.flow_peek(
  p_tenant text, p_keys bigint[], p_ranks integer[], p_bound boolean, p_any_repository boolean, p_any_key boolean, p_limit integer, p_lock boolean
) returns table (id text, priority integer, run_at bigint, seq bigint, limits text, at text, limit_name text, limit_key text)
language plpgsql security definer set search_path = interlock, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set enable_hashjoin = off set jit = off as $$
declare
  best record; locked record;
begin
  p_tenant := set_config('interlock.tenant', p_tenant, true);
  best := best_ready(p_tenant, p_keys, p_ranks, p_bound, p_any_repository, p_any_key, p_limit, p_limit);
  if p_lock and best.ats is not null then
    locked := lock_ready(p_tenant, best.ats, best.ids, null);
    best.ats := locked.ats;
    best.ids := locked.ids;
  end if;
  return query select j.id::text, j.priority, micros(j.run_at), j.seq, j.limits, u.at::text, q.limit_name, q.limit_key from unnest(best.ats, best.ids) with ordinality u(at, id, no)
    cross join lateral (select * from job x where x.tenant = p_tenant and x.id = u.id offset 0) j
    left join lateral (select * from ready q where q.ctid = u.at offset 0) q on true order by u.no;
end $$;

-- Lock jobs that flow_peek has returned, and return those that no other transaction holds.
create or replace function interlock.flow_candidates(p_tenant text, p_ats text[], p_ids uuid[]) returns uuid[]
language plpgsql security definer set search_path = interlock, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set enable_hashjoin = off set jit = off as $$
begin
  p_tenant := set_config('interlock.tenant', p_tenant, true);
  return (lock_ready(p_tenant, p_ats::tid[], p_ids, null)).ids;
end $$;

-- Park jobs that flow_candidates has locked, and return the buckets that showed them.
create or replace function interlock.flow_park(p_tenant text, p_ids uuid[], p_names text[], p_keys text[]) returns table (name text, key text)
language plpgsql security definer set search_path = interlock, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set enable_hashjoin = off set jit = off as $$
begin
  p_tenant := set_config('interlock.tenant', p_tenant, true);
  insert into eligibility_key (tenant, no, base, type, requires, priority, repository, affinity_key, flow, parks)
  select p_tenant, n.no, n.no, n.type, n.requires, n.priority, n.repository, n.affinity_key, '[[],' || substring(n.flow from 2), n.parks from (
    select nextval('eligibility_key_no') as no, e.type, e.requires, e.priority, e.repository, e.affinity_key, e.flow, e.no as parks
    from (select distinct j.eligibility_key from job j where j.tenant = p_tenant and j.id = any(p_ids)) k
    join eligibility_key e on e.tenant = p_tenant and e.no = k.eligibility_key
    where not exists (select from eligibility_key x where x.tenant = p_tenant and x.parks = e.no)) n
  on conflict do nothing;
  perform set_config('interlock.untold', 'on', true);
  return query with found as materialized (
    select r.at, q.limit_name, q.limit_key, u.name, u.key, e.no from unnest(p_ids, p_names, p_keys) u(id, name, key)
    cross join lateral (select x from job x where x.tenant = p_tenant and x.id = u.id offset 0) j
    cross join lateral ready_row(j.x) r
    cross join lateral (select * from ready q where q.ctid = r.at offset 0) q
    cross join lateral (select x.no from eligibility_key x where x.tenant = p_tenant and x.parks = (j.x).eligibility_key offset 0) e
  ), parked as (
    update ready q set eligibility_key = f.no, base = f.no, across_repositories = null, across_keys = null, parked = true,
      limit_name = f.name, limit_key = f.key from found f where q.ctid = f.at)
  select distinct f.limit_name, f.limit_key from found f where f.limit_name is not null;
  perform set_config('interlock.untold', '', true);
end $$;

-- Lock the buckets that may have room for parked jobs.
create or replace function interlock.flow_due(p_tenant text, p_most integer, out at bigint, out buckets text, out limits text, out served text)
language plpgsql security definer set search_path = interlock, pg_temp as $$
declare
  names text[];
begin
  p_tenant := set_config('interlock.tenant', p_tenant, true);
  buckets := (select json_agg(bucket_row(b)) from (
    select * from flow_bucket b where b.tenant = p_tenant and b.wake_at <= clock() order by b.wake_at limit p_most
    for no key update skip locked) b);
  names := array(select distinct b ->> 0 from json_array_elements(buckets::json) b);
  limits := (select json_agg(json_build_array(f.name, f.rules)) from flow_limit f where f.tenant = p_tenant and f.name = any(names));
  served := now_served(p_tenant, names);
  at := flow_clock();
end $$;

-- Show parked jobs until claims see so many of each eligibility key of these buckets, and return how many it showed. The
-- caller has locked the buckets. Nothing is shown of a bucket without a number.
create or replace function interlock.flow_show(p_tenant text, p_names text[], p_keys text[], p_rooms integer[])
returns bigint
language plpgsql security definer set search_path = interlock, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set enable_hashjoin = off set jit = off as $$
begin
  p_tenant := set_config('interlock.tenant', p_tenant, true);
  return show_parked(p_tenant, p_names, p_keys, p_rooms);
end $$;

create or replace function interlock.show_parked(p_tenant text, p_names text[], p_keys text[], p_rooms integer[])
returns bigint language plpgsql as $$
declare
  shown bigint;
begin
  perform set_config('interlock.untold', 'on', true);
  with heads as materialized (
    select h.at, e.no, e.base, e.across_repositories, e.across_keys from (select * from unnest(p_names, p_keys, p_rooms) u(name, key, room) where u.room > 0) u
    cross join lateral (
      with recursive k(no) as (
        (select q.eligibility_key from ready q where q.tenant = p_tenant and q.limit_name = u.name and q.limit_key = u.key and q.parked
         order by q.eligibility_key limit 1)
        union all
        select (select q.eligibility_key from ready q where q.tenant = p_tenant and q.limit_name = u.name and q.limit_key = u.key and q.parked
          and q.eligibility_key > k.no order by q.eligibility_key limit 1) from k where k.no is not null)
      select k.no as parked, x.* from k cross join lateral (
        select e.no, e.base, e.across_repositories, e.across_keys from eligibility_key p join eligibility_key e on e.tenant = p_tenant and e.no = p.parks
        where p.tenant = p_tenant and p.no = k.no offset 0) x where k.no is not null) e
    cross join lateral (
      select count(*) as n from (select from ready q where q.tenant = p_tenant and q.limit_name = u.name and q.limit_key = u.key and not q.parked
        and q.eligibility_key = e.no and not q.blocked limit u.room) x) seen
    cross join lateral (
      select q.ctid as at from ready q where q.tenant = p_tenant and q.limit_name = u.name and q.limit_key = u.key and q.parked
        and q.eligibility_key = e.parked and not q.blocked order by q.run_at, q.seq limit greatest(u.room - seen.n, 0) for update skip locked) h
  ), moved as (
    update ready q set eligibility_key = h.no, base = h.base, across_repositories = h.across_repositories, across_keys = h.across_keys,
      parked = false from heads h where q.ctid = h.at returning q.seq)
  select count(*) into shown from moved;
  perform set_config('interlock.untold', '', true);
  return shown;
end $$;

-- Lock the next buckets of a fair limit, and return them with their first jobs that a claim with these eligibility keys may
-- lease: a row for each such job, and one without a job for a bucket that has none. All buckets together have about p_jobs.
create or replace function interlock.flow_turns(
  p_tenant text, p_name text, p_keys bigint[], p_any_repository boolean, p_any_key boolean, p_buckets integer, p_jobs integer
) returns table (bucket json, at text, priority integer, run_at bigint, seq bigint, limits text)
language plpgsql security definer set search_path = interlock, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set enable_hashjoin = off set jit = off as $$
begin
  p_tenant := set_config('interlock.tenant', p_tenant, true);
  return query with next as materialized (
    select b as it from flow_bucket b where b.tenant = p_tenant and b.name = p_name and b.turn is not null order by b.turn limit p_buckets
    for no key update skip locked)
  select bucket_row(n.it), h.at::text, j.priority, micros(h.run_at), h.seq, j.limits from next n
  left join lateral (
    with recursive k(no) as (
      (select q.eligibility_key from ready q where q.tenant = p_tenant and q.limit_name = p_name and q.limit_key = (n.it).key and q.parked
       order by q.eligibility_key limit 1)
      union all
      select (select q.eligibility_key from ready q where q.tenant = p_tenant and q.limit_name = p_name and q.limit_key = (n.it).key and q.parked
        and q.eligibility_key > k.no order by q.eligibility_key limit 1) from k where k.no is not null)
    select h.* from k cross join lateral (
      select e.* from eligibility_key p join eligibility_key e on e.tenant = p_tenant and e.no = p.parks
      where p.tenant = p_tenant and p.no = k.no offset 0) e
    cross join lateral (
      select q.ctid as at, q.job_id, q.run_at, q.seq from ready q where q.tenant = p_tenant and q.limit_name = p_name and q.limit_key = (n.it).key
        and q.parked and q.eligibility_key = k.no and not q.blocked order by q.run_at, q.seq
      limit (select greatest(p_jobs / greatest(count(*), 1), 1) from next)) h
    where e.no = any(p_keys) or (p_any_repository and p_any_key and e.base = any(p_keys))
      or (p_any_repository and not p_any_key and e.across_repositories = any(p_keys))
      or (p_any_key and not p_any_repository and e.across_keys = any(p_keys))) h on true
  left join lateral (select x.priority, x.limits from job x where x.tenant = p_tenant and x.id = h.job_id offset 0) j on true;
end $$;

-- Show these parked jobs, by their rows of ready. The caller has locked their buckets.
create or replace function interlock.flow_show_jobs(p_tenant text, p_ats text[], p_seqs bigint[]) returns bigint
language plpgsql security definer set search_path = interlock, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set enable_hashjoin = off set jit = off as $$
declare
  shown bigint;
begin
  p_tenant := set_config('interlock.tenant', p_tenant, true);
  perform set_config('interlock.untold', 'on', true);
  with heads as materialized (
    select h.at, e.no, e.base, e.across_repositories, e.across_keys from unnest(p_ats::tid[], p_seqs) u(at, seq)
    cross join lateral (select q.ctid as at, q.eligibility_key from ready q where q.ctid = u.at and q.seq = u.seq and q.parked for update skip locked) h
    cross join lateral (
      select e.no, e.base, e.across_repositories, e.across_keys from eligibility_key p join eligibility_key e on e.tenant = p_tenant and e.no = p.parks
      where p.tenant = p_tenant and p.no = h.eligibility_key offset 0) e
  ), moved as (
    update ready q set eligibility_key = h.no, base = h.base, across_repositories = h.across_repositories, across_keys = h.across_keys,
      parked = false from heads h where q.ctid = h.at returning q.seq)
  select count(*) into shown from moved;
  perform set_config('interlock.untold', '', true);
  return shown;
end $$;

-- Return the jobs with a slot of an agent that is not strict and has no other, if they name limits; with each, the first
-- due jobs of the agent's line under these eligibility keys. Also return the buckets and rules of their limits.
create or replace function interlock.flow_slots(
  p_tenant text, p_keys bigint[], p_any_repository boolean, p_any_key boolean, out holders text, out buckets text, out limits text
) language plpgsql security definer set search_path = interlock, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set enable_hashjoin = off set jit = off as $$
declare
  names text[]; keys text[];
begin
  p_tenant := set_config('interlock.tenant', p_tenant, true);
  with idle as materialized (
    select a.no, h.* from agent a cross join lateral (
      select q.ctid as at, j.priority, q.run_at, q.seq, j.limits from ready q
      cross join lateral (select x.priority, x.limits from job x where x.tenant = q.tenant and x.id = q.job_id offset 0) j
      where q.tenant = p_tenant and q.agent_no = a.no and q.blocked <= false and j.limits is not null) h
    where a.tenant = p_tenant and a.max_concurrency is not null and not a."strict" and a.used >= a.max_concurrency
  ), lines as materialized (
    select g.no, array(
      with recursive k(no) as (
        (select q.eligibility_key from ready q where q.tenant = p_tenant and q.agent_no = g.no and q.blocked order by q.eligibility_key limit 1)
        union all
        select (select q.eligibility_key from ready q where q.tenant = p_tenant and q.agent_no = g.no and q.blocked and q.eligibility_key > k.no
          order by q.eligibility_key limit 1) from k where k.no is not null)
      select h.at::text from k cross join lateral (select * from eligibility_key x where x.tenant = p_tenant and x.no = k.no offset 0) e
      cross join lateral (
        select q.ctid as at, q.run_at, q.seq from ready q where q.tenant = p_tenant and q.agent_no = g.no and q.blocked and q.eligibility_key = k.no
          and q.run_at <= clock() order by q.run_at, q.seq limit g.n) h
      where e.no = any(p_keys) or (p_any_repository and p_any_key and e.base = any(p_keys))
        or (p_any_repository and not p_any_key and e.across_repositories = any(p_keys))
        or (p_any_key and not p_any_repository and e.across_keys = any(p_keys))
      order by h.run_at, h.seq limit g.n) as heads
    from (select i.no, count(*) as n from idle i group by i.no) g
  ), named as materialized (
    select distinct d ->> 'name' as name, coalesce(d ->> 'key', '') as key from idle i cross join lateral json_array_elements(i.limits::json) d)
  select (select json_agg(json_build_array(i.no, i.at::text, i.priority, micros(i.run_at), i.seq, i.limits, l.heads))
      from idle i join lines l on l.no = i.no where l.heads <> '{}'),
    array(select n.name from named n order by n.name, n.key), array(select n.key from named n order by n.name, n.key)
  into holders, names, keys;
  if holders is null then
    return;
  end if;
  buckets := (select json_agg(bucket_row(b.it)) from unnest(names, keys) u(name, key)
    cross join lateral (select x as it from flow_bucket x where x.tenant = p_tenant and x.name = u.name and x.key = u.key offset 0) b);
  limits := (select json_agg(json_build_array(f.name, f.rules)) from flow_limit f where f.tenant = p_tenant and f.name = any(names));
end $$;

-- Pass slots from jobs that wait for a limit to others of the same agent, and return how many. Nothing is waited for: the
-- caller holds buckets, which other operations lock after agents.
create or replace function interlock.flow_pass_slots(p_tenant text, p_agent_nos bigint[], p_froms text[], p_tos text[]) returns bigint
language plpgsql security definer set search_path = interlock, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set enable_hashjoin = off set jit = off as $$
declare
  passed bigint;
begin
  p_tenant := set_config('interlock.tenant', p_tenant, true);
  with agents as materialized (
    select a.no from agent a where a.tenant = p_tenant and a.no = any(p_agent_nos) and a.max_concurrency is not null and not a."strict"
    order by a.no for update skip locked
  ), pairs as materialized (
    select f.at as giver, f.limit_name, f.limit_key, f.parked, t.at as taker from unnest(p_agent_nos, p_froms::tid[], p_tos::tid[]) u(no, giver, taker)
    join agents a on a.no = u.no
    cross join lateral (select q.ctid as at, q.limit_name, q.limit_key, q.parked from ready q where q.ctid = u.giver and q.agent_no = u.no
      and not q.blocked for update skip locked) f
    cross join lateral (select q.ctid as at from ready q where q.ctid = u.taker and q.agent_no = u.no and q.blocked for update skip locked) t
  ), shown as materialized (  -- these buckets show one job less
    select b.* from pairs p cross join lateral (select x.ctid as at, x.name, x.key from flow_bucket x where x.tenant = p_tenant
      and x.name = p.limit_name and x.key = p.limit_key for no key update skip locked) b where not p.parked
  ), free as materialized (
    select p.giver, p.taker from pairs p where p.parked or p.limit_name is null
      or exists (select from shown s where s.name = p.limit_name and s.key = p.limit_key)
  ), woken as (
    update flow_bucket b set wake_at = case when b.parked then clock() end from shown s where b.ctid = s.at
  ), moved as (
    update ready q set blocked = not q.blocked from (select f.giver as at from free f union all select f.taker from free f) x
    where q.ctid = x.at returning q.blocked)
  select count(*) into passed from moved m where m.blocked;
  return passed;
end $$;

-- Write whether jobs are parked in buckets and when to show them. A bucket that has none left needs no time.
create or replace function interlock.flow_wakes(
  p_tenant text, p_names text[], p_keys text[], p_wake_ats bigint[], p_turns double precision[], p_serveds double precision[]
) returns void
language plpgsql security definer set search_path = interlock, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set enable_hashjoin = off set jit = off as $$
begin
  p_tenant := set_config('interlock.tenant', p_tenant, true);
  update flow_bucket b set parked = x.parked, wake_at = case when x.parked then moment(x.wake_at) end,
    turn = case when x.parked then x.turn end, served = x.served from (
    select u.*, exists (select from ready q where q.tenant = p_tenant and q.limit_name = u.name and q.limit_key = u.key and q.parked) as parked
    from unnest(p_names, p_keys, p_wake_ats, p_turns, p_serveds) u(name, key, wake_at, turn, served) offset 0) x
  where b.tenant = p_tenant and b.name = x.name and b.key = x.key;
end $$;

-- Lease jobs that flow_candidates has locked, with their rows of ready, and write the buckets that were charged.
create or replace function interlock.flow_start(
  p_tenant text, p_ids uuid[], p_ats text[], p_worker text, p_claimants text[], p_seconds double precision, p_floor bigint, p_claim_id text,
  names text[], bucket_keys text[], useds integer[], levels text[], as_ofs bigint[], tickets text[], parkeds boolean[], wake_ats bigint[],
  turns double precision[], serveds double precision[],
  out at timestamptz, out expires_at timestamptz, out fence bigint, out job_ids text, out seqs bigint[], out types text[],
  out priorities integer[], out payloads text[], out agent_kinds text[], out agent_ids text[], out idempotency_keys text[],
  out created_bys text[], out created_ats bytea, out run_ats bytea, out max_attempts integer[], out workers text[], out rare text[]
) language plpgsql security definer set search_path = interlock, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set enable_hashjoin = off set jit = off as $$
begin
  p_tenant := set_config('interlock.tenant', p_tenant, true);
  update flow_bucket b set used = u.used, levels = u.levels, as_of = u.as_of, ticket = u.ticket, parked = u.parked, wake_at = moment(u.wake_at),
    turn = u.turn, served = u.served
  from unnest(names, bucket_keys, useds, flow_start.levels, as_ofs, tickets, parkeds, wake_ats, turns, serveds)
    u(name, key, used, levels, as_of, ticket, parked, wake_at, turn, served)
  where b.tenant = p_tenant and b.name = u.name and b.key = u.key;
  if cardinality(p_ids) = 0 then
    return;
  end if;
  delete from ready q where q.ctid = any(p_ats::tid[]) and q.tenant = p_tenant and q.job_id = any(p_ids);
  if p_claimants is not null then  -- width_bucket needs sorted ids
    select array_agg(x.id order by x.id), array_agg(x.claimant order by x.id) into p_ids, p_claimants
    from unnest(p_ids, p_claimants[1:cardinality(p_ids)]) as x(id, claimant);
  end if;
  select s.* into at, expires_at, fence, job_ids, seqs, types, priorities, payloads, agent_kinds, agent_ids, idempotency_keys, created_bys,
    created_ats, run_ats, max_attempts, workers, rare
  from start_runs(p_tenant, p_ids, p_worker, p_claimants, p_seconds, p_floor, p_claim_id) s;
end $$;

-- Return the valid amounts in a JSON text: a worker may save a usage step with any content.
create or replace function interlock.amounts(p_text text) returns jsonb language plpgsql immutable as $$
begin
  return (select coalesce(jsonb_object_agg(a.key, a.value::text::double precision), '{}') from jsonb_each(p_text::jsonb) a
    where jsonb_typeof(a.value) = 'number' and a.value::text::numeric between 0 and 1.7976931348623157e308);
exception
  when data_exception then return '{}';
end $$;

-- Return the amounts of a without those of b, at least 0.
create or replace function interlock.without_amounts(a jsonb, b jsonb) returns jsonb language sql immutable as $$
  select coalesce(jsonb_object_agg(x.key, greatest(x.value::text::double precision - coalesce((b ->> x.key)::double precision, 0), 0)), '{}')
  from jsonb_each(a) x
$$;

-- Return the sums of amounts by name.
create or replace function interlock.sum_amounts(p_each jsonb[]) returns jsonb language sql immutable as $$
  select coalesce(jsonb_object_agg(s.key, s.amount), '{}') from (
    select x.key, least(sum(x.value::text::numeric), 1.7976931348623157e308)::double precision as amount from unnest(p_each) e cross join lateral jsonb_each(e) x group by x.key) s
$$;

-- Return what a running job takes: its estimate, or what it has reported if that is more.
create or replace function interlock.charged_cost(p_cost jsonb, p_during jsonb) returns jsonb language sql immutable as $$
  select coalesce(jsonb_object_agg(c.key, greatest(c.value::text::double precision, least(coalesce((p_during ->> c.key)::double precision, 0), {most}))), '{}')
  from jsonb_each(p_cost) c
$$;

-- Return what one run used: by its reports during the run, and by all reports at its end (domain/usage.py, of_run).
create or replace function interlock.usage_of_run(p_tenant text, p_id uuid, p_fence bigint, p_total text, out during jsonb, out used jsonb)
language plpgsql stable as $$
declare
  earlier jsonb := '{}'; added jsonb[] := '{}'; mine jsonb[] := '{}'; again jsonb; is_here boolean := false; s record;
begin
  for s in select x.fence, x.function, x.result from interlock.job_step x
      where x.tenant = p_tenant and x.job_id = p_id and x.name = 'interlock.usage' order by x.seq loop
    is_here := is_here or s.fence = p_fence;
    if s.fence < p_fence and s.function = 'run ' || p_id then
      added := added || interlock.amounts(s.result);
    elsif s.fence < p_fence and s.function = 'retold ' || p_id then
      earlier := interlock.amounts(s.result);
    elsif s.fence = p_fence and s.function = 'run ' || p_id then
      mine := mine || interlock.amounts(s.result);
    elsif s.fence = p_fence and s.function = 'retold ' || p_id then
      again := interlock.amounts(s.result);
    end if;
  end loop;
  during := interlock.without_amounts(coalesce((select interlock.amounts(u.usage) from interlock.run_usage u
    where u.tenant = p_tenant and u.job_id = p_id and u.fence = p_fence), '{}'), earlier);
  if p_total is not null then
    used := interlock.without_amounts(interlock.amounts(p_total), interlock.sum_amounts(added || earlier));
  elsif is_here then
    used := interlock.without_amounts(interlock.sum_amounts(mine || coalesce(again, '{}')), earlier);
  else
    used := during;
  end if;
end $$;

-- Settle the leases of jobs, which have just ended: free their places, show the next jobs, and replace the estimate by the
-- reported usage (domain/limits.py, settle). All buckets are locked first, in their order.
create or replace function interlock.settle_flow(p_tenant text, p_ids uuid[]) returns void language plpgsql as $$
declare
  names text[]; keys text[]; counts integer[]; rooms integer[];
  told uuid[];
  x record;
begin
  -- Many jobs name the same limits.
  select array_agg(s.name), array_agg(s.key), array_agg(s.n) into names, keys, counts from (
    select m.name, m.key, sum(m.n)::integer as n from (
      select (d ->> 'name') collate "C" as name, coalesce(d ->> 'key', '') collate "C" as key, e.n
      from (select j.limits, count(*) as n from job j where j.tenant = p_tenant and j.id = any(p_ids) and j.limits is not null group by j.limits) e
      cross join lateral json_array_elements(e.limits::json) d) m group by m.name, m.key order by m.key <> '', m.name, m.key) s;
  if names is null then
    return;
  end if;
  perform lock_known(p_tenant, names, keys);
  rooms := rooms_after(p_tenant, names, keys, counts);
  if rooms is not null then
    perform show_parked(p_tenant, names, keys, rooms);
  end if;
  -- A bucket without parked jobs has no turn.
  update flow_bucket b set used = greatest(b.used - u.n, 0), parked = b.parked and w.parked, turn = case when w.parked then b.turn end,
    wake_at = case when b.parked and w.parked and not w.shows and b.turn is null then clock() end
  from (
    select u.*, u.room is not null and exists (select from ready q where q.tenant = p_tenant and q.limit_name = u.name and q.limit_key = u.key
      and not q.parked and not q.blocked) as shows
    from unnest(names, keys, counts, coalesce(rooms, array_fill(null::integer, array[cardinality(names)]))) u(name, key, n, room) offset 0) u
  cross join lateral (
    select i.ctid as at, not i.parked or (u.room is null and i.turn is null) or exists (select from ready q where q.tenant = p_tenant
      and q.limit_name = u.name and q.limit_key = u.key and q.parked) as parked, u.shows
    from flow_bucket i where i.tenant = p_tenant and i.name = u.name and i.key = u.key offset 0) w
  where b.ctid = w.at;
  told := array(select j.id from job j where j.tenant = p_tenant and j.id = any(p_ids) and j.limits is not null
    and ((j.status = 'succeeded' and j.usage is not null)
      or exists (select from run_usage r where r.tenant = p_tenant and r.job_id = j.id)
      or exists (select from job_step s where s.tenant = p_tenant and s.job_id = j.id and s.name = 'interlock.usage')));
  for x in
    select d ->> 'name' as name, coalesce(d ->> 'key', '') as key, array_agg(jsonb_build_array(charged_cost(d -> 'cost', u.during),
      case when j.verb not in ('expire', 'revoke') then u.used end, micros(j.run_started_at))) as parts
    from job j cross join lateral usage_of_run(p_tenant, j.id, j.fence, case when j.status = 'succeeded' then j.usage end) u
    cross join lateral jsonb_array_elements(j.limits::jsonb) d
    where j.tenant = p_tenant and j.id = any(told) group by 1, 2
  loop
    update flow_bucket b set levels = (
      select coalesce(jsonb_object_agg(l.key, greatest(l.value::text::double precision + coalesce((
        select sum(case when starts_with(x.name, 'budget:') and (p ->> 2)::bigint < b.as_of then least(c.change, 0) else c.change end)
        from unnest(x.parts) p cross join lateral (
          select (p -> 0 ->> l.key)::double precision - least((p -> 1 ->> l.key)::double precision, {most}) as change
          where p -> 1 ->> l.key is not null) c), 0), -{most})), '{}')::text
      from jsonb_each(b.levels::jsonb) l)
    where b.tenant = p_tenant and b.name = x.name and b.key = x.key;
  end loop;
end $$;

-- Lock buckets that exist. Their names and keys are in the order of locks.
create or replace function interlock.lock_known(p_tenant text, p_names text[], p_keys text[]) returns void language plpgsql as $$
begin
  perform from unnest(p_names, p_keys) u(name, key) cross join lateral (
    select from flow_bucket b where b.tenant = p_tenant and b.name = u.name and b.key = u.key for no key update) b;
end $$;

-- Return how many parked jobs of each eligibility key claims may see once these leases have ended, for buckets on which
-- only concurrency decides; null for the others, and null if there is no bucket with parked jobs and room.
create or replace function interlock.rooms_after(p_tenant text, p_names text[], p_keys text[], p_counts integer[]) returns integer[]
language plpgsql stable as $$
declare
  rooms integer[];
begin
  if exists (select from unnest(p_names, p_keys) u(name, key) join flow_bucket b on b.tenant = p_tenant and b.name = u.name and b.key = u.key
      where b.parked) then
    select array_agg(case when b.parked and b.ticket is null and coalesce(b.held_until <= clock(), true)
        and f.concurrency > greatest(b.used - u.n, 0) then least(f.concurrency - greatest(b.used - u.n, 0), {shown}) end order by u.no) into rooms
    from unnest(p_names, p_keys, p_counts) with ordinality u(name, key, n, no)
    left join flow_bucket b on b.tenant = p_tenant and b.name = u.name and b.key = u.key
    left join (
      select f.name, (f.rules::json ->> 'concurrency')::integer as concurrency from flow_limit f
      where f.tenant = p_tenant and f.name = any(p_names) and f.rules::json ->> 'units' = '{}' and f.rules::json ->> 'fair' is null) f on f.name = u.name;
  end if;
  return case when array_position(array(select r is not null from unnest(rooms) r), true) is not null then rooms end;
end $$;

-- Lock the buckets of jobs whose leases end or that no longer wait as before, and let the next claim look at the jobs
-- that are parked there.
create or replace function interlock.wake_flow(p_tenant text, p_ids uuid[]) returns void language plpgsql
  set search_path = interlock, pg_temp as $$
declare
  names text[]; keys text[];
begin
  select array_agg(s.name), array_agg(s.key) into names, keys from (
    select distinct coalesce(d ->> 'key', '') <> '' as keyed, (d ->> 'name') collate "C" as name, coalesce(d ->> 'key', '') collate "C" as key
    from (select distinct j.limits from job j where j.tenant = p_tenant and j.id = any(p_ids) and j.limits is not null) j
    cross join lateral json_array_elements(j.limits::json) d order by 1, 2, 3) s;
  if names is not null then
    perform lock_known(p_tenant, names, keys);
    update flow_bucket b set wake_at = clock() from unnest(names, keys) u(name, key)
    where b.tenant = p_tenant and b.name = u.name and b.key = u.key and b.parked;
  end if;
end $$;
