-- The rules that every change of a job obeys; the database rejects illegal ones from its own functions too.

-- Return whether a change only acknowledges a failure: the one change that a terminal job accepts.
create function interlock.only_acknowledges(o interlock.job, n interlock.job) returns boolean language plpgsql immutable as $$
begin
  if o.acknowledged_at is not null or n.acknowledged_at is null or n.verb <> 'acknowledge' or n.acknowledged_by is distinct from n.actor then
    return false;
  end if;
  n.acknowledged_at := null; n.acknowledged_by := null; n.version := o.version; n.previous := o.previous; n.verb := o.verb;
  n.actor := o.actor; n.reason := o.reason; n.metadata := o.metadata; n.updated_at := o.updated_at;
  return n is not distinct from o;
end $$;

-- The guard. Its WHEN clause accepts claims and completions, which every job has, without calling the function. The
-- clause is short because its length is a cost of each statement.
create function interlock.guard_move() returns trigger language plpgsql as $$
begin
  if old.status >= 'succeeded' and not interlock.only_acknowledges(old, new) then
    raise exception 'interlock: job % has ended as %, which is final; redrive makes a new job', old.id, old.status
      using errcode = 'check_violation';
  elsif new.version is distinct from old.version + 1 or new.previous is distinct from old.status then
    raise exception 'interlock: job %: every change raises version by one and names the status it leaves', old.id
      using errcode = 'check_violation';
  elsif not {legal old.status new} then
    raise exception 'interlock: job %: % → % is not a legal move', old.id, old.status, new.status
      using errcode = 'check_violation';
  elsif old.status < 'succeeded' and new.acknowledged_at is not null then
    raise exception 'interlock: job %: only an acknowledgement sets acknowledged_at and acknowledged_by', old.id
      using errcode = 'check_violation';
  elsif new.attempt <> old.attempt + (new.status = 'retry' and old.status = 'running')::integer then
    raise exception 'interlock: job %: attempt rises exactly when another try is scheduled, not % → % at % → %', old.id,
      old.attempt, new.attempt, old.status, new.status using errcode = 'check_violation';
  elsif (case when new.status = 'running' and old.status <> 'running' then new.fence <= old.fence else new.fence <> old.fence end) then
    raise exception 'interlock: job %: fence rises exactly when a lease begins, not % → % at % → %', old.id, old.fence, new.fence,
      old.status, new.status using errcode = 'check_violation';
  elsif old.status = 'running' and new.worker <> old.worker then
    raise exception 'interlock: job %: its worker changes only when a lease begins, not % → %', old.id, old.worker, new.worker
      using errcode = 'check_violation';
  end if;
  if new.status = 'waiting_for_approval' and not exists (select from interlock.approval a where a.tenant = new.tenant
      and a.id = new.approval_id and a.job_id = new.id and a.fence = new.fence and a.status = 'open') then
    raise exception 'interlock: job %: it waits only for its own open approval, requested under its last lease', old.id
      using errcode = 'check_violation';
  elsif (new.eligibility_key, new.base, new.priority) is distinct from (old.eligibility_key, old.base, old.priority) and not exists (
      select from interlock.eligibility_key r where r.tenant = new.tenant and r.no = new.eligibility_key and r.base = new.base and r.priority = new.priority
        and r.type = new.type and r.requires = new.requires and r.repository is not distinct from new.repository
        and r.affinity_key is not distinct from new.affinity_key) then
    raise exception 'interlock: job %: its eligibility key must match its type, requirements, priority, repository and affinity key', old.id
      using errcode = 'check_violation';
  end if;
  new.updated_at := interlock.clock();
  if new.acknowledged_at is not null then
    new.acknowledged_at := new.updated_at;
  end if;
  if current_user <> 'interlock_verbs' or new.head = old.head then  -- claims and completions supply the hash
    new.metadata := interlock.metadata_of_change(old, new);
    new.head := interlock.history_hash(old.head, new.version, new.previous, new.status, new.verb, new.actor, old.attempt, new.fence,
      new.reason, new.metadata, interlock.micros(new.updated_at));
  end if;
  return new;
end $$;
create trigger guard_move before update on interlock.job for each row
  when ((
    new.version = old.version + 1 and new.previous = old.status and new.attempt = old.attempt and new.updated_at = now()
    and current_user = 'interlock_verbs' and case when old.status = 'running' then new.fence = old.fence and new.status = 'succeeded'
             else old.status <= 'retry' and new.status = 'running' and new.fence > old.fence end) is not true)
  execute function interlock.guard_move();

-- A row in ready is found by run_at and eligibility key, so a transition that ends the wait must not change them.
create function interlock.reject_reorder() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: job %: when it is due and who may have it change while it waits, not as it stops waiting', old.id
    using errcode = 'check_violation';
end $$;
create trigger guard_order before update of run_at, eligibility_key on interlock.job for each row
  when (old.status <= 'retry' and new.status <> old.status and (new.run_at <> old.run_at or new.eligibility_key <> old.eligibility_key))
  execute function interlock.reject_reorder();

create function interlock.guard_enqueue() returns trigger language plpgsql as $$
begin
  if (new.status = 'queued' and new.version = 1 and new.attempt = 1 and new.fence = 0 and new.previous is null) is not true then
    raise exception 'interlock: a new job is queued, at version 1, attempt 1 and fence 0' using errcode = 'check_violation';
  end if;
  new.updated_at := interlock.clock();
  if current_user <> 'interlock_verbs' then
    new.metadata := interlock.metadata_of_creation(new);
    new.head := interlock.history_hash(interlock.origin(new.tenant, new.id), 1, null, new.status, new.verb, new.actor, 1, 0,
      new.reason, new.metadata, interlock.micros(new.updated_at));
  end if;
  return new;
end $$;
create trigger guard_enqueue before insert on interlock.job for each row
  when ((new.status = 'queued' and new.version = 1 and new.attempt = 1 and new.fence = 0 and new.previous is null
    and new.updated_at = now() and current_user = 'interlock_verbs') is not true)
  execute function interlock.guard_enqueue();

create function interlock.refuse_delete() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: only a job that has ended may be deleted, with all it owns, not %: use interlock prune', old.id
    using errcode = 'check_violation';
end $$;
create trigger job_is_permanent before delete on interlock.job for each row
  when (old.status < 'succeeded' or current_setting('interlock.verb', true) is distinct from 'on') execute function interlock.refuse_delete();
create trigger job_is_not_truncated before truncate on interlock.job
  for each statement execute function interlock.refuse_history();

create function interlock.refuse_by_hand() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: %', tg_argv[0] using errcode = 'check_violation';
end $$;

-- Operations set `interlock.verb` for the length of their statement. Writes by triggers follow from a legal change and
-- pass. PostgreSQL reads the text of a WHEN clause in every statement, so it only excludes the role of the hot path.
create function interlock.refuse_direct() returns trigger language plpgsql as $$
begin
  if pg_trigger_depth() = 1 and current_setting('interlock.verb', true) is distinct from 'on' then
    raise exception 'interlock: %', tg_argv[0] using errcode = 'check_violation';
  end if;
  return null;
end $$;

do $$
declare
  kept record;
begin
  for kept in select * from (values
      ('ready', 'insert or update or delete', 'what may be claimed is kept by the changes of jobs; change the job'),
      ('lease', 'insert or update of tenant, job_id, fence, worker or delete', 'leases are kept by the changes of jobs; change the job'),
      ('job_await', 'insert or update or delete', 'only a release makes a job wait for children, until they have ended')
    ) as k(name, changes, why) loop
    execute format('create trigger %I before %s on interlock.%I for each statement
      when (current_user <> ''interlock_verbs'') execute function interlock.refuse_direct(%L)', 'z_not_by_hand_' || left(kept.changes, 6), kept.changes, kept.name, kept.why);
  end loop;
end $$;

-- Jobs are found by their eligibility keys.
create trigger route_never_changes before update or delete on interlock.eligibility_key for each statement
  execute function interlock.refuse_by_hand('a route never changes and stays; jobs are found by it');
create trigger tenant_is_permanent before delete or update of tenant on interlock.tenant for each statement
  execute function interlock.refuse_by_hand('a tenant stays');
