-- Shards: the databases that share the work, the placement of each tenant, and a guard that rejects changes to tenants
-- of other shards.

create table interlock.shard (
  no   integer not null primary key check (no between 0 and 1023),
  here boolean not null default false,
  name text collate "C" not null unique
);
create unique index shard_here on interlock.shard (here) where here;
comment on table interlock.shard is
  'Shards by name: the directory lists all of them, every other database only itself. Empty without sharding.';
comment on column interlock.shard.no is 'Number of the shard; ten bits of the IDs of jobs created there.';
comment on column interlock.shard.here is 'Whether it is this database.';
comment on column interlock.shard.name is 'Name in the settings.';
grant select on interlock.shard to interlock_app;

create table interlock.placement (
  tenant text collate "C" not null primary key,
  shard  text collate "C" not null,
  other  text collate "C",
  phase  text collate "C",
  constraint phase_is_known check (phase in ('copying', 'clearing')),
  constraint other_exactly_in_a_move check ((other is null) = (phase is null)),
  constraint moves_lead_elsewhere check (other <> shard)
);
comment on table interlock.placement is 'Directory: the shard of each tenant. Stored in the database of the first shard.';
comment on column interlock.placement.shard is 'Shard of the tenant.';
comment on column interlock.placement.other is 'Target shard during a move; then the source shard, until its old copy is deleted.';
comment on column interlock.placement.phase is 'copying until the move is complete, then clearing until the old copy is deleted.';
grant select, insert, update on interlock.placement to interlock_app;
grant select on interlock.placement to interlock_sweep;

-- Advisory lock of a tenant: exclusive while a move copies its active jobs, shared for every change of its data.
create function interlock.move_lock(p_tenant text) returns bigint
  language sql immutable parallel safe return hashtextextended('interlock move ' || p_tenant, 0);

create table interlock.move_delta (
  job_id uuid not null,
  tenant text collate "C" not null
);
create index move_delta_tenant on interlock.move_delta (tenant);
comment on table interlock.move_delta is
  'Jobs changed while their tenant is being moved, to be copied again. Written only by triggers during a move.';
comment on column interlock.move_delta.job_id is 'The job.';
grant select on interlock.move_delta to interlock_app;

-- Checked in the transaction of the change, so that a caller with an outdated placement is rejected and looks it up
-- again. A repeatable-read transaction would see an old state, so it locks the row, which fails if the row has changed
-- since.
create function interlock.refuse_departed() returns trigger language plpgsql as $$
declare
  whose text := interlock.current_tenant();
  tenant_state text;
begin
  if not exists (select from interlock.shard s where s.here) then
    return null;
  end if;
  if whose is null then  -- a role that bypasses row-level security: no lock stops it, but its changes are recorded
    perform set_config('interlock.leaving', 'yes', true);
    return null;
  end if;
  if pg_try_advisory_xact_lock_shared(interlock.move_lock(whose)) then
    if current_setting('transaction_isolation') = 'read committed' then
      select t.state into tenant_state from interlock.tenant t where t.tenant = whose;
    else
      select t.state into tenant_state from interlock.tenant t where t.tenant = whose for share;
    end if;
    if tenant_state = 'here' then
      return null;
    elsif tenant_state = 'leaving' and (tg_op <> 'DELETE' or tg_table_name <> 'job') then
      perform set_config('interlock.leaving', 'yes', true);
      return null;
    end if;
  end if;
  raise exception 'interlock: this tenant is on another shard, or is being moved there' using errcode = 'IL002';
end $$;

-- Guard only the tables that operations write. Rows that triggers and sweeps derive from them need no guard.
do $$
declare
  guarded record;
begin
  for guarded in select * from (values
      ('job', 'insert or update or delete'), ('lease', 'update'), ('job_checkpoint', 'insert or update'), ('job_step', 'insert'),
      ('job_event', 'insert'), ('job_message', 'insert'), ('message_wait', 'insert or update'), ('topic_message', 'insert or update'), ('stream_chunk', 'insert'), ('job_stream', 'insert or update'), ('job_effect', 'insert or update'), ('approval', 'insert or update'), ('approval_vote', 'insert'), ('claim_result', 'insert or update'),
      ('artifact', 'insert or delete'), ('artifact_orphan', 'insert or update or delete'), ('queue', 'insert or update'),
      ('subscription', 'insert or update or delete'), ('channel', 'insert or update or delete'), ('webhook_secret', 'insert or update'), ('outbox', 'update'),
      ('token', 'insert or update'), ('session', 'insert or delete'), ('person', 'insert or update'), ('job_type', 'insert or update or delete'), ('prune', 'insert'), ('eligibility_key', 'insert'),
      ('audit_log', 'insert'), ('agent', 'insert or delete or update of max_concurrency, strict, implicit, backoff, defaults')
    ) as g(name, changes) loop
    execute format('create trigger a_only_where_it_lives before %s on interlock.%I for each statement
                      execute function interlock.refuse_departed()', guarded.changes, guarded.name);
  end loop;
end $$;

-- The effects of transitions record changed jobs (note_move_deltas); these are the other parts of a job.
create function interlock.note_move_delta() returns trigger
  language plpgsql security definer set search_path = interlock, pg_temp as $$
begin
  insert into move_delta (tenant, job_id) values (coalesce(new.tenant, old.tenant), coalesce(new.job_id, old.job_id));
  return null;
end $$;
do $$
declare
  name text;
begin
  foreach name in array array['job_checkpoint', 'job_step', 'job_event', 'job_message', 'message_wait', 'stream_chunk', 'job_effect', 'artifact'] loop
    execute format('create trigger note_move_delta after insert or update or delete on interlock.%I for each row
                      when (current_setting(''interlock.leaving'', true) = ''yes'') execute function interlock.note_move_delta()', name);
  end loop;
end $$;

-- Reject the implicit creation of a tenant: a router looks it up in the directory and admits it first.
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

-- Queries across tenants: the shards in the directory, the number of tenants on each, and the tenants being moved.
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
