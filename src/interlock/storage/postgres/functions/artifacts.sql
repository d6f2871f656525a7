-- For prune: delete the artifacts of jobs, leave their bytes to the collector, and return how many there were.
create or replace function interlock.forget_artifacts(p_tenant text, p_job_ids uuid[], p_kept_seconds double precision)
returns integer language plpgsql as $$
declare
  keys text[];
  freed bigint;
  gone integer;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  with taken as (
    delete from interlock.artifact a where a.tenant = p_tenant and a.job_id = any(p_job_ids) returning a.object_key, a.size
  )
  select array_agg(object_key) filter (where object_key is not null), coalesce(sum(size), 0), count(*) into keys, freed, gone from taken;
  insert into interlock.artifact_orphan (tenant, object_key, collect_at)
  select p_tenant, k, interlock.clock() + p_kept_seconds * interval '1 second' from unnest(keys) k on conflict do nothing;
  update interlock.artifact_usage u set bytes = u.bytes - freed where u.tenant = p_tenant and freed <> 0;
  return gone;
end $$;
