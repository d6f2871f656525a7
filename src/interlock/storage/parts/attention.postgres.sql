-- name: failures
-- Failed and dead-letter jobs that were neither acknowledged nor redriven.
select f.seq, f.job_id from (
  (select s.seq, s.job_id from interlock.unsuccessful_job s
   where s.tenant = :tenant and s.status = 'failed' and not s.acknowledged and s.seq < :before
     and not exists (select from interlock.job k where k.tenant = :tenant and k.redrive_of = s.job_id)
   order by s.seq desc limit :limit)
  union all
  (select s.seq, s.job_id from interlock.unsuccessful_job s
   where s.tenant = :tenant and s.status = 'dead_letter' and not s.acknowledged and s.seq < :before
     and not exists (select from interlock.job k where k.tenant = :tenant and k.redrive_of = s.job_id)
   order by s.seq desc limit :limit)) f
order by f.seq desc limit :limit;

-- name: keys_of_waiting_jobs
-- A skip scan over the eligibility keys of waiting jobs, except those of paused types.
with recursive k(no) as (
  (select r.eligibility_key from interlock.ready r where r.tenant = :tenant and not r.blocked order by r.eligibility_key limit 1)
  union all
  select (select r.eligibility_key from interlock.ready r where r.tenant = :tenant and not r.blocked and r.eligibility_key > k.no
    order by r.eligibility_key limit 1)
  from k where k.no is not null
)
select e.no, e.type, e.requires, e.repository, e.affinity_key
from (select k.no from k limit :most) n join interlock.eligibility_key e on e.tenant = :tenant and e.no = n.no
where not exists (select from interlock.queue q where q.tenant = :tenant and q.type = e.type and q.paused_at is not null);

-- name: present_workers
select distinct w.asks from interlock.worker w where w.tenant = :tenant and (w.last_seen_at > :lately or w.name in (
  select l.worker from interlock.lease l where l.tenant = :tenant and l.expires_at > :now));

-- name: newest_of_keys
-- Of each key, those that became due last: a queue of a million jobs is not sorted.
select r.seq, r.job_id from unnest(:keys::bigint[]) k(no) cross join lateral (
  select r.seq, r.job_id from interlock.ready r where r.tenant = :tenant and r.eligibility_key = k.no and not r.blocked
    and r.run_at <= :now and (r.deadline is null or r.deadline > :now) and r.seq < :before
  order by r.run_at desc, r.seq desc limit :most) r
order by r.seq desc limit :limit;

-- name: some_of_keys
select r.seq from interlock.ready r where r.tenant = :tenant and r.eligibility_key = any(:keys::bigint[]) and not r.blocked
  and r.run_at <= :now and (r.deadline is null or r.deadline > :now) limit :limit;
