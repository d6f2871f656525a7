-- Convert between a time and a job id: the smallest id a job created at a time can have, and the creation time in an
-- id.
create or replace function interlock.id_at(p_time timestamptz) returns uuid
  language sql immutable parallel safe
  return rpad(lpad(to_hex((extract(epoch from p_time) * 1000)::bigint), 12, '0'), 32, '0')::uuid;
create or replace function interlock.id_time(p_id uuid) returns timestamptz
  language sql immutable parallel safe
  return to_timestamp(('x' || left(replace(p_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0);

-- Return whether the history of a job may outlive it, to be dropped with its whole partition.
create or replace function interlock.history_left(p_id uuid) returns boolean
  language sql stable as $$
  select exists (select from interlock.history_partition p
    where p_id < p.left_below and p_id >= coalesce(p.first_id, '00000000-0000-0000-0000-000000000000'))
$$;

-- Protect a partition like job_history itself, so that its own name gives no further access. Functions here without
-- `security definer` are for the owner: any other caller owns no table that they could change.
create or replace function interlock.shield_history(p_name text) returns void
  language plpgsql set search_path = interlock, pg_temp as $$
begin
  execute format('alter table %I enable row level security', p_name);
  execute format('alter table %I force row level security', p_name);
  execute format('create policy tenant_only on %I using (tenant = (select interlock.current_tenant()))', p_name);
  execute format('create trigger history_is_not_truncated before truncate on %I for each statement execute function refuse_history()', p_name);
  execute format('create trigger history_comes_with_its_change before insert on %I for each statement when (current_user <> ''interlock_verbs'')
    execute function refuse_forged_history()', p_name);
  execute format('comment on table %I is %L', p_name, 'A partition of job_history.');
end $$;

-- Add a partition for jobs created between two times. It takes no lock that job changes wait for, except on the default
-- partition. If that already has rows of this range, they stay there, and so do the later ones.
create or replace function interlock.add_history_partition(p_from timestamptz, p_before timestamptz) returns boolean
  language plpgsql set search_path = interlock, pg_temp as $$
declare
  name text := 'job_history_' || to_char(p_from at time zone 'UTC', 'YYYYMMDD"t"HH24MI');
begin
  execute format('create table %I (like job_history including all)', name);
  perform shield_history(name);
  execute format('alter table job_history attach partition %I for values from (%L) to (%L)', name, id_at(p_from), id_at(p_before));
  insert into history_partition (name, first_id, before_id) values (name, id_at(p_from), id_at(p_before));
  return true;
exception when check_violation then
  return false;
end $$;

-- Create the next partitions, up to two ahead, and return how many. It gives up a lock soon; maintenance calls it
-- again.
create or replace function interlock.extend_history() returns integer
  language plpgsql security definer set search_path = interlock, pg_temp set lock_timeout = '200ms' as $$
declare
  width interval;
  starts timestamptz;
  made integer := 0;
begin
  select id_time(p.before_id) - id_time(p.first_id), id_time(p.before_id) into width, starts
  from history_partition p where p.first_id is not null order by p.before_id desc limit 1;
  if not found then
    perform forget_partitioning();
    return 0;
  end if;
  lock table history_partition in share row exclusive mode;
  if starts < clock() then  -- not called for a long time: the rows written since are in the default partition
    starts := starts + width * floor(extract(epoch from clock() - starts) / extract(epoch from width));
  end if;
  while starts < clock() + 2 * width loop
    if add_history_partition(starts, starts + width) then
      made := made + 1;
    end if;
    starts := starts + width;
  end loop;
  return made;
exception when lock_not_available then
  return 0;
end $$;

-- Drop the constraint that an aborted partitioning left behind before new jobs violate it.
create or replace function interlock.forget_partitioning() returns void
  language plpgsql set search_path = interlock, pg_temp as $$
begin
  if exists (select from pg_constraint c where c.conrelid = 'job_history'::regclass and c.conname = 'made_before'
      and id_time(substring(pg_get_constraintdef(c.oid) from '[0-9a-f]{8}-[0-9a-f-]{27}')::uuid) < clock() + interval '6 hours') then
    alter table job_history drop constraint made_before;
  end if;
end $$;

-- Let prune leave the history of jobs created before a time to its partition. Return how many partitions this affects.
create or replace function interlock.leave_history(p_cutoff timestamptz) returns integer
  language plpgsql security definer set search_path = interlock, pg_temp as $$
declare
  upto uuid := id_at(least(p_cutoff, clock()));
  marked integer;
begin
  update history_partition p set left_below = least(p.before_id, upto)
  where not p.kept and not p.detached and (p.first_id is null or p.first_id < upto)
    and p.left_below is distinct from greatest(p.left_below, least(p.before_id, upto));
  get diagnostics marked = row_count;
  return marked;
end $$;

-- Detach a partition that lies before the cutoff and has no job of any tenant left; null if it was locked. Writes to
-- the partition are blocked while it looks for jobs, then reads of history for a moment.
create or replace function interlock.detach_history(p_name text, p_cutoff timestamptz) returns boolean
  language plpgsql security definer set search_path = interlock, pg_temp set lock_timeout = '200ms' as $$
declare
  part history_partition;
begin
  -- Prune locks these rows before it touches history: once we hold them, earlier prunes have ended and later ones wait.
  select * into part from history_partition p where p.name = p_name and not p.detached
    and p.before_id <= id_at(least(p_cutoff, clock())) and (p.kept or p.left_below = p.before_id) for update;
  if not found then
    return false;
  end if;
  execute format('lock table %I in share row exclusive mode', p_name);
  if any_job(part.first_id, part.before_id) then
    return false;
  end if;
  execute format('alter table job_history detach partition %I', p_name);
  update history_partition p set detached = true where p.name = p_name;
  return true;
exception when lock_not_available then
  return null;
end $$;

-- Drop a detached partition; null if it was locked. Only its own lock is held while its files are deleted.
create or replace function interlock.drop_history(p_name text) returns boolean
  language plpgsql security definer set search_path = interlock, pg_temp set lock_timeout = '200ms' as $$
begin
  delete from history_partition p where p.name = p_name and p.detached;
  if found then
    execute format('drop table %I', p_name);
  end if;
  return found;
exception when lock_not_available then
  return null;
end $$;

-- Keep a partition that has a job that stays. Its other history is then deleted row by row: with each pruned job, and
-- by sweep_history for jobs already pruned.
create or replace function interlock.keep_history(p_name text) returns void
  language sql security definer set search_path = interlock, pg_temp as $$
  update history_partition set kept = true where name = p_name
$$;
create or replace function interlock.history_is_emptied(p_name text) returns void
  language sql security definer set search_path = interlock, pg_temp as $$
  update history_partition set left_below = null where name = p_name and kept
$$;

-- Delete the history of a tenant's pruned jobs, among the next p_jobs jobs of a partition, and return the last id.
create or replace function interlock.sweep_history(p_tenant text, p_name text, p_after uuid, p_jobs integer) returns uuid
  language plpgsql security definer set search_path = interlock, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_hashjoin = off set jit = off as $$
declare
  part history_partition;
  ids uuid[];
begin
  perform set_config('interlock.tenant', p_tenant, true);
  select * into part from history_partition p where p.name = p_name;
  with recursive seen(id, n) as (
    select p_after, 0
    union all
    select (select h.job_id from job_history h where h.tenant = p_tenant and h.job_id > seen.id
      and h.job_id >= coalesce(part.first_id, p_after) and h.job_id < part.left_below order by h.job_id limit 1), n + 1
    from seen where seen.id is not null and n < p_jobs
  )
  select array_agg(seen.id order by seen.id) into ids from seen where seen.n > 0 and seen.id is not null;
  delete from job_history h where h.tenant = p_tenant and h.job_id between ids[1] and ids[cardinality(ids)]
    and h.job_id = any(ids) and not exists (select from job j where j.tenant = p_tenant and j.id = h.job_id);
  return ids[cardinality(ids)];
end $$;

-- Convert job_history into a partitioned table whose first partition is the old table, up to p_before. The validated
-- constraint made_before proves that no row is later, so nothing is read or copied. The new table gets the settings of
-- the old one.
create or replace function interlock.partition_history(p_before timestamptz, p_every interval) returns void
  language plpgsql set search_path = interlock, pg_temp as $$
declare
  old text := 'job_history_until_' || to_char(p_before at time zone 'UTC', 'YYYYMMDD"t"HH24MI');
  whole oid := 'job_history'::regclass;
  part record;
  triggers text[];
begin
  lock table job_history in access exclusive mode;
  select array_agg(pg_get_triggerdef(t.oid)) into triggers from pg_trigger t where t.tgrelid = whole and not t.tgisinternal;
  for part in select t.tgname from pg_trigger t where t.tgrelid = whole and not t.tgisinternal and t.tgtype & 1 = 1 loop
    execute format('drop trigger %I on job_history', part.tgname);  -- cloned again from the partitioned table below
  end loop;
  for part in select f.oid::regprocedure as name from pg_proc f join pg_type y on y.oid = f.prorettype where y.typrelid = whole loop
    execute format('drop function %s', part.name);  -- recreated later with the row type of the new table
  end loop;
  execute format('alter table job_history rename to %I', old);
  execute format('alter table %I rename constraint job_history_pkey to %I', old, old || '_pkey');
  execute format('create table job_history (like %I including all excluding constraints) partition by range (job_id)', old);
  execute format('comment on table job_history is %L', obj_description(whole, 'pg_class'));
  execute format('comment on table %I is %L', old, 'A partition of job_history.');
  alter table job_history enable row level security;
  alter table job_history force row level security;
  for part in select p.polname, p.polcmd, p.polpermissive, pg_get_expr(p.polqual, whole) as qual, pg_get_expr(p.polwithcheck, whole) as checked,
      coalesce((select string_agg(quote_ident(r.rolname), ', ') from pg_roles r where r.oid = any(p.polroles)), 'public') as roles
      from pg_policy p where p.polrelid = whole loop
    execute format('create policy %I on job_history as %s for %s to %s', part.polname,
      case when part.polpermissive then 'permissive' else 'restrictive' end,
      case part.polcmd when 'r' then 'select' when 'a' then 'insert' when 'w' then 'update' when 'd' then 'delete' else 'all' end, part.roles)
      || coalesce(' using (' || part.qual || ')', '') || coalesce(' with check (' || part.checked || ')', '');
  end loop;
  for part in select a.privilege_type, a.grantee::regrole as grantee from pg_class c cross join aclexplode(c.relacl) a
      where c.oid = whole and a.grantee <> 0 and a.grantee <> c.relowner loop
    execute format('grant %s on job_history to %s', part.privilege_type, part.grantee);
    execute format('revoke all on %I from %s', old, part.grantee);
  end loop;
  execute format('alter table job_history attach partition %I for values from (minvalue) to (%L)', old, id_at(p_before));
  execute format('alter table %I drop constraint made_before', old);
  for i in 1..cardinality(triggers) loop
    execute triggers[i];
  end loop;
  insert into history_partition (name, before_id) values (old, id_at(p_before));
  create table job_history_other (like job_history including all);
  perform shield_history('job_history_other');
  alter table job_history attach partition job_history_other default;
  perform add_history_partition(p_before, p_before + p_every);
end $$;
