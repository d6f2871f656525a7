-- Return the number of an eligibility key, or null. The arguments are plain values: under row-level security no index
-- can be searched by an expression, and the query would read all keys of the tenant.
create or replace function interlock.eligibility_key_of(
  p_tenant text, p_type text, p_requires text[], p_priority integer, p_repository text, p_affinity_key text, p_flow text
) returns bigint language plpgsql stable as $$
declare
  by_key text := coalesce(p_affinity_key, '');
  by_repository text := coalesce(p_repository, '');
  by_need text := coalesce(p_requires[1], '');
begin
  return (
    select r.no from interlock.eligibility_key r
    where r.tenant = p_tenant and r.found_by_key = by_key and r.found_by_repository = by_repository and r.found_by_need = by_need
      and r.type = p_type and r.priority = p_priority and r.requires = p_requires and r.flow = p_flow);
end $$;

-- Find or create the eligibility key of a job and its base (the key without repository and affinity key).
create or replace function interlock.ensure_eligibility_key(
  p_tenant text, p_type text, p_requires text[], p_priority integer, p_repository text, p_affinity_key text, p_flow text,
  out no bigint, out base bigint
) language plpgsql as $$
begin
  select e.no, e.base into ensure_eligibility_key.no, ensure_eligibility_key.base from interlock.ensure_eligibility_keys(
    p_tenant, array[p_type], array[p_requires::text], array[p_priority], array[p_repository], array[p_affinity_key], array[p_flow]) e;
end $$;

-- The same for many jobs; results are in input order. Keys are inserted in one order, the wider first, to avoid
-- deadlocks.
create or replace function interlock.ensure_eligibility_keys(
  p_tenant text, p_types text[], p_requires text[], p_priorities integer[], p_repositories text[], p_affinity_keys text[], p_flows text[]
) returns table (no bigint, base bigint) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  insert into interlock.tenant (tenant) values (p_tenant) on conflict do nothing;
  for named in 0..2 loop
    insert into interlock.eligibility_key (tenant, no, base, across_repositories, across_keys, type, requires, priority, repository, affinity_key, flow)
    select p_tenant, n.no, coalesce(case when named > 0 then interlock.eligibility_key_of(p_tenant, n.type, n.requires, n.priority, null, null, n.flow) end, n.no),
      case when n.repository is not null then interlock.eligibility_key_of(p_tenant, n.type, n.requires, n.priority, null, n.affinity_key, n.flow) end,
      case when n.affinity_key is not null then interlock.eligibility_key_of(p_tenant, n.type, n.requires, n.priority, n.repository, null, n.flow) end,
      n.type, n.requires, n.priority, n.repository, n.affinity_key, n.flow
    from (
      select nextval('interlock.eligibility_key_no') as no, w.* from (
        -- Each key with the keys it links to: without its repository, without its affinity key, without both.
        select distinct u.type, u.requires::text[] as requires, u.priority, x.repository, x.affinity_key, u.flow
        from unnest(p_types, p_requires, p_priorities, p_repositories, p_affinity_keys, p_flows)
          as u(type, requires, priority, repository, affinity_key, flow)
        cross join lateral (values (u.repository, u.affinity_key), (null, u.affinity_key), (u.repository, null), (null, null))
          as x(repository, affinity_key)
        where num_nonnulls(x.repository, x.affinity_key) = named order by 1, 2, 3, 4, 5, 6) w
      where interlock.eligibility_key_of(p_tenant, w.type, w.requires, w.priority, w.repository, w.affinity_key, w.flow) is null
    ) n
    on conflict do nothing;
  end loop;
  return query
  select r.no, r.base from unnest(p_types, p_requires, p_priorities, p_repositories, p_affinity_keys, p_flows) with ordinality
    as u(type, requires, priority, repository, affinity_key, flow, ordinal)
  cross join lateral (
    select interlock.eligibility_key_of(p_tenant, u.type, u.requires::text[], u.priority, u.repository, u.affinity_key, u.flow) as no offset 0) f
  cross join lateral (select a.no, a.base from interlock.eligibility_key a where a.tenant = p_tenant and a.no = f.no offset 0) r
  order by u.ordinal;
end $$;

-- Return the number of an agent; create a missing agent if p_make, else return null.
create or replace function interlock.ensure_agent(p_tenant text, p_kind text, p_id text, p_make boolean) returns bigint language plpgsql as $$
declare
  found_no bigint;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  for attempt in 1..2 loop
    select a.no into found_no from interlock.agent a where a.tenant = p_tenant and a.kind = p_kind and a.id = p_id;
    exit when found or attempt = 2 or not p_make;
    insert into interlock.tenant (tenant) values (p_tenant) on conflict do nothing;
    insert into interlock.agent (tenant, no, kind, id, implicit, created_at, updated_at)
    values (p_tenant, nextval('interlock.agent_no'), p_kind, p_id, true, interlock.clock(), interlock.clock()) on conflict do nothing;
  end loop;
  return found_no;
end $$;

-- Return the time p_micros microseconds after 1970. Seconds and microseconds are added separately: multiplying an
-- interval uses a float, which would round.
create or replace function interlock.moment(p_micros bigint) returns timestamptz language sql stable parallel safe
  return 'epoch'::timestamptz + p_micros / 1000000 * interval '1 second' + p_micros % 1000000 * interval '1 microsecond';

-- Insert jobs. The caller has validated them against the registry version p_registry.
--
-- `demands` holds the limits of each job, and `rests` the less common options as one JSON object per job. types, priorities, eligibility_keys, bases,
-- max_attempts and creators may have one element that applies to all jobs; agent_nos, keys, bodies, agent_kinds,
-- agent_ids, demands and rests are null if no job has any.
--
-- An item whose idempotency key or id already exists inserts nothing. Jobs with keys arrive sorted by key, so that two
-- batches with the same keys cannot deadlock; `ordinals` holds their original positions, which are those of `metadatas`.
-- Only the history row has the metadata: a job row stays short, and more of them fit on a page.
--
-- Returns the sequence numbers, which rise in input order, and the ids only if some jobs were not inserted: one row per
-- job is expensive for the client. History, counters and ready are written in the statement that inserts the jobs.
create or replace function interlock.enqueue(
  p_tenant text, p_registry integer, ids uuid[], types text[], payloads text[], priorities integer[], eligibility_keys bigint[], bases bigint[],
  agent_nos bigint[], max_attempts integer[], creators text[], keys text[], bodies bytea[], agent_kinds text[], agent_ids text[], demands text[],
  rests text[], metadatas text[], ordinals integer[], out seqs bigint[], out added text, out at timestamptz
) language plpgsql security definer set search_path = interlock, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set enable_hashjoin = off set jit = off as $$
#variable_conflict use_column
declare
  t timestamptz := clock();
  origin text := field(p_tenant) || '36:';  -- the hashed text is origin, id, creation, metadata, ending
  creation text := '1:1-6:queued7:enqueue';
  ending text := field(micros(t));
  numbers bigint[];
  is_dense boolean;  -- whether the numbers have no gaps
  limited bigint[] := '{}';
  listened boolean;
  created uuid[];
begin
  at := t;
  p_tenant := set_config('interlock.tenant', p_tenant, true);  -- an assignment is cheaper than PERFORM
  listened := refuse_stale_terms(p_tenant, p_registry, eligibility_keys);
  if agent_nos is not null then
    limited := lock_agents(array(select distinct n from unnest(agent_nos) n where n is not null order by n));
  end if;
  numbers := array(select nextval('job_seq_seq') from generate_series(1, cardinality(ids)));
  is_dense := numbers[cardinality(ids)] = numbers[1] + cardinality(ids) - 1;
  with created as (
    insert into job (tenant, id, seq, type, status, priority, eligibility_key, base, agent_no, run_at, attempt, max_attempts, fence, version,
      releases, created_at, updated_at, verb, actor, agent_kind, agent_id, idempotency_key, key_generation, body_sha256, created_by, payload,
      {rare}, head)
    overriding system value
    select p_tenant, n.id, numbers[n.ordinal], coalesce(n.type, types[1]), 'queued', coalesce(n.priority, priorities[1]),
      coalesce(n.eligibility_key, eligibility_keys[1]), coalesce(n.base, bases[1]), n.agent_no,
      coalesce(moment((r ->> 'run_at')::bigint), t + (r ->> 'delay_seconds')::double precision * interval '1 second', t), 1,
      coalesce(n.max_attempts, enqueue.max_attempts[1]), 0, 1, 0, t, t, 'enqueue', n.creator, n.agent_kind, n.agent_id, n.key,
      coalesce((r ->> 'key_generation')::integer, 0), n.body, n.creator, n.payload, {rare_values},
      sha256(convert_to(origin || n.id::text || creation || octet_length(n.creator) || ':' || n.creator || '1:11:0-'
        || octet_length(metadatas[n.ordinal]) || ':' || metadatas[n.ordinal] || ending, 'UTF8'))
    from (
      select u.*, coalesce(u.given_creator, creators[1]) as creator, u.rest::json as r, coalesce(ordinals[u.place], u.place) as ordinal
      from unnest(ids, types, payloads, priorities, eligibility_keys, bases, agent_nos, max_attempts, creators, keys, bodies, agent_kinds, agent_ids,
        demands, rests) with ordinality as u(id, type, payload, priority, eligibility_key, base, agent_no, max_attempts, given_creator, key, body,
        agent_kind, agent_id, limits, rest, place)
      offset 0
    ) n
    on conflict do nothing
    returning id, seq, type, eligibility_key, base, agent_no, run_at, deadline, actor, head),
  recorded as (
    insert into job_history (tenant, job_id, version, from_status, to_status, verb, actor, attempt, fence, metadata, at, hash)
    select p_tenant, c.id, 1, null, 'queued', 'enqueue', c.actor, 1, 0,
      metadatas[case when is_dense then c.seq - numbers[1] + 1 else width_bucket(c.seq, numbers) end], t, c.head from created c),
  counted as (
    insert into queue_counter (tenant, type, minute, to_status, count)
    select p_tenant, c.type, date_trunc('minute', t), 'queued', count(*) from created c group by c.type),
  waiting as (
    insert into ready (tenant, eligibility_key, base, run_at, seq, job_id, deadline, agent_no, blocked)
    select p_tenant, c.eligibility_key, c.base, c.run_at, c.seq, c.id, c.deadline, c.agent_no, coalesce(c.agent_no = any(limited), false) from created c)
  select coalesce(array_agg(c.seq), '{}'), case when count(*) < cardinality(ids) then coalesce(string_agg(c.id::text, ' '), '') end, array_agg(c.id)
  into seqs, added, created from created c;
  if created is not null and (listened or limited <> '{}' or current_setting('interlock.leaving', true) = 'yes') then
    perform after_enqueue(p_tenant, created, limited);
  end if;
end $$;

-- Insert one job that has no agent, no idempotency key and none of the less common options. The same as `enqueue`, in
-- statements without arrays: to start a statement costs more than to insert one row.
create or replace function interlock.enqueue_one(
  p_tenant text, p_registry integer, p_id uuid, p_type text, p_payload text, p_priority integer, p_key bigint, p_base bigint,
  p_max_attempts integer, p_creator text, p_metadata text, out seq bigint, out at timestamptz
) language plpgsql security definer set search_path = interlock, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set enable_hashjoin = off set jit = off as $$
#variable_conflict use_column
declare
  t timestamptz := clock();
  listened boolean;
  hash bytea;
begin
  at := t;
  p_tenant := set_config('interlock.tenant', p_tenant, true);  -- an assignment is cheaper than PERFORM
  listened := refuse_stale_terms(p_tenant, p_registry, array[p_key]);
  hash := sha256(origin(p_tenant, p_id) || history_bytes(1, null, 'queued', 'enqueue', p_creator, 1, 0, null, p_metadata, micros(t)));
  insert into job (tenant, id, type, status, priority, eligibility_key, base, run_at, attempt, max_attempts, fence, version, releases, created_at,
    updated_at, verb, actor, created_by, payload, head, {rare_lists})
  values (p_tenant, p_id, p_type, 'queued', p_priority, p_key, p_base, t, 1, p_max_attempts, 0, 1, 0, t, t, 'enqueue', p_creator, p_creator,
    p_payload, hash, {no_rare_lists})
  on conflict do nothing returning job.seq into enqueue_one.seq;
  if enqueue_one.seq is null then
    return;
  end if;
  insert into job_history (tenant, job_id, version, to_status, verb, actor, attempt, fence, metadata, at, hash)
  values (p_tenant, p_id, 1, 'queued', 'enqueue', p_creator, 1, 0, p_metadata, t, hash);
  insert into queue_counter (tenant, type, minute, to_status, count) values (p_tenant, p_type, date_trunc('minute', t), 'queued', 1);
  insert into ready (tenant, eligibility_key, base, run_at, seq, job_id) values (p_tenant, p_key, p_base, t, enqueue_one.seq, p_id);
  if listened or current_setting('interlock.leaving', true) = 'yes' then
    perform after_enqueue(p_tenant, array[p_id], '{}');
  end if;
end $$;

-- Reject an enqueue whose caller relied on something that has changed, and return whether the tenant has subscriptions.
-- A foreign key would be checked once per job.
create or replace function interlock.refuse_stale_terms(p_tenant text, p_registry integer, p_keys bigint[]) returns boolean language plpgsql
  stable as $$
declare
  registry integer; unknown boolean; listened boolean;
begin
  select (select x.registry from tenant x where x.tenant = p_tenant),
    exists (select from (select distinct k from unnest(p_keys) k) u(no)
      where not exists (select from eligibility_key r where r.tenant = p_tenant and r.no = u.no)),
    exists (select from subscription s where s.tenant = p_tenant and s.ended_at is null) into registry, unknown, listened;
  if p_registry <> coalesce(registry, 0) then
    raise exception 'interlock: the registry of this tenant has changed' using errcode = 'IL001';
  end if;
  if unknown then
    raise exception 'interlock: a job names a route that does not exist' using errcode = 'foreign_key_violation';
  end if;
  return listened;
end $$;

-- The rest of an enqueue, if jobs have agents with a limit, the tenant has subscriptions, or is leaving.
create or replace function interlock.after_enqueue(p_tenant text, p_ids uuid[], p_limited bigint[]) returns void language plpgsql as $$
begin
  if p_limited <> '{}' then
    if exists (select from (select j.agent_no, min(j.run_at) as first from job j where j.tenant = p_tenant and j.id = any(p_ids)
                 and j.agent_no = any(p_limited) group by j.agent_no) b
               cross join lateral (select from ready q where q.tenant = p_tenant and q.agent_no = b.agent_no and q.blocked <= false
                                   and q.run_at > b.first limit 1) later) then
      perform take_back_slots(p_limited);  -- a new job precedes one that has a slot and may not have started
    end if;
    perform release_slots(p_limited, '{}');
  end if;
  perform announce(p_tenant, p_ids);
  perform note_move_deltas(p_tenant, p_ids);
end $$;

-- Return the jobs that already have these idempotency keys or ids, the newest of a key that ends last.
create or replace function interlock.holders(p_tenant text, p_keys text[], p_ids uuid[])
returns table (key text, generation integer, id uuid, seq bigint, body bytea, created_at timestamptz) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select j.idempotency_key, j.key_generation, j.id, j.seq, j.body_sha256, j.created_at from interlock.job j
    where j.tenant = p_tenant and j.idempotency_key = any(p_keys)
    union select null, 0, j.id, j.seq, j.body_sha256, j.created_at from interlock.job j where j.tenant = p_tenant and j.id = any(p_ids)
    order by 2;
end $$;

-- Return the generation in which a job may have each of these keys, all of which end: that of their newest job, or the
-- next one if its time is over. Their jobs are locked until the transaction ends, so that none is deleted before.
create or replace function interlock.key_generations(p_tenant text, p_keys text[], p_lifetimes double precision[])
returns table (generation integer) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  perform from interlock.job j where j.tenant = p_tenant and j.idempotency_key = any(p_keys) order by j.id for share;
  return query select coalesce((
      select j.key_generation + (j.created_at <= interlock.clock() - u.lifetime * interval '1 second')::integer from interlock.job j
      where j.tenant = p_tenant and j.idempotency_key = u.key and j.key_generation > 0 order by j.key_generation desc limit 1), 1)
    from unnest(p_keys, p_lifetimes) with ordinality as u(key, lifetime, no) order by u.no;
end $$;

-- Return the limits of parents, which name the budgets of their trees.
create or replace function interlock.limits_of(p_tenant text, p_ids uuid[]) returns table (id uuid, limits text) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select j.id, j.limits from interlock.job j where j.tenant = p_tenant and j.id = any(p_ids);
end $$;

-- Return which of these parents may still get children, and lock them until the transaction ends.
create or replace function interlock.open_parents(p_tenant text, p_ids uuid[])
returns table (id uuid, is_open boolean) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select j.id, j.status < 'succeeded' and j.cancel_requested_at is null from interlock.job j
    where j.tenant = p_tenant and j.id = any(p_ids) order by j.id for share;
end $$;
