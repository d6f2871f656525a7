-- Sessions of the dashboard, stored only as SHA-256, and the persons who signed in with OpenID Connect.

create table interlock.session (
  tenant           text collate "C" not null,
  id               uuid not null,
  hash             bytea not null check (length(hash) = 32),
  actor            text collate "C" not null,
  roles            text[] collate "C" check (cardinality(roles) > 0
                     and roles <@ array['read', 'produce', 'operate', 'approve', 'admin']),
  authenticated_at timestamptz,
  created_at       timestamptz not null,
  expires_at       timestamptz not null check (expires_at > created_at),
  primary key (tenant, id)
);
create unique index session_hash on interlock.session (hash);
create index session_end on interlock.session (expires_at);
create index session_actor on interlock.session (tenant, actor);

comment on table interlock.session is 'Sessions of the dashboard; to end one, its row is deleted.';
comment on column interlock.session.id is 'ID of the session; not a secret.';
comment on column interlock.session.hash is 'SHA-256 of the secret in the cookie; looked up before the tenant is known.';
comment on column interlock.session.actor is 'Principal that signed in.';
comment on column interlock.session.roles is 'Roles from the claims of the identity provider; null means those of the token in the cookie.';
comment on column interlock.session.authenticated_at is 'Time at which the identity provider authenticated the person; null if unknown.';
comment on column interlock.session.created_at is 'Time of the sign-in.';
comment on column interlock.session.expires_at is 'Time of expiry.';

create table interlock.person (
  tenant       text collate "C" not null,
  actor        text collate "C" not null,
  name         text collate "C",
  email        text collate "C",
  signed_in_at timestamptz not null,
  primary key (tenant, actor)
);
create index person_latest on interlock.person (tenant, signed_in_at);

comment on table interlock.person is 'Persons who signed in with OpenID Connect, to show names instead of actors.';
comment on column interlock.person.actor is 'Actor of the person in the history.';
comment on column interlock.person.name is 'Name, as the identity provider gave it.';
comment on column interlock.person.email is 'E-mail address, as the identity provider gave it.';
comment on column interlock.person.signed_in_at is 'Time of the last sign-in.';

create function interlock.refuse_session_change() returns trigger language plpgsql as $$
begin
  raise exception 'a session never changes; it ends' using errcode = 'check_violation';
end $$;
comment on function interlock.refuse_session_change() is 'A session never changes after its creation.';
create trigger session_never_changes before update on interlock.session for each row
  execute function interlock.refuse_session_change();

-- The app role may insert and delete sessions, but not change one.
grant select, insert, delete on interlock.session to interlock_app;
grant select, insert, update (name, email, signed_in_at) on interlock.person to interlock_app;
grant select (tenant, id, hash, expires_at) on interlock.session to interlock_sweep;

-- Return the tenant of the session with this hash; everything else is read as that tenant.
create function interlock.session_owner(p_hash bytea) returns table (tenant text, session_id uuid)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select s.tenant, s.id from session s where s.hash = p_hash
$$;

-- A move copies sessions before their tenant arrives: only the shard that has the tenant deletes them.
create function interlock.old_sessions(p_now timestamptz, p_limit integer) returns table (tenant text, session_id uuid)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select s.tenant, s.id from session s
  where s.expires_at <= p_now and not exists (select from tenant n where n.tenant = s.tenant and n.state = 'gone')
  order by s.expires_at limit p_limit
$$;
