-- Return the lease duration for a claim that sets none: that of the agent, else that of the type.
create or replace function interlock.lease_of(p_tenant text, p_type text, p_agent_no bigint) returns double precision language plpgsql stable as $$
begin
  return coalesce(
    (select (a.defaults::json ->> 'lease_seconds')::double precision from interlock.agent a where a.tenant = p_tenant and a.no = p_agent_no),
    (select y.lease_seconds from interlock.job_type y where y.tenant = p_tenant and y.name = p_type), {default_lease});
end $$;

-- Return the less common columns of a job that was just leased. A job that has only limits needs no more than these,
-- which is the only such text that begins with an object.
create or replace function interlock.rare_facts(j interlock.job) returns text language sql stable as $$
  select json_build_array({rare_json}, j.attempt, j.fence,
    interlock.micros(j.lease_expires_at), interlock.micros(j.cancel_requested_at), j.cancel_reason, c.data, c.seq, j.usage, j.result,
    j.result_summary, j.error, j.sanitized or coalesce(c.sanitized, false), j.version, j.releases, interlock.micros(j.started_at))::text
  from (values (1)) as one left join interlock.job_checkpoint c
    on (j.version > 2 or j.redrive_of is not null) and c.tenant = j.tenant and c.job_id = j.id
$$;

-- Return the jobs that this claim ID leased and that still run under that lease. One search of the narrow index of
-- leases, whatever the statistics say: a join would start from all jobs of the tenant while these tables are small.
create or replace function interlock.running_under(p_tenant text, p_worker text, p_claim_id text) returns uuid[] language plpgsql as $$
declare
  leased interlock.claim_result;
begin
  select * into leased from interlock.claim_result c where c.tenant = p_tenant and c.worker = p_worker and c.claim_id = p_claim_id;
  return array(select l.job_id from interlock.lease l where l.tenant = p_tenant and l.job_id = any(leased.job_ids) and l.worker = p_worker
    and l.fence = leased.fences[array_position(leased.job_ids, l.job_id)]);
end $$;

create or replace function interlock.leased_before(p_tenant text, p_worker text, p_claim_id text)
returns setof interlock.job_view language plpgsql as $$
declare
  ids uuid[];
begin
  perform set_config('interlock.tenant', p_tenant, true);
  ids := interlock.running_under(p_tenant, p_worker, p_claim_id);
  return query select v.* from interlock.job_view v where v.tenant = p_tenant and v.id = any(ids);
end $$;

-- Return whether a waiting job can be leased, by leasing it and rolling back. A job that violates a constraint cannot.
create or replace function interlock.can_be_leased(p_tenant text, p_id uuid) returns boolean
  language plpgsql security definer set search_path = interlock, pg_temp as $$
begin
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
-- `repeat` the result of this claim ID, or the claim must ask the `limits` of jobs, and first `wake` parked ones
-- (functions/flow.sql).
--
-- p_claimants: for several workers that claim as one, the worker of the first job, the second, and so on. p_careful:
-- set after a failed claim, to skip jobs that cannot be leased.
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
  terms record; run record;
  got uuid[];
begin
  p_tenant := set_config('interlock.tenant', p_tenant, true);  -- an assignment is cheaper than PERFORM
  if p_claim_id is not null then
    perform pg_advisory_xact_lock(hashtextextended(p_tenant || '/' || p_worker || '/' || p_claim_id, 0));
    if running_under(p_tenant, p_worker, p_claim_id) <> '{}' then
      first := 'repeat';
      return;
    end if;
  end if;
  terms := terms_of_claim(p_tenant, p_types, p_capabilities, p_repositories, p_affinity_keys, p_sweep);
  if terms.overdue then
    first := 'sweep';
    return;
  end if;
  if terms.slots_due then
    perform fill_slots(p_tenant);
  end if;
  if terms.keys is null then
    return;
  end if;
  if terms.limited then
    if exists (select from flow_bucket b where b.tenant = p_tenant and b.wake_at <= clock()) then
      first := 'wake';
      return;
    end if;
    if not p_careful then
      got := take_with_room(p_tenant, terms.keys, terms.ranks, terms.flows, terms.bound, p_repositories is null, p_affinity_keys is null, p_limit);
    end if;
    if got is null then
      first := 'limits';
      return;
    end if;
  else
    got := take_ready(p_tenant, terms.keys, terms.ranks, terms.bound, p_repositories is null, p_affinity_keys is null, p_limit, p_careful);
  end if;
  if got = '{}' then
    if exists (select from flow_limit f where f.tenant = p_tenant) and exists (select from agent a
        where a.tenant = p_tenant and a.max_concurrency is not null and not a."strict" and a.used >= a.max_concurrency) then
      first := 'limits';  -- one of its slots may have a job that waits for a limit
    end if;
    return;
  end if;
  if p_claimants is not null then  -- width_bucket needs sorted ids
    select array_agg(x.id order by x.id), array_agg(x.claimant order by x.id) into got, p_claimants
    from unnest(got, p_claimants[1:cardinality(got)]) as x(id, claimant);
  end if;
  if not terms.lease_set then
    p_seconds := coalesce(p_seconds, {default_lease});
  end if;
  run := start_runs(p_tenant, got, p_worker, p_claimants, p_seconds, terms.floor, p_claim_id);  -- cheaper than SELECT INTO
  at := run.at; expires_at := run.expires_at; fence := run.fence; job_ids := run.job_ids; seqs := run.seqs; types := run.types;
  priorities := run.priorities; payloads := run.payloads; agent_kinds := run.agent_kinds; agent_ids := run.agent_ids;
  idempotency_keys := run.idempotency_keys; created_bys := run.created_bys; created_ats := run.created_ats; run_ats := run.run_ats;
  max_attempts := run.max_attempts; workers := run.workers; rare := run.rare;
end $$;

-- Return what a claim must know: whether it must first expire leases or deadlines, whether slots are due, whether any
-- agent or type sets a lease duration, whether any job is bound to a repository or an affinity key, and the eligibility
-- keys of the worker with their priorities. One index probe per combination, so that the keys, repositories and
-- capabilities of other workers cost nothing.
create or replace function interlock.terms_of_claim(
  p_tenant text, p_types text[], p_capabilities text[], p_repositories text[], p_affinity_keys text[], p_sweep boolean,
  out overdue boolean, out slots_due boolean, out lease_set boolean, out bound boolean, out floor bigint, out keys bigint[], out ranks integer[],
  out flows text[], out limited boolean
) language plpgsql stable as $$
declare
  t timestamptz := clock();
begin
  -- In two statements: one that did both would take twice as long as the two together.
  select p_sweep and (exists (select from lease l where l.tenant = p_tenant and l.expires_at <= t)
      or exists (select from ready q where q.tenant = p_tenant and q.deadline <= t)),
    exists (select from agent a where a.tenant = p_tenant and a.next_due <= t),
    exists (select from job_type y where y.tenant = p_tenant and y.lease_seconds is not null)
      or exists (select from agent a where a.tenant = p_tenant and a.defaults like '%"lease_seconds"%'),
    exists (select from eligibility_key a where a.tenant = p_tenant and a.no <> a.base), (select e.value::bigint << 32 from epoch e)
  into overdue, slots_due, lease_set, bound, floor;
  select array_agg(r.no), array_agg(r.priority), array_agg(r.flow), bool_or(r.flow <> '') into keys, ranks, flows, limited
  from unnest(array_append(p_affinity_keys, '')) k(name) cross join unnest(coalesce(p_repositories, '{""}')) s(name)
  cross join unnest(array_append(p_capabilities, '')) c(name) cross join lateral (
    select * from eligibility_key a where a.tenant = p_tenant and a.found_by_key = k.name
      and a.found_by_repository = s.name and a.found_by_need = c.name offset 0) r
  where r.parks is null and (p_types is null or r.type = any(p_types)) and r.requires <@ p_capabilities
    and not exists (select from queue k where k.tenant = p_tenant and k.type = r.type and k.paused_at is not null);
end $$;

-- Take the best jobs out of ready and return them, best first, with their rows of job locked. Jobs that other
-- transactions hold are passed over. p_careful: also pass over jobs that cannot be leased.
create or replace function interlock.take_ready(
  p_tenant text, p_keys bigint[], p_ranks integer[], p_bound boolean, p_any_repository boolean, p_any_key boolean, p_limit integer, p_careful boolean
) returns uuid[] language plpgsql as $$
declare
  got uuid[] := '{}';
  best record; free record;
  want integer := p_limit; seen integer;
  share integer;  -- how many rows to read per key
begin
  for attempt in 1..8 loop
    -- Keys often have similar numbers of jobs, so do not read the full count from each at first. A key all of whose rows
    -- are among the best may have more that rank before others: then do.
    share := case when want > p_limit or want < 20 or cardinality(p_keys) < 3 then want else want * 5 / 4 / cardinality(p_keys) + 8 end;
    best := best_ready(p_tenant, p_keys, p_ranks, p_bound, p_any_repository, p_any_key, share, want);
    if share < want then
      if exists (select from unnest(best.keys) k group by k having count(*) >= share) then
        best := best_ready(p_tenant, p_keys, p_ranks, p_bound, p_any_repository, p_any_key, want, want);
      end if;
    end if;
    exit when best.ats is null;
    seen := cardinality(best.ats);
    free := lock_ready(p_tenant, best.ats, best.ids, case when not p_careful then p_limit - cardinality(got) end);
    if p_careful then
      select array_agg(f.at) as ats, array_agg(f.id) as ids into free from (
        select u.at, u.id from unnest(free.ats, free.ids) as u(at, id) where can_be_leased(p_tenant, u.id) limit p_limit - cardinality(got)) f;
    end if;
    delete from ready q where q.ctid = any(free.ats);
    got := got || free.ids;
    -- Fewer jobs than requested although there were candidates: other transactions hold them, so read further.
    exit when cardinality(got) >= p_limit or seen < want;
    want := case want when p_limit then want + p_limit - cardinality(got) else want * 4 end;
  end loop;
  return got;
end $$;

-- Lock rows of ready and their jobs, up to p_limit, and return those that no other transaction holds and that may still
-- be leased. The row of ready comes first: if another claim has just taken it, it is gone and its job stays untouched. A
-- subquery that locks runs once per row, regardless of the planner's estimate of the table size.
create or replace function interlock.lock_ready(p_tenant text, p_ats tid[], p_ids uuid[], p_limit integer, out ats tid[], out ids uuid[])
language plpgsql as $$
declare
  t timestamptz := clock();
  free uuid[];
begin
  if cardinality(p_ids) < 20 or p_limit < cardinality(p_ids) then
    select array_agg(f.at), array_agg(f.id) into ats, ids from (
      select x.at, u.id from unnest(p_ats, p_ids) as u(at, id) cross join lateral (
        select q.ctid as at from ready q cross join job j where q.ctid = u.at and q.job_id = u.id and not q.blocked
          and j.tenant = p_tenant and j.id = u.id and j.status <= 'retry' and j.run_at <= t
        for update of q, j skip locked) x
      limit p_limit) f;
    return;
  end if;
  select array_agg(x.at), array_agg(u.id) into ats, ids from unnest(p_ats, p_ids) as u(at, id) cross join lateral (
    select q.ctid as at from ready q where q.ctid = u.at and q.job_id = u.id and not q.blocked for update skip locked) x;
  -- Look up many jobs in one statement.
  free := array(select j.id from job j where j.tenant = p_tenant and j.id = any(ids) and j.status <= 'retry' and j.run_at <= t
    for update skip locked);
  if cardinality(free) < cardinality(ids) then
    select array_agg(u.at), array_agg(u.id) into ats, ids from unnest(ats, ids) as u(at, id) where u.id = any(free);
  end if;
end $$;

-- Return the best p_limit rows of ready under these eligibility keys, best first, read from up to four index ranges per
-- key: its own, and those of jobs bound to a repository or an affinity key, if the worker accepts any of these (p_bound:
-- the tenant has such jobs). Rows that another transaction is deleting are passed over, so that concurrent claims do not
-- all compete for the same rows.
create or replace function interlock.best_ready(
  p_tenant text, p_keys bigint[], p_ranks integer[], p_bound boolean, p_any_repository boolean, p_any_key boolean, p_share integer, p_limit integer,
  out ats tid[], out ids uuid[], out keys bigint[]
) language plpgsql as $$
declare
  t timestamptz := clock();
  busy xid[] := transactions_in_progress();
begin
  if not p_bound then
    select array_agg(b.at), array_agg(b.job_id), array_agg(b.key) into ats, ids, keys from (
      select x.at, x.job_id, k.key from unnest(p_keys, p_ranks) as k(key, priority) cross join lateral (
        select q.ctid as at, q.job_id, q.run_at, q.seq from ready q
        where q.tenant = p_tenant and q.eligibility_key = k.key and q.run_at <= t
          and not q.blocked and (q.deadline is null or q.deadline > t) and q.xmax <> all(busy)
        order by q.run_at, q.seq limit p_share) x
      order by k.priority desc, x.run_at, x.seq limit p_limit) b;
    return;
  end if;
  select array_agg(b.at), array_agg(b.job_id), array_agg(b.key) into ats, ids, keys from (
    select x.at, x.job_id, k.key from unnest(p_keys, p_ranks) as k(key, priority) cross join lateral (
      (select q.ctid as at, q.job_id, q.run_at, q.seq from ready q
       where q.tenant = p_tenant and q.eligibility_key = k.key and q.run_at <= t
         and not q.blocked and (q.deadline is null or q.deadline > t) and q.xmax <> all(busy)
       order by q.run_at, q.seq limit p_share)
      union all
      (select q.ctid, q.job_id, q.run_at, q.seq from ready q
       where p_any_repository and p_any_key and q.tenant = p_tenant and q.base = k.key and q.eligibility_key <> q.base and q.run_at <= t
         and not q.blocked and (q.deadline is null or q.deadline > t) and q.xmax <> all(busy)
       order by q.run_at, q.seq limit p_share)
      union all
      (select q.ctid, q.job_id, q.run_at, q.seq from ready q
       where p_any_repository and not p_any_key and q.tenant = p_tenant and q.across_repositories = k.key and q.run_at <= t
         and not q.blocked and (q.deadline is null or q.deadline > t) and q.xmax <> all(busy)
       order by q.run_at, q.seq limit p_share)
      union all
      (select q.ctid, q.job_id, q.run_at, q.seq from ready q
       where p_any_key and not p_any_repository and q.tenant = p_tenant and q.across_keys = k.key and q.run_at <= t
         and not q.blocked and (q.deadline is null or q.deadline > t) and q.xmax <> all(busy)
       order by q.run_at, q.seq limit p_share)) x
    order by k.priority desc, x.run_at, x.seq limit p_limit) b;
end $$;

-- Return the transactions in progress. The snapshot lists those below its xmax; every one from xmax on is in progress too.
create or replace function interlock.transactions_in_progress() returns xid[] language plpgsql as $$
declare
  seen pg_snapshot := pg_current_snapshot();
begin
  if pg_snapshot_xmin(seen) = pg_snapshot_xmax(seen) and age(pg_snapshot_xmax(seen)::xid) <= 0 then
    return '{}';
  end if;
  return array(
    select pg_snapshot_xip(seen)::xid
    union all
    select n::text::xid8::xid from pg_snapshot_xmax(seen) m cross join lateral
      generate_series(m::text::bigint, m::text::bigint + least(age(m::xid), 1000) - 1) n);
end $$;

-- Start a run of jobs that a claim has taken, and return what it tells the worker. History, counters and leases are
-- written in the statement that changes the jobs; for one job in statements of their own, which start in less time.
--
-- Columns are returned as arrays because decoding one value per job is expensive for the client; times are packed into
-- one bytea for the same reason. `rare` holds the less common columns, null for a job that has none.
create or replace function interlock.start_runs(
  p_tenant text, p_ids uuid[], p_worker text, p_claimants text[], p_seconds double precision, p_floor bigint, p_claim_id text,
  out at timestamptz, out expires_at timestamptz, out fence bigint, out job_ids text, out seqs bigint[], out types text[],
  out priorities integer[], out payloads text[], out agent_kinds text[], out agent_ids text[], out idempotency_keys text[],
  out created_bys text[], out created_ats bytea, out run_ats bytea, out max_attempts integer[], out workers text[], out rare text[]
) language plpgsql as $$
#variable_conflict use_column
declare
  t timestamptz := clock();
  lease_end timestamptz := t + coalesce(p_seconds, {default_lease}) * interval '1 second';
  at_first bytea;  -- the hashed bytes of a first lease, if they are the same for all jobs
  started uuid[]; fences bigint[]; retried bigint[]; listened boolean;
  one record;
begin
  if cardinality(p_ids) = 1 then
    update job j set status = 'running', previous = j.status, version = j.version + 1, fence = greatest(j.fence, p_floor) + 1,
      worker = coalesce(p_claimants[1], p_worker), lease_seconds = coalesce(p_seconds, lease_of(p_tenant, j.type, j.agent_no)),
      lease_expires_at = t + least(coalesce(p_seconds, lease_of(p_tenant, j.type, j.agent_no)), j.timeout_seconds) * interval '1 second',
      started_at = coalesce(j.started_at, t), run_started_at = t, updated_at = t, verb = 'claim',
      actor = 'worker:' || coalesce(p_claimants[1], p_worker), reason = null, metadata = null,
      head = sha256(j.head || history_bytes(j.version + 1, j.status, 'running', 'claim', 'worker:' || coalesce(p_claimants[1], p_worker),
        j.attempt, greatest(j.fence, p_floor) + 1, null, null, micros(t)))
    where j.tenant = p_tenant and j.id = p_ids[1]
    returning j.id, j.seq, j.type, j.priority, j.payload, j.agent_kind, j.agent_id, j.idempotency_key, j.created_by, j.created_at, j.run_at,
      j.max_attempts, j.version, j.previous, j.attempt, j.fence, j.actor, j.head, j.worker, j.lease_seconds, j.lease_expires_at,
      j.timeout_seconds, j.agent_no, case when j.version > 2 or j.lease_expires_at <> lease_end or j.sanitized or {has_rare} then rare_facts(j)
        else j.limits end as rare
    into one;
    if found then
      insert into job_history (tenant, job_id, version, from_status, to_status, verb, actor, attempt, fence, at, hash)
      values (p_tenant, one.id, one.version, one.previous, 'running', 'claim', one.actor, one.attempt, one.fence, t, one.head);
      insert into queue_counter (tenant, type, minute, from_status, to_status, count, last_seq)
      values (p_tenant, one.type, date_trunc('minute', t), one.previous, 'running', 1, one.seq);
      insert into lease (tenant, job_id, fence, worker, seconds, expires_at, run_ends_at, agent_no)
      values (p_tenant, one.id, one.fence, one.worker, one.lease_seconds, one.lease_expires_at,
        t + one.timeout_seconds * interval '1 second', one.agent_no);
      started := array[one.id]; fences := array[one.fence]; job_ids := started::text; seqs := array[one.seq]; types := array[one.type];
      priorities := array[one.priority]; payloads := array[one.payload]; agent_kinds := array[one.agent_kind]; agent_ids := array[one.agent_id];
      idempotency_keys := array[one.idempotency_key]; created_bys := array[one.created_by]; created_ats := timestamptz_send(one.created_at);
      run_ats := timestamptz_send(one.run_at); max_attempts := array[one.max_attempts]; workers := array[one.worker]; rare := array[one.rare];
      retried := case when one.previous = 'retry' then seqs end;
      listened := exists (select from subscription s where s.tenant = p_tenant and s.ended_at is null);
    end if;
  else
    if p_claimants is null then
      at_first := history_bytes(2, 'queued', 'running', 'claim', 'worker:' || p_worker, 1, p_floor + 1, null, null, micros(t));
    end if;
    with leased as (
      update job j set status = 'running', previous = j.status, version = j.version + 1, fence = greatest(j.fence, p_floor) + 1,
        worker = coalesce(p_claimants[width_bucket(j.id, p_ids)], p_worker),
        lease_seconds = coalesce(p_seconds, lease_of(p_tenant, j.type, j.agent_no)),
        lease_expires_at = t + least(coalesce(p_seconds, lease_of(p_tenant, j.type, j.agent_no)), j.timeout_seconds) * interval '1 second',
        started_at = coalesce(j.started_at, t), run_started_at = t, updated_at = t, verb = 'claim',
        actor = 'worker:' || coalesce(p_claimants[width_bucket(j.id, p_ids)], p_worker), reason = null, metadata = null,
        head = sha256(j.head || case when j.version = 1 and at_first is not null then at_first else history_bytes(j.version + 1, j.status,
          'running', 'claim', 'worker:' || coalesce(p_claimants[width_bucket(j.id, p_ids)], p_worker), j.attempt, greatest(j.fence, p_floor) + 1,
          null, null, micros(t)) end)
      where j.tenant = p_tenant and j.id = any(p_ids)
      returning j.id, j.seq, j.type, j.priority, j.payload, j.agent_kind, j.agent_id, j.idempotency_key, j.created_by, j.created_at, j.run_at,
        j.max_attempts, j.version, j.previous, j.attempt, j.fence, j.actor, j.head, j.worker, j.lease_seconds, j.lease_expires_at,
        j.timeout_seconds, j.agent_no, case when j.version > 2 or j.lease_expires_at <> lease_end or j.sanitized or {has_rare} then rare_facts(j)
          else j.limits end as rare),
    recorded as (
      insert into job_history (tenant, job_id, version, from_status, to_status, verb, actor, attempt, fence, at, hash)
      select p_tenant, s.id, s.version, s.previous, 'running', 'claim', s.actor, s.attempt, s.fence, t, s.head from leased s),
    counted as (
      insert into queue_counter (tenant, type, minute, from_status, to_status, count, last_seq)
      select p_tenant, s.type, date_trunc('minute', t), s.previous, 'running', count(*), max(s.seq) from leased s group by s.type, s.previous),
    held as (
      insert into lease (tenant, job_id, fence, worker, seconds, expires_at, run_ends_at, agent_no)
      select p_tenant, s.id, s.fence, s.worker, s.lease_seconds, s.lease_expires_at, t + s.timeout_seconds * interval '1 second', s.agent_no from leased s)
    select array_agg(s.id), array_agg(s.fence), array_agg(s.seq) filter (where s.previous = 'retry'), array_agg(s.id)::text, array_agg(s.seq),
      array_agg(s.type), array_agg(s.priority), array_agg(s.payload), array_agg(s.agent_kind), array_agg(s.agent_id), array_agg(s.idempotency_key),
      array_agg(s.created_by), string_agg(timestamptz_send(s.created_at), ''), string_agg(timestamptz_send(s.run_at), ''),
      array_agg(s.max_attempts), array_agg(p_claimants[width_bucket(s.id, p_ids)]), array_agg(s.rare),
      exists (select from subscription s where s.tenant = p_tenant and s.ended_at is null)
    into started, fences, retried, job_ids, seqs, types, priorities, payloads, agent_kinds, agent_ids, idempotency_keys, created_bys, created_ats,
      run_ats, max_attempts, workers, rare, listened from leased s;
  end if;
  at := t;
  expires_at := lease_end;
  fence := p_floor + 1;
  if p_claim_id is not null then
    insert into claim_result (tenant, worker, claim_id, job_ids, fences, at) values (p_tenant, p_worker, p_claim_id, started, fences, t)
    on conflict (tenant, worker, claim_id) do update set job_ids = excluded.job_ids, fences = excluded.fences, at = excluded.at;
  end if;
  if retried is not null then
    delete from unsuccessful_job s where s.tenant = p_tenant and s.status = 'retry' and s.seq = any(retried);
  end if;
  if listened or current_setting('interlock.leaving', true) = 'yes' then
    perform announce(p_tenant, started);
    perform note_move_deltas(p_tenant, started);
  end if;
  if cardinality(started) is distinct from cardinality(p_ids) then
    if coalesce(cardinality(started), 0) < (select count(distinct x) from unnest(p_ids) x) then
      raise exception 'interlock: % jobs were locked and % granted', cardinality(p_ids), cardinality(started) using errcode = 'serialization_failure';
    end if;
  end if;
end $$;

-- Delete a claim result none of whose jobs still runs under it; otherwise check it again later.
create or replace function interlock.forget_claim(p_tenant text, p_worker text, p_claim_id text) returns boolean language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  if interlock.running_under(p_tenant, p_worker, p_claim_id) <> '{}' then
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
