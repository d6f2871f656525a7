-- name: usage_steps
select s.job_id, s.seq, s.name, s.occurrence, s.result, s.function, s.fence, s.at, s.sanitized from interlock.job_step s
where s.tenant = :tenant and s.job_id = :id and s.name = :step order by s.seq;

-- name: lock_bucket
select b.used, b.levels, b.as_of, b.held_until, b.ticket from interlock.flow_bucket b
where b.tenant = :tenant and b.name = :name and b.key = :key for update;

-- name: budget
select f.rules, b.used, b.levels, b.as_of, b.held_until, b.ticket from interlock.flow_limit f
join interlock.flow_bucket b on b.tenant = f.tenant and b.name = f.name and b.key = :key where f.tenant = :tenant and f.name = :name;
