-- Return jobs, agents and limits of a tenant that violate an invariant. One statement, so that it reads one snapshot.
create or replace function interlock.faults(p_tenant text, p_limit integer) returns table (rule text, name text) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select x.rule, x.name from (
    select r.rule, j.id::text as name from interlock.job j
    left join interlock.job_history h on h.tenant = j.tenant and h.job_id = j.id and h.version = j.version
    left join interlock.approval a on a.tenant = j.tenant and a.id = j.approval_id and a.status = 'open'
    left join interlock.lease l on l.tenant = j.tenant and l.job_id = j.id and l.fence = j.fence and l.worker = j.worker
    left join (select distinct q.job_id from interlock.ready q where q.tenant = p_tenant) q on q.job_id = j.id
    cross join lateral (values
      ('attempt_within_max', j.attempt between 1 and j.max_attempts and j.max_attempts <= 100),
      ('finished_exactly_when_ended', (j.finished_at is not null) = (j.status >= 'succeeded')),
      ('leased_exactly_when_running', (j.worker is not null) = (j.status = 'running') and (j.lease_expires_at is not null) = (j.worker is not null)),
      ('approval_exactly_when_waiting', (j.approval_id is not null) = (j.status = 'waiting_for_approval')),
      ('error_fits_status', case when j.error is null then j.status not in ('failed', 'dead_letter') else j.status <> 'succeeded' end),
      ('running_has_started', j.worker is null or (j.started_at is not null and j.run_started_at is not null)),
      ('priority_in_range', abs(j.priority) <= 1000),
      ('waits_for_an_open_approval', j.status <> 'waiting_for_approval' or j.approval_id is null or a.id is not null),
      ('running_has_a_lease', j.status <> 'running' or j.worker is null or l.job_id is not null),
      ('ready_when_it_waits', j.status > 'retry' or q.job_id is not null
        or exists (select from interlock.job_await w where w.tenant = j.tenant and w.job_id = j.id)),
      ('head_is_its_last_history', coalesce(h.hash = j.head, false))
    ) as r(rule, holds)
    where j.tenant = p_tenant and r.holds is not true
    union all
    select 'ready_only_when_it_waits', q.job_id::text from interlock.ready q
    left join interlock.job j on j.tenant = q.tenant and j.id = q.job_id
    where q.tenant = p_tenant group by q.job_id
    having count(*) > 1 or bool_or(j.id is null or j.status > 'retry' or (j.seq, j.run_at) <> (q.seq, q.run_at)
      or (case when q.parked then not exists (select from interlock.eligibility_key e where e.tenant = q.tenant and e.no = q.eligibility_key
            and e.parks = j.eligibility_key and q.limit_name is not null) else (j.eligibility_key, j.base) <> (q.eligibility_key, q.base) end)
      or j.deadline is distinct from q.deadline or exists (select from interlock.job_await w where w.tenant = q.tenant and w.job_id = q.job_id))
    union all
    select 'lease_has_a_running_job', l.job_id::text from interlock.lease l
    where l.tenant = p_tenant and not exists (select from interlock.job j where j.tenant = l.tenant and j.id = l.job_id and j.status = 'running')
    union all
    select distinct 'waits_for_living_children', w.job_id::text from interlock.job_await w
    left join interlock.job c on c.tenant = w.tenant and c.id = w.child_id
    left join interlock.job j on j.tenant = w.tenant and j.id = w.job_id
    where w.tenant = p_tenant and (c.id is null or c.status >= 'succeeded' or j.id is null or j.status > 'retry')
    union all
    select 'open_approval_has_a_waiting_job', a.job_id::text from interlock.approval a
    where a.tenant = p_tenant and a.status = 'open'
      and not exists (select from interlock.job j where j.tenant = a.tenant and j.id = a.job_id and j.approval_id = a.id)
    union all
    select 'slots_are_counted', a.kind || '/' || a.id from interlock.agent a cross join lateral (
      select (select count(*) from interlock.lease l where l.tenant = a.tenant and l.agent_no = a.no)
        + (select count(*) from interlock.ready q where q.tenant = a.tenant and q.agent_no = a.no and not q.blocked)
        + (select count(*) from interlock.job j where j.tenant = a.tenant and j.agent_no = a.no and a."strict"
             and j.slot_epoch = a.strict_epoch and j.status <= 'waiting_for_approval'
             and not exists (select from interlock.ready q where q.tenant = j.tenant and q.job_id = j.id)) as n) c
    where a.tenant = p_tenant and a.max_concurrency is not null and a.used <> c.n
    union all
    select 'limits_are_counted', b.name || coalesce('/' || nullif(b.key, ''), '') from interlock.flow_bucket b left join (
      select d ->> 'name' as name, coalesce(d ->> 'key', '') as key, count(*) as n
      from interlock.lease l join interlock.job j on j.tenant = l.tenant and j.id = l.job_id
      cross join lateral json_array_elements(j.limits::json) d where l.tenant = p_tenant group by 1, 2) r on r.name = b.name and r.key = b.key
    where b.tenant = p_tenant and b.used <> coalesce(r.n, 0)
  ) x order by x.rule in ('slots_are_counted', 'limits_are_counted'), x.name, x.rule limit p_limit;
end $$;

-- Recount the slots of an agent, as a change of its limit does.
create or replace function interlock.recount_slots(p_tenant text, p_agent_no bigint) returns void language plpgsql
  security definer set search_path = interlock, pg_temp as $$
declare
  most integer;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  select a.max_concurrency into most from agent a where a.tenant = p_tenant and a.no = p_agent_no for update;
  if most is not null then
    update agent set max_concurrency = null where tenant = p_tenant and no = p_agent_no;
    update agent set max_concurrency = most where tenant = p_tenant and no = p_agent_no;
  end if;
end $$;

-- Repair values derived from other rows, with the rights of the owner, and return whether anything was wrong. Correct
-- rows are not touched.
create or replace function interlock.repair(p_tenant text, p_rule text, p_name text) returns boolean language plpgsql
  security definer set search_path = interlock, pg_temp as $$
declare
  j job;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  if p_rule = 'slots_are_counted' then
    perform recount_slots(p_tenant, a.no) from agent a where a.tenant = p_tenant and a.kind || '/' || a.id = p_name;
    return found;
  end if;
  if p_rule = 'limits_are_counted' then  -- buckets are locked before they are counted, as in a claim
    perform from flow_bucket b where b.tenant = p_tenant and b.name || coalesce('/' || nullif(b.key, ''), '') = p_name
    order by b.name, b.key for no key update;
    update flow_bucket b set wake_at = case when b.parked then clock() end, used = (select count(*) from lease l join job x on x.tenant = l.tenant and x.id = l.job_id
      cross join lateral json_array_elements(x.limits::json) d
      where l.tenant = p_tenant and d ->> 'name' = b.name and coalesce(d ->> 'key', '') = b.key)
    where b.tenant = p_tenant and b.name || coalesce('/' || nullif(b.key, ''), '') = p_name;
    return found;
  end if;
  select * into j from job x where x.tenant = p_tenant and x.id = p_name::uuid for update;
  if not exists (select from faults(p_tenant, 1000000) f where f.rule = p_rule and f.name = p_name) then
    return false;  -- another process has repaired it
  end if;
  perform set_config('interlock.verb', 'on', true);
  if p_rule = 'lease_has_a_running_job' then
    delete from lease l where l.tenant = p_tenant and l.job_id = p_name::uuid;
  elsif p_rule = 'running_has_a_lease' then
    delete from lease l where l.tenant = p_tenant and l.job_id = j.id;
    insert into lease (tenant, job_id, fence, worker, seconds, expires_at, run_ends_at, agent_no)
    values (p_tenant, j.id, j.fence, j.worker, coalesce(j.lease_seconds, {default_lease}), coalesce(j.lease_expires_at, clock()),
      j.run_started_at + j.timeout_seconds * interval '1 second', j.agent_no);
  elsif p_rule = 'open_approval_has_a_waiting_job' then
    update approval a set status = 'void', closed_at = clock() where a.tenant = p_tenant and a.job_id = p_name::uuid and a.status = 'open'
      and a.id is distinct from j.approval_id;
  elsif p_rule in ('ready_when_it_waits', 'ready_only_when_it_waits', 'waits_for_living_children') then
    delete from job_await w where w.tenant = p_tenant and w.job_id = p_name::uuid and (j.id is null or j.status > 'retry'
      or not exists (select from job c where c.tenant = p_tenant and c.id = w.child_id and c.status < 'succeeded'));
    delete from ready q where q.tenant = p_tenant and q.job_id = p_name::uuid;
    if j.status <= 'retry' and not exists (select from job_await w where w.tenant = p_tenant and w.job_id = j.id) then
      insert into ready (tenant, eligibility_key, base, run_at, seq, job_id, deadline, agent_no, blocked)
      values (p_tenant, j.eligibility_key, j.base, j.run_at, j.seq, j.id, j.deadline, j.agent_no, must_wait_for_slot(p_tenant, j.agent_no, j.slot_epoch));
    end if;
  else
    perform set_config('interlock.verb', '', true);
    return false;
  end if;
  perform set_config('interlock.verb', '', true);
  if j.agent_no is not null then
    perform recount_slots(p_tenant, j.agent_no);
  end if;
  return true;
end $$;

-- Cancel a job whose own row violates a constraint, which blocks every other change. Its numbers are clamped to their
-- ranges, and history records it.
create or replace function interlock.end_broken(p_tenant text, p_id uuid, p_actor text, p_reason text) returns boolean language plpgsql
  security definer set search_path = interlock, pg_temp set lock_timeout = '5s' as $$
declare
  j job;
  ended job;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  select * into j from job x where x.tenant = p_tenant and x.id = p_id and x.status < 'succeeded' for update;
  if not found or not exists (select from faults(p_tenant, 1000000) f where f.name = p_id::text) then
    return false;
  end if;
  ended := j;
  ended.status := 'cancelled';
  ended.verb := 'cancel';
  ended.metadata := null;
  ended.attempt := least(greatest(j.attempt, 1), 100);
  ended.max_attempts := least(greatest(j.max_attempts, ended.attempt), 100);
  ended.priority := least(greatest(j.priority, -1000), 1000);
  ended.metadata := metadata_of_change(j, ended);
  j.attempt := ended.attempt;
  select greatest(j.version, max(h.version)) + 1 into j.version from job_history h where h.tenant = p_tenant and h.job_id = p_id;
  alter table job disable trigger guard_move;  -- no other transaction can change a job until this one ends
  update job x set status = 'cancelled', previous = j.status, version = j.version, attempt = j.attempt,
    max_attempts = ended.max_attempts, priority = ended.priority,
    worker = null, lease_expires_at = null, approval_id = null, finished_at = clock(), updated_at = clock(),
    verb = 'cancel', actor = p_actor, reason = p_reason, metadata = ended.metadata,
    cancel_requested_at = coalesce(x.cancel_requested_at, clock()), cancel_reason = coalesce(x.cancel_reason, p_reason),
    head = history_hash(j.head, j.version, j.status, 'cancelled', 'cancel', p_actor, j.attempt, j.fence, p_reason, ended.metadata, micros(clock()))
  where x.tenant = p_tenant and x.id = p_id;
  alter table job enable trigger guard_move;
  perform set_config('interlock.verb', 'on', true);
  delete from lease l where l.tenant = p_tenant and l.job_id = p_id;
  if found and j.limits is not null then
    perform settle_flow(p_tenant, array[p_id]);
  end if;
  delete from ready q where q.tenant = p_tenant and q.job_id = p_id;
  perform set_config('interlock.verb', '', true);
  if j.agent_no is not null then
    perform recount_slots(p_tenant, j.agent_no);
  end if;
  return true;
end $$;
