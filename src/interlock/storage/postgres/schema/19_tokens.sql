-- Bearer tokens, stored only as SHA-256, and the key that signs cookies.

create table interlock.token (
  tenant       text collate "C" not null,
  id           uuid not null,
  hash         bytea not null check (length(hash) = 32),
  description  text collate "C",
  roles        text[] collate "C" not null check (cardinality(roles) > 0
                 and roles <@ array['read', 'produce', 'work', 'operate', 'approve', 'admin']),
  worker_id    text collate "C",
  types        text[] collate "C",
  repositories text[] collate "C",
  capabilities text[] collate "C" not null default '{}',
  key          text collate "C",
  created_at   timestamptz not null,
  created_by   text collate "C" not null,
  expires_at   timestamptz,
  last_used_at timestamptz,
  revoked_at   timestamptz,
  revoked_by   text collate "C",
  primary key (tenant, id),
  check ((revoked_at is null) = (revoked_by is null)),
  check (expires_at is null or expires_at > created_at),
  -- A worker token can neither approve nor create a token that can.
  check (not roles @> array['work'] or not roles && array['approve', 'operate', 'admin']),
  check (worker_id is null or roles @> array['work'])
);

create unique index token_hash on interlock.token (hash);
create unique index token_key on interlock.token (tenant, key) where key is not null;
create index token_newest on interlock.token (tenant, created_at, id);
-- The time a token ended or will end, for those that have one.
create index token_end on interlock.token (least(revoked_at, expires_at)) where least(revoked_at, expires_at) is not null;

comment on table interlock.token is 'Bearer tokens; a secret is shown only once and never stored.';
comment on column interlock.token.tenant is 'The tenant of its calls; only the credential determines it.';
comment on column interlock.token.id is 'ID of the token; not a secret.';
comment on column interlock.token.hash is 'SHA-256 of the secret; looked up before the tenant is known.';
comment on column interlock.token.description is 'Free-form description.';
comment on column interlock.token.roles is 'Roles of its bearer.';
comment on column interlock.token.worker_id is 'Worker that it belongs to; null for other tokens.';
comment on column interlock.token.types is 'Job types it may claim; null means any.';
comment on column interlock.token.repositories is 'Repositories whose jobs it may claim; null means any.';
comment on column interlock.token.capabilities is 'Capabilities of its worker; none by default.';
comment on column interlock.token.key is 'Idempotency key of its creation.';
comment on column interlock.token.created_at is 'Time of creation.';
comment on column interlock.token.created_by is 'Principal that created it.';
comment on column interlock.token.expires_at is 'Time of expiry; null means never.';
comment on column interlock.token.last_used_at is 'Time of the last use, to the minute.';
comment on column interlock.token.revoked_at is 'Time of revocation.';
comment on column interlock.token.revoked_by is 'Principal that revoked it.';

create function interlock.refuse_token_change() returns trigger language plpgsql as $$
begin
  raise exception 'a token never changes but to be revoked, once' using errcode = 'check_violation';
end $$;
comment on function interlock.refuse_token_change() is 'A token never changes after its creation.';

create trigger token_only_revoked before update on interlock.token for each row
  when ((old.tenant, old.id, old.hash, old.description, old.roles, old.worker_id, old.types, old.repositories, old.capabilities,
         old.key, old.created_at, old.created_by, old.expires_at)
      is distinct from (new.tenant, new.id, new.hash, new.description, new.roles, new.worker_id, new.types, new.repositories,
         new.capabilities, new.key, new.created_at, new.created_by, new.expires_at)
    or (old.revoked_at is not null and (old.revoked_at, old.revoked_by) is distinct from (new.revoked_at, new.revoked_by)))
  execute function interlock.refuse_token_change();

grant select, insert, update (last_used_at, revoked_at, revoked_by) on interlock.token to interlock_app;
grant select (tenant, id, hash, expires_at, revoked_at) on interlock.token to interlock_sweep;

-- Return the tenant of the token with this hash; everything else is read as that tenant.
create function interlock.token_owner(p_hash bytea) returns table (tenant text, token_id uuid)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select t.tenant, t.id from token t where t.hash = p_hash
$$;

create function interlock.old_tokens(p_before timestamptz, p_limit integer) returns table (tenant text, token_id uuid)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select t.tenant, t.id from token t where least(t.revoked_at, t.expires_at) < p_before
  order by least(t.revoked_at, t.expires_at) limit p_limit
$$;

create table interlock.signing_key (
  only_row boolean not null default true primary key check (only_row),
  key      bytea   not null check (length(key) = 32)
);
-- gen_random_uuid() is the only access to the server's strong random source.
insert into interlock.signing_key (key) values (sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())));
comment on table interlock.signing_key is 'The key of cookies, forms and cursors, which all servers of this database share. Replacing it signs all users out.';
comment on column interlock.signing_key.only_row is 'Limits the table to one row.';
comment on column interlock.signing_key.key is 'Random; never returned.';
grant select on interlock.signing_key to interlock_app;
