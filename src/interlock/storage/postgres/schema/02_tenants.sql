-- Tenants, and the epoch that a restore raises.

create table interlock.epoch (
  only_row boolean primary key default true check (only_row),
  value    integer not null default 0 check (value >= 0)
);
insert into interlock.epoch default values;
comment on table interlock.epoch is 'Restore counter; raising it invalidates every fence issued before.';
comment on column interlock.epoch.only_row is 'Limits the table to one row.';
comment on column interlock.epoch.value is 'Fences start above this times 2^32.';

create table interlock.tenant (
  tenant   text collate "C" primary key,
  registry integer not null default 0,
  state    text collate "C" not null default 'here' constraint state_is_known check (state in ('here', 'leaving', 'gone'))
);
comment on table interlock.tenant is 'Every tenant that has a job, a type or an agent.';
comment on column interlock.tenant.registry is 'Version of the registered types and agent defaults; an enqueue that was validated against an older one is retried.';
comment on column interlock.tenant.state is
  'here; leaving: being copied to another shard, no job may be deleted; gone: moved away, nothing may be changed.';

grant select on interlock.epoch to interlock_app;
grant select, insert, update on interlock.tenant to interlock_app;
grant select on interlock.tenant to interlock_sweep;
