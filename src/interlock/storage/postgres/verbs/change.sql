-- Completes each job that its worker still holds; what does not come back was refused.
create or replace function interlock.complete(
  p_tenant text, ids uuid[], fences bigint[], workers text[], results text[], summaries text[], usages text[], sanitizeds boolean[]
) returns table (id uuid, fence bigint, attempt integer, version integer, finished_at timestamptz) language plpgsql
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set enable_hashjoin = off set jit = off as $$
declare
  t timestamptz := interlock.clock();
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query
  update interlock.job j set status = 'succeeded', previous = j.status, version = j.version + 1, worker = null, lease_expires_at = null,
    finished_at = t, updated_at = t, verb = 'complete', actor = 'worker:' || j.worker, reason = null, metadata = null, error = null,
    result = u.result, result_summary = u.summary, usage = coalesce(u.usage, j.usage), sanitized = j.sanitized or u.sanitized
  from (select * from unnest(ids, fences, workers, results, summaries, usages, sanitizeds)
          as u(id, fence, worker, result, summary, usage, sanitized) order by u.id) u
  where j.tenant = p_tenant and j.id = u.id and j.status = 'running' and j.fence = u.fence and j.worker = u.worker
  returning j.id, j.fence, j.attempt, j.version, j.finished_at;
end $$;

-- Locks jobs, in one order, and tells what decisions look at; the lease is locked too, so that no heartbeat slips in between.
create or replace function interlock.standings(p_tenant text, p_ids uuid[])
returns table (id uuid, status interlock.status, attempt integer, max_attempts integer, version integer, fence bigint, worker text,
  run_at timestamptz, deadline timestamptz, lease_expires_at timestamptz, run_started_at timestamptz,
  timeout_seconds double precision, backoff text, expiry_delay_seconds double precision, releases integer,
  cancel_requested_at timestamptz, cancel_reason text, error text) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  perform from interlock.job j where j.tenant = p_tenant and j.id = any(p_ids) order by j.id for update;
  perform from interlock.lease l where l.tenant = p_tenant and l.job_id = any(p_ids) order by l.job_id for update;
  return query
  select j.id, j.status, j.attempt, j.max_attempts, j.version, j.fence, j.worker, j.run_at, j.deadline,
    coalesce(l.expires_at, j.lease_expires_at), j.run_started_at, j.timeout_seconds, j.backoff, j.expiry_delay_seconds, j.releases,
    j.cancel_requested_at, j.cancel_reason, j.error
  from interlock.job j left join interlock.lease l on l.tenant = j.tenant and l.job_id = j.id
  where j.tenant = p_tenant and j.id = any(p_ids);
end $$;

-- Writes decided changes; what a change leaves open stays as it is.
create or replace function interlock.change(
  p_tenant text, ids uuid[], versions integer[], statuses interlock.status[], verbs text[], actors text[], attempts integer[],
  release_counts integer[], reasons text[], metadatas text[], run_ats timestamptz[], errors text[], cancel_requests timestamptz[],
  cancel_reasons text[], sanitizeds boolean[]
) returns integer language plpgsql as $$
declare
  t timestamptz := interlock.clock();
  changed integer;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  update interlock.job j set status = u.status, previous = j.status, version = j.version + 1, verb = u.verb, actor = u.actor,
    attempt = u.attempt, releases = u.releases, reason = u.reason, metadata = u.metadata, run_at = coalesce(u.run_at, j.run_at),
    error = coalesce(u.error, j.error), cancel_requested_at = coalesce(u.cancel_requested_at, j.cancel_requested_at),
    cancel_reason = coalesce(u.cancel_reason, j.cancel_reason), sanitized = j.sanitized or u.sanitized,
    worker = case when u.status = 'running' then j.worker end,
    lease_expires_at = case when u.status = 'running' then j.lease_expires_at end,
    gate_id = null, finished_at = case when u.status >= 'succeeded' then t end, updated_at = t
  from unnest(ids, versions, statuses, verbs, actors, attempts, release_counts, reasons, metadatas, run_ats, errors, cancel_requests,
      cancel_reasons, sanitizeds)
    as u(id, version, status, verb, actor, attempt, releases, reason, metadata, run_at, error, cancel_requested_at, cancel_reason,
      sanitized)
  where j.tenant = p_tenant and j.id = u.id and j.version = u.version;
  get diagnostics changed = row_count;
  return changed;
end $$;

-- Children by name, held as they are until the transaction ends.
create or replace function interlock.children(p_tenant text, p_ids uuid[])
returns table (id uuid, ended boolean, parent_id uuid) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select j.id, j.status >= 'succeeded', j.parent_id from interlock.job j
    where j.tenant = p_tenant and j.id = any(p_ids) order by j.id for share;
end $$;

-- Makes a job wait for children; before it is released, so that it is not ready in between.
create or replace function interlock.await_children(p_tenant text, p_job_id uuid, p_children uuid[]) returns void language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  insert into interlock.job_await (tenant, child_id, job_id, deadline)
  select j.tenant, c, j.id, j.deadline from interlock.job j cross join unnest(p_children) c where j.tenant = p_tenant and j.id = p_job_id;
end $$;

-- The history rows that ended these grants.
create or replace function interlock.grant_ends(p_tenant text, ids uuid[], fences bigint[])
returns setof interlock.job_history language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select h.* from unnest(ids, fences) as u(id, fence)
    join interlock.job_history h on h.tenant = p_tenant and h.job_id = u.id and h.fence = u.fence
    where h.from_status = 'running' and h.to_status <> 'running';
end $$;

-- Extends leases that their workers still hold; what does not come back was refused.
create or replace function interlock.heartbeat(
  p_tenant text, ids uuid[], fences bigint[], workers text[], seconds double precision[]
) returns table (id uuid, expires_at timestamptz, cancel_requested boolean, cancel_reason text, paused boolean) language plpgsql
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set enable_hashjoin = off set jit = off as $$
declare
  t timestamptz := interlock.clock();
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query
  with beaten as materialized (
    update interlock.lease l set heartbeat_at = t,
      expires_at = least(t + coalesce(u.seconds, l.seconds) * interval '1 second', l.run_ends_at)
    from (select * from unnest(ids, fences, workers, seconds) as u(id, fence, worker, seconds) order by u.id) u
    where l.tenant = p_tenant and l.job_id = any(ids) and l.job_id = u.id and l.fence = u.fence and l.worker = u.worker
    returning l.job_id, l.expires_at
  )
  select b.job_id, b.expires_at, j.cancel_requested_at is not null, j.cancel_reason,
    exists (select from interlock.queue k where k.tenant = p_tenant and k.type = j.type and k.paused_at is not null)
  from beaten b join interlock.job j on j.tenant = p_tenant and j.id = b.job_id;
end $$;

-- Saves progress of jobs that their workers still hold, if it is newer than what is there.
create or replace function interlock.save_checkpoints(
  p_tenant text, ids uuid[], fences bigint[], workers text[], seqs bigint[], datas text[], sanitizeds boolean[]
) returns setof uuid language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query
  insert into interlock.job_checkpoint as c (tenant, job_id, seq, data, sanitized, at)
  select p_tenant, u.id, u.seq, u.data, u.sanitized, interlock.clock()
  from unnest(ids, fences, workers, seqs, datas, sanitizeds) as u(id, fence, worker, seq, data, sanitized)
  join (select l.job_id, l.fence, l.worker from interlock.lease l where l.tenant = p_tenant and l.job_id = any(ids)
        order by l.job_id for update) l on l.job_id = u.id and l.fence = u.fence and l.worker = u.worker
  on conflict (tenant, job_id) do update set seq = excluded.seq, data = excluded.data, sanitized = excluded.sanitized, at = excluded.at
    where c.seq < excluded.seq
  returning c.job_id;
end $$;

-- The facts that explain why a checkpoint was not taken.
create or replace function interlock.held_checkpoints(p_tenant text, p_ids uuid[])
returns table (id uuid, fence bigint, worker text, seq bigint, data text) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select j.id, j.fence, j.worker, c.seq, c.data from interlock.job j
    left join interlock.job_checkpoint c on c.tenant = j.tenant and c.job_id = j.id
    where j.tenant = p_tenant and j.id = any(p_ids);
end $$;

create or replace function interlock.pause(p_tenant text, p_type text, p_actor text, p_reason text) returns void language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  insert into interlock.queue (tenant, type, paused_at, paused_by, pause_reason)
  values (p_tenant, p_type, case when p_actor is not null then interlock.clock() end, p_actor, p_reason)
  on conflict (tenant, type) do update
    set paused_at = excluded.paused_at, paused_by = excluded.paused_by, pause_reason = excluded.pause_reason;
end $$;
