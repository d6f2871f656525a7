-- name: note
insert into interlock.worker (tenant, name, asks, first_seen_at, last_seen_at)
select :tenant::text, u.name, u.asks, :now, :now from unnest(:names::text[], :asks::text[]) as u(name, asks) order by u.name
on conflict (tenant, name) do update set asks = excluded.asks, last_seen_at = excluded.last_seen_at;

-- name: page
-- Workers that have polled, and workers known only by their leases.
with leased as materialized (
  select l.worker, count(*) as n, (array_agg(l.job_id order by l.job_id))[1: :most::integer] as ids from interlock.lease l
  where l.tenant = :tenant and l.worker > :after group by l.worker
), seen as materialized (
  select w.* from interlock.worker w where w.tenant = :tenant and w.name > :after
    and (w.last_seen_at >= :since or exists {lease_of_worker})
)
select coalesce(s.name, h.worker), coalesce(s.asks, '[]'), s.first_seen_at, s.last_seen_at, coalesce(h.n, 0), coalesce(h.ids, '{}')
from seen s full join leased h on h.worker = s.name order by coalesce(s.name, h.worker) limit :limit;

-- name: lease_of_worker
(select 1 from interlock.lease l where l.tenant = w.tenant and l.worker = w.name);

-- name: old
select tenant, name from interlock.old_workers(:before, :limit);

-- name: job_snapshot
-- A job with its approval, the pause of its type, the slots of its agent, and the workers present.
select :now, v.id, v.type, v.status, v.run_at, v.deadline, v.finished_at, v.worker, v.lease_expires_at, v.cancel_requested_at, v.cancel_reason,
  v.error, v.requires, v.repository, v.affinity_key, v.agent_kind, v.agent_id, v.awaiting, v.awaiting_message, v.blocked, v.approval_id,
  case when g.id is not null then (
    select count(*) from interlock.approval_vote x where x.tenant = :tenant and x.approval_id = g.id and x.decision = 'approve') end,
  g.required, g.kind, g.opened_at, g.expires_at, k.paused_at, k.paused_by, k.pause_reason, a.max_concurrency,
  case when a.no is null then '{}' else array(
    select h.id from (
      select l.job_id as id from interlock.lease l where l.tenant = :tenant and l.agent_no = a.no
      union all
      select q.job_id from interlock.ready q where q.tenant = :tenant and q.agent_no = a.no and q.blocked <= false
      union all
      select w.id from interlock.waiting_with_slot(:tenant, a.no) w where a."strict" and w.slot_epoch = a.strict_epoch) h
    order by h.id limit :most::integer) end,
  case when a.no is null then 0 else (
    select count(*) from interlock.ready q
    where q.tenant = :tenant and q.agent_no = a.no and q.blocked and q.run_at <= :now and (q.run_at, q.seq) < (v.run_at, v.seq)) end,
  case when v.status >= 'running' then '[]' else (
    select coalesce(json_agg(json_build_array(c.asks, c.names, c.n, interlock.micros(c.seen))), '[]')::text from (
      select w.asks, (array_agg(w.name order by w.last_seen_at desc, w.name))[1: :most::integer] as names, count(*) as n,
        max(w.last_seen_at) as seen
      from interlock.worker w where w.tenant = :tenant and (w.last_seen_at > :lately or w.name in (
        select l.worker from interlock.lease l where l.tenant = :tenant and l.expires_at > :now))
      group by w.asks) c) end
from interlock.job_view v
left join interlock.approval g on g.tenant = v.tenant and g.id = v.approval_id
left join interlock.queue k on k.tenant = v.tenant and k.type = v.type and k.paused_at is not null
left join interlock.agent a on a.tenant = v.tenant and a.kind = v.agent_kind and a.id = v.agent_id and v.blocked
where v.tenant = :tenant and v.id = :id;

-- name: look_at_jobs
select * from interlock.look_at_jobs(:tenant, :about);

-- name: look_at_awaited
select * from interlock.look_at_awaited(:tenant, :about);

-- name: look_at_holders
select * from interlock.look_at_holders(:tenant, :about);

-- name: bucket
-- The rules of a limit and the state of one of its buckets, which may not have been used yet.
select f.rules, b.hold_reason, coalesce(b.used, 0), coalesce(b.levels, '{}'), coalesce(b.as_of, 0), b.held_until, interlock.live_ticket(b.tenant, b.ticket)
from interlock.flow_limit f left join interlock.flow_bucket b on b.tenant = f.tenant and b.name = f.name and b.key = :key
where f.tenant = :tenant and f.name = :name;

-- name: limits_of_job
select j.limits, j.priority, j.seq from interlock.job j where j.tenant = :tenant and j.id = :id;

-- name: ahead_in_limit
select coalesce(sum((select count(*) from interlock.ready q where q.tenant = :tenant and q.eligibility_key = e.no and q.run_at <= :now and not q.blocked
  and (e.priority > :priority or (q.run_at, q.seq) < (:run_at, :seq))
  and (d ->> 1 = :key or case q.limit_name when :name then q.limit_key = :key else exists (
    select from interlock.job j cross join lateral json_array_elements(j.limits::json) x
    where j.tenant = :tenant and j.id = q.job_id and x ->> 'name' = :name and x ->> 'key' = :key) end))), 0)::bigint
from interlock.eligibility_key e cross join lateral json_array_elements(nullif(e.flow, '')::json) d
where e.tenant = :tenant and d ->> 0 = :term and coalesce(d ->> 1, :key) = :key and e.priority >= :priority;
