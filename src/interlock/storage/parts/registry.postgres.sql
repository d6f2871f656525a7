-- name: raise_version
-- Enqueue validates jobs against this version.
insert into interlock.tenant (tenant, registry) values (:tenant, 1)
on conflict (tenant) do update set registry = interlock.tenant.registry + 1;

-- name: announce_ready
-- On resume, deliver queue.ready for the first ready job of each range: no worker could claim them while paused.
select interlock.deliver_ready(:tenant, array(
  select x.job_id from interlock.eligibility_key r cross join lateral (
    (select q.job_id from interlock.ready q where q.tenant = :tenant and q.eligibility_key = r.no and not q.blocked and q.run_at <= :now
     order by q.run_at limit 1)
    union all
    (select q.job_id from interlock.ready q
     where q.tenant = :tenant and q.base = r.no and q.eligibility_key <> q.base and not q.blocked and q.run_at <= :now
     order by q.run_at limit 1)) x
  where r.tenant = :tenant and r.type = k.type and r.no = r.base))
from interlock.queue k where k.tenant = :tenant and k.type = :type and k.paused_at is not null;

-- name: create_agent
select interlock.ensure_agent(:tenant, :kind, :id, true);

-- name: agents_named
select {agent} from unnest(:kinds::text[], :ids::text[]) as u(kind, id)
join interlock.agent a on a.tenant = :tenant and a.kind = u.kind and a.id = u.id;

-- name: stalled_agents
-- Strict agents without a free slot, none of whose jobs runs or can be claimed now.
select {agent} from interlock.agent a
where a.tenant = :tenant and a."strict" and a.max_concurrency is not null and a.used >= a.max_concurrency
  and not exists (select from interlock.lease l where l.tenant = :tenant and l.agent_no = a.no)
  and not exists (select from interlock.ready q
    where q.tenant = :tenant and q.agent_no = a.no and q.blocked <= false and q.run_at <= :now)
order by a.kind, a.id limit :limit;

-- name: has_unfinished
select exists (select from interlock.ready q where q.tenant = :tenant and q.agent_no = :no)
  or exists (select from interlock.lease l where l.tenant = :tenant and l.agent_no = :no)
  or exists (select from interlock.waiting_with_slot(:tenant, :no));

-- name: moves
(select c.type, c.minute, coalesce(c.from_status::text, '') as from_status, coalesce(c.to_status::text, '') as to_status, c.count
  from interlock.queue_counter c where c.tenant = :tenant);

-- name: epoch
'epoch'::timestamptz;

-- name: later
-- Per base: the number of jobs due later, and the earliest run_at of a due job. The first select covers jobs without
-- repository and affinity key, the second covers the others.
select r.type, q.n, q.due from interlock.eligibility_key r cross join lateral (
  select (select count(*) from interlock.ready q where q.tenant = :tenant and q.eligibility_key = r.no and not q.blocked and q.run_at > :now) as n,
    (select q.run_at from interlock.ready q where q.tenant = :tenant and q.eligibility_key = r.no and not q.blocked and q.run_at <= :now
     order by q.run_at limit 1) as due
  union all
  select (select count(*) from interlock.ready q
          where q.tenant = :tenant and q.base = r.no and q.eligibility_key <> q.base and not q.blocked and q.run_at > :now),
    (select q.run_at from interlock.ready q
     where q.tenant = :tenant and q.base = r.no and q.eligibility_key <> q.base and not q.blocked and q.run_at <= :now
     order by q.run_at limit 1)) q
where r.tenant = :tenant and r.no = r.base and (r.type = :type or :type is null);

-- name: waiting_for_slot
select r.type, count(*) filter (where q.run_at > :now), count(*) filter (where q.run_at <= :now)
from interlock.ready q join interlock.eligibility_key r on r.tenant = q.tenant and r.no = q.eligibility_key
where q.tenant = :tenant and q.agent_no is not null and q.blocked and (r.type = :type or :type is null) group by r.type;

-- name: awaiting_message
select j.type, count(*) from interlock.message_wait w
join interlock.job j on j.tenant = w.tenant and j.id = w.job_id and j.fence = w.fence and j.status = 'queued' and j.run_at > :now
where w.tenant = :tenant and (j.type = :type or :type is null) group by j.type;

-- name: awaiting
select j.type, count(*) from interlock.job j
where j.tenant = :tenant and j.id in (select w.job_id from interlock.job_await w where w.tenant = :tenant)
  and (j.type = :type or :type is null) group by j.type;

-- name: tenants_with_due_agents
select tenant from interlock.due_agents(:now, :limit) tenant;

-- name: fold
select interlock.fold_counters(:tenant);

-- name: delete_folded
-- fold has deleted them.
select 1;

-- name: long_counters
select tenant from interlock.long_counters(:rows, :limit) tenant;

-- name: wake_behind_tickets
-- Let the next claim look at parked jobs that wait behind a ticket: its type may be paused now. A claim that has locked
-- one of these buckets may wait for another one that this statement has locked, so it waits for none.
update interlock.flow_bucket b set wake_at = :now where b.ctid = any(array(
  select x.ctid from interlock.flow_bucket x where x.tenant = :tenant and x.parked and x.ticket is not null for no key update skip locked));
