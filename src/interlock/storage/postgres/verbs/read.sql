-- Whoever looks first lets those jobs join their lines whose time has come, so that what is told is true.
create or replace function interlock.jobs(p_tenant text, p_ids uuid[]) returns setof interlock.job_view language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  if exists (select from interlock.agent a where a.tenant = p_tenant and a.next_due <= interlock.clock()) then
    perform interlock.join_lines(p_tenant);
  end if;
  return query select v.* from interlock.job_view v where v.tenant = p_tenant and v.id = any(p_ids);
end $$;

-- Newest first. What a list leaves out is blanked here, so that it is not even read.
create or replace function interlock.find_jobs(
  p_tenant text, p_statuses interlock.status[], p_type text, p_agent_kind text, p_agent_id text, p_worker text,
  p_stale_seconds double precision, p_parent_id uuid, p_tags text[],
  p_created_after timestamptz, p_created_before timestamptz, p_before_seq bigint, p_limit integer
) returns setof interlock.job_view language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  if exists (select from interlock.agent a where a.tenant = p_tenant and a.next_due <= interlock.clock()) then
    perform interlock.join_lines(p_tenant);
  end if;
  return query
  select v.tenant, v.id, v.seq, v.type, v.status, v.priority, null::text, v.headers, v.traceparent, v.tags, v.agent_kind, v.agent_id,
    v.affinity_key, v.repository, v.requires, v.idempotency_key, v.webhook, v.parent_id, v.redrive_of, v.created_by, v.requested_by,
    v.run_at, v.deadline, v.timeout_seconds, v.backoff, v.expiry_delay_seconds, v.attempt, v.max_attempts, v.worker, v.fence,
    v.lease_expires_at, v.heartbeat_at, v.gate_id, v.awaiting, v.cancel_requested_at, v.cancel_reason, null::text, v.checkpoint_seq,
    v.usage, null::text, v.result_summary, null::text, v.sanitized, v.version, v.releases, v.created_at, v.updated_at, v.started_at,
    v.run_started_at, v.finished_at, v.blocked
  from interlock.job_view v
  where v.tenant = p_tenant and (p_before_seq is null or v.seq < p_before_seq)
    and (p_statuses is null or v.status = any(p_statuses)) and (p_type is null or v.type = p_type)
    and (p_agent_kind is null or (v.agent_kind = p_agent_kind and v.agent_id = p_agent_id))
    and (p_worker is null or v.worker = p_worker)
    and (p_stale_seconds is null or (v.status = 'running'
      and coalesce(v.heartbeat_at, v.run_started_at) <= interlock.clock() - p_stale_seconds * interval '1 second'))
    and (p_parent_id is null or v.parent_id = p_parent_id)
    and v.tags @> p_tags and (p_created_after is null or v.created_at >= p_created_after)
    and (p_created_before is null or v.created_at < p_created_before)
  order by v.seq desc limit p_limit;
end $$;

create or replace function interlock.history(p_tenant text, p_job_id uuid) returns setof interlock.job_history language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select h.* from interlock.job_history h where h.tenant = p_tenant and h.job_id = p_job_id order by h.version;
end $$;

-- Part of a tenant's chains, job by job from one id on, beside what each job itself says.
create or replace function interlock.chains(p_tenant text, p_after uuid, p_jobs integer)
returns table (tenant text, job_id uuid, version integer, from_status interlock.status, to_status interlock.status, verb text,
  actor text, attempt integer, fence bigint, reason text, metadata text, at timestamptz, hash bytea, job_version integer,
  job_status interlock.status) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query
  with recursive chosen(id, n) as (
    (select h.job_id, 1 from interlock.job_history h where h.tenant = p_tenant and h.job_id > p_after order by h.job_id limit 1)
    union all
    select (select h.job_id from interlock.job_history h where h.tenant = p_tenant and h.job_id > chosen.id order by h.job_id limit 1), n + 1
    from chosen where chosen.id is not null and n < p_jobs
  )
  select h.tenant, h.job_id, h.version, h.from_status, h.to_status, h.verb, h.actor, h.attempt, h.fence, h.reason, h.metadata, h.at,
    h.hash, j.version, j.status
  from chosen join interlock.job_history h on h.tenant = p_tenant and h.job_id = chosen.id
  left join interlock.job j on j.tenant = h.tenant and j.id = h.job_id
  order by h.job_id, h.version;
end $$;

create or replace function interlock.without_history(p_tenant text) returns setof uuid language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select j.id from interlock.job j where j.tenant = p_tenant
    and not exists (select from interlock.job_history h where h.tenant = j.tenant and h.job_id = j.id) limit 1;
end $$;

-- The ends of a tenant's chains.
create or replace function interlock.heads(p_tenant text, p_after uuid, p_limit integer)
returns table (job_id uuid, hash bytea) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select j.id, h.hash from interlock.job j
    join interlock.job_history h on h.tenant = j.tenant and h.job_id = j.id and h.version = j.version
    where j.tenant = p_tenant and j.id > p_after order by j.id limit p_limit;
end $$;
