-- Whoever looks first lets those jobs join their lines whose time has come, so that what is told is true.
create or replace function interlock.jobs(p_tenant text, p_ids uuid[]) returns setof interlock.job_view language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  if exists (select from interlock.agent a where a.tenant = p_tenant and a.next_due <= interlock.clock()) then
    perform interlock.join_lines(p_tenant);
  end if;
  return query select v.* from interlock.job_view v where v.tenant = p_tenant and v.id = any(p_ids);
end $$;

-- Newest first, read from wherever the fewest rows have to be looked at; the statement has only those conditions that were asked
-- for, so that an index can serve them. What a list leaves out is blanked here, so that it is not even read.
create or replace function interlock.find_jobs(
  p_tenant text, p_statuses interlock.status[], p_type text, p_agent_kind text, p_agent_id text, p_worker text,
  p_stale_seconds double precision, p_parent_id uuid, p_tags text[],
  p_created_after timestamptz, p_created_before timestamptz, p_before_seq bigint, p_limit integer
) returns setof interlock.job_view language plpgsql as $$
declare
  found_in text := 'interlock.job_view v where v.tenant = $1';
  newest_first text := 'v.seq';
begin
  perform set_config('interlock.tenant', p_tenant, true);
  if exists (select from interlock.agent a where a.tenant = p_tenant and a.next_due <= interlock.clock()) then
    perform interlock.join_lines(p_tenant);
  end if;
  if p_worker is not null or p_stale_seconds is not null or (p_statuses <@ '{running}' and p_parent_id is null) then
    found_in := '(select l.job_id from interlock.lease l where l.tenant = $1 and ($6 is null or l.worker = $6) offset 0) c
      join interlock.job_view v on v.tenant = $1 and v.id = c.job_id where true';
  elsif p_statuses <@ '{waiting_for_approval}' and p_parent_id is null then
    found_in := '(select a.job_id from interlock.approval a where a.tenant = $1 and a.status = ''open'' offset 0) c
      join interlock.job_view v on v.tenant = $1 and v.id = c.job_id where true';
  elsif p_statuses <@ '{failed,dead_letter,cancelled}' and p_parent_id is null and p_agent_kind is null then
    -- offset 0 keeps the planner from walking all jobs in search of the few that ended so
    found_in := '(select s.seq from interlock.setback s where s.tenant = $1 and s.status = '
      || case when cardinality(p_statuses) = 1 then '($2)[1]' else 'any($2)' end
      || case when p_before_seq is null then '' else ' and s.seq < $12' end || ' order by s.seq desc offset 0) c
      cross join lateral (select w.* from interlock.job_view w where w.tenant = $1 and w.seq = c.seq offset 0) v where true';
    newest_first := 'c.seq';
  elsif p_statuses <@ '{queued,retry}' and p_parent_id is null and p_agent_kind is null
      and (select count(*) from (select from interlock.ready q where q.tenant = p_tenant limit 1001) few) <= 1000 then
    found_in := '(select q.job_id from interlock.ready q where q.tenant = $1
        union select a.job_id from interlock.job_await a where a.tenant = $1 offset 0) c
      join interlock.job_view v on v.tenant = $1 and v.id = c.job_id where true';
  end if;
  return query execute
    'select v.tenant, v.id, v.seq, v.type, v.status, v.priority, null::text, v.headers, v.traceparent, v.tags, v.agent_kind, v.agent_id,
      v.affinity_key, v.repository, v.requires, v.idempotency_key, v.webhook, v.parent_id, v.redrive_of, v.created_by, v.requested_by,
      v.run_at, v.deadline, v.timeout_seconds, v.backoff, v.expiry_delay_seconds, v.attempt, v.max_attempts, v.worker, v.fence,
      v.lease_expires_at, v.heartbeat_at, v.gate_id, v.awaiting, v.cancel_requested_at, v.cancel_reason, null::text, v.checkpoint_seq,
      v.usage, null::text, v.result_summary, null::text, v.sanitized, v.version, v.releases, v.created_at, v.updated_at, v.started_at,
      v.run_started_at, v.finished_at, v.blocked from ' || found_in
    || case when p_before_seq is null then ' and v.seq <= 9223372036854775807' else ' and v.seq < $12' end
    || case when p_statuses is null then '' else ' and v.status = any($2)' end
    || case when p_type is null then '' else ' and v.type = $3' end
    || case when p_agent_kind is null then '' else ' and v.agent_kind = $4 and v.agent_id = $5' end
    || case when p_worker is null then '' else ' and v.worker = $6' end
    || case when p_stale_seconds is null then '' else ' and v.status = ''running''
         and coalesce(v.heartbeat_at, v.run_started_at) <= interlock.clock() - $7 * interval ''1 second''' end
    || case when p_parent_id is null then '' else ' and v.parent_id = $8' end
    || case when cardinality(p_tags) = 0 then '' else ' and v.tags @> $9' end
    || case when p_created_after is null then '' else ' and v.created_at >= $10' end
    || case when p_created_before is null then '' else ' and v.created_at < $11' end
    || ' order by ' || newest_first || ' desc limit $13'
    using p_tenant, p_statuses, p_type, p_agent_kind, p_agent_id, p_worker, p_stale_seconds, p_parent_id, p_tags, p_created_after,
      p_created_before, p_before_seq, p_limit;
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
