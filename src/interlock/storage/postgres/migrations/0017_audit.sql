-- Guards against direct SQL by any role: no change may leave a job stuck, or close an approval without its job. And the
-- audit log of operator actions.

-- Operations set `interlock.verb` for the length of their statement. Writes by triggers follow from a legal change and
-- pass.
create function interlock.refuse_by_hand() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: %', tg_argv[0] using errcode = 'check_violation';
end $$;

do $$
declare
  kept record;
begin
  for kept in select * from (values
      ('ready', 'insert or update or delete', 'what may be claimed is kept by the changes of jobs; change the job'),
      ('lease', 'insert or update of tenant, job_id, fence, worker or delete', 'leases are kept by the changes of jobs; change the job'),
      ('job_await', 'insert or update or delete', 'only a release makes a job wait for children, until they have ended'),
      ('approval', 'insert', 'an approval is opened by the operation that makes its job wait'),
      ('approval_vote', 'insert', 'a vote is cast only by deciding the approval')
    ) as k(name, changes, why) loop
    execute format('create trigger %I before %s on interlock.%I for each statement
      when (pg_trigger_depth() = 0 and current_setting(''interlock.verb'', true) is distinct from ''on'')
      execute function interlock.refuse_by_hand(%L)', 'z_not_by_hand_' || left(kept.changes, 6), kept.changes, kept.name, kept.why);
  end loop;
end $$;

create trigger approval_is_decided_with_its_job before update of status, closed_by, closed_at, comment, data on interlock.approval for each row
  when (old.status = 'open' and pg_trigger_depth() = 0 and current_setting('interlock.verb', true) is distinct from 'on')
  execute function interlock.refuse_by_hand('an approval is closed by the operation that moves its job on; decide it with interlock approvals');

-- When the transaction ends, a job waits for an approval exactly if it is open, regardless of the statement that
-- changed it.
create function interlock.refuse_parted() returns trigger language plpgsql as $$
declare
  status text;
  waits boolean;
begin
  perform set_config('interlock.tenant', new.tenant, true);
  select a.status into status from interlock.approval a where a.tenant = new.tenant and a.id = new.id;
  waits := exists (select from interlock.job j where j.tenant = new.tenant and j.id = new.job_id and j.approval_id = new.id);
  if waits <> (status = 'open') then
    raise exception 'interlock: an approval is open exactly while its job waits for it: decide it with interlock approvals'
      using errcode = 'check_violation';
  end if;
  return null;
end $$;
create constraint trigger approval_and_job_go_together after insert or update of status on interlock.approval
  deferrable initially deferred for each row execute function interlock.refuse_parted();

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

-- Jobs are found by their eligibility keys.
create trigger route_never_changes before update or delete on interlock.eligibility_key for each statement
  execute function interlock.refuse_by_hand('a route never changes and stays; jobs are found by it');
create trigger tenant_is_permanent before delete or update of tenant on interlock.tenant for each statement
  execute function interlock.refuse_by_hand('a tenant stays');

create table interlock.audit_log (
  seq     bigint      not null check (seq > 0),
  at      timestamptz not null,
  tenant  text collate "C" not null,
  actor   text collate "C" not null,
  action  text collate "C" not null,
  object  text collate "C" not null,
  hash    bytea       not null check (length(hash) = 32),
  details text collate "C",
  primary key (tenant, seq)
);
comment on table interlock.audit_log is 'What operators did, written in the transaction of the change; each hash covers the row and the hash before it.';
comment on column interlock.audit_log.tenant is 'Whose row this is; it leads every key.';
comment on column interlock.audit_log.seq is '1 to n without a gap.';
comment on column interlock.audit_log.at is 'When, by the clock of the database.';
comment on column interlock.audit_log.actor is 'Who did it.';
comment on column interlock.audit_log.action is 'What was done, such as queue.pause.';
comment on column interlock.audit_log.object is 'What it was done to: a type, an agent, an id.';
comment on column interlock.audit_log.details is 'JSON: the new values, without any secret.';
comment on column interlock.audit_log.hash is 'SHA-256 over the hash before and all fields of this row.';
alter table interlock.audit_log enable row level security;
alter table interlock.audit_log force row level security;
create policy tenant_only on interlock.audit_log using (tenant = (select interlock.current_tenant()));
grant select on interlock.audit_log to interlock_app;

create function interlock.refuse_log_change() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: the audit log is append-only; % is refused', tg_op using errcode = 'insufficient_privilege';
end $$;
create trigger log_never_changes before update or delete on interlock.audit_log for each row execute function interlock.refuse_log_change();
create trigger log_comes_with_its_change before insert on interlock.audit_log for each statement
  when (current_setting('interlock.verb', true) is distinct from 'log') execute function interlock.refuse_log_change();
create trigger log_is_not_truncated before truncate on interlock.audit_log for each statement execute function interlock.refuse_log_change();
create trigger a_only_where_it_lives before insert on interlock.audit_log for each statement execute function interlock.refuse_departed();
