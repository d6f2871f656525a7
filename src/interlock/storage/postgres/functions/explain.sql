-- Record what each worker last requested, and that it polled now.
create or replace function interlock.note_workers(p_tenant text, p_names text[], p_asks text[]) returns void language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  insert into interlock.worker as w (tenant, name, asks, first_seen_at, last_seen_at)
  select p_tenant, u.name, u.asks, interlock.clock(), interlock.clock() from unnest(p_names, p_asks) as u(name, asks) order by u.name
  on conflict (tenant, name) do update set asks = excluded.asks, last_seen_at = excluded.last_seen_at;
end $$;

-- Delete workers that have stopped.
create or replace function interlock.stop_workers(p_tenant text, p_names text[]) returns void language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  delete from interlock.worker w where w.tenant = p_tenant and w.name = any(p_names);
end $$;

-- List the workers that have polled, and those known only by their leases.
create or replace function interlock.workers(p_tenant text, p_after text, p_limit integer, p_most integer, p_within_seconds double precision)
returns table (name text, asks text, first_seen_at timestamptz, last_seen_at timestamptz, running bigint, job_ids uuid[]) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query
  with leased as materialized (
    select l.worker, count(*) as n, (array_agg(l.job_id order by l.job_id))[1:p_most] as ids from interlock.lease l
    where l.tenant = p_tenant and l.worker > p_after group by l.worker
  ), seen as materialized (
    select w.* from interlock.worker w where w.tenant = p_tenant and w.name > p_after
      and (p_within_seconds is null or w.last_seen_at >= interlock.clock() - make_interval(secs => p_within_seconds)
        or exists (select from interlock.lease l where l.tenant = p_tenant and l.worker = w.name))
  )
  select coalesce(s.name, h.worker), coalesce(s.asks, '[]'), s.first_seen_at, s.last_seen_at, coalesce(h.n, 0), coalesce(h.ids, '{}')
  from seen s full join leased h on h.worker = s.name order by coalesce(s.name, h.worker) limit p_limit;
end $$;

-- Delete those of these workers that have not polled since p_before and hold no lease.
create or replace function interlock.forget_workers(p_tenant text, p_names text[], p_before timestamptz) returns bigint language plpgsql as $$
declare
  gone bigint;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  delete from interlock.worker w where w.tenant = p_tenant and w.name = any(p_names) and w.last_seen_at < p_before
    and not exists (select from interlock.lease l where l.tenant = p_tenant and l.worker = w.name);
  get diagnostics gone = row_count;
  return gone;
end $$;

-- Return a job and everything that decides whether it can run: its approval, the pause of its type, the slots of its
-- agent, and the workers present. One statement, so that it reads one snapshot.
create or replace function interlock.job_snapshot(p_tenant text, p_id uuid, p_lately double precision, p_most integer)
returns table (now timestamptz, id uuid, type text, status interlock.status, run_at timestamptz, deadline timestamptz,
  finished_at timestamptz, worker text, lease_expires_at timestamptz, cancel_requested_at timestamptz, cancel_reason text, error text,
  requires text[], repository text, affinity_key text, agent_kind text, agent_id text, awaiting uuid[], blocked boolean, approval_id uuid,
  votes bigint, votes_required integer, asked_at timestamptz, approval_expires_at timestamptz, paused_at timestamptz, paused_by text,
  pause_reason text, slots integer, busy_with uuid[], ahead bigint, eligible_workers text) language plpgsql as $$
declare
  t timestamptz := interlock.clock();
begin
  perform set_config('interlock.tenant', p_tenant, true);
  if exists (select from interlock.agent a where a.tenant = p_tenant and a.next_due <= t) then
    perform interlock.fill_slots(p_tenant);
  end if;
  return query
  select t, v.id, v.type, v.status, v.run_at, v.deadline, v.finished_at, v.worker, v.lease_expires_at, v.cancel_requested_at, v.cancel_reason,
    v.error, v.requires, v.repository, v.affinity_key, v.agent_kind, v.agent_id, v.awaiting, v.blocked, v.approval_id,
    case when g.id is not null then (
      select count(*) from interlock.approval_vote x where x.tenant = p_tenant and x.approval_id = g.id and x.decision = 'approve') end,
    g.required, g.opened_at, g.expires_at, k.paused_at, k.paused_by, k.pause_reason, a.max_concurrency,
    case when a.no is null then '{}' else array(
      select h.id from (
        select l.job_id as id from interlock.lease l where l.tenant = p_tenant and l.agent_no = a.no
        union all
        select q.job_id from interlock.ready q where q.tenant = p_tenant and q.agent_no = a.no and q.blocked <= false
        union all
        select w.id from interlock.waiting_with_slot(p_tenant, a.no) w where a."strict" and w.slot_epoch = a.strict_epoch) h
      order by h.id limit p_most) end,
    case when a.no is null then 0 else (
      select count(*) from interlock.ready q
      where q.tenant = p_tenant and q.agent_no = a.no and q.blocked and q.run_at <= t and (q.run_at, q.seq) < (v.run_at, v.seq)) end,
    case when v.status >= 'running' then '[]' else (
      select coalesce(json_agg(json_build_array(c.asks, c.names, c.n, interlock.micros(c.seen))), '[]')::text from (
        select w.asks, (array_agg(w.name order by w.last_seen_at desc, w.name))[1:p_most] as names, count(*) as n,
          max(w.last_seen_at) as seen
        from interlock.worker w where w.tenant = p_tenant and (w.last_seen_at > t - p_lately * interval '1 second' or w.name in (
          select l.worker from interlock.lease l where l.tenant = p_tenant and l.expires_at > t))
        group by w.asks) c) end
  from interlock.job_view v
  left join interlock.approval g on g.tenant = v.tenant and g.id = v.approval_id
  left join interlock.queue k on k.tenant = v.tenant and k.type = v.type and k.paused_at is not null
  left join interlock.agent a on a.tenant = v.tenant and a.kind = v.agent_kind and a.id = v.agent_id and v.blocked
  where v.tenant = p_tenant and v.id = p_id;
end $$;
