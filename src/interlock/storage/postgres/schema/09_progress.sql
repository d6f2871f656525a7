-- Progress of a running job: its checkpoint, steps, which are not run twice, and events.

create table interlock.job_checkpoint (
  tenant    text collate "C" not null,
  job_id    uuid        not null,
  seq       bigint      not null,
  data      text collate "C" not null,
  sanitized boolean  not null,
  at        timestamptz not null,
  primary key (tenant, job_id)
);
comment on table interlock.job_checkpoint is 'Checkpoint of a job: one numbered value.';
comment on column interlock.job_checkpoint.job_id is 'The job.';
comment on column interlock.job_checkpoint.seq is 'Number set by the worker; only a higher one replaces it.';
comment on column interlock.job_checkpoint.data is 'Exact JSON text from the worker.';
comment on column interlock.job_checkpoint.sanitized is 'Whether invalid Unicode was replaced.';
comment on column interlock.job_checkpoint.at is 'Time at which it was saved.';

create table interlock.job_step (
  job_id     uuid        not null,
  seq        integer     not null,
  occurrence integer     not null,
  fence      bigint      not null,
  at         timestamptz not null,
  sanitized  boolean     not null,
  tenant     text collate "C" not null,
  name       text collate "C" not null,
  function   text collate "C",
  result     text collate "C" not null,
  primary key (tenant, job_id, seq),
  constraint job_step_once unique (tenant, job_id, name, occurrence)
);
comment on table interlock.job_step is 'Results of steps; the first result of each name and occurrence is kept.';
comment on column interlock.job_step.job_id is 'Job that it belongs to.';
comment on column interlock.job_step.seq is 'Position among the steps of its job, in the order of saving.';
comment on column interlock.job_step.name is 'Name of the step.';
comment on column interlock.job_step.occurrence is 'Occurrence of the name in a run, from 1.';
comment on column interlock.job_step.function is 'Function that computed it, to detect changed code.';
comment on column interlock.job_step.result is 'Exact JSON text.';
comment on column interlock.job_step.fence is 'Fence under which it was saved; 0 if a redrive copied it.';
comment on column interlock.job_step.at is 'Time at which it was saved.';
comment on column interlock.job_step.sanitized is 'Whether invalid Unicode was replaced.';

create table interlock.job_event (
  job_id      uuid        not null,
  id          uuid        not null,
  commit_seq  bigint      not null,
  fence       bigint      not null,
  at          timestamptz not null,
  received_at timestamptz not null,
  seq         integer     not null,
  epoch       integer     not null,
  sanitized   boolean     not null,
  tenant      text collate "C" not null,
  level       text collate "C" not null,
  message     text collate "C" not null,
  payload     text collate "C",
  primary key (tenant, job_id, seq),
  constraint job_event_once unique (tenant, job_id, id),
  constraint level_is_known check (level in ('info', 'warn', 'error')),
  constraint recorded_before_arrival check (at <= received_at)
);
create index job_event_feed on interlock.job_event (tenant, epoch, commit_seq, job_id, seq);
comment on table interlock.job_event is
  'Progress events of workers. epoch and turn put the events of all jobs into one order in which nothing ever appears '
  'before what may have been read already.';
comment on column interlock.job_event.job_id is 'Job that it belongs to.';
comment on column interlock.job_event.seq is 'Its position among the events of its job, in order of arrival.';
comment on column interlock.job_event.id is 'ID set by the worker; a repeated ID is not added again.';
comment on column interlock.job_event.epoch is 'The restore counter when it was appended.';
comment on column interlock.job_event.commit_seq is 'The id of the transaction that wrote it, or the commit_seq of the previous event if that is higher.';
comment on column interlock.job_event.level is 'info, warn or error.';
comment on column interlock.job_event.message is 'Message for human readers.';
comment on column interlock.job_event.payload is 'Exact JSON text for programs, if any.';
comment on column interlock.job_event.fence is 'The fence under which it was appended.';
comment on column interlock.job_event.at is 'Time of recording by the worker, between the start of its lease and the arrival.';
comment on column interlock.job_event.received_at is 'Time of arrival.';
comment on column interlock.job_event.sanitized is 'Whether invalid Unicode was replaced.';

grant select, insert, update on interlock.job_checkpoint to interlock_app;
grant select, insert on interlock.job_step, interlock.job_event to interlock_app;

create function interlock.refuse_progress() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: steps and events are append-only and go only with their job; % is refused', tg_op
    using errcode = 'insufficient_privilege';
end $$;

do $$
declare
  name text;
begin
  foreach name in array array['job_step', 'job_event'] loop
    execute format('create trigger %I before update on interlock.%I for each row execute function interlock.refuse_progress()',
                   name || '_never_changes', name);
    execute format('create trigger %I before delete on interlock.%I for each row
                      when (interlock.job_lives(old.tenant, old.job_id)) execute function interlock.refuse_progress()',
                   name || '_goes_with_its_job', name);
    execute format('create trigger %I before truncate on interlock.%I for each statement execute function interlock.refuse_progress()',
                   name || '_is_not_truncated', name);
  end loop;
end $$;

-- A transition covers the progress saved in the run it ended, so nothing may be saved outside a run.
create function interlock.refuse_outside_a_run() returns trigger language plpgsql as $$
begin
  if new.tenant = interlock.current_tenant() and not exists (select from interlock.job j where j.tenant = new.tenant and j.id = new.job_id and j.status = 'running'
      and (tg_table_name <> 'job_step' or (to_jsonb(new) ->> 'fence')::bigint = j.fence))
      or (tg_op = 'UPDATE' and (new.tenant, new.job_id) is distinct from (old.tenant, old.job_id)) then
    raise exception 'interlock: steps and checkpoints are saved under the lease of a running job' using errcode = 'check_violation';
  end if;
  return new;
end $$;
create trigger step_belongs_to_a_run before insert on interlock.job_step for each row
  when (current_setting('interlock.verb', true) is distinct from 'on') execute function interlock.refuse_outside_a_run();
create trigger checkpoint_belongs_to_a_run before insert or update on interlock.job_checkpoint for each row
  when (current_setting('interlock.verb', true) is distinct from 'on') execute function interlock.refuse_outside_a_run();

create function interlock.refuse_checkpoint_delete() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: the checkpoint of a job goes only with the job' using errcode = 'check_violation';
end $$;
create trigger checkpoint_goes_with_its_job before delete on interlock.job_checkpoint for each row
  when (interlock.job_lives(old.tenant, old.job_id)) execute function interlock.refuse_checkpoint_delete();
