-- name: used
-- The total that a job reported with its result; else what its runs kept as steps (domain/usage.py, summed).
-- Texts that could be invalid as jsonb are read by the slower function.
used as (
  select j.id, j.type, j.agent_kind, j.agent_id, j.parent_id, j.finished_at,
    case when j.usage ~ '\\u0000|[eE][-+]?[0-9]{3}' then interlock.amounts(j.usage) else j.usage::jsonb end as amounts
  from interlock.job j
  where j.tenant = :tenant and j.finished_at >= :since and j.finished_at < :until and j.usage is not null
  union all
  select j.id, j.type, j.agent_kind, j.agent_id, j.parent_id, j.finished_at, interlock.amounts(s.result)
  from interlock.job j join interlock.job_step s on s.tenant = j.tenant and s.job_id = j.id and s.name = :step
  where j.tenant = :tenant and j.finished_at >= :since and j.finished_at < :until and j.usage is null
    and j.fence > (j.status = 'succeeded')::integer
    and (s.function = 'run ' || j.id or s.function = 'retold ' || j.id and not exists
      (select 1 from interlock.job_step x
       where x.tenant = s.tenant and x.job_id = s.job_id and x.name = s.name and x.function = s.function and x.seq > s.seq)))

-- name: day
to_char(u.finished_at at time zone 'UTC', 'YYYY-MM-DD')

-- name: sums
-- A sum is at most the largest float.
sums(one, two, unit, amount) as (
  select k.one, k.two, null::text, count(distinct k.id)::double precision from keyed k group by 1, 2
  union all
  select k.one, k.two, a.key, least(sum(a.value::numeric), 1.7976931348623157e308)::double precision
  from keyed k cross join lateral jsonb_each(k.amounts) a where length(a.key) between 1 and 200 group by 1, 2, 3)

-- name: ancestors
with recursive up(id, ancestor, depth) as (
  select i.id, i.id, 0 from unnest(:ids::uuid[]) as i(id)
  union all
  select up.id, j.parent_id, up.depth + 1 from up join interlock.job j on j.tenant = :tenant and j.id = up.ancestor
  where j.parent_id is not null and up.depth < 1000
)
select distinct on (up.id) up.id, up.ancestor from up where up.depth > 0 order by up.id, up.depth desc;
