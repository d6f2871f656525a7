-- Digests of the values that a transition covers; the same bytes as in domain/digests.py. The digest of null is null.

create or replace function interlock.digest(value text) returns text
  language sql stable parallel safe return encode(sha256(convert_to(value, 'UTF8')), 'hex');

-- Return a name and a digest as a member of a JSON object; null if the digest is null.
create or replace function interlock.named_digest(name text, value text) returns text
  language sql immutable parallel safe return '"' || name || '":"' || value || '"';

-- Append these members to the metadata.
create or replace function interlock.with_digests(metadata text, members text) returns text language sql immutable parallel safe return
  case when members = '' then metadata when metadata is null or metadata = '{}' then '{"digests":{' || members || '}}'
    else left(metadata, -1) || ',"digests":{' || members || '}}' end;

create or replace function interlock.listed(items text[]) returns text language sql immutable parallel safe return
  case when cardinality(items) = 0 then '' else
    (select string_agg(interlock.field(i.item), '' order by i.ordinal) from unnest(items) with ordinality as i(item, ordinal)) end;

create or replace function interlock.options_digest(j interlock.job) returns text language sql stable parallel safe return
  interlock.digest({digest});

create or replace function interlock.checkpoint_digest(p_tenant text, p_job_id uuid) returns text language plpgsql stable as $$
begin
  return (select interlock.digest(interlock.field(c.seq) || interlock.field(c.data)) from interlock.job_checkpoint c
    where c.tenant = p_tenant and c.job_id = p_job_id);
end $$;

-- Return the digest of the steps saved under one lease, or copied by a redrive (fence 0).
create or replace function interlock.steps_digest(p_tenant text, p_job_id uuid, p_fence bigint) returns text language plpgsql stable as $$
begin
  return (select encode(sha256(string_agg(convert_to(interlock.field(s.seq) || interlock.field(s.name) || interlock.field(s.occurrence)
      || interlock.field(s.function) || interlock.field(s.fence) || interlock.field(interlock.micros(s.at))
      || interlock.field(s.sanitized::integer) || interlock.field(interlock.digest(s.result)), 'UTF8'), ''::bytea order by s.seq)), 'hex')
    from interlock.job_step s where s.tenant = p_tenant and s.job_id = p_job_id and s.fence = p_fence);
end $$;

create or replace function interlock.request_digest(p_tenant text, p_job_id uuid, p_fence bigint) returns text language plpgsql stable as $$
begin
  return (select interlock.digest(interlock.field(a.id::text) || interlock.field(a.fence) || interlock.field(a.prompt)
      || interlock.field(a.details) || interlock.field(a.risk) || interlock.field(a.schema) || interlock.field(a.digest)
      || interlock.field(a.required) || interlock.field(a.on_deny) || interlock.field(a.kind) || interlock.field(a.opened_by)
      || interlock.field(interlock.micros(a.opened_at)) || interlock.field(interlock.micros(a.expires_at)) || interlock.field(a.name)
      || interlock.field(a.occurrence))
    from interlock.approval a where a.tenant = p_tenant and a.job_id = p_job_id and a.fence = p_fence);
end $$;

-- Return the digest of a closed approval. p_if_open: the status an open approval is about to get.
create or replace function interlock.decision_digest(p_tenant text, p_id uuid, p_if_open text) returns text language plpgsql stable as $$
begin
  return (select interlock.digest(interlock.field(case when a.status = 'open' then coalesce(p_if_open, a.status) else a.status end)
      || interlock.field(a.closed_by) || interlock.field(a.comment) || interlock.field(a.data)
      || coalesce((select string_agg(interlock.field(v.voter) || interlock.field(v.decision) || interlock.field(v.comment)
        || interlock.field(interlock.micros(v.at)), '' order by v.at, v.voter)
        from interlock.approval_vote v where v.tenant = p_tenant and v.approval_id = p_id), ''))
    from interlock.approval a where a.tenant = p_tenant and a.id = p_id);
end $$;

create or replace function interlock.refuse_metadata(p_metadata text) returns void language plpgsql immutable as $$
begin
  if p_metadata is not null and (json_typeof(p_metadata::json) <> 'object' or p_metadata::json -> 'digests' is not null) then
    raise exception 'interlock: metadata is a JSON object without digests: the database adds those' using errcode = 'check_violation';
  end if;
end $$;

-- Return the metadata of the history row for a job's creation, or for a change, if the operation does not supply it.
create or replace function interlock.metadata_of_creation(n interlock.job) returns text language plpgsql stable as $$
begin
  perform interlock.refuse_metadata(n.metadata);
  return interlock.with_digests(n.metadata, interlock.named_digest('options', interlock.options_digest(n)) || ','
    || interlock.named_digest('payload', interlock.digest(n.payload)));
end $$;
create or replace function interlock.metadata_of_change(o interlock.job, n interlock.job) returns text language plpgsql stable as $$
declare
  stopped boolean := o.status = 'running' and n.status <> 'running';
begin
  if current_user <> 'interlock_verbs' then  -- PostgreSQL may reject JSON of operations
    perform interlock.refuse_metadata(n.metadata);
  end if;
  return interlock.with_digests(n.metadata, concat_ws(',',
    case when stopped then interlock.named_digest('checkpoint', interlock.checkpoint_digest(n.tenant, n.id)) end,
    case when o.status = 'waiting_for_approval' and n.status <> o.status then interlock.named_digest('decision',
      interlock.decision_digest(n.tenant, o.approval_id, case n.verb when 'expire' then 'expired' else 'void' end)) end,
    case when n.status <> 'succeeded' and (n.error is distinct from o.error or (stopped and n.status in ('retry', 'failed', 'dead_letter')))
      then coalesce(interlock.named_digest('error', interlock.digest(n.error)), '"error":null') end,
    case when n.verb = 'edit' or (n.priority, n.deadline, n.timeout_seconds, n.max_attempts, n.tags)
        is distinct from (o.priority, o.deadline, o.timeout_seconds, o.max_attempts, o.tags)
      then interlock.named_digest('options', interlock.options_digest(n)) end,
    case when n.status = 'waiting_for_approval' then interlock.named_digest('request', interlock.request_digest(n.tenant, n.id, n.fence)) end,
    case when n.result is distinct from o.result then coalesce(interlock.named_digest('result', interlock.digest(n.result)), '"result":null') end,
    case when stopped then interlock.named_digest('steps', interlock.steps_digest(n.tenant, n.id, n.fence)) end,
    case when n.result_summary is distinct from o.result_summary
      then coalesce(interlock.named_digest('summary', interlock.digest(n.result_summary)), '"summary":null') end,
    case when n.usage is distinct from o.usage then coalesce(interlock.named_digest('usage', interlock.digest(n.usage)), '"usage":null') end));
end $$;

-- The same for completions (sorted ids), in their order; null if no job has anything to cover. Ids of one batch are mostly
-- adjacent, so one range probe usually shows that none of them has saved progress.
create or replace function interlock.metadatas_of_completions(
  p_tenant text, p_ids uuid[], p_results text[], p_summaries text[], p_usages text[]
) returns text[] language plpgsql stable as $$
declare
  saved boolean := exists (select from job_checkpoint c where c.tenant = p_tenant and c.job_id between p_ids[1] and p_ids[cardinality(p_ids)])
    or exists (select from job_step s where s.tenant = p_tenant and s.job_id between p_ids[1] and p_ids[cardinality(p_ids)]);
begin
  if not saved and p_results is null and p_summaries is null and p_usages is null then
    return null;
  end if;
  return array(select with_digests(null, concat_ws(',',
      case when saved then named_digest('checkpoint', checkpoint_digest(p_tenant, u.id)) end, named_digest('result', digest(u.result)),
      case when saved then named_digest('steps', steps_digest(p_tenant, u.id,
        (select l.fence from lease l where l.tenant = p_tenant and l.job_id = u.id))) end,
      named_digest('summary', digest(u.summary)), named_digest('usage', digest(u.usage))))
    from unnest(p_ids, p_results, p_summaries, p_usages) with ordinality as u(id, result, summary, usage, ordinal) order by u.ordinal);
end $$;

-- Return whether the metadata of a history row has the digests of all progress saved in the run it ended.
create or replace function interlock.covers_progress(p_tenant text, p_id uuid, p_fence bigint, p_metadata text) returns boolean language plpgsql stable as $$
declare
  steps text := interlock.steps_digest(p_tenant, p_id, p_fence);
  checkpoint text := interlock.checkpoint_digest(p_tenant, p_id);
begin
  return (steps is null or position(interlock.named_digest('steps', steps) in coalesce(p_metadata, '')) > 0)
    and (checkpoint is null or position(interlock.named_digest('checkpoint', checkpoint) in coalesce(p_metadata, '')) > 0);
end $$;
