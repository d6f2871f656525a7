-- What the database refuses and what it writes by itself: the guard, the history, the indexes of the truth.

create function interlock.history_hash(
  prev bytea, tenant text, job_id uuid, version integer, from_status interlock.status, to_status interlock.status, verb text,
  actor text, attempt integer, fence bigint, reason text, metadata text, at_micros bigint
) returns bytea
  language sql stable parallel safe
  return sha256(coalesce(prev, ''::bytea) || convert_to(
    octet_length(tenant)::text || ':' || tenant || '36:' || job_id::text || length(version::text)::text || ':' || version::text
    || coalesce(length(from_status::text)::text || ':' || from_status::text, '-') || length(to_status::text)::text || ':' || to_status::text
    || octet_length(verb)::text || ':' || verb || octet_length(actor)::text || ':' || actor
    || length(attempt::text)::text || ':' || attempt::text || length(fence::text)::text || ':' || fence::text
    || coalesce(octet_length(reason)::text || ':' || reason, '-') || coalesce(octet_length(metadata)::text || ':' || metadata, '-')
    || length(at_micros::text)::text || ':' || at_micros::text, 'UTF8'));
comment on function interlock.history_hash is
  'SHA-256 over the hash before and every field as length:text (a null is a dash); the same bytes on every engine.';

create function interlock.micros(t timestamptz) returns bigint
  language sql immutable parallel safe
  return (extract(epoch from t) * 1000000)::bigint;

-- The guard: its WHEN is true only for an illegal move, so a legal one costs a comparison.

create function interlock.refuse_move() returns trigger language plpgsql as $$
declare
  is_edge boolean := case old.status
    when 'queued' then new.status in ('queued', 'running', 'cancelled')
    when 'retry' then new.status in ('retry', 'running', 'failed', 'cancelled')
    when 'waiting_for_approval' then new.status in ('queued', 'failed', 'cancelled')
    else true end;
begin
  if old.status >= 'succeeded' then
    raise exception 'interlock: job % has ended as %, which is final; redrive makes a new job', old.id, old.status
      using errcode = 'check_violation';
  elsif new.version is distinct from old.version + 1 or new.previous is distinct from old.status then
    raise exception 'interlock: job %: every change raises version by one and names the status it leaves', old.id
      using errcode = 'check_violation';
  elsif not is_edge then
    raise exception 'interlock: job %: % → % is not a legal move', old.id, old.status, new.status
      using errcode = 'check_violation';
  elsif new.attempt <> old.attempt + (new.status = 'retry' and old.status = 'running')::integer then
    raise exception 'interlock: job %: attempt rises exactly when another try is scheduled, not % → % at % → %', old.id,
      old.attempt, new.attempt, old.status, new.status using errcode = 'check_violation';
  end if;
  raise exception 'interlock: job %: fence rises exactly at a grant, not % → % at % → %', old.id, old.fence, new.fence,
    old.status, new.status using errcode = 'check_violation';
end $$;

create trigger guard_move before update on interlock.job for each row
  when (
    new.version <> old.version + 1
    or new.previous is distinct from old.status
    or not case old.status
      when 'queued' then new.status in ('queued', 'running', 'cancelled')
      when 'retry' then new.status in ('retry', 'running', 'failed', 'cancelled')
      when 'running' then new.status in ('running', 'succeeded', 'failed', 'retry', 'dead_letter', 'queued',
                                         'waiting_for_approval', 'cancelled')
      when 'waiting_for_approval' then new.status in ('queued', 'failed', 'cancelled')
      else false end
    or case when new.status = 'running' and old.status <> 'running' then new.fence <= old.fence else new.fence <> old.fence end
    or new.attempt <> old.attempt + case when new.status = 'retry' and old.status = 'running' then 1 else 0 end
  )
  execute function interlock.refuse_move();

create function interlock.refuse_identity() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: what job % was created with, its payload above all, never changes', old.id using errcode = 'check_violation';
end $$;
create trigger guard_identity before update of tenant, id, seq, type, payload, headers, traceparent, created_at, created_by,
  requested_by, parent_id, redrive_of, idempotency_key, body_sha256, agent_kind, agent_id, repository, affinity_key, requires,
  webhook, backoff, expiry_delay_seconds on interlock.job for each row execute function interlock.refuse_identity();

create function interlock.refuse_birth() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: a job is born queued, at version 1, attempt 1 and fence 0' using errcode = 'check_violation';
end $$;
create trigger guard_birth before insert on interlock.job for each row
  when (new.status <> 'queued' or new.version <> 1 or new.attempt <> 1 or new.fence <> 0 or new.previous is not null)
  execute function interlock.refuse_birth();

create function interlock.set_updated_at() returns trigger language plpgsql as $$
begin
  new.updated_at := interlock.clock();
  return new;
end $$;
create trigger set_updated_at before insert or update on interlock.job for each row
  when (new.updated_at is distinct from interlock.clock()) execute function interlock.set_updated_at();

create function interlock.after_insert() returns trigger
  language plpgsql security definer set search_path = interlock, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_hashjoin = off set jit = off as $$
declare
  now_micros bigint := interlock.micros(interlock.clock());
begin
  insert into job_history (tenant, job_id, version, from_status, to_status, verb, actor, attempt, fence, reason, metadata, at, hash)
  select n.tenant, n.id, 1, null, n.status, n.verb, n.actor, 1, 0, n.reason, n.metadata, n.updated_at,
    history_hash(null, n.tenant, n.id, 1, null, n.status, n.verb, n.actor, 1, 0, n.reason, n.metadata, now_micros)
  from born n;
  insert into ready (tenant, route, base, run_at, seq, job_id, deadline)
  select n.tenant, n.route, n.base, n.run_at, n.seq, n.id, n.deadline from born n;
  if exists (select from (select distinct n.tenant, n.route from born n) b
             where not exists (select from route r where r.tenant = b.tenant and r.no = b.route)) then
    raise exception 'interlock: a job names a route that does not exist' using errcode = 'foreign_key_violation';
  end if;
  return null;
end $$;
create trigger after_insert after insert on interlock.job referencing new table as born
  for each statement execute function interlock.after_insert();

create function interlock.after_update() returns trigger
  language plpgsql security definer set search_path = interlock, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_hashjoin = off set jit = off as $$
declare
  now_micros bigint := interlock.micros(interlock.clock());
  changes integer; written integer; granted boolean; ended boolean; entered boolean; left_ready boolean; children boolean;
  parents uuid[];
  part record;
begin
  select count(*), bool_or(status = 'running' and previous <> 'running'), bool_or(previous = 'running' and status <> 'running'),
    bool_or(status <= 'retry' and previous > 'retry'), bool_or(previous <= 'retry' and status > 'running'),
    bool_or(parent_id is not null and status >= 'succeeded')
  into changes, granted, ended, entered, left_ready, children from changed;
  if changes = 0 then return null; end if;

  insert into job_history (tenant, job_id, version, from_status, to_status, verb, actor, attempt, fence, reason, metadata, at, hash)
  select n.tenant, n.id, n.version, n.previous, n.status, n.verb, n.actor, a.attempt, n.fence, n.reason, n.metadata, n.updated_at,
    history_hash(p.hash, n.tenant, n.id, n.version, n.previous, n.status, n.verb, n.actor, a.attempt, n.fence,
      n.reason, n.metadata, now_micros)
  from changed n
  cross join lateral (select n.attempt - case when n.status = 'retry' and n.previous = 'running' then 1 else 0 end as attempt) a
  -- offset 0 keeps the planner from turning the join round: always from the few changed rows to the many of history
  cross join lateral (select h.hash from job_history h
    where h.tenant = n.tenant and h.job_id = n.id and h.version = n.version - 1 offset 0) p;
  get diagnostics written = row_count;
  if written <> changes then
    raise exception 'interlock: the history of a job lacks the row before this change; run interlock audit verify'
      using errcode = 'data_corrupted';
  end if;

  if granted then
    insert into lease (tenant, job_id, fence, worker, seconds, expires_at, run_ends_at)
    select n.tenant, n.id, n.fence, n.worker, coalesce(n.lease_seconds, 60), n.lease_expires_at,
      n.run_started_at + n.timeout_seconds * interval '1 second'
    from changed n where n.status = 'running' and n.previous <> 'running';
  end if;
  if ended then
    for part in select n.tenant, array_agg(n.id) as ids from changed n
        where n.previous = 'running' and n.status <> 'running' group by n.tenant loop
      delete from lease l where l.tenant = part.tenant and l.job_id = any(part.ids);
    end loop;
  end if;
  if entered then
    insert into ready (tenant, route, base, run_at, seq, job_id, deadline)
    select n.tenant, n.route, n.base, n.run_at, n.seq, n.id, n.deadline from changed n
    where n.status <= 'retry' and n.previous > 'retry'
      and not exists (select from job_await a where a.tenant = n.tenant and a.job_id = n.id);
  end if;
  if left_ready then
    delete from ready q using changed n
    where n.previous <= 'retry' and n.status > 'running'
      and q.tenant = n.tenant and q.route = n.route and q.run_at = n.run_at and q.seq = n.seq;
    delete from job_await a using changed n
    where n.previous <= 'retry' and n.status > 'running' and a.tenant = n.tenant and a.job_id = n.id;
  end if;
  if children then
    -- The waiting jobs first, as everywhere. Two children may end at once: the later one sees what the earlier has done.
    perform from job j where j.tenant = current_tenant() and j.id in (
      select a.job_id from changed n join job_await a on a.tenant = n.tenant and a.child_id = n.id
      where n.parent_id is not null and n.status >= 'succeeded') order by j.id for update;
    with gone as (
      delete from job_await a using changed n
      where n.parent_id is not null and n.status >= 'succeeded' and a.tenant = n.tenant and a.child_id = n.id
      returning a.job_id)
    select array_agg(distinct job_id) into parents from gone;
    if parents is not null then
      insert into ready (tenant, route, base, run_at, seq, job_id, deadline)
      select j.tenant, j.route, j.base, j.run_at, j.seq, j.id, j.deadline from job j
      where j.tenant = current_tenant() and j.id = any(parents) and j.status <= 'retry'
        and not exists (select from job_await a where a.tenant = j.tenant and a.job_id = j.id);
    end if;
  end if;
  return null;
end $$;
create trigger after_update after update on interlock.job referencing new table as changed
  for each statement execute function interlock.after_update();

-- An edit of a waiting job moves its place in ready; rare, so row by row, with the old key at hand.
create function interlock.move_ready() returns trigger
  language plpgsql security definer set search_path = interlock, pg_temp as $$
begin
  update ready q set route = new.route, base = new.base, run_at = new.run_at, deadline = new.deadline
  where q.tenant = old.tenant and q.route = old.route and q.run_at = old.run_at and q.seq = old.seq;
  return null;
end $$;
create trigger move_ready after update on interlock.job for each row
  when (old.status <= 'retry' and new.status = old.status) execute function interlock.move_ready();

create function interlock.refuse_history() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: history is append-only; % is refused', tg_op using errcode = 'insufficient_privilege';
end $$;
create function interlock.job_lives(p_tenant text, p_job_id uuid) returns boolean
  language sql stable return exists (select from interlock.job where tenant = p_tenant and id = p_job_id);
create trigger history_never_changes before update on interlock.job_history for each row execute function interlock.refuse_history();
create trigger history_goes_with_its_job before delete on interlock.job_history for each row
  when (interlock.job_lives(old.tenant, old.job_id)) execute function interlock.refuse_history();
create trigger history_is_not_truncated before truncate on interlock.job_history
  for each statement execute function interlock.refuse_history();

create function interlock.refuse_delete() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: only a job that has ended may be deleted, not %', old.id using errcode = 'check_violation';
end $$;
create trigger job_is_permanent before delete on interlock.job for each row
  when (old.status < 'succeeded') execute function interlock.refuse_delete();
create trigger job_is_not_truncated before truncate on interlock.job
  for each statement execute function interlock.refuse_history();
