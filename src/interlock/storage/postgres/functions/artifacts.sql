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

-- For redrive: copy the artifacts that hold large results of steps. Both jobs share the stored objects.
create or replace function interlock.copy_step_results(p_tenant text, p_source uuid, p_target uuid) returns void language plpgsql as $$
begin
  with copied as (
    insert into interlock.artifact (tenant, job_id, fence, worker, id, name, size, sha256, content_type, object_key, url, created_at)
    select a.tenant, p_target, a.fence, a.worker, gen_random_uuid(), a.name, a.size, a.sha256, a.content_type, a.object_key, a.url,
      a.created_at
    from interlock.artifact a
    where a.tenant = p_tenant and a.job_id = p_source and starts_with(a.name, 'interlock.step/') and a.object_key is not null
    on conflict do nothing returning size)
  update interlock.artifact_usage u set bytes = u.bytes + c.bytes
  from (select coalesce(sum(size), 0)::bigint as bytes from copied) c where u.tenant = p_tenant and c.bytes > 0;
end $$;
