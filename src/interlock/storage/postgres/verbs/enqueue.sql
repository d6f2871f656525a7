-- Finds the route of a job, making it where it is new, and its base.
create or replace function interlock.ensure_route(
  p_tenant text, p_type text, p_requires text[], p_priority integer, p_repository text, p_affinity_key text,
  out no bigint, out base bigint
) language plpgsql as $$
declare
  fresh bigint;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  for attempt in 1..2 loop
    select r.no, r.base into ensure_route.no, ensure_route.base from interlock.route r
    where r.tenant = p_tenant and r.type = p_type and r.priority = p_priority and r.requires = p_requires
      and r.repository is not distinct from p_repository and r.affinity_key is not distinct from p_affinity_key;
    exit when found or attempt = 2;
    fresh := nextval('interlock.route_no');
    insert into interlock.route (tenant, no, base, type, requires, priority, repository, affinity_key)
    select p_tenant, fresh,
      case when p_repository is null and p_affinity_key is null then fresh
        else (interlock.ensure_route(p_tenant, p_type, p_requires, p_priority, null, null)).base end,
      p_type, p_requires, p_priority, p_repository, p_affinity_key
    on conflict do nothing;
  end loop;
end $$;

-- Adds jobs in the order given. A key that another job holds, or an id that is there, inserts nothing for that item.
create or replace function interlock.enqueue(
  p_tenant text, ids uuid[], types text[], payloads text[], priorities integer[], routes bigint[], bases bigint[],
  run_ats timestamptz[], delays double precision[], deadlines timestamptz[], timeouts double precision[], max_attempts integer[],
  backoffs text[], expiry_delays double precision[], headers text[], traceparents text[], tags text[], agent_kinds text[],
  agent_ids text[], affinity_keys text[], repositories text[], requires text[], keys text[], bodies bytea[], webhooks text[],
  parents uuid[], redrives uuid[], creators text[], requesters text[]
) returns table (new_id uuid, new_seq bigint) language plpgsql
  set plan_cache_mode = force_generic_plan set jit = off as $$
declare
  t timestamptz := interlock.clock();
begin
  perform set_config('interlock.tenant', p_tenant, true);
  if cardinality(array_remove(keys, null)) > 1 then
    -- Keys are taken in one order everywhere, so that two batches with the same keys cannot wait for each other.
    return query
    with numbered as materialized (
      select u.*, nextval('interlock.job_seq_seq') as seq
      from unnest(ids, types, payloads, priorities, routes, bases, run_ats, delays, deadlines, timeouts, max_attempts, backoffs,
        expiry_delays, headers, traceparents, tags, agent_kinds, agent_ids, affinity_keys, repositories, requires, keys, bodies,
        webhooks, parents, redrives, creators, requesters)
      as u(id, type, payload, priority, route, base, run_at, delay, deadline, timeout, max_attempts, backoff, expiry_delay, header,
        traceparent, tags, agent_kind, agent_id, affinity_key, repository, requires, key, body, webhook, parent, redrive, creator,
        requester)
    )
    insert into interlock.job (tenant, id, seq, type, status, priority, route, base, run_at, deadline, timeout_seconds, attempt,
      max_attempts, fence, version, releases, created_at, updated_at, verb, actor, parent_id, redrive_of, agent_kind, agent_id,
      repository, affinity_key, requires, tags, idempotency_key, body_sha256, backoff, expiry_delay_seconds, headers, traceparent,
      webhook, created_by, requested_by, payload)
    overriding system value
    select p_tenant, n.id, n.seq, n.type, 'queued', n.priority, n.route, n.base,
      coalesce(n.run_at, t + n.delay * interval '1 second', t), n.deadline, n.timeout, 1, n.max_attempts, 0, 1, 0, t, t, 'enqueue',
      n.creator, n.parent, n.redrive, n.agent_kind, n.agent_id, n.repository, n.affinity_key, n.requires::text[], n.tags::text[],
      n.key, n.body, n.backoff, n.expiry_delay, n.header, n.traceparent, n.webhook, n.creator, n.requester, n.payload
    from numbered n order by n.key, n.seq
    on conflict do nothing returning id, seq;
  else
    return query
    insert into interlock.job (tenant, id, type, status, priority, route, base, run_at, deadline, timeout_seconds, attempt,
      max_attempts, fence, version, releases, created_at, updated_at, verb, actor, parent_id, redrive_of, agent_kind, agent_id,
      repository, affinity_key, requires, tags, idempotency_key, body_sha256, backoff, expiry_delay_seconds, headers, traceparent,
      webhook, created_by, requested_by, payload)
    select p_tenant, n.id, n.type, 'queued', n.priority, n.route, n.base,
      coalesce(n.run_at, t + n.delay * interval '1 second', t), n.deadline, n.timeout, 1, n.max_attempts, 0, 1, 0, t, t, 'enqueue',
      n.creator, n.parent, n.redrive, n.agent_kind, n.agent_id, n.repository, n.affinity_key, n.requires::text[], n.tags::text[],
      n.key, n.body, n.backoff, n.expiry_delay, n.header, n.traceparent, n.webhook, n.creator, n.requester, n.payload
    from unnest(ids, types, payloads, priorities, routes, bases, run_ats, delays, deadlines, timeouts, max_attempts, backoffs,
        expiry_delays, headers, traceparents, tags, agent_kinds, agent_ids, affinity_keys, repositories, requires, keys, bodies,
        webhooks, parents, redrives, creators, requesters)
      as n(id, type, payload, priority, route, base, run_at, delay, deadline, timeout, max_attempts, backoff, expiry_delay, header,
        traceparent, tags, agent_kind, agent_id, affinity_key, repository, requires, key, body, webhook, parent, redrive, creator,
        requester)
    on conflict do nothing returning id, seq;
  end if;
end $$;

-- Who holds these keys or ids already.
create or replace function interlock.holders(p_tenant text, p_keys text[], p_ids uuid[])
returns table (key text, id uuid, seq bigint, body bytea) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select j.idempotency_key, j.id, j.seq, j.body_sha256 from interlock.job j
    where j.tenant = p_tenant and j.idempotency_key = any(p_keys)
    union select null, j.id, j.seq, j.body_sha256 from interlock.job j where j.tenant = p_tenant and j.id = any(p_ids);
end $$;

-- Which of these parents may still have children; held so until the transaction ends.
create or replace function interlock.open_parents(p_tenant text, p_ids uuid[])
returns table (id uuid, is_open boolean) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select j.id, j.status < 'succeeded' and j.cancel_requested_at is null from interlock.job j
    where j.tenant = p_tenant and j.id = any(p_ids) order by j.id for share;
end $$;
