-- Lets the sweeper find workers of all tenants that have not polled for long and hold no lease.

grant select (tenant, name, last_seen_at) on interlock.worker to interlock_sweep;
create policy sweep on interlock.worker for select to interlock_sweep using (current_user = 'interlock_sweep');

create function interlock.old_workers(p_before timestamptz, p_limit integer) returns table (tenant text, name text)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select w.tenant, w.name from worker w
  where w.last_seen_at < p_before and not exists (select from lease l where l.tenant = w.tenant and l.worker = w.name) limit p_limit
$$;

grant create on schema interlock to interlock_sweep;
alter function interlock.old_workers(timestamptz, integer) owner to interlock_sweep;
revoke create on schema interlock from interlock_sweep;
