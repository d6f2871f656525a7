-- Return the last sequence number up to which no transaction is still inserting a job, or null after a short wait. A
-- transaction that has drawn a number holds its lock on job until it ends.
create or replace function interlock.settled_to() returns bigint language plpgsql as $$
declare
  given bigint;
  adding text[];
begin
  select s.last_value into given from interlock.job_seq_seq s;
  select coalesce(array_agg(l.virtualtransaction), '{}') into adding from pg_locks l
  where l.relation = 'interlock.job'::regclass and l.database = (select d.oid from pg_database d where d.datname = current_database())
    and l.mode = 'RowExclusiveLock' and l.pid is distinct from pg_backend_pid();
  for wait in 1..20 loop
    if not exists (select from pg_locks l where l.relation = 'interlock.job'::regclass and l.virtualtransaction = any(adding)) then
      return given;
    end if;
    perform pg_sleep(0.01);
  end loop;
  return null;
end $$;

-- Index the types and tags of every p_jobs jobs after the tenant's last job block, up to p_most blocks. Return the
-- number of blocks.
create or replace function interlock.index_job_blocks(p_tenant text, p_jobs integer, p_most integer) returns integer language plpgsql
  security definer set search_path = interlock, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set jit = off as $$
declare
  settled bigint := settled_to();
  noted bigint;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  if settled is null or not pg_try_advisory_xact_lock(job_block_lock(p_tenant)) then
    return 0;
  end if;
  -- Skip a tenant that is moving to another shard: the target shard indexes its blocks again.
  if exists (select from shard s where s.here) and (not pg_try_advisory_xact_lock_shared(move_lock(p_tenant))
      or not exists (select from tenant t where t.tenant = p_tenant and t.state = 'here')) then
    return 0;
  end if;
  select coalesce((select s.last_seq from job_block s where s.tenant = p_tenant order by s.first_seq desc limit 1), 0) into noted;
  for n in 1..p_most loop
    with next as materialized (
      select j.seq, j.created_at, j.type, j.tags from job j
      where j.tenant = p_tenant and j.seq > noted and j.seq <= settled order by j.seq limit p_jobs
    ), whole as (
      insert into job_block (tenant, first_seq, last_seq, earliest, latest)
      select p_tenant, min(x.seq), max(x.seq), min(x.created_at), max(x.created_at) from next x having count(*) = p_jobs
      returning first_seq, last_seq
    ), words as (
      insert into job_block_term (tenant, kind, word, first_seq)
      select p_tenant, y.kind, y.word, w.first_seq from whole w cross join (
        select 'type' as kind, x.type as word from next x union select 'tag', t.tag from next x cross join unnest(x.tags) t(tag)) y
    )
    select w.last_seq into noted from whole w;
    if not found then
      return n - 1;
    end if;
  end loop;
  return p_most;
end $$;

-- Delete job blocks between two sequence numbers whose jobs are all deleted.
create or replace function interlock.drop_emptied_blocks(p_tenant text, p_first bigint, p_last bigint) returns void language plpgsql
  security definer set search_path = interlock, pg_temp set enable_seqscan = off set enable_bitmapscan = off as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  with emptied as (
    delete from job_block s where s.tenant = p_tenant and s.first_seq <= p_last and s.last_seq >= p_first
      and s.first_seq >= coalesce((select x.first_seq from job_block x where x.tenant = p_tenant and x.first_seq <= p_first order by x.first_seq desc limit 1), 0)
      and not exists (select from job j where j.tenant = p_tenant and j.seq between s.first_seq and s.last_seq)
    returning s.first_seq
  )
  delete from job_block_term w using emptied e where w.tenant = p_tenant and w.first_seq = e.first_seq;
end $$;
