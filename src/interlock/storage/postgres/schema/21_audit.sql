-- Records of operator actions: prunes and the audit log.

create table interlock.prune (
  id        uuid        not null,
  at        timestamptz not null,
  cutoff    timestamptz not null,
  first_seq bigint      not null,
  last_seq  bigint      not null,
  jobs      integer     not null check (jobs > 0),
  tenant    text collate "C" not null,
  actor     text collate "C" not null,
  hash      bytea       not null check (length(hash) = 32),
  primary key (tenant, at, id)
);
comment on table interlock.prune is 'Records of deleted jobs: one row for each step of a prune.';
comment on column interlock.prune.id is 'ID of the step.';
comment on column interlock.prune.at is 'Time of the step.';
comment on column interlock.prune.actor is 'Principal that deleted them.';
comment on column interlock.prune.cutoff is 'All of them finished before this time.';
comment on column interlock.prune.jobs is 'Number of deleted jobs.';
comment on column interlock.prune.first_seq is 'Lowest seq of the deleted jobs.';
comment on column interlock.prune.last_seq is 'Highest seq of the deleted jobs.';
comment on column interlock.prune.hash is 'SHA-256 over their chain heads, by tenant and job, like audit head.';

create function interlock.refuse_prune_change() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: prune records are permanent; % is rejected', tg_op using errcode = 'insufficient_privilege';
end $$;
create trigger prune_never_changes before update or delete on interlock.prune for each row execute function interlock.refuse_prune_change();
create trigger prune_is_not_truncated before truncate on interlock.prune for each statement execute function interlock.refuse_prune_change();
grant select on interlock.prune to interlock_app;

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
comment on table interlock.audit_log is 'Operator actions, written in the transaction of the change; each hash covers the row and the previous hash.';
comment on column interlock.audit_log.seq is 'Number of the row, 1 to n without gaps.';
comment on column interlock.audit_log.at is 'Time of the action, by the database clock.';
comment on column interlock.audit_log.actor is 'Principal of the action.';
comment on column interlock.audit_log.action is 'Name of the action, such as queue.pause.';
comment on column interlock.audit_log.object is 'Object of the action: a type, an agent or an ID.';
comment on column interlock.audit_log.details is 'JSON: the new values, without any secret.';
comment on column interlock.audit_log.hash is 'SHA-256 over the previous hash and all fields of this row.';
grant select on interlock.audit_log to interlock_app;

create function interlock.refuse_log_change() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: the audit log is append-only; % is refused', tg_op using errcode = 'insufficient_privilege';
end $$;
create trigger log_never_changes before update or delete on interlock.audit_log for each row execute function interlock.refuse_log_change();
create trigger log_comes_with_its_change before insert on interlock.audit_log for each statement
  when (current_setting('interlock.verb', true) is distinct from 'log') execute function interlock.refuse_log_change();
create trigger log_is_not_truncated before truncate on interlock.audit_log for each statement execute function interlock.refuse_log_change();
