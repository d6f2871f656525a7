-- Partitions of history, if an operator has enabled them; without a row, history is one table.

create table interlock.history_partition (
  first_id   uuid,
  before_id  uuid    not null,
  left_below uuid,
  kept       boolean not null default false,
  detached   boolean not null default false,
  name       text collate "C" not null primary key
);
comment on table interlock.history_partition is
  'Partitions of job_history by the time in job IDs, except the default partition. The next one gets the width of the last.';
comment on column interlock.history_partition.first_id is 'First job ID of the partition; null means no lower bound.';
comment on column interlock.history_partition.before_id is 'Job ID that ends the partition (exclusive).';
comment on column interlock.history_partition.left_below is
  'The history of deleted jobs below this ID may remain until the whole partition is dropped.';
comment on column interlock.history_partition.kept is 'Whether it contains jobs past retention; then history is deleted with each job.';
comment on column interlock.history_partition.detached is 'Whether it is detached from history and waits to be dropped.';
comment on column interlock.history_partition.name is 'The name of the table.';
grant select on interlock.history_partition to interlock_app;

-- Return whether any tenant has a job with an id from p_first on and before p_before.
create function interlock.any_job(p_first uuid, p_before uuid) returns boolean
  language sql stable security definer set search_path = interlock, pg_temp as $$
  with recursive t(tenant) as (
    (select x.tenant from job x order by x.tenant limit 1)
    union all
    select (select x.tenant from job x where x.tenant > t.tenant order by x.tenant limit 1) from t where t.tenant is not null
  )
  select exists (select from t where exists (
    select from job j where j.tenant = t.tenant and j.id >= coalesce(p_first, '00000000-0000-0000-0000-000000000000') and j.id < p_before))
$$;
