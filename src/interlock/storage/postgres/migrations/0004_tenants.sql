-- Tenant isolation: row-level security backs every predicate, for every role except the sweeper. That role owns only
-- the functions that search across tenants, and they return only tenants and ids.

do $$
begin
  if not exists (select from pg_roles where rolname = 'interlock_sweep') then  -- roles belong to the whole server
    create role interlock_sweep nologin;
  end if;
exception when duplicate_object or unique_violation then null;
end $$;
-- The owner needs membership in the first role to serve, and in the second to transfer functions to it. If another role
-- created both, an administrator of these roles must grant them.
do $$
declare
  name text;
  needed text := case when current_setting('server_version_num')::integer >= 160000 then 'set, usage' else 'member' end;
begin
  foreach name in array array['interlock_app', 'interlock_sweep'] loop
    if exists (select from unnest(string_to_array(needed, ', ')) n where not pg_has_role(current_user, name, n)) then
      execute format('grant %I to current_user', name);
    end if;
  end loop;
exception when insufficient_privilege then
  raise exception 'interlock: % exists already and was made by another role: as that role or as a superuser, run: grant interlock_app, interlock_sweep to %',
    name, quote_ident(current_user) using errcode = 'insufficient_privilege';
end $$;
grant usage on schema interlock to interlock_sweep;

do $$
declare
  name text;
begin
  foreach name in array array['tenant', 'agent', 'queue_counter', 'eligibility_key', 'queue', 'job', 'ready', 'lease', 'claim_result', 'job_await', 'job_checkpoint', 'job_history'] loop
    execute format('alter table interlock.%I enable row level security', name);
    execute format('alter table interlock.%I force row level security', name);
    execute format('create policy tenant_only on interlock.%I using (tenant = (select interlock.current_tenant()))', name);
  end loop;
end $$;

grant select, insert on interlock.eligibility_key to interlock_app;
grant select, insert, update on interlock.tenant to interlock_app;
grant select, insert, delete on interlock.agent to interlock_app;
grant update (max_concurrency, strict, implicit, backoff, defaults, updated_at) on interlock.agent to interlock_app;
grant select on interlock.queue_counter to interlock_app;
grant usage on sequence interlock.eligibility_key_no, interlock.agent_no, interlock.job_seq_seq to interlock_app;
grant select, insert, update on interlock.queue, interlock.job_checkpoint to interlock_app;
grant select, insert, update on interlock.job to interlock_app;
grant select on interlock.ready to interlock_app;  -- only the triggers of job and claim() write it, as the owner
grant select, update on interlock.lease to interlock_app;
grant select, insert, update, delete on interlock.claim_result to interlock_app;
grant select, insert on interlock.job_await to interlock_app;
grant select on interlock.job_history, interlock.job_view, interlock.epoch to interlock_app;

-- Policies check current_user, not membership: the owner is a member of both roles, and its functions act for one
-- tenant.
grant select on interlock.tenant, interlock.agent, interlock.queue_counter, interlock.eligibility_key, interlock.ready, interlock.lease, interlock.claim_result, interlock.job_await to interlock_sweep;
create policy sweep on interlock.tenant for select to interlock_sweep using (current_user = 'interlock_sweep');
create policy sweep on interlock.agent for select to interlock_sweep using (current_user = 'interlock_sweep');
create policy sweep on interlock.queue_counter for select to interlock_sweep using (current_user = 'interlock_sweep');
create policy sweep on interlock.eligibility_key for select to interlock_sweep using (current_user = 'interlock_sweep');
create policy sweep on interlock.ready for select to interlock_sweep using (current_user = 'interlock_sweep');
create policy sweep on interlock.lease for select to interlock_sweep using (current_user = 'interlock_sweep');
create policy sweep on interlock.job_await for select to interlock_sweep using (current_user = 'interlock_sweep');
create policy sweep on interlock.claim_result for select to interlock_sweep using (current_user = 'interlock_sweep');

create function interlock.tenants() returns setof text
  language sql stable security definer set search_path = interlock, pg_temp as $$ select tenant from tenant $$;

-- The functions below skip from one tenant with matching rows to the next: tenants without any cost nothing.

-- Return tenants that have an agent with a free slot and a job that became due for it.
create function interlock.due_agents(p_now timestamptz, p_limit integer) returns setof text
  language sql stable security definer set search_path = interlock, pg_temp as $$
  with recursive t(tenant) as (
    (select x.tenant from agent x where x.next_due is not null order by x.tenant limit 1)
    union all
    select (select x.tenant from agent x where x.tenant > t.tenant and x.next_due is not null order by x.tenant limit 1) from t where t.tenant is not null
  )
  select t.tenant from t where exists (select from agent a where a.tenant = t.tenant and a.next_due <= p_now) limit p_limit
$$;

-- Return tenants whose counters have many rows that could be merged.
create function interlock.long_counters(p_rows integer, p_limit integer) returns setof text
  language sql stable security definer set search_path = interlock, pg_temp as $$
  with recursive t(tenant) as (
    (select x.tenant from queue_counter x where not x.folded order by x.tenant limit 1)
    union all
    select (select x.tenant from queue_counter x where x.tenant > t.tenant and not x.folded order by x.tenant limit 1) from t where t.tenant is not null
  )
  select t.tenant from t
  where (select count(*) from (select from queue_counter y where y.tenant = t.tenant and not y.folded limit p_rows) x) >= p_rows limit p_limit
$$;

create function interlock.due_leases(p_now timestamptz, p_limit integer) returns table (tenant text, job_id uuid)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  with recursive t(tenant) as (
    (select x.tenant from lease x order by x.tenant limit 1)
    union all
    select (select x.tenant from lease x where x.tenant > t.tenant order by x.tenant limit 1) from t where t.tenant is not null
  )
  select l.tenant, l.job_id from t cross join lateral
    (select tenant, job_id from lease where tenant = t.tenant and expires_at <= p_now order by expires_at limit p_limit) l
  limit p_limit
$$;

create function interlock.due_deadlines(p_now timestamptz, p_limit integer) returns table (tenant text, job_id uuid)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  (
  with recursive t(tenant) as (
    (select x.tenant from ready x where x.deadline is not null order by x.tenant limit 1)
    union all
    select (select x.tenant from ready x where x.tenant > t.tenant and x.deadline is not null order by x.tenant limit 1) from t where t.tenant is not null
  )
  select q.tenant, q.job_id from t cross join lateral
    (select tenant, job_id from ready where tenant = t.tenant and deadline <= p_now order by deadline limit p_limit) q
  limit p_limit
  )
  union all
  (
  with recursive t(tenant) as (
    (select x.tenant from job_await x where x.deadline is not null order by x.tenant limit 1)
    union all
    select (select x.tenant from job_await x where x.tenant > t.tenant and x.deadline is not null order by x.tenant limit 1) from t where t.tenant is not null
  )
  select q.tenant, q.job_id from t cross join lateral
    (select tenant, job_id from job_await where tenant = t.tenant and deadline <= p_now order by deadline limit p_limit) q
  limit p_limit
  )
$$;

create function interlock.old_claims(p_before timestamptz, p_limit integer) returns table (tenant text, worker text, claim_id text)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select c.tenant, c.worker, c.claim_id from claim_result c where c.at < p_before limit p_limit
$$;

grant create on schema interlock to interlock_sweep;
alter function interlock.tenants() owner to interlock_sweep;
alter function interlock.due_agents(timestamptz, integer) owner to interlock_sweep;
alter function interlock.long_counters(integer, integer) owner to interlock_sweep;
alter function interlock.due_leases(timestamptz, integer) owner to interlock_sweep;
alter function interlock.due_deadlines(timestamptz, integer) owner to interlock_sweep;
alter function interlock.old_claims(timestamptz, integer) owner to interlock_sweep;
revoke create on schema interlock from interlock_sweep;
revoke execute on all functions in schema interlock from public;
grant execute on all functions in schema interlock to interlock_app, interlock_sweep;
