-- Schedules, each with its next tick.

create table interlock.schedule (
  tenant         text collate "C" not null,
  name           text collate "C" not null,
  cron           text collate "C",
  every_seconds  double precision check (every_seconds >= 1),
  timezone       text collate "C" not null,
  starts_at      timestamptz,
  ends_at        timestamptz,
  job            text collate "C" not null,
  overlap        text collate "C" not null check (overlap in ('allow', 'skip', 'cancel')),
  catch_up       text collate "C" not null check (catch_up in ('none', 'last', 'all')),
  jitter_seconds double precision not null check (jitter_seconds >= 0),
  next_at        timestamptz,
  last_at        timestamptz,
  last_job_id    uuid,
  last_error     text collate "C",
  paused_at      timestamptz,
  paused_by      text collate "C",
  version        integer not null check (version > 0),
  created_at     timestamptz not null,
  created_by     text collate "C" not null,
  updated_at     timestamptz not null,
  primary key (tenant, name),
  check ((cron is null) <> (every_seconds is null)),
  check ((paused_at is null) = (paused_by is null)),
  check ((last_at is null) = (last_job_id is null))
);
create index schedule_due on interlock.schedule (next_at) where paused_at is null;

comment on table interlock.schedule is 'Schedules, which enqueue jobs by a cron expression or at an interval.';
comment on column interlock.schedule.name is 'Its name, unique within the tenant.';
comment on column interlock.schedule.cron is 'Five fields; null for an interval.';
comment on column interlock.schedule.every_seconds is 'Interval between ticks; null for a cron expression.';
comment on column interlock.schedule.timezone is 'IANA name of the time zone of the cron expression.';
comment on column interlock.schedule.starts_at is 'No tick is earlier; the first tick of an interval.';
comment on column interlock.schedule.ends_at is 'No tick is later.';
comment on column interlock.schedule.job is 'JSON: the request that each tick enqueues.';
comment on column interlock.schedule.overlap is 'What a tick does while the previous job is not terminal.';
comment on column interlock.schedule.catch_up is 'Which missed ticks create a job.';
comment on column interlock.schedule.jitter_seconds is 'Upper bound of the delay of each job.';
comment on column interlock.schedule.next_at is 'The next tick; null after the last one.';
comment on column interlock.schedule.last_at is 'The last tick that created a job.';
comment on column interlock.schedule.last_job_id is 'The job that it created; it may have been pruned.';
comment on column interlock.schedule.last_error is 'Why the last tick created no job, if it should have.';
comment on column interlock.schedule.paused_at is 'Time of the pause; null while it runs.';
comment on column interlock.schedule.paused_by is 'Principal that paused it.';
comment on column interlock.schedule.version is 'Rises with every change by an operator.';
comment on column interlock.schedule.created_at is 'Time of its creation.';
comment on column interlock.schedule.created_by is 'Principal that created it.';
comment on column interlock.schedule.updated_at is 'Time of the last change by an operator.';

create function interlock.refuse_earlier_tick() returns trigger language plpgsql as $$
begin
  raise exception 'a schedule does not go back to an earlier tick' using errcode = 'check_violation';
end $$;
create trigger schedule_goes_forward before update on interlock.schedule for each row
  when (new.last_at < old.last_at or new.version < old.version) execute function interlock.refuse_earlier_tick();

grant select, insert, update, delete on interlock.schedule to interlock_app;
grant select (tenant, name, next_at, paused_at) on interlock.schedule to interlock_sweep;

-- A move copies schedules before their tenant arrives: only the shard that has the tenant runs them.
create function interlock.due_schedules(p_now timestamptz, p_limit integer) returns table (tenant text, name text)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select s.tenant, s.name from schedule s
  where s.paused_at is null and s.next_at <= p_now
    and not exists (select from tenant n where n.tenant = s.tenant and n.state = 'gone')
  order by s.next_at limit p_limit
$$;
