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
  'The partitions of job_history by the time in the ids of jobs, but for the one of all other ids. The next is made as wide as the last.';
comment on column interlock.history_partition.first_id is 'Its rows are of jobs from this id on; null: from the first.';
comment on column interlock.history_partition.before_id is 'And of jobs before this one.';
comment on column interlock.history_partition.left_below is
  'Where a job below this id was deleted, its history may be left, to go with the whole partition.';
comment on column interlock.history_partition.kept is 'Jobs stay that should be gone: from now on, history goes with each job here, too.';
comment on column interlock.history_partition.detached is 'It is no part of history any more, and only to be dropped.';
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
