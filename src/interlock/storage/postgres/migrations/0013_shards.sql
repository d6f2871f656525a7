-- Shards: which databases share the work, which of them each tenant lives on, and a guard that refuses to change what lives elsewhere.

create table interlock.shard (
  no   integer not null primary key check (no between 0 and 1023),
  here boolean not null default false,
  name text    not null unique
);
create unique index shard_here on interlock.shard (here) where here;
comment on table interlock.shard is
  'The databases that share the work, by name: the directory lists all of them, every other only itself. No row: this one is alone.';
comment on column interlock.shard.no is 'Its number, named by ten bits of the ids of jobs that are born there.';
comment on column interlock.shard.here is 'Whether it is this database.';
comment on column interlock.shard.name is 'Its name in the settings.';
grant select on interlock.shard to interlock_app;

create table interlock.placement (
  tenant text not null primary key,
  shard  text not null,
  other  text,
  phase  text,
  constraint phase_is_known check (phase in ('copying', 'clearing')),
  constraint other_exactly_in_a_move check ((other is null) = (phase is null)),
  constraint moves_lead_elsewhere check (other <> shard)
);
comment on table interlock.placement is 'The directory: which shard each tenant lives on. Kept in the database of the first shard.';
comment on column interlock.placement.tenant is 'Whose row this is; it leads every key.';
comment on column interlock.placement.shard is 'Where the tenant lives.';
comment on column interlock.placement.other is 'During a move, the shard it goes to, and after it, until the old copy is deleted, the one it came from.';
comment on column interlock.placement.phase is 'copying until the tenant lives on the other shard, then clearing until its old copy is gone.';
alter table interlock.placement enable row level security;
alter table interlock.placement force row level security;
create policy tenant_only on interlock.placement using (tenant = (select interlock.current_tenant()));
grant select, insert, update on interlock.placement to interlock_app;
grant select on interlock.placement to interlock_sweep;
create policy sweep on interlock.placement for select to interlock_sweep using (true);

alter table interlock.tenant add column state text not null default 'here'
  constraint state_is_known check (state in ('here', 'leaving', 'gone'));
comment on column interlock.tenant.state is
  'here; leaving while it is copied to another shard and no job may be deleted; or gone, when nothing may be changed here any more.';

-- What a move holds alone while it copies what is alive, and every change of the tenant's data holds together with all others.
create function interlock.move_lock(p_tenant text) returns bigint
  language sql immutable parallel safe return hashtextextended('interlock move ' || p_tenant, 0);

-- Read in the transaction of the change itself, so that whoever has an old map is refused and looks again. A transaction that sees
-- the past would read an old state: it locks the row, which fails if somebody has changed it since.
create function interlock.refuse_departed() returns trigger language plpgsql as $$
declare
  whose text := interlock.current_tenant();
  standing text;
begin
  if whose is null or not exists (select from interlock.shard s where s.here) then
    return null;
  end if;
  if pg_try_advisory_xact_lock_shared(interlock.move_lock(whose)) then
    if current_setting('transaction_isolation') = 'read committed' then
      select t.state into standing from interlock.tenant t where t.tenant = whose;
    else
      select t.state into standing from interlock.tenant t where t.tenant = whose for share;
    end if;
    if standing = 'here' or (standing = 'leaving' and (tg_op <> 'DELETE' or tg_table_name <> 'job')) then
      return null;
    end if;
  end if;
  raise exception 'interlock: this tenant lives on another shard, or is on its way there' using errcode = 'IL002';
end $$;

-- Only what verbs write themselves is guarded; what triggers and sweeps keep beside it needs no guard of its own.
do $$
declare
  guarded record;
begin
  for guarded in select * from (values
      ('job', 'insert or update or delete'), ('lease', 'update'), ('job_checkpoint', 'insert or update'), ('job_step', 'insert'),
      ('job_event', 'insert'), ('approval', 'insert or update'), ('approval_vote', 'insert'), ('claim', 'insert or update'),
      ('artifact', 'insert or delete'), ('artifact_orphan', 'insert or update or delete'), ('queue', 'insert or update'),
      ('subscription', 'insert or update or delete'), ('webhook_secret', 'insert or update'), ('outbox', 'update'),
      ('token', 'insert or update'), ('job_type', 'insert or update or delete'), ('prune', 'insert'), ('route', 'insert'),
      ('agent', 'insert or delete or update of max_concurrency, strict, implicit, backoff, defaults')
    ) as g(name, changes) loop
    execute format('create trigger a_only_where_it_lives before %s on interlock.%I for each statement
                      execute function interlock.refuse_departed()', guarded.changes, guarded.name);
  end loop;
end $$;

-- A tenant that was never here is not made by the way: a router that has asked the directory says so first.
create function interlock.refuse_stranger() returns trigger language plpgsql as $$
begin
  if new.tenant is distinct from nullif(current_setting('interlock.admitted', true), '')
      and exists (select from interlock.shard s where s.here)
      and not exists (select from interlock.tenant t where t.tenant = new.tenant) then
    raise exception 'interlock: this tenant does not live on this shard' using errcode = 'IL002';
  end if;
  return new;
end $$;
create trigger only_who_was_sent_here before insert on interlock.tenant for each row execute function interlock.refuse_stranger();

-- What must be known across tenants: which shards the directory names, how many live on each, and who is on the move.
create function interlock.population() returns table (shard text, tenants bigint)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select x.shard, count(x.tenant) from (
    select p.shard, p.tenant from placement p union all select p.other, null from placement p where p.other is not null) x
  group by x.shard
$$;
create function interlock.moves() returns table (tenant text, shard text, other text, phase text)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select p.tenant, p.shard, p.other, p.phase from placement p where p.phase is not null order by p.tenant
$$;
grant create on schema interlock to interlock_sweep;
alter function interlock.population() owner to interlock_sweep;
alter function interlock.moves() owner to interlock_sweep;
revoke create on schema interlock from interlock_sweep;
