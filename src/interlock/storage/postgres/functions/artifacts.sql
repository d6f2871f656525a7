-- Return the lease holders of these jobs. The lock makes a finish wait until the transaction ends.
create or replace function interlock.artifact_holders(p_tenant text, p_ids uuid[])
returns table (job_id uuid, fence bigint, worker text) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select l.job_id, l.fence, l.worker from interlock.lease l
    where l.tenant = p_tenant and l.job_id = any(p_ids) order by l.job_id for update;
end $$;

-- Return the bytes a tenant stores. With p_lock, uploads that end concurrently are counted one after another.
create or replace function interlock.artifact_bytes(p_tenant text, p_lock boolean) returns bigint language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  if p_lock then
    insert into interlock.artifact_usage (tenant, bytes) values (p_tenant, 0) on conflict do nothing;
    perform from interlock.artifact_usage u where u.tenant = p_tenant for update;
  end if;
  return coalesce((select u.bytes from interlock.artifact_usage u where u.tenant = p_tenant), 0);
end $$;

-- Register objects before their first byte is written.
create or replace function interlock.open_objects(p_tenant text, p_keys text[], p_kept_seconds double precision)
returns void language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  insert into interlock.artifact_orphan (tenant, object_key, collect_at)
  select p_tenant, k, interlock.clock() + p_kept_seconds * interval '1 second' from unnest(p_keys) k
  on conflict do nothing;
end $$;

-- Return the keys of objects that may still be published, and lock them until the transaction ends.
create or replace function interlock.safe_objects(p_tenant text, p_keys text[]) returns setof text language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select o.object_key from interlock.artifact_orphan o
    where o.tenant = p_tenant and o.object_key = any(p_keys) and not o.condemned order by o.object_key for update;
end $$;

create or replace function interlock.artifacts_named(p_tenant text, p_job_ids uuid[], p_names text[])
returns setof interlock.artifact language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select a.* from (select distinct * from unnest(p_job_ids, p_names) as u(job_id, name)) u
    join interlock.artifact a on a.tenant = p_tenant and a.job_id = u.job_id and a.name = u.name;
end $$;

-- Write the decided artifacts. They replace artifacts of the same name, and their keys are no longer orphans.
create or replace function interlock.show_artifacts(
  p_tenant text, job_ids uuid[], fences bigint[], workers text[], ids uuid[], names text[], sizes bigint[], sha256s bytea[],
  content_types text[], keys text[], urls text[], p_spare text[], p_replaced text[], p_kept_seconds double precision, p_growth bigint
) returns void language plpgsql as $$
declare
  t timestamptz := interlock.clock();
begin
  perform set_config('interlock.tenant', p_tenant, true);
  delete from interlock.artifact a using unnest(job_ids, names) as u(job_id, name)
    where a.tenant = p_tenant and a.job_id = u.job_id and a.name = u.name;
  insert into interlock.artifact
    (tenant, job_id, fence, worker, id, name, size, sha256, content_type, object_key, url, created_at)
  select p_tenant, u.*, t from unnest(job_ids, fences, workers, ids, names, sizes, sha256s, content_types, keys, urls) u;
  delete from interlock.artifact_orphan o where o.tenant = p_tenant and o.object_key = any(keys);
  perform interlock.open_objects(p_tenant, p_replaced, p_kept_seconds);
  update interlock.artifact_orphan o set collect_at = t where o.tenant = p_tenant and o.object_key = any(p_spare);
  update interlock.artifact_usage u set bytes = u.bytes + p_growth where u.tenant = p_tenant and p_growth <> 0;
end $$;

create or replace function interlock.abandon_objects(p_tenant text, p_keys text[]) returns void language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  update interlock.artifact_orphan o set collect_at = interlock.clock()
    where o.tenant = p_tenant and o.object_key = any(p_keys);
end $$;

create or replace function interlock.artifact_by_id(p_tenant text, p_job_id uuid, p_id uuid)
returns setof interlock.artifact language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select a.* from interlock.artifact a where a.tenant = p_tenant and a.job_id = p_job_id and a.id = p_id;
end $$;

create or replace function interlock.artifact_home(p_tenant text, p_id uuid)
returns uuid language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return (select a.job_id from interlock.artifact a where a.tenant = p_tenant and a.id = p_id);
end $$;

create or replace function interlock.artifacts(
  p_tenant text, p_job_id uuid, p_before_at timestamptz, p_before_id uuid, p_limit integer
) returns setof interlock.artifact language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select a.* from interlock.artifact a
    where a.tenant = p_tenant and a.job_id = p_job_id
      and (p_before_at is null or (a.created_at, a.id) < (p_before_at, p_before_id))
    order by a.created_at desc, a.id desc limit p_limit;
end $$;

-- Delete the artifacts of jobs, leave their bytes to the collector, and return how many there were.
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
  perform interlock.open_objects(p_tenant, coalesce(keys, '{}'), p_kept_seconds);
  update interlock.artifact_usage u set bytes = u.bytes - freed where u.tenant = p_tenant and freed <> 0;
  return gone;
end $$;

-- Mark objects for deletion. The later collect time keeps other collectors away, and makes the objects due again if
-- this one fails.
create or replace function interlock.condemn_objects(p_tenant text, p_keys text[], p_again_seconds double precision)
returns setof text language plpgsql as $$
declare
  t timestamptz := interlock.clock();
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query
  with due as materialized (
    select o.object_key from interlock.artifact_orphan o
    where o.tenant = p_tenant and o.object_key = any(p_keys) and o.collect_at <= t order by o.object_key for update skip locked
  )
  update interlock.artifact_orphan o set condemned = true, collect_at = t + p_again_seconds * interval '1 second'
    from due where o.tenant = p_tenant and o.object_key = due.object_key returning o.object_key;
end $$;

create or replace function interlock.drop_objects(p_tenant text, p_keys text[]) returns integer language plpgsql as $$
declare
  gone integer;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  delete from interlock.artifact_orphan o where o.tenant = p_tenant and o.object_key = any(p_keys) and o.condemned;
  get diagnostics gone = row_count;
  return gone;
end $$;
