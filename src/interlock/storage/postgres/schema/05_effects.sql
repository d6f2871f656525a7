-- What follows from a change of a job, written by triggers: history, counters, index tables, slots and parents.

create function interlock.after_insert() returns trigger
  language plpgsql security definer set search_path = interlock, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_hashjoin = off set jit = off as $$
declare
  t timestamptz := clock();
  agent_nos boolean;
  nos bigint[]; limited bigint[];
begin
  if current_tenant() is null then  -- a role that bypasses row-level security set no tenant
    perform set_config('interlock.tenant', n.tenant, true) from created n limit 1;
  end if;
  insert into job_history (tenant, job_id, version, from_status, to_status, verb, actor, attempt, fence, reason, metadata, at, hash)
  select n.tenant, n.id, 1, null, n.status, n.verb, n.actor, 1, 0, n.reason, n.metadata, n.updated_at, n.head
  from created n;
  insert into queue_counter (tenant, type, minute, to_status, count)
  select n.tenant, n.type, date_trunc('minute', t), 'queued', count(*) from created n group by n.tenant, n.type;
  select bool_or(n.agent_no is not null) into agent_nos from created n;
  if agent_nos then
    select array_agg(distinct n.agent_no order by n.agent_no) into nos from created n where n.agent_no is not null;
    limited := lock_agents(nos);
  end if;
  insert into ready (tenant, eligibility_key, base, run_at, seq, job_id, deadline, agent_no, blocked)
  select n.tenant, n.eligibility_key, n.base, n.run_at, n.seq, n.id, n.deadline, n.agent_no, coalesce(n.agent_no = any(limited), false) from created n;
  if exists (select from (select distinct n.tenant, n.eligibility_key from created n) b
             where not exists (select from eligibility_key r where r.tenant = b.tenant and r.no = b.eligibility_key)) then
    raise exception 'interlock: a job names a route that does not exist' using errcode = 'foreign_key_violation';
  end if;
  if limited <> '{}' then
    if exists (select from (select n.agent_no, min(n.run_at) as first from created n where n.agent_no = any(limited) group by n.agent_no) b
               cross join lateral (select from ready q where q.tenant = current_tenant() and q.agent_no = b.agent_no and q.blocked <= false
                                   and q.run_at > b.first limit 1) later) then
      perform take_back_slots(limited);  -- a new job precedes one that has a slot and may not have started
    end if;
    perform release_slots(limited, '{}');
  end if;
  return null;
end $$;
create trigger after_insert after insert on interlock.job referencing new table as created
  for each statement execute function interlock.after_insert();

-- Order: history and counters first, because no other transaction waits for them; then the agents of the changed jobs,
-- locked until the transaction ends. Agents are locked before any index table is changed, so that a transaction with
-- the lock of an agent sees ready, lease and its slots as of complete transitions.
--
-- Rows of ready are looked up from the changed jobs and deleted by ctid: row-level security applies to the owner too,
-- and the planner would otherwise start from all rows of the tenant.
create function interlock.after_update() returns trigger
  language plpgsql security definer set search_path = interlock, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_hashjoin = off set jit = off as $$
declare
  t timestamptz := clock();
  changes integer; leased boolean; ended boolean; entered boolean; left_ready boolean; children boolean;
  agent_nos boolean; leased_of_agents boolean; unsuccessful boolean; others boolean; apart boolean;  -- of other tenants
  stopped uuid[]; parents uuid[]; nos bigint[]; limited bigint[] := '{}'; freed bigint[] := '{}';
  listened text;
  part record;
begin
  if current_tenant() is null then  -- a role that bypasses row-level security set no tenant
    perform set_config('interlock.tenant', n.tenant, true) from changed n limit 1;
  end if;
  -- One pass over the changed rows, for the counters and to find what else to do.
  with moves as materialized (
    select n.tenant, n.type, n.previous, n.status, count(*) as n, max(n.seq) as last_seq, bool_or(n.parent_id is not null) as of_parents,
      bool_or(n.agent_no is not null) as of_agents, bool_or(n.webhook is not null) as of_webhooks
    from changed n group by n.tenant, n.type, n.previous, n.status
  ), counted as (
    insert into queue_counter (tenant, type, minute, from_status, to_status, count, last_seq)
    select m.tenant, m.type, date_trunc('minute', t), m.previous, m.status, m.n, m.last_seq from moves m where m.status <> m.previous
  )
  select coalesce(sum(n), 0), bool_or(status = 'running' and previous <> 'running'), bool_or(previous = 'running' and status <> 'running'),
    bool_or(status <= 'retry' and previous > 'retry'), bool_or(previous <= 'retry' and status > 'running'),
    bool_or(of_parents and status >= 'succeeded'), bool_or(of_agents and status <> 'running'),
    bool_or(of_agents and status = 'running' and previous <> 'running'),
    bool_or(status <> previous and (status >= 'failed' or 'retry' in (status, previous))), bool_or(tenant <> current_tenant()),
    -- Saves the webhook triggers their own pass.
    set_config('interlock.listened', (bool_or(tenant <> current_tenant() or (of_webhooks and status >= 'succeeded'))
      or exists (select from subscription s where s.tenant = current_tenant() and s.ended_at is null))::text, true)
  into changes, leased, ended, entered, left_ready, children, agent_nos, leased_of_agents, unsuccessful, apart, listened from moves;
  if changes = 0 then return null; end if;

  insert into job_history (tenant, job_id, version, from_status, to_status, verb, actor, attempt, fence, reason, metadata, at, hash)
  select n.tenant, n.id, n.version, n.previous, n.status, n.verb, n.actor,
    n.attempt - case when n.status = 'retry' and n.previous = 'running' then 1 else 0 end, n.fence, n.reason, n.metadata, n.updated_at, n.head
  from changed n;
  if unsuccessful then
    for part in select n.tenant, array_agg(n.seq) as seqs from changed n
        where n.previous = 'retry' and n.status <> 'retry' group by n.tenant loop
      delete from unsuccessful_job s where s.tenant = part.tenant and s.status = 'retry' and s.seq = any(part.seqs);
    end loop;
    insert into unsuccessful_job (tenant, status, seq, job_id, type)
    select n.tenant, n.status, n.seq, n.id, n.type from changed n
    where n.status <> n.previous and (n.status = 'retry' or n.status >= 'failed');
  end if;

  if children then
    -- Lock the waiting jobs first, as everywhere. If two children finish concurrently, the later one sees the result of
    -- the earlier one.
    perform from job j where j.tenant = current_tenant() and j.id = any(array(
      select w.job_id from changed n cross join lateral (
        select x.job_id from job_await x where x.tenant = n.tenant and x.child_id = n.id offset 0) w
      where n.parent_id is not null and n.status >= 'succeeded')) order by j.id for update;
    with gone as (
      delete from job_await a where a.ctid = any(array(
        select w.at from changed n cross join lateral (
          select x.ctid as at from job_await x where x.tenant = n.tenant and x.child_id = n.id offset 0) w
        where n.parent_id is not null and n.status >= 'succeeded'))
      returning a.job_id)
    select array_agg(distinct job_id) into parents from gone;
  end if;
  if agent_nos then
    select array_agg(distinct n.agent_no order by n.agent_no),
      coalesce(array_agg(n.agent_no order by n.agent_no) filter (where n.previous = 'running' and n.status >= 'succeeded'), '{}'),
      bool_or(n.previous <> 'running' or n.status < 'succeeded')
    into nos, freed, others from changed n where n.agent_no is not null and n.status <> 'running';
  end if;
  if parents is not null then
    select array_agg(distinct x.agent_no order by x.agent_no) into nos from (
      select unnest(nos) union select j.agent_no from job j where j.tenant = current_tenant() and j.id = any(parents) and j.agent_no is not null) as x(agent_no);
  end if;
  if nos is not null then
    limited := lock_agents(nos);
  end if;

  if leased then
    -- A claim deletes its own rows of ready first. For any other lease, check the slot and delete the row here.
    if current_setting('interlock.leasing', true) is distinct from 'claim' then
      if leased_of_agents and exists (
          select from changed n join ready q on q.tenant = n.tenant and q.agent_no = n.agent_no and q.blocked and q.run_at = n.run_at and q.seq = n.seq
          where n.agent_no is not null and n.status = 'running' and n.previous <> 'running') then
        raise exception 'interlock: a job has no concurrency slot of its agent and cannot be leased' using errcode = 'check_violation';
      end if;
      delete from ready q where q.ctid = any(array(
        select r.at from changed n cross join lateral (
          select x.ctid as at from ready x
          where x.tenant = n.tenant and x.eligibility_key = n.eligibility_key and x.run_at = n.run_at and x.seq = n.seq and not x.blocked offset 0) r
        where n.status = 'running' and n.previous <= 'retry'));
    end if;
    insert into lease (tenant, job_id, fence, worker, seconds, expires_at, run_ends_at, agent_no)
    select n.tenant, n.id, n.fence, n.worker, coalesce(n.lease_seconds, {default_lease}), n.lease_expires_at,
      n.run_started_at + n.timeout_seconds * interval '1 second', n.agent_no
    from changed n where n.status = 'running' and n.previous <> 'running';
  end if;
  if ended and not apart then
    stopped := array(select n.id from changed n where n.previous = 'running' and n.status <> 'running' order by n.id);
    delete from lease l where l.tenant = current_tenant() and l.job_id = any(stopped);
    -- Saving progress requires the lease, so no more can be saved now. Reject progress saved after the digests were
    -- computed.
    if (exists (select from job_step s where s.tenant = current_tenant() and s.job_id between stopped[1] and stopped[cardinality(stopped)])
        or exists (select from job_checkpoint c where c.tenant = current_tenant() and c.job_id between stopped[1] and stopped[cardinality(stopped)]))
        and exists (select from changed n where n.previous = 'running' and n.status <> 'running'
          and not covers_progress(n.tenant, n.id, n.fence, n.metadata)) then
      raise exception 'interlock: progress was saved while the run was ended' using errcode = 'serialization_failure';
    end if;
  elsif ended then
    delete from lease l using changed n where n.previous = 'running' and n.status <> 'running' and l.tenant = n.tenant and l.job_id = n.id;
  end if;
  if left_ready then
    with gone as (
      delete from ready q where q.ctid = any(array(
        select r.at from changed n cross join lateral (
          select x.ctid as at from ready x
          where x.tenant = n.tenant and x.eligibility_key = n.eligibility_key and x.run_at = n.run_at and x.seq = n.seq and not x.blocked offset 0) r
        where n.previous <= 'retry' and n.status > 'running'))
      returning q.agent_no)
    select freed || coalesce(array_agg(gone.agent_no), '{}') into freed from gone where gone.agent_no is not null;
    with gone as (
      delete from job_await a using (
        select w.at, n.id, n.agent_no, n.slot_epoch from changed n cross join lateral (
          select x.ctid as at from job_await x where x.tenant = n.tenant and x.job_id = n.id offset 0) w
        where n.previous <= 'retry' and n.status > 'running') n
      where a.ctid = n.at
      returning n.id, n.agent_no, n.slot_epoch)
    select freed || coalesce(array_agg(x.agent_no), '{}') into freed from (
      select * from gone
      union  -- those whose last child finished in this statement
      select n.id, n.agent_no, n.slot_epoch from changed n where n.id = any(parents) and n.previous <= 'retry' and n.status > 'running') x
    cross join lateral (select from agent a where a.tenant = current_tenant() and a.no = x.agent_no and a."strict" and a.strict_epoch = x.slot_epoch offset 0) kept;
  end if;
  if agent_nos then
    if left_ready then
      delete from ready q where q.ctid = any(array(
        select r.at from changed n cross join lateral (
          select x.ctid as at from ready x
          where x.tenant = n.tenant and x.agent_no = n.agent_no and x.blocked and x.run_at = n.run_at and x.seq = n.seq offset 0) r
        where n.agent_no is not null and n.previous <= 'retry' and n.status > 'running'));
    end if;
    if others then  -- jobs that finished while running have released their slot above
      select freed || coalesce(array_agg(n.agent_no), '{}') into freed
      from changed n cross join lateral (select a."strict", a.strict_epoch from agent a where a.tenant = n.tenant and a.no = n.agent_no offset 0) a
      where n.agent_no is not null and n.status <> 'running' and case  -- a running job with a cancel request still runs
        when n.previous = 'running' then n.status < 'succeeded' and (a."strict" and n.slot_epoch = a.strict_epoch) is not true
        when n.previous = 'waiting_for_approval' then n.status >= 'succeeded' and a."strict" and n.slot_epoch = a.strict_epoch
        else false end;
    end if;
  end if;
  if entered then
    insert into ready (tenant, eligibility_key, base, run_at, seq, job_id, deadline, agent_no, blocked)
    select n.tenant, n.eligibility_key, n.base, n.run_at, n.seq, n.id, n.deadline, n.agent_no, must_wait_for_slot(n.tenant, n.agent_no, n.slot_epoch) from changed n
    where n.status <= 'retry' and n.previous > 'retry'
      and not exists (select from job_await a where a.tenant = n.tenant and a.job_id = n.id);
  end if;
  if parents is not null then
    insert into ready (tenant, eligibility_key, base, run_at, seq, job_id, deadline, agent_no, blocked)
    select j.tenant, j.eligibility_key, j.base, j.run_at, j.seq, j.id, j.deadline, j.agent_no, must_wait_for_slot(j.tenant, j.agent_no, j.slot_epoch) from job j
    where j.tenant = current_tenant() and j.id = any(parents) and j.status <= 'retry'
      and not exists (select from job_await a where a.tenant = j.tenant and a.job_id = j.id)
      -- a job that started to wait and whose child finished in this statement was inserted above
      and not exists (select from changed n where n.id = j.id and n.status <= 'retry' and n.previous > 'retry');
  end if;
  if limited <> '{}' then
    if entered or parents is not null then  -- one of them may precede a job that has a slot but does not run
      perform take_back_slots(limited);
    end if;
    if left_ready or others then
      freed := array(select f from unnest(freed) f order by f);
    end if;
    perform release_slots(limited, freed);
  end if;
  return null;
end $$;
create trigger after_update after update on interlock.job referencing new table as changed
  for each statement execute function interlock.after_update();

create function interlock.after_delete() returns trigger
  language plpgsql security definer set search_path = interlock, pg_temp as $$
begin
  insert into queue_counter (tenant, type, minute, from_status, count)
  select o.tenant, o.type, date_trunc('minute', interlock.clock()), o.status, count(*) from gone o group by o.tenant, o.type, o.status;
  return null;
end $$;
create trigger after_delete after delete on interlock.job referencing old table as gone
  for each statement execute function interlock.after_delete();

-- An edit of a waiting job changes its row in ready. Rare, so per row, where the old key is at hand.
create function interlock.move_ready() returns trigger
  language plpgsql security definer set search_path = interlock, pg_temp as $$
declare
  limited bigint[];
begin
  if old.agent_no is not null then
    limited := lock_agents(array[old.agent_no]);
  end if;
  if new.run_at = old.run_at then  -- it did not become ready
    perform set_config('interlock.untold', 'on', true);
  end if;
  update ready q set eligibility_key = new.eligibility_key, base = new.base, run_at = new.run_at, deadline = new.deadline,
    across_repositories = (select r.across_repositories from eligibility_key r where r.tenant = new.tenant and r.no = new.eligibility_key),
    across_keys = (select r.across_keys from eligibility_key r where r.tenant = new.tenant and r.no = new.eligibility_key) from (
    select r.ctid as at from ready r
    where r.tenant = old.tenant and r.eligibility_key = old.eligibility_key and r.run_at = old.run_at and r.seq = old.seq and not r.blocked
    union all
    select r.ctid from ready r
    where r.tenant = old.tenant and r.agent_no = old.agent_no and r.run_at = old.run_at and r.seq = old.seq and r.blocked) its
  where q.ctid = its.at;
  perform set_config('interlock.untold', '', true);
  update job_await a set deadline = new.deadline where a.tenant = old.tenant and a.job_id = old.id;
  if limited <> '{}' then
    perform take_back_slots(limited);
    perform release_slots(limited, '{}');
  end if;
  return null;
end $$;
create trigger move_ready after update of eligibility_key, base, run_at, deadline on interlock.job for each row
  when (old.status <= 'retry' and new.status = old.status) execute function interlock.move_ready();

-- A worker that accepts any repository or affinity key finds its jobs in one index range, regardless of their number.
create function interlock.range_ready() returns trigger language plpgsql set search_path = interlock, pg_temp as $$
begin
  select r.across_repositories, r.across_keys into new.across_repositories, new.across_keys
  from eligibility_key r where r.tenant = new.tenant and r.no = new.eligibility_key;
  return new;
end $$;
create trigger range_ready before insert on interlock.ready for each row
  when (new.eligibility_key <> new.base) execute function interlock.range_ready();
