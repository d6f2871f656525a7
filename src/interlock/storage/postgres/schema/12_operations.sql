-- Records of prunes.

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
