-- Effects: calls with consequences outside the database, recorded before the call and after it.

create table interlock.job_effect (
  job_id     uuid        not null,
  fence      bigint      not null check (fence >= 0),
  started_at timestamptz not null,
  ended_at   timestamptz,
  seq        integer     not null check (seq > 0),
  occurrence integer     not null,
  attempt    integer     not null,
  sanitized  boolean     not null default false,
  tenant     text collate "C" not null,
  name       text collate "C" not null,
  state      text collate "C" not null,
  key        text collate "C",
  result     text collate "C",
  primary key (tenant, job_id, name, occurrence),
  constraint job_effect_seq unique (tenant, job_id, seq),
  constraint state_is_known check (state in ('started', 'done', 'not_done')),
  constraint only_done_has_a_result check (result is null or state = 'done'),
  constraint started_has_not_ended check ((state = 'started') = (ended_at is null))
);
comment on table interlock.job_effect is 'Effects of jobs: the intent to call a function, and the outcome.';
comment on column interlock.job_effect.job_id is 'Job that it belongs to.';
comment on column interlock.job_effect.seq is 'Position among the effects of its job, in the order in which they first began.';
comment on column interlock.job_effect.name is 'Name of the effect.';
comment on column interlock.job_effect.occurrence is 'Occurrence of the name in a run.';
comment on column interlock.job_effect.key is 'Idempotency key for the external system.';
comment on column interlock.job_effect.state is 'started, done or not_done; started without that lease means an unknown outcome.';
comment on column interlock.job_effect.result is 'Exact JSON text of the result, if it is done and has one.';
comment on column interlock.job_effect.sanitized is 'Whether invalid Unicode was replaced.';
comment on column interlock.job_effect.attempt is 'Attempt that began it.';
comment on column interlock.job_effect.fence is 'Fence of the lease that wrote it last; 0 if a redrive copied it.';
comment on column interlock.job_effect.started_at is 'Time at which it began, before the call.';
comment on column interlock.job_effect.ended_at is 'Time at which its outcome was recorded.';

grant select, insert, update on interlock.job_effect to interlock_app;

create function interlock.refuse_effect_change() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: effects are written by the lease holder and go only with their job; % is refused', tg_op
    using errcode = 'insufficient_privilege';
end $$;
create trigger effect_is_written_by_its_lease before insert or update on interlock.job_effect for each row
  when (current_setting('interlock.verb', true) is distinct from 'on') execute function interlock.refuse_effect_change();
create trigger effect_goes_with_its_job before delete on interlock.job_effect for each row
  when (interlock.job_lives(old.tenant, old.job_id)) execute function interlock.refuse_effect_change();
create trigger effect_is_not_truncated before truncate on interlock.job_effect for each statement execute function interlock.refuse_effect_change();

-- The rules hold for operations too: a done effect is final, and only the current lease writes. A redrive copies effects
-- to its new job, which has only been created yet, with fence 0.
create function interlock.guard_effect() returns trigger language plpgsql as $$
begin
  if tg_op = 'UPDATE' and (
      (new.tenant, new.job_id, new.name, new.occurrence, new.seq) is distinct from (old.tenant, old.job_id, old.name, old.occurrence, old.seq)
      or (old.state, new.state) not in (('started', 'done'), ('started', 'not_done'), ('not_done', 'started'))
      or (old.state = 'started' and (new.attempt, new.key, new.started_at) is distinct from (old.attempt, old.key, old.started_at))) then
    raise exception 'interlock: an effect is started, then done or not done; done is final, and only not_done begins again'
      using errcode = 'check_violation';
  end if;
  if tg_op = 'INSERT' and new.fence > 0 and new.state <> 'started' then
    raise exception 'interlock: an effect begins as started' using errcode = 'check_violation';
  end if;
  if not exists (select from interlock.job j where j.tenant = new.tenant and j.id = new.job_id and case
      when new.fence > 0 then j.status = 'running' and j.fence = new.fence
      else tg_op = 'INSERT' and j.version = 1 end) then
    raise exception 'interlock: an effect is written under the lease of a running job' using errcode = 'check_violation';
  end if;
  return new;
end $$;
create trigger guard_effect before insert or update on interlock.job_effect for each row execute function interlock.guard_effect();
