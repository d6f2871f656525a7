-- Insert new tokens and return every token with one of the ids or keys, so that a repeated call finds its earlier
-- result.
create or replace function interlock.create_tokens(
  p_tenant text, p_ids uuid[], p_hashes bytea[], p_actors text[], p_descriptions text[], p_roles text[], p_worker_ids text[],
  p_types text[], p_repositories text[], p_capabilities text[], p_lifetimes double precision[], p_keys text[]
) returns setof interlock.token language plpgsql as $$
declare
  t timestamptz := interlock.clock();
begin
  perform set_config('interlock.tenant', p_tenant, true);
  insert into interlock.token (tenant, id, hash, description, roles, worker_id, types, repositories, capabilities, key, created_at,
    created_by, expires_at)
  select p_tenant, u.id, u.hash, u.description, u.roles::text[], u.worker_id, u.types::text[], u.repositories::text[],
    u.capabilities::text[], u.key, t, u.actor, t + u.lifetime * interval '1 second'
  from unnest(p_ids, p_hashes, p_actors, p_descriptions, p_roles, p_worker_ids, p_types, p_repositories, p_capabilities, p_lifetimes,
      p_keys) with ordinality
    as u(id, hash, actor, description, roles, worker_id, types, repositories, capabilities, lifetime, key, ordinal)
  order by u.ordinal
  on conflict do nothing;
  return query select k.* from interlock.token k where k.tenant = p_tenant and k.id = any(p_ids)
    union select k.* from interlock.token k where k.tenant = p_tenant and k.key = any(p_keys);
end $$;

-- Return the token with this hash, of any tenant.
create or replace function interlock.find_token(p_hash bytea) returns setof interlock.token language plpgsql as $$
declare
  owner record;
begin
  select o.tenant, o.token_id into owner from interlock.token_owner(p_hash) o;
  if found then
    perform set_config('interlock.tenant', owner.tenant, true);
    return query select k.* from interlock.token k where k.tenant = owner.tenant and k.id = owner.token_id;
  end if;
end $$;

-- List tokens, newest first.
create or replace function interlock.list_tokens(p_tenant text, p_before uuid, p_limit integer)
returns setof interlock.token language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select k.* from interlock.token k
    where k.tenant = p_tenant and (p_before is null
      or (k.created_at, k.id) < (select b.created_at, b.id from interlock.token b where b.tenant = p_tenant and b.id = p_before))
    order by k.created_at desc, k.id desc limit p_limit;
end $$;

-- Revoke each active token, and return each existing one; the first revocation is kept. With p_of_workers, only worker
-- tokens count as existing.
create or replace function interlock.revoke_tokens(p_tenant text, p_ids uuid[], p_actor text, p_of_workers boolean)
returns setof interlock.token language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  perform from interlock.token k where k.tenant = p_tenant and k.id = any(p_ids) order by k.id for update;
  update interlock.token k set revoked_at = interlock.clock(), revoked_by = p_actor
    where k.tenant = p_tenant and k.id = any(p_ids) and k.revoked_at is null and (k.worker_id is not null or not p_of_workers);
  return query select k.* from interlock.token k
    where k.tenant = p_tenant and k.id = any(p_ids) and (k.worker_id is not null or not p_of_workers);
end $$;

-- Delete those of these tokens that ended before a time. This is the only way for the app role to delete a token, and
-- it deletes no valid one.
create or replace function interlock.forget_tokens(p_tenant text, p_ids uuid[], p_before timestamptz) returns integer
  language plpgsql security definer set search_path = interlock, pg_temp as $$
declare
  gone integer;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  delete from interlock.token k
    where k.tenant = p_tenant and k.id = any(p_ids) and least(k.revoked_at, k.expires_at) < least(p_before, clock());
  get diagnostics gone = row_count;
  return gone;
end $$;

-- Record the use of tokens, unless it was recorded recently.
create or replace function interlock.touch_tokens(p_tenant text, p_ids uuid[], p_older_than bigint)
returns integer language plpgsql as $$
declare
  touched integer;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  with free as materialized (
    select k.id from interlock.token k
    where k.tenant = p_tenant and k.id = any(p_ids)
      and (k.last_used_at is null or k.last_used_at <= interlock.clock() - p_older_than * interval '1 microsecond')
    order by k.id for update skip locked
  )
  update interlock.token k set last_used_at = interlock.clock() from free where k.tenant = p_tenant and k.id = free.id;
  get diagnostics touched = row_count;
  return touched;
end $$;
