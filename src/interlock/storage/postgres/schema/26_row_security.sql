-- Tenant isolation: row-level security backs every predicate, for every role except the sweeper. Loaded last, because it
-- applies to every table that has a tenant.

do $$
declare
  t record;
begin
  for t in select c.oid, c.relname as name from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant'
           where c.relnamespace = 'interlock'::regnamespace and c.relkind = 'r' loop
    execute format('alter table interlock.%I enable row level security', t.name);
    execute format('alter table interlock.%I force row level security', t.name);
    execute format('create policy tenant_only on interlock.%I using (tenant = (select interlock.current_tenant()))', t.name);
    -- This checks current_user, not membership: the owner is a member of both roles, and its functions act for one tenant.
    if has_column_privilege('interlock_sweep', t.oid, 'tenant', 'select') then
      execute format('create policy sweep on interlock.%I for select to interlock_sweep using (current_user = ''interlock_sweep'')', t.name);
    end if;
    if col_description(t.oid, (select attnum from pg_attribute where attrelid = t.oid and attname = 'tenant')) is null then
      execute format('comment on column interlock.%I.tenant is %L', t.name, 'Tenant of the row; first column of every key.');
    end if;
  end loop;
end $$;

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

-- A move copies waiting jobs before their tenant arrives: only the shard that has the tenant enforces their deadlines.
create function interlock.due_deadlines(p_now timestamptz, p_limit integer) returns table (tenant text, job_id uuid)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  (
  with recursive t(tenant) as (
    (select x.tenant from ready x where x.deadline is not null order by x.tenant limit 1)
    union all
    select (select x.tenant from ready x where x.tenant > t.tenant and x.deadline is not null order by x.tenant limit 1) from t where t.tenant is not null
  )
  select q.tenant, q.job_id from t join tenant n on n.tenant = t.tenant and n.state <> 'gone' cross join lateral
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

create function interlock.old_workers(p_before timestamptz, p_limit integer) returns table (tenant text, name text)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select w.tenant, w.name from worker w
  where w.last_seen_at < p_before and not exists (select from lease l where l.tenant = w.tenant and l.worker = w.name) limit p_limit
$$;

do $$
declare
  f text;
begin
  grant create on schema interlock to interlock_sweep;  -- needed to own a function in it
  foreach f in array array['tenants()', 'due_agents(timestamptz, integer)', 'long_counters(integer, integer)', 'due_leases(timestamptz, integer)',
      'due_deadlines(timestamptz, integer)', 'old_claims(timestamptz, integer)', 'old_workers(timestamptz, integer)', 'approval_of_token(bytea)',
      'due_approvals(timestamptz, integer)', 'due_waits(timestamptz, integer)', 'token_owner(bytea)', 'old_tokens(timestamptz, integer)',
      'due_orphans(timestamptz, integer)', 'due_channels(timestamptz, integer)', 'old_subscriptions(timestamptz, integer)',
      'old_deliveries(timestamptz, integer)', 'population()', 'moves()', 'long_tails(integer, integer)', 'last_job_seq()',
      'any_job(uuid, uuid)', 'due_schedules(timestamptz, integer)',
      'keyed_limits()', 'limit_tenants()', 'acting_budgets()', 'watched_budgets()', 'session_owner(bytea)', 'old_sessions(timestamptz, integer)'] loop
    execute format('alter function interlock.%s owner to interlock_sweep', f);
  end loop;
  revoke create on schema interlock from interlock_sweep;
end $$;

-- No one logs in as interlock_verbs; row-level security applies to it as to every other role.
grant select on interlock.epoch, interlock.queue, interlock.job_type, interlock.job_step, interlock.job_checkpoint, interlock.approval_vote,
  interlock.subscription, interlock.shard to interlock_verbs;
grant select, insert on interlock.job_history, interlock.queue_counter, interlock.eligibility_key, interlock.move_delta, interlock.outbox to interlock_verbs;
grant select, insert, update on interlock.job, interlock.tenant, interlock.agent to interlock_verbs;
grant select, insert, update, delete on interlock.ready, interlock.lease, interlock.claim_result, interlock.job_await, interlock.unsuccessful_job
  to interlock_verbs;
grant select on interlock.flow_limit to interlock_verbs;
grant select, insert, update on interlock.flow_bucket to interlock_verbs;
grant select on interlock.run_usage to interlock_verbs;
grant select, update on interlock.approval to interlock_verbs;
grant usage on all sequences in schema interlock to interlock_verbs;
