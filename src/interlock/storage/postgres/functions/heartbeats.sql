-- Extend leases that their workers still hold, by sorted ids (fence -2^62 matches any fence). A job missing from the
-- result was rejected.
create or replace function interlock.heartbeat(
  p_tenant text, ids uuid[], fences bigint[], workers text[], seconds double precision[]
) returns table (id uuid, expires_at timestamptz, cancel_requested boolean, cancel_reason text, paused boolean, limits text, fence bigint, messages bigint) language plpgsql
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
  set enable_hashjoin = off set jit = off as $$
declare
  t timestamptz := interlock.clock();
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query
  with beaten as materialized (
    -- width_bucket finds the index of an id by binary search; a join would compare a thousand heartbeats with a
    -- thousand leases.
    update interlock.lease l set heartbeat_at = t,
      expires_at = least(t + coalesce(heartbeat.seconds[width_bucket(l.job_id, ids)], l.seconds) * interval '1 second', l.run_ends_at)
    where l.tenant = p_tenant and l.job_id = any(ids) and l.worker = workers[width_bucket(l.job_id, ids)]
      and fences[width_bucket(l.job_id, ids)] in (l.fence, {any_fence})
    returning l.job_id, l.expires_at, l.fence
  )
  select b.job_id, b.expires_at, j.cancel_requested_at is not null, j.cancel_reason,
    exists (select from interlock.queue k where k.tenant = p_tenant and k.type = j.type and k.paused_at is not null),
    j.limits, b.fence,
    coalesce((select m.seq from interlock.job_message m where m.tenant = p_tenant and m.job_id = b.job_id order by m.seq desc limit 1), 0)
  from beaten b
  -- offset 0 fixes the join order: from the few leases to the many jobs
  cross join lateral (select j.cancel_requested_at, j.cancel_reason, j.type, j.limits from interlock.job j
    where j.tenant = p_tenant and j.id = b.job_id offset 0) j;
end $$;

-- Save checkpoints of jobs that their workers still hold, if they are newer than the stored ones.
create or replace function interlock.save_checkpoints(
  p_tenant text, ids uuid[], fences bigint[], workers text[], seqs bigint[], datas text[], sanitizeds boolean[]
) returns setof uuid language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true), set_config('interlock.verb', 'on', true);
  return query
  insert into interlock.job_checkpoint as c (tenant, job_id, seq, data, sanitized, at)
  select p_tenant, u.id, u.seq, u.data, u.sanitized, interlock.clock()
  from unnest(ids, fences, workers, seqs, datas, sanitizeds) as u(id, fence, worker, seq, data, sanitized)
  join (select l.job_id, l.fence, l.worker from interlock.lease l where l.tenant = p_tenant and l.job_id = any(ids)
        order by l.job_id for update) l on l.job_id = u.id and l.fence = u.fence and l.worker = u.worker
  on conflict (tenant, job_id) do update set seq = excluded.seq, data = excluded.data, sanitized = excluded.sanitized, at = excluded.at
    where c.seq < excluded.seq
  returning c.job_id;
  perform set_config('interlock.verb', '', true);
end $$;

-- Return what explains why a checkpoint was rejected.
create or replace function interlock.leased_checkpoints(p_tenant text, p_ids uuid[])
returns table (id uuid, fence bigint, worker text, seq bigint, data text) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select j.id, j.fence, j.worker, c.seq, c.data from interlock.job j
    left join interlock.job_checkpoint c on c.tenant = j.tenant and c.job_id = j.id
    where j.tenant = p_tenant and j.id = any(p_ids);
end $$;
