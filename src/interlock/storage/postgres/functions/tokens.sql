-- Delete those of these tokens that ended before a time. This is the only way for the app role to delete a token, and
-- it deletes no valid one.
create or replace function interlock.forget_tokens(p_tenant text, p_ids uuid[], p_before timestamptz) returns setof uuid
  language plpgsql security definer set search_path = interlock, pg_temp as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query delete from interlock.token k
    where k.tenant = p_tenant and k.id = any(p_ids) and least(k.revoked_at, k.expires_at) < least(p_before, clock())
    returning k.id;
end $$;
