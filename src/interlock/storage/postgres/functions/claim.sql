-- Return the lease duration for a claim that sets none: that of the agent, else that of the type.
create or replace function interlock.lease_of(p_tenant text, p_type text, p_agent_no bigint) returns double precision language plpgsql stable as $$
begin
  return coalesce(
    (select (a.defaults::json ->> 'lease_seconds')::double precision from interlock.agent a where a.tenant = p_tenant and a.no = p_agent_no),
    (select y.lease_seconds from interlock.job_type y where y.tenant = p_tenant and y.name = p_type), {default_lease});
end $$;

-- Return the less common columns of a job that was just leased.
create or replace function interlock.rare_facts(j interlock.job) returns text language sql stable as $$
  select json_build_array({rare_json}, j.attempt, j.fence,
    interlock.micros(j.lease_expires_at), interlock.micros(j.cancel_requested_at), j.cancel_reason, c.data, c.seq, j.usage, j.result,
    j.result_summary, j.error, j.sanitized or coalesce(c.sanitized, false), j.version, j.releases, interlock.micros(j.started_at))::text
  from (values (1)) as one left join interlock.job_checkpoint c
    on (j.version > 2 or j.redrive_of is not null) and c.tenant = j.tenant and c.job_id = j.id
$$;

-- Return the jobs that this claim ID leased and that still run under that lease.
create or replace function interlock.leased_before(p_tenant text, p_worker text, p_claim_id text)
returns setof interlock.job_view language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select v.* from interlock.claim_result c cross join lateral unnest(c.job_ids, c.fences) as g(id, fence)
    join interlock.job_view v on v.tenant = p_tenant and v.id = g.id and v.status = 'running' and v.fence = g.fence and v.worker = p_worker
    where c.tenant = p_tenant and c.worker = p_worker and c.claim_id = p_claim_id;
end $$;

-- Return whether a waiting job can be leased, by leasing it and rolling back. A job that violates a constraint cannot.
create or replace function interlock.can_be_leased(p_tenant text, p_id uuid) returns boolean
  language plpgsql security definer set search_path = interlock, pg_temp as $$
begin
  perform set_config('interlock.leasing', 'claim', true);
  update job j set status = 'running', previous = j.status, version = j.version + 1, fence = j.fence + 1, worker = '', lease_seconds = 1,
    lease_expires_at = clock(), started_at = coalesce(j.started_at, clock()), run_started_at = clock(), updated_at = clock(), verb = 'claim',
    actor = '', reason = null, metadata = null
  where j.tenant = p_tenant and j.id = p_id;
  raise exception using errcode = 'IL003';
exception
  when sqlstate 'IL003' then return true;
  when integrity_constraint_violation or data_exception or plpgsql_error then return false;
end $$;

-- Lease the best jobs that a worker may run.
--
-- `first` is set when nothing was leased because another call must come first: `sweep` expired leases or deadlines, or
-- `repeat` the result of this claim ID.
--
-- Columns are returned as arrays because decoding one value per job is expensive for the client; times are packed into
-- one bytea for the same reason. `rare` holds the less common columns, null for a job that has none.
--
-- p_claimants: for several workers that claim as one, the worker of the first job, the second, and so on. p_careful:
-- set after a failed claim, to skip jobs that cannot be leased.
--
-- Security definer, because only the owner may delete from ready: no waiting job can lose its row there.
create or replace function interlock.claim(
  p_tenant text, p_worker text, p_limit integer, p_seconds double precision, p_types text[], p_capabilities text[],
  p_repositories text[], p_affinity_keys text[], p_claim_id text, p_claimants text[], p_sweep boolean, p_careful boolean,
  out first text, out at timestamptz, out expires_at timestamptz, out fence bigint, out job_ids text, out seqs bigint[], out types text[],
  out priorities integer[], out payloads text[], out agent_kinds text[], out agent_ids text[], out idempotency_keys text[],
  out created_bys text[], out created_ats bytea, out run_ats bytea, out max_attempts integer[], out workers text[], out rare text[]
) language plpgsql security definer set search_path = interlock, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set enable_hashjoin = off set jit = off as $$
declare
  t timestamptz := interlock.clock();
  t_micros bigint := interlock.micros(t);
  noted text := interlock.noted(null, null, t_micros);
  claimant_actor text := 'worker:' || p_worker;
  at_first bytea;  -- the hashed bytes of a first lease, if they are the same for all jobs
  lease_end timestamptz := t + coalesce(p_seconds, {default_lease}) * interval '1 second';
  floor bigint;
  overdue boolean;
  joining boolean;
  usual boolean;  -- no agent and no type sets a lease duration
  bound boolean;  -- the tenant has jobs bound to a repository or an affinity key
  leasing text;
  any_repository boolean := p_repositories is null;
  any_key boolean := p_affinity_keys is null;
  eligibility_keys bigint[];  -- keys this worker can claim, and the priority of each
  ranks integer[];
  got uuid[] := '{}';
  more uuid[];
  row_ids tid[];  -- of the best candidates in ready
  candidates uuid[];
  their_keys bigint[];
  seen integer;
  want integer := p_limit;
  share integer;  -- how many candidates to read per eligibility key
  uneven boolean := false;
  leased integer;
  seen_by pg_snapshot;
  busy xid[];  -- transactions in progress: skip the rows they are deleting from ready
begin
  p_tenant := set_config('interlock.tenant', p_tenant, true);  -- an assignment is cheaper than PERFORM
  if p_claim_id is not null then
    perform pg_advisory_xact_lock(hashtextextended(p_tenant || '/' || p_worker || '/' || p_claim_id, 0));
    if exists (select from interlock.claim_result c cross join lateral unnest(c.job_ids, c.fences) as g(id, fence)
        join interlock.job j on j.tenant = p_tenant and j.id = g.id and j.status = 'running' and j.fence = g.fence and j.worker = p_worker
        where c.tenant = p_tenant and c.worker = p_worker and c.claim_id = p_claim_id) then
      first := 'repeat';
      return;
    end if;
  end if;
  select p_sweep and (exists (select from interlock.lease l where l.tenant = p_tenant and l.expires_at <= t)
      or exists (select from interlock.ready q where q.tenant = p_tenant and q.deadline <= t)),
    exists (select from interlock.agent a where a.tenant = p_tenant and a.next_due <= t),
    not exists (select from interlock.job_type y where y.tenant = p_tenant and y.lease_seconds is not null)
      and not exists (select from interlock.agent a where a.tenant = p_tenant and a.defaults like '%"lease_seconds"%'),
    exists (select from interlock.eligibility_key a where a.tenant = p_tenant and a.no <> a.base), e.value::bigint << 32, r.nos, r.priorities
  into overdue, joining, usual, bound, floor, eligibility_keys, ranks from interlock.epoch e cross join lateral (
    select array_agg(r.no) as nos, array_agg(r.priority) as priorities
    from unnest(array_append(p_affinity_keys, '')) k(name) cross join unnest(coalesce(p_repositories, '{""}')) s(name)
    cross join unnest(array_append(p_capabilities, '')) c(name) cross join lateral (
      -- One index probe per combination, so that the keys, repositories and capabilities of other workers cost nothing.
      select * from interlock.eligibility_key a where a.tenant = p_tenant and a.found_by_key = k.name
        and a.found_by_repository = s.name and a.found_by_need = c.name offset 0) r
    where (p_types is null or r.type = any(p_types)) and r.requires <@ p_capabilities
      and not exists (select from interlock.queue k where k.tenant = p_tenant and k.type = r.type and k.paused_at is not null)) r;
  if overdue then
    first := 'sweep';
    return;
  end if;
  if joining then
    perform interlock.fill_slots(p_tenant);
  end if;
  if usual then
    p_seconds := coalesce(p_seconds, {default_lease});
  end if;
  if eligibility_keys is null then
    return;
  end if;

  for attempt in 1..8 loop
    -- The snapshot lists transactions in progress below its xmax; every transaction from xmax on is in progress too.
    seen_by := pg_current_snapshot();
    busy := '{}';
    if pg_snapshot_xmin(seen_by) < pg_snapshot_xmax(seen_by) or age(pg_snapshot_xmax(seen_by)::xid) > 0 then
      busy := array(
        select pg_snapshot_xip(seen_by)::xid
        union all
        select n::text::xid8::xid from pg_snapshot_xmax(seen_by) m cross join lateral
          generate_series(m::text::bigint, m::text::bigint + least(age(m::xid), 1000) - 1) n);
    end if;
    -- Eligibility keys often have similar numbers of jobs, so the first pass does not read the full count from each.
    share := case when uneven or want > p_limit or want < 20 or cardinality(eligibility_keys) < 3 then want
      else want * 5 / 4 / cardinality(eligibility_keys) + 8 end;
    if bound then
      select array_agg(b.at), array_agg(b.job_id), array_agg(b.eligibility_key), count(*) into row_ids, candidates, their_keys, seen from (
        select x.at, x.job_id, index_range.eligibility_key from unnest(eligibility_keys, ranks) as index_range(eligibility_key, priority) cross join lateral (
          (select q.ctid as at, q.job_id, q.run_at, q.seq from interlock.ready q
           where q.tenant = p_tenant and q.eligibility_key = index_range.eligibility_key and q.run_at <= t
             and not q.blocked and (q.deadline is null or q.deadline > t) and q.xmax <> all(busy)
           order by q.run_at, q.seq limit share)
          union all
          (select q.ctid, q.job_id, q.run_at, q.seq from interlock.ready q
           where any_repository and any_key and q.tenant = p_tenant and q.base = index_range.eligibility_key and q.eligibility_key <> q.base and q.run_at <= t
             and not q.blocked and (q.deadline is null or q.deadline > t) and q.xmax <> all(busy)
           order by q.run_at, q.seq limit share)
          union all
          (select q.ctid, q.job_id, q.run_at, q.seq from interlock.ready q
           where any_repository and not any_key and q.tenant = p_tenant and q.across_repositories = index_range.eligibility_key and q.run_at <= t
             and not q.blocked and (q.deadline is null or q.deadline > t) and q.xmax <> all(busy)
           order by q.run_at, q.seq limit share)
          union all
          (select q.ctid, q.job_id, q.run_at, q.seq from interlock.ready q
           where any_key and not any_repository and q.tenant = p_tenant and q.across_keys = index_range.eligibility_key and q.run_at <= t
             and not q.blocked and (q.deadline is null or q.deadline > t) and q.xmax <> all(busy)
           order by q.run_at, q.seq limit share)) x
        order by index_range.priority desc, x.run_at, x.seq limit want) b;
    else  -- the same without the ranges for jobs bound to a repository or an affinity key
      select array_agg(b.at), array_agg(b.job_id), array_agg(b.eligibility_key), count(*) into row_ids, candidates, their_keys, seen from (
        select x.at, x.job_id, index_range.eligibility_key from unnest(eligibility_keys, ranks) as index_range(eligibility_key, priority) cross join lateral (
          select q.ctid as at, q.job_id, q.run_at, q.seq from interlock.ready q
          where q.tenant = p_tenant and q.eligibility_key = index_range.eligibility_key and q.run_at <= t
            and not q.blocked and (q.deadline is null or q.deadline > t) and q.xmax <> all(busy)
          order by q.run_at, q.seq limit share) x
        order by index_range.priority desc, x.run_at, x.seq limit want) b;
    end if;
    exit when seen = 0;
    uneven := false;
    if share < want then  -- a key all of whose candidates are among the best may have more that rank before others
      uneven := exists (select from unnest(their_keys) r group by r having count(*) >= share);
      continue when uneven;
    end if;
    -- Lock the row of ready first: if another claim has just taken it, the row is gone and its job stays untouched. A
    -- subquery that locks runs once per candidate, regardless of the planner's estimate of the table size.
    if seen < 20 or want > p_limit then
      select array_agg(f.at), array_agg(f.job_id) into row_ids, more from (
        select x.at, u.job_id from unnest(row_ids, candidates) as u(at, job_id) cross join lateral (
          select q.ctid as at from interlock.ready q cross join interlock.job j
          where q.ctid = u.at and q.job_id = u.job_id and not q.blocked
            and j.tenant = p_tenant and j.id = u.job_id and j.status <= 'retry' and j.run_at <= t
          for update of q, j skip locked) x
        limit case when not p_careful then p_limit - cardinality(got) end) f;
    else  -- look up many jobs in one statement
      select array_agg(x.at), array_agg(u.job_id) into row_ids, candidates
      from unnest(row_ids, candidates) as u(at, job_id) cross join lateral (
        select q.ctid as at from interlock.ready q where q.ctid = u.at and q.job_id = u.job_id and not q.blocked for update skip locked) x;
      select array_agg(f.id) into more from (
        select j.id from interlock.job j where j.tenant = p_tenant and j.id = any(candidates) and j.status <= 'retry' and j.run_at <= t
        for update skip locked) f;
      if cardinality(more) = cardinality(candidates) then
        more := candidates;  -- the same jobs, best first
      else  -- other transactions have locked the rest
        select array_agg(u.at), array_agg(u.job_id) into row_ids, more
        from unnest(row_ids, candidates) as u(at, job_id) where u.job_id = any(more);
      end if;
    end if;
    if p_careful then
      select coalesce(array_agg(g.at), '{}'), coalesce(array_agg(g.job_id), '{}') into row_ids, more from (
        select u.at, u.job_id from unnest(row_ids, more) as u(at, job_id) where interlock.can_be_leased(p_tenant, u.job_id)
        limit p_limit - cardinality(got)) g;
    end if;
    leasing := set_config('interlock.verb', 'on', true);
    delete from interlock.ready q where q.ctid = any(row_ids);
    leasing := set_config('interlock.verb', '', true);
    got := got || more;
    -- Fewer jobs than requested although there were candidates: other transactions hold them, so read further.
    exit when cardinality(got) >= p_limit or seen < want;
    want := case want when p_limit then want + p_limit - cardinality(got) else want * 4 end;
  end loop;

  if got = '{}' then  -- an UPDATE of no rows would still run every statement trigger
    return;
  end if;
  if p_claimants is not null then
    -- width_bucket needs sorted ids.
    select array_agg(x.id order by x.id), array_agg(x.claimant order by x.id) into got, p_claimants
    from unnest(got, p_claimants[1:cardinality(got)]) as x(id, claimant);
  elsif cardinality(got) > 1 then
    at_first := interlock.history_bytes(2, 'queued', interlock.became('running', 'claim', claimant_actor), 1, floor + 1, noted);
  end if;
  leasing := set_config('interlock.leasing', 'claim', true) || set_config('interlock.verb', 'on', true);
  with started as (
    update interlock.job j set status = 'running', previous = j.status, version = j.version + 1, fence = greatest(j.fence, floor) + 1,
      worker = coalesce(p_claimants[width_bucket(j.id, got)], p_worker),
      lease_seconds = coalesce(p_seconds, interlock.lease_of(p_tenant, j.type, j.agent_no)),
      lease_expires_at = t + least(coalesce(p_seconds, interlock.lease_of(p_tenant, j.type, j.agent_no)), j.timeout_seconds) * interval '1 second',
      started_at = coalesce(j.started_at, t), run_started_at = t, updated_at = t, verb = 'claim',
      actor = coalesce('worker:' || p_claimants[width_bucket(j.id, got)], claimant_actor), reason = null, metadata = null,
      head = sha256(j.head || case when j.version = 1 and at_first is not null then at_first else interlock.history_bytes(j.version + 1, j.status,
        interlock.became('running', 'claim', coalesce('worker:' || p_claimants[width_bucket(j.id, got)], claimant_actor)),
        j.attempt, greatest(j.fence, floor) + 1, noted) end)
    where j.tenant = p_tenant and j.id = any(got)
    returning j.id, j.seq, j.type, j.priority, j.payload, j.agent_kind, j.agent_id, j.idempotency_key, j.created_by,
      j.created_at, j.run_at, j.max_attempts, p_claimants[width_bucket(j.id, got)] as claimant,
      case when j.version > 2 or j.lease_expires_at <> lease_end or j.sanitized or {has_rare}
      then interlock.rare_facts(j) end as rare)
  select count(*), array_agg(s.id)::text, array_agg(s.seq), array_agg(s.type), array_agg(s.priority), array_agg(s.payload),
    array_agg(s.agent_kind), array_agg(s.agent_id), array_agg(s.idempotency_key), array_agg(s.created_by), string_agg(timestamptz_send(s.created_at), ''),
    string_agg(timestamptz_send(s.run_at), ''), array_agg(s.max_attempts), array_agg(s.claimant), array_agg(s.rare)
  into leased, job_ids, seqs, types, priorities, payloads, agent_kinds, agent_ids, idempotency_keys, created_bys, created_ats,
    run_ats, max_attempts, workers, rare from started s;
  at := t;
  expires_at := lease_end;
  fence := floor + 1;
  leasing := set_config('interlock.leasing', '', true) || set_config('interlock.verb', '', true);
  if leased <> cardinality(got) and leased <> (select count(distinct x) from unnest(got) x) then
    raise exception 'interlock: % jobs were locked and % granted', cardinality(got), leased using errcode = 'serialization_failure';
  end if;

  if p_claim_id is not null then
    insert into interlock.claim_result (tenant, worker, claim_id, job_ids, fences, at)
    select p_tenant, p_worker, p_claim_id, array_agg(j.id), array_agg(j.fence), t from interlock.job j
    where j.tenant = p_tenant and j.id = any(got)
    on conflict (tenant, worker, claim_id) do update set job_ids = excluded.job_ids, fences = excluded.fences, at = excluded.at;
  end if;
end $$;

-- Delete a claim result none of whose jobs still runs under it; otherwise check it again later.
create or replace function interlock.forget_claim(p_tenant text, p_worker text, p_claim_id text) returns boolean language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  if exists (
    select from interlock.claim_result c cross join lateral unnest(c.job_ids, c.fences) as g(id, fence)
    join interlock.job j on j.tenant = p_tenant and j.id = g.id and j.status = 'running' and j.fence = g.fence and j.worker = p_worker
    where c.tenant = p_tenant and c.worker = p_worker and c.claim_id = p_claim_id
  ) then
    update interlock.claim_result set at = interlock.clock() where tenant = p_tenant and worker = p_worker and claim_id = p_claim_id;
    return false;
  end if;
  delete from interlock.claim_result where tenant = p_tenant and worker = p_worker and claim_id = p_claim_id;
  return true;
end $$;

-- Return the expired leases of one tenant, oldest first.
create or replace function interlock.expired_leases(p_tenant text, p_limit integer) returns table (id uuid) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select l.job_id from interlock.lease l
    where l.tenant = p_tenant and l.expires_at <= interlock.clock() order by l.expires_at limit p_limit;
end $$;

-- Return the waiting jobs of one tenant whose deadline has passed.
create or replace function interlock.passed_deadlines(p_tenant text, p_limit integer) returns table (id uuid) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select q.job_id from interlock.ready q
    where q.tenant = p_tenant and q.deadline <= interlock.clock() order by q.deadline limit p_limit;
end $$;
