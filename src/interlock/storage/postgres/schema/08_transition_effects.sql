-- Triggers for what follows from a change of a job. The verbs run as interlock_verbs and write it themselves, set-based
-- (functions/transition_effects.sql); after direct SQL by any other role, these triggers do it for each row. No trigger
-- here has a transition table for inserts or updates: PostgreSQL would copy every changed row into it, also when it does
-- not fire.

create function interlock.settle_row() returns trigger
  language plpgsql security definer set search_path = interlock, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_hashjoin = off set jit = off as $$
declare
  whose text := current_tenant();
begin
  perform set_config('interlock.tenant', new.tenant, true);  -- a role that bypasses row-level security may have set another
  perform settle(new.tenant, array[new.id]);
  perform set_config('interlock.tenant', coalesce(whose, new.tenant), true);
  return null;
end $$;
create trigger settle_row after insert or update on interlock.job for each row
  when (current_user <> 'interlock_verbs') execute function interlock.settle_row();

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
    parked = false, limit_name = null, limit_key = null,
    across_repositories = (select r.across_repositories from eligibility_key r where r.tenant = new.tenant and r.no = new.eligibility_key),
    across_keys = (select r.across_keys from eligibility_key r where r.tenant = new.tenant and r.no = new.eligibility_key) from (
    select r.ctid as at from ready r
    where r.tenant = old.tenant and r.eligibility_key = old.eligibility_key and r.run_at = old.run_at and r.seq = old.seq and not r.blocked
    union all
    select r.ctid from ready r
    where r.tenant = old.tenant and r.agent_no = old.agent_no and r.run_at = old.run_at and r.seq = old.seq and r.blocked
    union all
    select r.ctid from eligibility_key e join ready r on r.tenant = old.tenant and r.eligibility_key = e.no and r.run_at = old.run_at and r.seq = old.seq
      and not r.blocked
    where old.limits is not null and e.tenant = old.tenant and e.parks = old.eligibility_key) its
  where q.ctid = its.at;
  perform set_config('interlock.untold', '', true);
  if old.limits is not null then
    perform wake_flow(new.tenant, array[new.id]);
  end if;
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
