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
) returns integer language plpgsql as $$
declare
  changed integer;
begin
  perform set_config('interlock.tenant', p_tenant, true), set_config('interlock.verb', 'change', true);
  update interlock.job j set priority = p_priority, eligibility_key = r.no, base = r.base, run_at = p_run_at, deadline = p_deadline,
    max_attempts = p_max_attempts, tags = p_tags, previous = j.status, version = j.version + 1, verb = 'edit', actor = p_actor,
    reason = null, metadata = p_metadata, updated_at = interlock.clock()
  from interlock.job k cross join lateral
    interlock.ensure_eligibility_key(p_tenant, k.type, k.requires, p_priority, k.repository, k.affinity_key) r
  where k.tenant = p_tenant and k.id = p_id and j.tenant = p_tenant and j.id = p_id and j.version = p_version;
  get diagnostics changed = row_count;
  perform set_config('interlock.verb', '', true);
  return changed;
end $$;
