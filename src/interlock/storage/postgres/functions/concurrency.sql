-- Concurrency slots. Of the due jobs of an agent with a limit, the first ones get a slot, and only they can be claimed.
-- `agent.used` counts two kinds of slots: those of started jobs, and those assigned to due jobs that have not started.
-- A claim moves a slot from the second kind to the first, so it needs no lock; every other operation locks the agent
-- row.
--
-- These statements must also be fast under plans cached while the tables were nearly empty: `offset 0` and `ctid` fix
-- the order of dependent lookups. `blocked <= false` means `not blocked`, but matches only the index on agent_no.

-- Lock agents in one order and return those with a limit. An agent without a limit gets a share lock, so that none is
-- set meanwhile.
create or replace function interlock.lock_agents(p_nos bigint[]) returns bigint[] language plpgsql set search_path = interlock, pg_temp as $$
declare
  whose text := interlock.current_tenant();
  limited bigint[];
  unlimited integer := 0;
begin
  select coalesce(array_agg(x.no), '{}') into limited from (
    select a.no from agent a where a.tenant = whose and a.no = any(p_nos) and a.max_concurrency is not null order by a.no for update) x;
  if cardinality(limited) < cardinality(p_nos) then
    select count(*) into unlimited from (
      select a.no from agent a where a.tenant = whose and a.no = any(p_nos) and a.max_concurrency is null order by a.no for share) x;
    if cardinality(limited) + unlimited <> cardinality(p_nos) then
      if (select count(*) from agent a where a.tenant = whose and a.no = any(p_nos)) < cardinality(p_nos) then
        raise exception 'interlock: a job names an agent that does not exist' using errcode = 'foreign_key_violation';
      end if;
      raise exception 'interlock: the limit of an agent has just changed' using errcode = 'serialization_failure';
    end if;
  end if;
  return limited;
end $$;

-- Return whether a job that stops running or waiting needs a new slot. A strict agent lets it keep its slot, unless the
-- agent was not strict when the job stopped or at some time since.
create or replace function interlock.must_wait_for_slot(p_tenant text, p_agent_no bigint, p_slot_epoch integer) returns boolean
  language sql stable set search_path = interlock, pg_temp as
  $$ select p_agent_no is not null and exists
       (select from agent a where a.tenant = p_tenant and a.no = p_agent_no and a.max_concurrency is not null
          and (a."strict" and a.strict_epoch = p_slot_epoch) is not true) $$;

-- Release the freed slots (p_freed is sorted and lists an agent once per slot) and assign free slots to the first due
-- jobs. The caller has locked the agents.
create or replace function interlock.release_slots(p_agent_nos bigint[], p_freed bigint[]) returns void language plpgsql
  set search_path = interlock, pg_temp set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_hashjoin = off as $$
declare
  whose text := interlock.current_tenant();
  t timestamptz := interlock.clock();
begin
  with heads as materialized (
    select o.*, h.ats, o.free > coalesce(cardinality(h.ats), 0) as more from (
      select a.ctid as agent_at, a.no, a.used, a.next_due, g.n, a.max_concurrency - a.used + g.n as free
      from agent a cross join lateral (select width_bucket(a.no, p_freed) - width_bucket(a.no - 1, p_freed) as n) g
      where a.tenant = whose and a.no = any(p_agent_nos)) o
    cross join lateral (select array_agg(h.at) as ats from (
      select q.ctid as at from ready q where q.tenant = whose and q.agent_no = o.no and q.blocked and q.run_at <= t
      order by q.run_at, q.seq limit greatest(o.free, 0)) h) h
  ), slotted as (
    update ready q set blocked = false from (select unnest(heads.ats) as at from heads) h where q.ctid = h.at
  )
  -- If slots remain, no due job is blocked: store when the next job is due, so that the claim and the sweep find the
  -- agent then.
  update agent a set used = greatest(a.used + s.change, 0), next_due = s.due  -- never negative, even if miscounted
  from (select h.agent_at, h.next_due, coalesce(cardinality(h.ats), 0) - h.n as change, case when h.more then (
          select q.run_at from ready q where q.tenant = whose and q.agent_no = h.no and q.blocked and q.run_at > t
          order by q.run_at limit 1) end as due
        from heads h offset 0) s
  where (s.change <> 0 or s.due is distinct from s.next_due) and a.ctid = s.agent_at;
end $$;

-- A bucket shows only parked jobs that have a slot, so it must be looked at when one gets its slot.
create or replace function interlock.wake_parked() returns trigger
  language plpgsql security definer set search_path = interlock, pg_temp as $$
begin
  update flow_bucket b set wake_at = clock() where b.tenant = new.tenant and b.name = new.limit_name and b.key = new.limit_key and b.parked;
  return null;
end $$;
drop trigger if exists wake_parked on interlock.ready;
create trigger wake_parked after update of blocked on interlock.ready for each row
  when (new.parked and old.blocked and not new.blocked) execute function interlock.wake_parked();

-- Take slots back from jobs that neither run nor keep them, except from jobs that a claim has locked. release_slots
-- assigns the slots again.
create or replace function interlock.take_back_slots(p_agent_nos bigint[]) returns void language plpgsql
  set search_path = interlock, pg_temp as $$
declare
  whose text := interlock.current_tenant();
begin
  with idle as materialized (
    select a.ctid as agent_at, x.at from agent a cross join lateral (
      select q.ctid as at from ready q cross join lateral (
        select j.slot_epoch from job j where j.tenant = q.tenant and j.id = q.job_id offset 0) j
      where q.tenant = a.tenant and q.agent_no = a.no and q.blocked <= false and (a."strict" and j.slot_epoch = a.strict_epoch) is not true
      for update of q skip locked) x
    where a.tenant = whose and a.no = any(p_agent_nos)
  ), taken as (
    update ready q set blocked = true from idle where q.ctid = idle.at returning idle.agent_at
  )
  update agent a set used = greatest(a.used - x.n, 0) from (select agent_at, count(*)::integer as n from taken group by agent_at) x
  where a.ctid = x.agent_at;
end $$;

-- Return the jobs of an agent that wait for children or an approval, and the epoch of the slot they keep, if any.
create or replace function interlock.waiting_with_slot(p_tenant text, p_agent_no bigint) returns table (id uuid, slot_epoch integer)
  language sql stable set search_path = interlock, pg_temp as $$
  select j.id, j.slot_epoch from (
    select a.job_id from job_await a where a.tenant = p_tenant
    union select g.job_id from approval g where g.tenant = p_tenant and g.status = 'open') w
  cross join lateral (select * from job x where x.tenant = p_tenant and x.id = w.job_id offset 0) j where j.agent_no = p_agent_no
$$;

-- Assign free slots to jobs of limited agents that have become due.
create or replace function interlock.fill_slots(p_tenant text) returns void language plpgsql security definer
  set search_path = interlock, pg_temp as $$
declare
  agent_nos bigint[];
begin
  perform set_config('interlock.tenant', p_tenant, true);
  select array_agg(x.no) into agent_nos from (
    select a.no from agent a where a.tenant = p_tenant and a.next_due <= interlock.clock() and a.max_concurrency is not null
    order by a.no for update skip locked) x;
  if agent_nos is not null then
    perform release_slots(agent_nos, '{}');
  end if;
end $$;

-- Recount the slots after a change of the limit or of strictness. A waiting job permanently loses its slot once the
-- agent is not strict: when the agent is strict again, other jobs may have that slot.
create or replace function interlock.relimit() returns trigger
  language plpgsql security definer set search_path = interlock, pg_temp as $$
declare
  used_slots integer;
begin
  if old."strict" and not new."strict" then
    update agent a set strict_epoch = a.strict_epoch + 1 where a.tenant = new.tenant and a.no = new.no;
  end if;
  if new.max_concurrency is null then
    update ready q set blocked = false where q.tenant = new.tenant and q.agent_no = new.no and q.blocked;
    update agent a set used = 0, next_due = null where a.tenant = new.tenant and a.no = new.no;
    return null;
  end if;
  with waiting as materialized (
    select q.ctid as at, coalesce(new."strict" and j.slot_epoch = new.strict_epoch, false) as keeps from ready q
    cross join lateral (select x.slot_epoch from job x where x.tenant = q.tenant and x.id = q.job_id offset 0) j
    where q.tenant = new.tenant and q.agent_no = new.no for update of q skip locked
  )
  update ready q set blocked = not waiting.keeps from waiting where q.ctid = waiting.at and q.blocked = waiting.keeps;
  select (select count(*) from lease l where l.tenant = new.tenant and l.agent_no = new.no)
    + (select count(*) from ready q where q.tenant = new.tenant and q.agent_no = new.no and q.blocked <= false)
    + case when new."strict" then (select count(*) from waiting_with_slot(new.tenant, new.no) w where w.slot_epoch = new.strict_epoch) else 0 end
  into used_slots;
  update agent a set used = used_slots where a.tenant = new.tenant and a.no = new.no;
  perform release_slots(array[new.no], '{}');
  return null;
end $$;
drop trigger if exists relimit on interlock.agent;
create trigger relimit after update on interlock.agent for each row
  when (new.max_concurrency is distinct from old.max_concurrency or new."strict" <> old."strict")
  execute function interlock.relimit();
