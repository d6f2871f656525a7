-- Return the columns that an edit checks beyond the job state.
create or replace function interlock.editable(p_tenant text, p_id uuid) returns table (priority integer, tags text[]) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select j.priority, j.tags from interlock.job j where j.tenant = p_tenant and j.id = p_id;
end $$;

-- Write the new values of a waiting job, and the eligibility key of its new priority.
create or replace function interlock.edit(
  p_tenant text, p_id uuid, p_version integer, p_actor text, p_metadata text, p_priority integer, p_run_at timestamptz,
  p_deadline timestamptz, p_max_attempts integer, p_tags text[]
) returns integer language plpgsql security definer set search_path = interlock, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_hashjoin = off set jit = off as $$
declare
  changed integer;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  update interlock.job j set priority = p_priority, eligibility_key = r.no, base = r.base, run_at = p_run_at, deadline = p_deadline,
    max_attempts = p_max_attempts, tags = p_tags, previous = j.status, version = j.version + 1, verb = 'edit', actor = p_actor,
    reason = null, metadata = p_metadata, updated_at = interlock.clock()
  from interlock.job k cross join lateral
    interlock.ensure_eligibility_key(p_tenant, k.type, k.requires, p_priority, k.repository, k.affinity_key,
      (select e.flow from interlock.eligibility_key e where e.tenant = p_tenant and e.no = k.eligibility_key)) r
  where k.tenant = p_tenant and k.id = p_id and j.tenant = p_tenant and j.id = p_id and j.version = p_version;
  get diagnostics changed = row_count;
  if changed = 1 then
    perform interlock.settle(p_tenant, array[p_id]);
  end if;
  return changed;
end $$;
