-- What follows from transitions: history, counters, index tables, slots, parents and deliveries.
--
-- The verbs call `settle` for the jobs they have changed, or write the common part themselves in one statement. After
-- direct SQL by any other role, the trigger `settle` calls it for each row. Everything is read from the job rows, which
-- name the status before the change (`previous`). Functions without a search path of their own run under that of a verb.
--
-- Order: history and counters first, because no other transaction waits for them; then the agents of the changed jobs,
-- locked until the transaction ends. Agents are locked before any index table is changed, so that a transaction with
-- the lock of an agent sees ready, lease and its slots as of complete transitions.
create or replace function interlock.settle(p_tenant text, p_ids uuid[]) returns void language plpgsql as $$
declare
  seen record;
  parents uuid[]; nos bigint[]; limited bigint[] := '{}'; freed bigint[] := '{}';
begin
  select coalesce(bool_or(j.previous is null), false) as created, bool_or(j.status = 'running' and j.previous <> 'running') as started,
    bool_or(j.previous = 'running' and j.status <> 'running') as stopped,
    bool_or(j.status <= 'retry' and (j.previous is null or j.previous > 'retry')) as entered,
    bool_or(j.previous <= 'retry' and j.status > 'running') as left_ready,
    bool_or(j.verb = 'edit') as edited, bool_or(j.parent_id is not null and j.status >= 'succeeded') as children, bool_or(j.verb = 'acknowledge') as acknowledged,
    array_agg(distinct j.agent_no order by j.agent_no) filter (where j.agent_no is not null and j.status <> 'running') as agents
  into seen from job j where j.tenant = p_tenant and j.id = any(p_ids);
  perform record_transitions(p_tenant, p_ids);
  if seen.created then
    perform refuse_unknown_keys(p_tenant, p_ids);
  end if;
  if seen.acknowledged then
    update unsuccessful_job s set acknowledged = true from job j where j.tenant = p_tenant and j.id = any(p_ids)
      and j.verb = 'acknowledge' and s.tenant = p_tenant and s.status = j.status::text and s.seq = j.seq;
  end if;
  if seen.children then
    parents := wake_parents(p_tenant, p_ids);
  end if;
  select array_agg(x.agent_no order by x.agent_no) into nos from (
    select unnest(seen.agents) as agent_no union
    select j.agent_no from job j where j.tenant = p_tenant and j.id = any(parents) and j.agent_no is not null) x;
  if nos is not null then
    limited := lock_agents(nos);
  end if;
  if (seen.stopped or seen.left_ready or seen.edited) and exists (select from flow_limit f where f.tenant = p_tenant) then
    perform wake_flow(p_tenant, p_ids);
  end if;
  if seen.started then
    perform start_leases(p_tenant, p_ids);
  end if;
  if seen.stopped then
    perform end_leases(p_tenant, array(select j.id from job j where j.tenant = p_tenant and j.id = any(p_ids)
      and j.previous = 'running' and j.status <> 'running' order by j.id));
  end if;
  if limited <> '{}' then
    freed := slots_freed(p_tenant, p_ids);
  end if;
  if seen.left_ready then
    perform leave_ready(p_tenant, p_ids);
  end if;
  if seen.entered or parents is not null then
    perform enter_ready(p_tenant, p_ids, parents);
  end if;
  if limited <> '{}' then
    if seen.entered or parents is not null then  -- one of them may precede a job that has a slot but does not run
      perform take_back_slots(limited);
    end if;
    perform release_slots(limited, freed);
  end if;
  perform announce(p_tenant, p_ids);
  perform note_move_deltas(p_tenant, p_ids);
end $$;

create or replace function interlock.record_transitions(p_tenant text, p_ids uuid[]) returns void language plpgsql as $$
begin
  insert into job_history (tenant, job_id, version, from_status, to_status, verb, actor, attempt, fence, reason, metadata, at, hash)
  select p_tenant, j.id, j.version, j.previous, j.status, j.verb, j.actor,
    j.attempt - case when j.status = 'retry' and j.previous = 'running' then 1 else 0 end, j.fence, j.reason, j.metadata, j.updated_at, j.head
  from job j where j.tenant = p_tenant and j.id = any(p_ids);
  insert into queue_counter (tenant, type, minute, from_status, to_status, count, last_seq)
  select p_tenant, j.type, date_trunc('minute', clock()), j.previous, j.status, count(*), case when j.previous is not null then max(j.seq) end
  from job j where j.tenant = p_tenant and j.id = any(p_ids) and j.status is distinct from j.previous group by j.type, j.previous, j.status;
  delete from unsuccessful_job s where s.tenant = p_tenant and s.status = 'retry' and s.seq = any(array(
    select j.seq from job j where j.tenant = p_tenant and j.id = any(p_ids) and j.previous = 'retry' and j.status <> 'retry'));
  insert into unsuccessful_job (tenant, status, seq, job_id, type)
  select p_tenant, j.status, j.seq, j.id, j.type from job j where j.tenant = p_tenant and j.id = any(p_ids)
    and j.status is distinct from j.previous and (j.status = 'retry' or j.status >= 'failed');
end $$;

-- Jobs are found by their eligibility keys; a foreign key would be checked once per job.
create or replace function interlock.refuse_unknown_keys(p_tenant text, p_ids uuid[]) returns void language plpgsql as $$
begin
  if exists (select from (select distinct j.eligibility_key from job j where j.tenant = p_tenant and j.id = any(p_ids)) b
             where not exists (select from eligibility_key r where r.tenant = p_tenant and r.no = b.eligibility_key)) then
    raise exception 'interlock: a job names a route that does not exist' using errcode = 'foreign_key_violation';
  end if;
end $$;

-- Return the jobs that waited for children that have ended. Lock them first, as everywhere: if two children finish
-- concurrently, the later one sees the result of the earlier one.
create or replace function interlock.wake_parents(p_tenant text, p_ids uuid[]) returns uuid[] language plpgsql as $$
declare
  ended uuid[] := array(select j.id from job j where j.tenant = p_tenant and j.id = any(p_ids) and j.parent_id is not null and j.status >= 'succeeded');
  parents uuid[];
begin
  perform from job j where j.tenant = p_tenant and j.id = any(array(
    select w.job_id from job_await w where w.tenant = p_tenant and w.child_id = any(ended))) order by j.id for update;
  with gone as (delete from job_await a where a.tenant = p_tenant and a.child_id = any(ended) returning a.job_id)
  select array_agg(distinct g.job_id) into parents from gone g;
  return parents;
end $$;

-- A job leased other than by a claim: check its slot and take it out of ready.
create or replace function interlock.start_leases(p_tenant text, p_ids uuid[]) returns void language plpgsql as $$
begin
  if exists (select from job j join ready q on q.tenant = p_tenant and q.agent_no = j.agent_no and q.blocked and q.run_at = j.run_at and q.seq = j.seq
      where j.tenant = p_tenant and j.id = any(p_ids) and j.agent_no is not null and j.status = 'running' and j.previous <> 'running') then
    raise exception 'interlock: a job has no concurrency slot of its agent and cannot be leased' using errcode = 'check_violation';
  end if;
  delete from ready q where q.ctid = any(array(select r.at from job j cross join lateral ready_row(j) r
    where j.tenant = p_tenant and j.id = any(p_ids) and j.status = 'running' and j.previous <= 'retry'));
  insert into lease (tenant, job_id, fence, worker, seconds, expires_at, run_ends_at, agent_no)
  select p_tenant, j.id, j.fence, j.worker, coalesce(j.lease_seconds, {default_lease}), j.lease_expires_at,
    j.run_started_at + j.timeout_seconds * interval '1 second', j.agent_no
  from job j where j.tenant = p_tenant and j.id = any(p_ids) and j.status = 'running' and j.previous <> 'running';
end $$;

-- End the leases of jobs (sorted ids). Saving progress requires the lease, so no more can be saved now: reject progress
-- that was saved after the digests were computed. One range probe usually shows that none of the jobs saved any.
create or replace function interlock.end_leases(p_tenant text, p_ids uuid[]) returns void language plpgsql as $$
begin
  delete from lease l where l.tenant = p_tenant and l.job_id = any(p_ids);
  if exists (select from flow_limit f where f.tenant = p_tenant) then
    perform settle_flow(p_tenant, p_ids);
  end if;
  if exists (select from job_step s where s.tenant = p_tenant and s.job_id between p_ids[1] and p_ids[cardinality(p_ids)])
      or exists (select from job_checkpoint c where c.tenant = p_tenant and c.job_id between p_ids[1] and p_ids[cardinality(p_ids)]) then
    if exists (select from job j where j.tenant = p_tenant and j.id = any(p_ids) and not covers_progress(p_tenant, j.id, j.fence, j.metadata)) then
      raise exception 'interlock: progress was saved while the run was ended' using errcode = 'serialization_failure';
    end if;
  end if;
end $$;

-- Return the row of a waiting job in ready, by the keys of its indexes: the planner would otherwise start from all rows
-- of the tenant. A job that is queued or in retry and has no such row waits for children.
create or replace function interlock.ready_row(j interlock.job, out at tid, out blocked boolean) returns setof record language plpgsql stable as $$
begin
  return query select q.ctid, false from ready q where q.tenant = j.tenant and q.eligibility_key = j.eligibility_key
    and q.run_at = j.run_at and q.seq = j.seq and not q.blocked;
  if not found and j.agent_no is not null then
    return query select q.ctid, true from ready q where q.tenant = j.tenant and q.agent_no = j.agent_no and q.blocked
      and q.run_at = j.run_at and q.seq = j.seq;
  end if;
  if not found and j.limits is not null then
    return query select q.ctid, false from eligibility_key e join ready q on q.tenant = j.tenant and q.eligibility_key = e.no
      and q.run_at = j.run_at and q.seq = j.seq and not q.blocked where e.tenant = j.tenant and e.parks = j.eligibility_key;
  end if;
end $$;

-- Return the agents whose slots these jobs release, one entry per slot, sorted. A started job of a strict agent keeps
-- its slot until it has ended.
create or replace function interlock.slots_freed(p_tenant text, p_ids uuid[]) returns bigint[] language sql stable
  set search_path = interlock, pg_temp as $$
  select coalesce(array_agg(x.agent_no order by x.agent_no), '{}') from (
    select j.agent_no, case
      when j.previous = 'running' then j.status >= 'succeeded' or (j.status <> 'running' and not kept.it)
      when j.previous = 'waiting_for_approval' then j.status >= 'succeeded' and kept.it
      when j.previous <= 'retry' and j.status > 'running' then coalesce((select not r.blocked from ready_row(j) r), kept.it)
      else false end as freed
    from job j cross join lateral (
      select coalesce(bool_or(a."strict" and a.strict_epoch = j.slot_epoch), false) as it
      from agent a where a.tenant = p_tenant and a.no = j.agent_no) kept
    where j.tenant = p_tenant and j.id = any(p_ids) and j.agent_no is not null) x
  where x.freed
$$;

create or replace function interlock.leave_ready(p_tenant text, p_ids uuid[]) returns void language plpgsql as $$
begin
  delete from ready q where q.ctid = any(array(select r.at from job j cross join lateral ready_row(j) r
    where j.tenant = p_tenant and j.id = any(p_ids) and j.previous <= 'retry' and j.status > 'running'));
  delete from job_await a where a.tenant = p_tenant and a.job_id = any(array(
    select j.id from job j where j.tenant = p_tenant and j.id = any(p_ids) and j.previous <= 'retry' and j.status > 'running'));
end $$;

-- Insert the rows of jobs that wait for a worker from now on: those that started to wait, and parents whose last child
-- has ended, unless they have one.
create or replace function interlock.enter_ready(p_tenant text, p_ids uuid[], p_parents uuid[]) returns void language plpgsql as $$
declare
  candidates uuid[] := p_ids || p_parents;  -- no index is searched by an expression under row-level security
begin
  insert into ready (tenant, eligibility_key, base, run_at, seq, job_id, deadline, agent_no, blocked)
  select p_tenant, j.eligibility_key, j.base, j.run_at, j.seq, j.id, j.deadline, j.agent_no, must_wait_for_slot(p_tenant, j.agent_no, j.slot_epoch)
  from job j where j.tenant = p_tenant and j.id = any(candidates) and j.status <= 'retry'
    and not exists (select from job_await a where a.tenant = p_tenant and a.job_id = j.id)
    and case when j.id = any(p_parents) then not exists (select from ready_row(j))
      else j.previous is null or j.previous > 'retry' end;
end $$;

-- Record jobs that are written while their tenant is leaving this shard. Also record the parent of a finished child: it
-- may become ready without being written itself.
create or replace function interlock.note_move_deltas(p_tenant text, p_ids uuid[]) returns void language plpgsql as $$
begin
  if current_setting('interlock.leaving', true) = 'yes' then
    insert into move_delta (tenant, job_id)
    select p_tenant, j.id from job j where j.tenant = p_tenant and j.id = any(p_ids)
    union select p_tenant, j.parent_id from job j where j.tenant = p_tenant and j.id = any(p_ids) and j.parent_id is not null and j.status >= 'succeeded';
  end if;
end $$;

-- Insert the deliveries of transitions: to the webhooks of finished jobs, and to subscriptions. Nearly free without any.
create or replace function interlock.announce(p_tenant text, p_ids uuid[]) returns void language plpgsql as $$
declare
  t timestamptz := clock();
begin
  insert into outbox (tenant, id, channel, event, at, next_try_at, job_id, type, job_status, previous_status, attempt, version, agent_kind,
    agent_id, tags, url)
  select j.tenant, delivery_id(), 'host:' || substring(j.webhook from '://([^/]+)'), 'job.' || j.status, t, t, j.id, j.type, j.status,
    j.previous, j.attempt, j.version, j.agent_kind, j.agent_id, j.tags, j.webhook
  from job j where j.tenant = p_tenant and j.id = any(p_ids) and j.webhook is not null and j.status >= 'succeeded' and j.status <> j.previous;
  if not exists (select from subscription s where s.tenant = p_tenant and s.ended_at is null) then
    return;
  end if;
  with heard as materialized (
    select s.channel, e.event, s.types, s.tags, s.ignored_risks from subscription s cross join unnest(s.events) as e(event)
    where s.tenant = p_tenant and s.ended_at is null and (s.expires_at is null or s.expires_at > t)
  )
  insert into outbox (tenant, id, channel, event, at, next_try_at, job_id, type, job_status, previous_status, attempt, version, agent_kind,
    agent_id, tags, approval_id)
  select distinct on (j.seq, h.channel, h.event) p_tenant, delivery_id(), h.channel, h.event, t, t, j.id, j.type, j.status, j.previous,
    j.attempt, j.version, j.agent_kind, j.agent_id, j.tags,
    case when h.event like 'approval.%' then coalesce(j.approval_id::text, j.metadata::json ->> 'approval_id') end
  from job j join heard h on (h.types is null or j.type = any(h.types)) and (h.event = 'job.' || j.status
    or (h.event = 'approval.requested' and j.status = 'waiting_for_approval')
    or (h.event = 'worker.stale' and j.previous = 'running' and j.verb = 'expire')
    or (h.event = 'approval.decided' and j.previous = 'waiting_for_approval' and j.verb = 'decide'))
  where j.tenant = p_tenant and j.id = any(p_ids) and j.status is distinct from j.previous and (h.tags is null or j.tags && h.tags)
    and (h.ignored_risks is null or h.event <> 'approval.requested' or exists (select from approval a
      where a.tenant = p_tenant and a.id = j.approval_id and lower(a.risk) <> all(h.ignored_risks)));
  if exists (select from subscription s where s.tenant = p_tenant and s.ended_at is null and 'queue.ready' = any(s.events)) then
    perform deliver_ready(p_tenant, array(  -- jobs that entered ready, and the parents of finished jobs
      select case when j.status <= 'retry' then j.id else j.parent_id end from job j where j.tenant = p_tenant and j.id = any(p_ids)
        and (j.status >= 'succeeded' or (j.status <= 'retry' and (j.previous is null or j.previous > 'retry')))));
  end if;
end $$;

-- Jobs of one type that become claimable in one statement make one event, due when they are.
create or replace function interlock.deliver_ready(p_tenant text, p_ids uuid[]) returns void language plpgsql
  security definer set search_path = interlock, pg_temp as $$
declare
  t timestamptz := clock();
begin
  insert into outbox (tenant, id, channel, event, at, next_try_at, job_id, type, job_status, previous_status, attempt, version, agent_kind,
    agent_id, tags)
  select distinct on (s.channel, j.type, greatest(q.run_at, t)) j.tenant, delivery_id(), s.channel, 'queue.ready', t, greatest(q.run_at, t),
    j.id, j.type, j.status, j.previous, j.attempt, j.version, j.agent_kind, j.agent_id, j.tags
  from job j
  join ready q on q.tenant = j.tenant and q.eligibility_key = j.eligibility_key and q.run_at = j.run_at and q.seq = j.seq and not q.blocked
  join subscription s on s.tenant = j.tenant and s.ended_at is null and (s.expires_at is null or s.expires_at > t)
    and 'queue.ready' = any(s.events) and (s.types is null or j.type = any(s.types))
  where j.tenant = p_tenant and j.id = any(p_ids)
    and not exists (select from outbox o where o.tenant = j.tenant and o.channel = s.channel and o.next_try_at = greatest(q.run_at, t)
      and o.event = 'queue.ready' and o.type = j.type and o.grabs = 0)
  order by s.channel, j.type, greatest(q.run_at, t), j.seq;
end $$;

-- Insert the deliveries of a spent budget, about the first of these jobs that a channel's filters select. Channels without
-- filters by job get one even if there is none.
create or replace function interlock.announce_spent(p_tenant text, p_budget text, p_ids uuid[]) returns void language sql volatile
  security definer set search_path = interlock, pg_temp as $$
  insert into outbox (tenant, id, channel, event, at, next_try_at, budget, job_id, type, job_status, attempt, version, agent_kind, agent_id, tags)
  select p_tenant, delivery_id(), s.channel, 'budget.spent', clock(), clock(), p_budget, j.id, coalesce(j.type, ''), j.status,
    coalesce(j.attempt, 0), coalesce(j.version, 0), j.agent_kind, j.agent_id, coalesce(j.tags, '{}')
  from subscription s left join lateral (
    select x.* from job x where x.tenant = p_tenant and x.id = any(p_ids) and (s.types is null or x.type = any(s.types))
      and (s.tags is null or x.tags && s.tags) order by x.seq limit 1) j on true
  where s.tenant = p_tenant and s.ended_at is null and (s.expires_at is null or s.expires_at > clock()) and 'budget.spent' = any(s.events)
    and (j.id is not null or (s.types is null and s.tags is null))
$$;
