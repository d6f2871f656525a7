-- The history of jobs: every transition, chained by hashes.

create table interlock.job_history (
  tenant      text collate "C" not null,
  job_id      uuid        not null,
  version     integer     not null,
  from_status interlock.status,
  to_status   interlock.status not null,
  verb        text collate "C" not null,
  actor       text collate "C" not null,
  attempt     integer     not null,
  fence       bigint      not null,
  reason      text collate "C",
  metadata    text collate "C",
  at          timestamptz not null,
  hash        bytea       not null,
  primary key (tenant, job_id, version) with (fillfactor = 50)  -- room next to a job's first row for those that follow
);
comment on table interlock.job_history is
  'Every transition of every job, written by the triggers of job; each hash covers the row and the previous hash.';
comment on column interlock.job_history.job_id is 'The job.';
comment on column interlock.job_history.version is 'Version of the job, 1 to n without gaps.';
comment on column interlock.job_history.from_status is 'The previous status; null at creation.';
comment on column interlock.job_history.to_status is 'New status.';
comment on column interlock.job_history.verb is 'Operation of the transition.';
comment on column interlock.job_history.actor is 'Principal of the transition.';
comment on column interlock.job_history.attempt is 'Attempt of the job.';
comment on column interlock.job_history.fence is 'Fence of the lease.';
comment on column interlock.job_history.reason is 'Reason of the transition.';
comment on column interlock.job_history.metadata is 'JSON: details of the transition, such as the error and the next attempt.';
comment on column interlock.job_history.at is 'Time of the transition, by the database clock.';
comment on column interlock.job_history.hash is 'SHA-256 over the previous hash and all fields of this row.';
grant select on interlock.job_history to interlock_app;

-- Encode one field of a history row as length:text, null as a dash. The common cases skip the counting.
create function interlock.field(value text) returns text
  language sql immutable parallel safe return coalesce(octet_length(value)::text || ':' || value, '-');
create function interlock.field(value bigint) returns text
  language sql immutable parallel safe
  return case when value between 0 and 9 then '1:' || value::text else length(value::text)::text || ':' || value::text end;

create function interlock.micros(t timestamptz) returns bigint
  language sql immutable parallel safe
  return (extract(epoch from t) * 1000000)::bigint;

-- The start of a job's chain. Later rows cover it through the previous hash.
create function interlock.origin(tenant text, job_id uuid) returns bytea
  language sql stable parallel safe return convert_to(interlock.field(tenant) || '36:' || job_id::text, 'UTF8');

-- The bytes a hash covers besides the previous hash: every field of a history row as length:text, null as a dash. They
-- are the same for all jobs in a batch of first transitions. PL/pgSQL keeps its plan; a chain of SQL functions is parsed
-- and planned again in every statement.
create function interlock.history_bytes(
  version integer, from_status interlock.status, to_status interlock.status, verb text, actor text, attempt integer, fence bigint, reason text,
  metadata text, at bigint
) returns bytea language plpgsql immutable parallel safe as $$
declare
  v text := version; f text := from_status; s text := to_status; a text := attempt; n text := fence; t text := at;
begin
  return convert_to(length(v) || ':' || v || coalesce(length(f) || ':' || f, '-') || length(s) || ':' || s || octet_length(verb) || ':' || verb
    || octet_length(actor) || ':' || actor || length(a) || ':' || a || length(n) || ':' || n || coalesce(octet_length(reason) || ':' || reason, '-')
    || coalesce(octet_length(metadata) || ':' || metadata, '-') || length(t) || ':' || t, 'UTF8');
end $$;
create function interlock.history_hash(
  before bytea, version integer, from_status interlock.status, to_status interlock.status, verb text, actor text, attempt integer, fence bigint,
  reason text, metadata text, at bigint
) returns bytea language sql stable parallel safe
  return sha256(before || interlock.history_bytes(version, from_status, to_status, verb, actor, attempt, fence, reason, metadata, at));
comment on function interlock.history_hash is
  'SHA-256 over the previous hash and every field of the row as length:text; the same bytes on every engine.';

create function interlock.refuse_history() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: history is append-only; % is refused', tg_op using errcode = 'insufficient_privilege';
end $$;
create function interlock.job_lives(p_tenant text, p_job_id uuid) returns boolean
  language sql stable return exists (select from interlock.job where tenant = p_tenant and id = p_job_id);
create function interlock.refuse_forged_history() returns trigger language plpgsql as $$
begin
  if pg_trigger_depth() = 1 then
    raise exception 'interlock: history is append-only: only a transition writes a row' using errcode = 'insufficient_privilege';
  end if;
  return null;
end $$;
create trigger history_comes_with_its_change before insert on interlock.job_history
  for each statement when (current_user <> 'interlock_verbs') execute function interlock.refuse_forged_history();
create trigger history_never_changes before update on interlock.job_history for each row execute function interlock.refuse_history();
create trigger history_goes_with_its_job before delete on interlock.job_history for each row
  when (interlock.job_lives(old.tenant, old.job_id)) execute function interlock.refuse_history();
create trigger history_is_not_truncated before truncate on interlock.job_history
  for each statement execute function interlock.refuse_history();
