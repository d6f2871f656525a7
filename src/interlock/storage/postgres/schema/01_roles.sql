-- The schema, its roles, and the clock and tenant of a transaction.

create schema if not exists interlock;

-- interlock_app serves. interlock_sweep owns only the functions that search across tenants, and they return only tenants
-- and ids. interlock_verbs owns the functions that change jobs: triggers recognize by it that history and index tables
-- are being written with the change. Roles belong to the whole server. The owner needs membership in the first role to
-- serve, and in the others to transfer functions to them. If another role created them, an administrator of these roles
-- must grant them.
do $$
declare
  name text;
  needed text := case when current_setting('server_version_num')::integer >= 160000 then 'set, usage' else 'member' end;
begin
  foreach name in array array['interlock_app', 'interlock_sweep', 'interlock_verbs'] loop
    begin
      if not exists (select from pg_roles where rolname = name) then
        execute format('create role %I nologin', name);
      end if;
    exception when duplicate_object or unique_violation then null;
    when insufficient_privilege then
      raise exception 'interlock: % may not create roles: as a superuser, run: create role interlock_app; create role interlock_sweep; create role interlock_verbs; grant interlock_app, interlock_sweep, interlock_verbs to %',
        quote_ident(current_user), quote_ident(current_user) using errcode = 'insufficient_privilege';
    end;
  end loop;
  foreach name in array array['interlock_app', 'interlock_sweep', 'interlock_verbs'] loop
    begin
      if exists (select from unnest(string_to_array(needed, ', ')) n where not pg_has_role(current_user, name, n)) then
        execute format('grant %I to current_user', name);
      end if;
    exception when insufficient_privilege then
      raise exception 'interlock: % exists already and was made by another role: as that role or as a superuser, run: grant interlock_app, interlock_sweep, interlock_verbs to %',
        name, quote_ident(current_user) using errcode = 'insufficient_privilege';
    end;
  end loop;
end $$;
grant usage on schema interlock to interlock_app, interlock_sweep, interlock_verbs;

create function interlock.clock() returns timestamptz
  language sql stable parallel safe
  return coalesce(nullif(current_setting('interlock.clock', true), '')::timestamptz, now());
comment on function interlock.clock() is
  'The time of this transaction; a test may set interlock.clock to move it.';

create function interlock.current_tenant() returns text
  language sql stable parallel safe
  return nullif(current_setting('interlock.tenant', true), '');
comment on function interlock.current_tenant() is
  'The tenant this transaction acts for; null, so that no row is seen, when none was set.';
