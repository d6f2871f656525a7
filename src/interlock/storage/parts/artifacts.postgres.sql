-- name: lock_holders
-- The lock makes a finish wait until the transaction ends.
select l.job_id, l.fence, l.worker from interlock.lease l
where l.tenant = :tenant and l.job_id = any(:ids) order by l.job_id for update;

-- name: named
select {artifact} from unnest(:ids::uuid[], :names::text[]) as u(job_id, name)
join interlock.artifact a on a.tenant = :tenant and a.job_id = u.job_id and a.name = u.name;

-- name: leave
insert into interlock.artifact_orphan (tenant, object_key, collect_at)
select :tenant::text, k, :collect_at::timestamptz from unnest(:keys::text[]) k on conflict do nothing;

-- name: due
select tenant, object_key from interlock.due_orphans(:now, :limit);

-- name: condemn
-- The later collect_at keeps other processes from collecting the same objects, and schedules a retry.
with due as materialized (
  select o.object_key from interlock.artifact_orphan o
  where o.tenant = :tenant and o.object_key = any(:keys) and o.collect_at <= :now order by o.object_key for update skip locked)
update interlock.artifact_orphan o set condemned = true, collect_at = :again_at
from due where o.tenant = :tenant and o.object_key = due.object_key returning o.object_key;
