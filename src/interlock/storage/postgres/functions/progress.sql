-- Save each new step of jobs that their workers still hold. Return the saved steps by their position in the input,
-- without results that equal the input. A step missing from the result was rejected.
--
-- Here and below, offset 0 fixes the join order: from the few rows sent to the many rows stored.
create or replace function interlock.save_steps(
  p_tenant text, ids uuid[], fences bigint[], workers text[], names text[], occurrences integer[], results text[], functions text[],
  sanitizeds boolean[]
) returns table (ordinal bigint, job_id uuid, seq integer, name text, occurrence integer, result text, function text, fence bigint,
  at timestamptz, sanitized boolean) language plpgsql
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
declare
  leased boolean[];
begin
  perform set_config('interlock.tenant', p_tenant, true);
  -- The lock serializes writers of a job; the statements after it see what earlier writers committed.
  select array_agg(l.job_id is not null order by u.ordinal) into leased
  from unnest(ids, fences, workers) with ordinality as u(id, fence, worker, ordinal)
  left join (select l.job_id, l.fence, l.worker from interlock.lease l where l.tenant = p_tenant and l.job_id = any(ids)
             order by l.job_id for update) l on l.job_id = u.id and l.fence = u.fence and l.worker = u.worker;
  perform set_config('interlock.verb', 'on', true);
  insert into interlock.job_step (tenant, job_id, seq, name, occurrence, result, function, fence, at, sanitized)
  select p_tenant, n.id,
    coalesce((select max(s.seq) from interlock.job_step s where s.tenant = p_tenant and s.job_id = n.id), 0)
      + row_number() over (partition by n.id order by n.ordinal),
    n.name, n.occurrence, n.result, n.function, n.fence, interlock.clock(), n.sanitized
  from (select distinct on (u.id, u.name, u.occurrence) u.*
        from unnest(ids, fences, names, occurrences, results, functions, sanitizeds, leased) with ordinality
          as u(id, fence, name, occurrence, result, function, sanitized, leased, ordinal)
        where u.leased and (select s.seq from interlock.job_step s
          where s.tenant = p_tenant and s.job_id = u.id and s.name = u.name and s.occurrence = u.occurrence) is null
        order by u.id, u.name, u.occurrence, u.ordinal) n;
  perform set_config('interlock.verb', '', true);
  return query
  select u.ordinal, s.job_id, s.seq, s.name, s.occurrence, case when s.result <> u.result then s.result end, s.function, s.fence, s.at,
    s.sanitized
  from unnest(ids, names, occurrences, results, leased) with ordinality as u(id, name, occurrence, result, leased, ordinal)
  cross join lateral (select s.* from interlock.job_step s
    where s.tenant = p_tenant and s.job_id = u.id and s.name = u.name and s.occurrence = u.occurrence offset 0) s
  where u.leased;
end $$;

-- Add events to jobs that their workers still hold, and number them in input order. An event that exists keeps its
-- number; an event missing from the result was rejected.
--
-- commit_seq is at least the id of the transaction and at least the commit_seq of the previous event of the job. The
-- second condition is needed because a transaction may get its id long before it gets the lock of a job.
create or replace function interlock.add_events(
  p_tenant text, ids uuid[], fences bigint[], workers text[], event_ids uuid[], levels text[], messages text[], payloads text[],
  sanitizeds boolean[], ats timestamptz[]
) returns table (ordinal bigint, seq integer) language plpgsql
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_column
declare
  t timestamptz := interlock.clock();
  leased boolean[];
  now_epoch integer;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  -- The lock serializes writers of a job; the statements after it see what earlier writers committed.
  select array_agg(l.job_id is not null order by u.ordinal) into leased
  from unnest(ids, fences, workers) with ordinality as u(id, fence, worker, ordinal)
  left join (select l.job_id, l.fence, l.worker from interlock.lease l where l.tenant = p_tenant and l.job_id = any(ids)
             order by l.job_id for update) l on l.job_id = u.id and l.fence = u.fence and l.worker = u.worker;
  select value into now_epoch from interlock.epoch;
  insert into interlock.job_event (tenant, epoch, commit_seq, job_id, seq, id, level, message, payload, fence, at, received_at, sanitized)
  select p_tenant, now_epoch,
    greatest(pg_current_xact_id()::text::bigint, case when b.epoch = now_epoch then b.commit_seq end),
    n.id, coalesce(b.seq, 0) + row_number() over (partition by n.id order by n.ordinal), n.event_id, n.level, n.message, n.payload,
    n.fence, case when n.at is null then t else least(t, greatest(n.at,
      (select j.run_started_at from interlock.job j where j.tenant = p_tenant and j.id = n.id))) end, t, n.sanitized
  from (select distinct on (u.id, u.event_id) u.*
        from unnest(ids, fences, event_ids, levels, messages, payloads, sanitizeds, ats, leased) with ordinality
          as u(id, fence, event_id, level, message, payload, sanitized, at, leased, ordinal)
        where u.leased and (select e.seq from interlock.job_event e
          where e.tenant = p_tenant and e.job_id = u.id and e.id = u.event_id) is null
        order by u.id, u.event_id, u.ordinal) n
  left join lateral (select e.epoch, e.commit_seq, e.seq from interlock.job_event e
    where e.tenant = p_tenant and e.job_id = n.id order by e.seq desc limit 1) b on true;
  return query
  select u.ordinal, e.seq
  from unnest(ids, event_ids, leased) with ordinality as u(id, event_id, leased, ordinal)
  cross join lateral (select e.seq from interlock.job_event e
    where e.tenant = p_tenant and e.job_id = u.id and e.id = u.event_id offset 0) e
  where u.leased;
end $$;

-- Return the events of all jobs after a feed position, up to the snapshot's xmin. All transactions below it have ended,
-- and later events get a commit_seq at or above it. So no event ever appears at or before a position already returned.
create or replace function interlock.feed(
  p_tenant text, p_epoch bigint, p_commit_seq bigint, p_job_id uuid, p_seq bigint, p_limit integer
) returns table (epoch integer, commit_seq bigint, job_id uuid, seq integer, id uuid, level text, message text, payload text, at timestamptz,
  received_at timestamptz, sanitized boolean) language plpgsql
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
  horizon bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
  now_epoch integer;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  select value into now_epoch from interlock.epoch;
  return query
  select e.epoch, e.commit_seq, e.job_id, e.seq, e.id, e.level, e.message, e.payload, e.at, e.received_at, e.sanitized
  from interlock.job_event e
  where e.tenant = p_tenant and (e.epoch, e.commit_seq, e.job_id, e.seq) > (p_epoch, p_commit_seq, p_job_id, p_seq)
    and (e.epoch, e.commit_seq) < (now_epoch, horizon)
  order by e.epoch, e.commit_seq, e.job_id, e.seq limit p_limit;
end $$;
