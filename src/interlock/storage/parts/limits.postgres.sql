-- name: waiting
select coalesce(sum((select count(*) from interlock.ready q where q.tenant = :tenant and q.eligibility_key = e.no
  and q.run_at <= :now and not q.blocked)), 0)::bigint
from interlock.eligibility_key e cross join lateral json_array_elements(nullif(e.flow, '')::json) d
where e.tenant = :tenant and d ->> 0 = :name;

-- name: waiting_in_tree
with recursive below(id) as (
  select :root::text::uuid
  union all select j.id from below b join interlock.job j on j.tenant = :tenant and j.parent_id = b.id)
select count(*) from below b join interlock.job j on j.tenant = :tenant and j.id = b.id
where j.status in ('queued', 'retry') and j.run_at <= :now
  and not exists (select from interlock.job_await w where w.tenant = :tenant and w.job_id = j.id)
  and not exists (select from interlock.ready q where q.tenant = :tenant and q.agent_no = j.agent_no and q.blocked
    and q.run_at = j.run_at and q.seq = j.seq);

-- name: waiting_by_key
select w.key, count(*)::bigint from (
  select case q.limit_name when :name then q.limit_key else (select x ->> 'key' from interlock.job j cross join lateral json_array_elements(j.limits::json) x
    where j.tenant = :tenant and j.id = q.job_id and x ->> 'name' = :name) end as key
  from interlock.eligibility_key e cross join lateral json_array_elements(nullif(e.flow, '')::json) d
  join interlock.ready q on q.tenant = :tenant and q.eligibility_key = e.no and q.run_at <= :now and not q.blocked
  where e.tenant = :tenant and d ->> 0 = :name) w
where w.key collate "C" between :first and :last group by w.key;

-- name: named
select exists (select from interlock.eligibility_key e cross join lateral json_array_elements(nullif(e.flow, '')::json) d
  join interlock.job j on j.tenant = e.tenant and j.eligibility_key = e.no
  where e.tenant = :tenant and d ->> 0 = :name and j.status < 'succeeded');

-- name: worker_names_it
select exists (select from interlock.lease l join interlock.job j on j.tenant = :tenant and j.id = l.job_id
  cross join lateral json_array_elements(j.limits::json) d
  where l.tenant = :tenant and (:worker = '' or l.worker = :worker or starts_with(l.worker, :worker || '/'))
    and d ->> 'name' = :name and coalesce(d ->> 'key', '') = :key);

-- name: running
select j.limits from interlock.lease l join interlock.job j on j.tenant = :tenant and j.id = l.job_id
where l.tenant = :tenant and j.run_started_at >= :since and exists (select from json_array_elements(j.limits::json) d where d ->> 'name' = :name);

-- name: keyed
select tenant, name from interlock.keyed_limits();

-- name: delete_idle
delete from interlock.flow_bucket b where b.ctid = any(array(
  select x.ctid from unnest(:keys::text[], :as_ofs::bigint[]) u(key, as_of)
  join interlock.flow_bucket x on x.tenant = :tenant and x.name = :name and x.key = u.key
  where x.as_of = u.as_of and x.used = 0 and not x.parked and (x.held_until is null or x.held_until <= :now) for update of x skip locked));

-- name: acting_budgets
select tenant, name from interlock.acting_budgets();

-- name: due_under
select j.id, j.limits from interlock.eligibility_key e cross join lateral json_array_elements(nullif(e.flow, '')::json) d
join interlock.ready q on q.tenant = :tenant and q.eligibility_key = e.no
join interlock.job j on j.tenant = :tenant and j.id = q.job_id
where e.tenant = :tenant and d ->> 0 = :name and q.run_at <= :now and not q.blocked order by j.id limit :limit;

-- name: watched_budgets
select tenant, name from interlock.watched_budgets();

-- name: parked_under
select j.id, j.limits from interlock.ready q join interlock.job j on j.tenant = :tenant and j.id = q.job_id
where q.tenant = :tenant and q.limit_name = :name limit :limit;

-- name: parked_trees
with recursive trees(name, n) as (
  select (select min(q.limit_name) from interlock.ready q where q.tenant = :tenant and q.limit_name >= 'tree:' and q.limit_name < 'tree;'), 1
  union all select (select min(q.limit_name) from interlock.ready q
    where q.tenant = :tenant and q.limit_name > trees.name and q.limit_name < 'tree;'), trees.n + 1
  from trees where trees.name is not null and trees.n < :limit)
select name from trees where name is not null;

-- name: tenants
select tenant from interlock.limit_tenants() tenant;

-- name: running_ids
select j.id from interlock.lease l join interlock.job j on j.tenant = :tenant and j.id = l.job_id
where l.tenant = :tenant and exists (select from json_array_elements(j.limits::json) d where d ->> 'name' = :name) order by j.seq limit :limit;

-- name: announce_spent
select interlock.announce_spent(:tenant, :name, :ids);
