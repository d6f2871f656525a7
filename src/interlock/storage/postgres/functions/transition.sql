-- Complete each job that its worker still holds, by sorted ids (fence -2^62 matches any fence). A job missing from the
-- result was rejected.
--
-- Columns are passed as arrays, null if no job has a value, because encoding one value per job is expensive for the
-- client. p_fences, workers and sanitizeds may have one element that applies to all jobs.
--
-- History and counters are written in the statement that changes the jobs; for one job in statements of their own, which
-- start in less time. width_bucket finds the index of an id by binary search: without a join, the planner cannot choose
-- a wrong join order.
create or replace function interlock.complete(
  p_tenant text, ids uuid[], p_fences bigint[], workers text[], results text[], summaries text[], usages text[], sanitizeds boolean[],
  out positions integer[], out fences bigint[], out attempts integer[], out versions integer[], out at timestamptz
) language plpgsql security definer set search_path = interlock, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set enable_hashjoin = off set jit = off as $$
#variable_conflict use_column
declare
  t timestamptz := clock();
  metadatas text[];
  same_fence bigint := case when cardinality(p_fences) = 1 then p_fences[1] end;
  same_worker text := case when cardinality(workers) = 1 then workers[1] end;
  same_sanitized boolean := case when cardinality(sanitizeds) = 1 then sanitizeds[1] end;
  at_first bytea;  -- the hashed bytes of a job completed in its first run, if they are the same for all
  done uuid[]; involved boolean;
  one record;
begin
  at := t;
  p_tenant := set_config('interlock.tenant', p_tenant, true);  -- an assignment is cheaper than PERFORM
  metadatas := metadatas_of_completions(p_tenant, ids, results, summaries, usages);
  if cardinality(ids) = 1 then
    update job j set status = 'succeeded', previous = j.status, version = j.version + 1, worker = null, lease_expires_at = null,
      finished_at = t, updated_at = t, verb = 'complete', actor = 'worker:' || j.worker, reason = null, metadata = metadatas[1], error = null,
      result = results[1], result_summary = summaries[1], usage = coalesce(usages[1], j.usage), sanitized = j.sanitized or same_sanitized,
      head = sha256(j.head || history_bytes(j.version + 1, 'running', 'succeeded', 'complete', 'worker:' || j.worker, j.attempt, j.fence,
        null, metadatas[1], micros(t)))
    where j.tenant = p_tenant and j.id = ids[1] and j.status = 'running' and j.worker = same_worker and same_fence in (j.fence, {any_fence})
    returning j.id, j.seq, j.type, j.actor, j.fence, j.attempt, j.version, j.metadata, j.head,
      num_nonnulls(j.agent_no, j.parent_id, j.webhook) > 0 as involved into one;
    if not found then
      return;
    end if;
    insert into job_history (tenant, job_id, version, from_status, to_status, verb, actor, attempt, fence, metadata, at, hash)
    values (p_tenant, one.id, one.version, 'running', 'succeeded', 'complete', one.actor, one.attempt, one.fence, one.metadata, t, one.head);
    insert into queue_counter (tenant, type, minute, from_status, to_status, count, last_seq)
    values (p_tenant, one.type, date_trunc('minute', t), 'running', 'succeeded', 1, one.seq);
    positions := '{1}'; fences := array[one.fence]; attempts := array[one.attempt]; versions := array[one.version]; done := ids;
    involved := one.involved or exists (select from subscription s where s.tenant = p_tenant and s.ended_at is null);
  else
    if metadatas is null and same_fence <> {any_fence} then
      at_first := history_bytes(3, 'running', 'succeeded', 'complete', 'worker:' || same_worker, 1, same_fence, null, null, micros(t));
    end if;
    with ended as (
      update job j set status = 'succeeded', previous = j.status, version = j.version + 1, worker = null, lease_expires_at = null,
        finished_at = t, updated_at = t, verb = 'complete', actor = 'worker:' || j.worker, reason = null,
        metadata = metadatas[width_bucket(j.id, ids)], error = null, result = results[width_bucket(j.id, ids)],
        result_summary = summaries[width_bucket(j.id, ids)], usage = coalesce(usages[width_bucket(j.id, ids)], j.usage),
        sanitized = j.sanitized or coalesce(same_sanitized, sanitizeds[width_bucket(j.id, ids)]),
        head = sha256(j.head || case when j.version = 2 and at_first is not null then at_first else history_bytes(j.version + 1, 'running',
          'succeeded', 'complete', 'worker:' || j.worker, j.attempt, j.fence, null, metadatas[width_bucket(j.id, ids)], micros(t)) end)
      where j.tenant = p_tenant and j.id = any(ids) and j.status = 'running'
        and j.worker = coalesce(same_worker, workers[width_bucket(j.id, ids)])
        and coalesce(same_fence, p_fences[width_bucket(j.id, ids)]) in (j.fence, {any_fence})
      returning j.id, j.seq, j.type, j.actor, j.fence, j.attempt, j.version, j.metadata, j.head,
        num_nonnulls(j.agent_no, j.parent_id, j.webhook) > 0 as involved),
    recorded as (
      insert into job_history (tenant, job_id, version, from_status, to_status, verb, actor, attempt, fence, metadata, at, hash)
      select p_tenant, e.id, e.version, 'running', 'succeeded', 'complete', e.actor, e.attempt, e.fence, e.metadata, t, e.head from ended e),
    counted as (
      insert into queue_counter (tenant, type, minute, from_status, to_status, count, last_seq)
      select p_tenant, e.type, date_trunc('minute', t), 'running', 'succeeded', count(*), max(e.seq) from ended e group by e.type)
    select array_agg(width_bucket(e.id, ids)), array_agg(e.fence), array_agg(e.attempt), array_agg(e.version), array_agg(e.id order by e.id),
      bool_or(e.involved) or exists (select from subscription s where s.tenant = p_tenant and s.ended_at is null)
    into positions, fences, attempts, versions, done, involved from ended e;
  end if;
  if involved or current_setting('interlock.leaving', true) = 'yes' then
    perform after_completion(p_tenant, done);
  elsif done is not null then
    perform end_leases(p_tenant, done);
  end if;
end $$;

-- The rest of a completion, if the jobs have agents, parents or webhooks, the tenant has subscriptions, or is leaving.
create or replace function interlock.after_completion(p_tenant text, p_ids uuid[]) returns void language plpgsql as $$
declare
  parents uuid[] := wake_parents(p_tenant, p_ids);
  touched uuid[] := p_ids || parents;  -- no index is searched by an expression under row-level security
  nos bigint[] := array(select distinct j.agent_no from job j where j.tenant = p_tenant and j.id = any(touched)
    and j.agent_no is not null order by 1);
  limited bigint[] := '{}';
begin
  if nos <> '{}' then  -- agents are locked before any index table is changed
    limited := lock_agents(nos);
  end if;
  perform end_leases(p_tenant, p_ids);
  if parents is not null then
    perform enter_ready(p_tenant, '{}', parents);
  end if;
  if limited <> '{}' then
    if parents is not null then
      perform take_back_slots(limited);
    end if;
    perform release_slots(limited, slots_freed(p_tenant, p_ids));
  end if;
  perform announce(p_tenant, p_ids);
  perform note_move_deltas(p_tenant, p_ids);
end $$;

-- Return the backoff of a job: its own, else that of its agent, else that of its type.
create or replace function interlock.backoff_of(j interlock.job) returns text language sql stable as $$
  select coalesce(j.backoff, (select a.backoff from interlock.agent a where a.tenant = j.tenant and a.no = j.agent_no),
    (select y.backoff from interlock.job_type y where y.tenant = j.tenant and y.name = j.type))
$$;

-- Lock jobs in one order and return their job states. The lease is locked too, so that no heartbeat comes in between.
create or replace function interlock.job_states(p_tenant text, p_ids uuid[])
returns table ({state_types}) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  perform from interlock.job j where j.tenant = p_tenant and j.id = any(p_ids) order by j.id for update;
  perform from interlock.lease l where l.tenant = p_tenant and l.job_id = any(p_ids) order by l.job_id for update;
  return query
  select {state_row}
  from interlock.job j left join interlock.lease l on l.tenant = j.tenant and l.job_id = j.id
  left join interlock.approval g on g.tenant = j.tenant and g.id = j.approval_id
  where j.tenant = p_tenant and j.id = any(p_ids);
end $$;

-- Lock jobs and then their agents, each in one order, for a caller that changes them in several statements. Otherwise
-- each statement would lock its agents after those of the previous one, which can deadlock.
create or replace function interlock.hold(p_tenant text, p_ids uuid[]) returns void language plpgsql
  security definer set search_path = interlock, pg_temp as $$
declare
  nos bigint[];
begin
  perform set_config('interlock.tenant', p_tenant, true);
  perform from interlock.job j where j.tenant = p_tenant and j.id = any(p_ids) order by j.id for update;
  select array_agg(distinct j.agent_no order by j.agent_no) into nos from interlock.job j
  where j.tenant = p_tenant and j.id = any(p_ids) and j.agent_no is not null;
  if nos is not null then
    perform interlock.lock_agents(nos);
  end if;
end $$;

-- Write decided transitions, by sorted ids; a null leaves its column unchanged.
create or replace function interlock.change(
  p_tenant text, ids uuid[], versions integer[], statuses interlock.status[], verbs text[], actors text[], attempts integer[],
  release_counts integer[], reasons text[], metadatas text[], run_ats timestamptz[], errors text[], cancel_requests timestamptz[],
  cancel_reasons text[], sanitizeds boolean[], approval_ids uuid[], results text[]
) returns integer language plpgsql security definer set search_path = interlock, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set enable_hashjoin = off set jit = off as $$
declare
  t timestamptz := interlock.clock();
  changed integer;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  update interlock.job j set status = u.status, previous = j.status, version = j.version + 1, verb = u.verb, actor = u.actor,
    attempt = u.attempt, releases = u.releases, reason = u.reason, metadata = u.metadata, run_at = coalesce(u.run_at, j.run_at),
    error = coalesce(u.error, j.error), cancel_requested_at = coalesce(u.cancel_requested_at, j.cancel_requested_at),
    cancel_reason = coalesce(u.cancel_reason, j.cancel_reason), sanitized = j.sanitized or u.sanitized,
    result = coalesce(u.result, j.result), worker = case when u.status = 'running' then j.worker end,
    lease_expires_at = case when u.status = 'running' then j.lease_expires_at end,
    approval_id = u.approval_id, finished_at = case when u.status >= 'succeeded' then t end, updated_at = t,
    slot_epoch = case when j.agent_no is not null and j.status = 'running' and u.status <> 'running' then
      (select a.strict_epoch from interlock.agent a where a.tenant = p_tenant and a.no = j.agent_no and a."strict" and a.max_concurrency is not null)
      else j.slot_epoch end
  -- offset 0 fixes the join order, from the few jobs that job_states has locked to the table, regardless of the
  -- planner's size estimate. The limit keeps the row estimate low.
  from (select u.*, k.at from unnest(ids, versions, statuses, verbs, actors, attempts, release_counts, reasons, metadatas, run_ats, errors,
        cancel_requests, cancel_reasons, sanitizeds, approval_ids, results)
      as u(id, version, status, verb, actor, attempt, releases, reason, metadata, run_at, error, cancel_requested_at, cancel_reason,
        sanitized, approval_id, result)
    cross join lateral (select k.ctid as at from interlock.job k where k.tenant = p_tenant and k.id = u.id offset 0) k
    limit cardinality(ids)) u
  where j.ctid = u.at and j.version = u.version;
  get diagnostics changed = row_count;
  if changed = cardinality(ids) then  -- else the caller rolls back
    perform interlock.settle(p_tenant, ids);
  end if;
  return changed;
end $$;

-- Record that the failures of these jobs were acknowledged.
create or replace function interlock.acknowledge(p_tenant text, ids uuid[], versions integer[], actors text[], reasons text[]) returns integer
language plpgsql security definer set search_path = interlock, pg_temp set enable_seqscan = off set jit = off as $$
declare
  t timestamptz := interlock.clock();
  changed integer;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  update interlock.job j set acknowledged_at = t, acknowledged_by = u.actor, previous = j.status, version = j.version + 1,
    verb = 'acknowledge', actor = u.actor, reason = u.reason, metadata = null, updated_at = t
  from unnest(ids, versions, actors, reasons) as u(id, version, actor, reason)
  where j.tenant = p_tenant and j.id = u.id and j.version = u.version;
  get diagnostics changed = row_count;
  if changed = cardinality(ids) then  -- else the caller rolls back
    perform interlock.settle(p_tenant, ids);
  end if;
  return changed;
end $$;

-- Return children by id, locked until the transaction ends. A child hangs if it lacks a slot or waits for its own
-- children.
create or replace function interlock.children(p_tenant text, p_ids uuid[])
returns table (id uuid, ended boolean, parent_id uuid, hangs boolean) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  perform from interlock.job j where j.tenant = p_tenant and j.id = any(p_ids) order by j.id for share;
  return query select j.id, j.status >= 'succeeded', j.parent_id, l.waits or l.agent is not null
    from interlock.job j left join interlock.look_at_jobs(p_tenant, p_ids) l on l.id = j.id
    where j.tenant = p_tenant and j.id = any(p_ids);
end $$;

-- Return what a deadlock check needs: whether each job waits for children, and the strict agent whose slot it lacks.
create or replace function interlock.look_at_jobs(p_tenant text, p_ids uuid[])
returns table (id uuid, waits boolean, agent bigint) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select i.id, exists (select from interlock.job_await w where w.tenant = p_tenant and w.job_id = i.id),
    -- From the job to its agent to its row of ready, by keys: each join the other way round would read the whole tenant.
    (select a.no from (select j.agent_kind, j.agent_id, j.run_at, j.seq from interlock.job j
        where j.tenant = p_tenant and j.id = i.id and j.agent_kind is not null limit 1) j
     cross join lateral (select b.no from interlock.agent b where b.tenant = p_tenant and b.kind = j.agent_kind and b.id = j.agent_id
        and b.kind is not null and b."strict" and b.max_concurrency is not null limit 1) a
     where exists (select from interlock.ready q
        where q.tenant = p_tenant and q.agent_no = a.no and q.blocked >= true and q.run_at = j.run_at and q.seq = j.seq))
  from unnest(p_ids) i(id);
end $$;

create or replace function interlock.look_at_awaited(p_tenant text, p_ids uuid[]) returns table (id uuid, child_id uuid) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select w.job_id, w.child_id from interlock.job_await w where w.tenant = p_tenant and w.job_id = any(p_ids);
end $$;

-- Return the jobs that hold the slots of strict agents without a free slot.
create or replace function interlock.look_at_holders(p_tenant text, p_agents bigint[]) returns table (agent bigint, id uuid) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select a.no, h.id from interlock.agent a cross join lateral (
      select l.job_id as id from interlock.lease l where l.tenant = p_tenant and l.agent_no = a.no
      union all
      select q.job_id from interlock.ready q where q.tenant = p_tenant and q.agent_no = a.no and q.blocked <= false
      union all
      select w.id from interlock.waiting_with_slot(p_tenant, a.no) w where w.slot_epoch = a.strict_epoch) h
    where a.tenant = p_tenant and a.no = any(p_agents) and a."strict" and a.used >= a.max_concurrency;
end $$;

-- Make a job wait for children. This precedes its release, so that the job is not claimable in between.
create or replace function interlock.await_children(p_tenant text, p_job_id uuid, p_children uuid[]) returns void language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true), set_config('interlock.verb', 'on', true);
  insert into interlock.job_await (tenant, child_id, job_id, deadline)
  select j.tenant, c, j.id, j.deadline from interlock.job j cross join unnest(p_children) c where j.tenant = p_tenant and j.id = p_job_id;
  perform set_config('interlock.verb', '', true);
end $$;

-- Return the history rows that ended these leases.
create or replace function interlock.lease_ends(p_tenant text, ids uuid[], fences bigint[])
returns setof interlock.job_history language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select h.* from unnest(ids, fences) as u(id, fence)
    join interlock.job_history h on h.tenant = p_tenant and h.job_id = u.id and h.fence = u.fence
    where h.from_status = 'running' and h.to_status <> 'running';
end $$;
