-- Return the payloads of jobs, which their approval digests cover.
create or replace function interlock.payloads(p_tenant text, p_ids uuid[]) returns table (id uuid, payload text) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select j.id, j.payload from interlock.job j where j.tenant = p_tenant and j.id = any(p_ids);
end $$;

-- Insert an approval; the same transaction then suspends its job.
create or replace function interlock.request_approval(
  p_tenant text, p_id uuid, p_job_id uuid, p_fence bigint, p_prompt text, p_details text, p_risk text, p_schema text, p_digest text,
  p_required integer, p_on_deny text, p_opened_by text, p_seconds double precision, p_name text, p_occurrence integer
) returns void language plpgsql as $$
declare
  t timestamptz := interlock.clock();
begin
  perform set_config('interlock.tenant', p_tenant, true), set_config('interlock.verb', 'on', true);
  insert into interlock.approval (tenant, id, job_id, fence, status, prompt, details, risk, schema, digest, required, on_deny, opened_by,
    opened_at, expires_at, deadline, name, occurrence)
  select p_tenant, p_id, j.id, p_fence, 'open', p_prompt, p_details, p_risk, p_schema, p_digest, p_required, p_on_deny, p_opened_by,
    t, t + p_seconds * interval '1 second', j.deadline, p_name, coalesce(p_occurrence, 1 + (select count(*)::integer
      from interlock.approval a where a.tenant = p_tenant and a.job_id = p_job_id and a.name is not distinct from p_name))
  from interlock.job j where j.tenant = p_tenant and j.id = p_job_id;
  perform set_config('interlock.verb', '', true);
end $$;

create or replace function interlock.approvals(p_tenant text, p_ids uuid[]) returns setof interlock.approval_view language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select v.* from interlock.approval_view v where v.tenant = p_tenant and v.id = any(p_ids);
end $$;

-- Return approvals by id and lock them until the transaction ends. A caller that also changes the job locks the job
-- first.
create or replace function interlock.lock_approvals(p_tenant text, p_ids uuid[]) returns setof interlock.approval_view language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  perform from interlock.approval a where a.tenant = p_tenant and a.id = any(p_ids) order by a.id for update;
  return query select v.* from interlock.approval_view v where v.tenant = p_tenant and v.id = any(p_ids);
end $$;

-- List approvals newest first, or open ones by expiry, starting after a position. Open approvals and those of one job
-- each have an index.
create or replace function interlock.find_approvals(
  p_tenant text, p_status text, p_job_id uuid, p_fence bigint, p_at timestamptz, p_id uuid, p_limit integer, p_urgent boolean
) returns setof interlock.approval_view language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  if p_urgent then
    return query select v.* from interlock.approval_view v
      where v.tenant = p_tenant and v.status = 'open' and (p_id is null or (v.expires_at, v.id) > (p_at, p_id))
      order by v.expires_at, v.id limit p_limit;
  elsif p_job_id is not null then
    return query select v.* from interlock.approval_view v
      where v.tenant = p_tenant and v.job_id = p_job_id and (p_fence is null or v.fence = p_fence)
        and (p_status is null or v.status = p_status)
        and (p_id is null or (v.opened_at, v.id) < (p_at, p_id))
      order by v.opened_at desc, v.id desc limit p_limit;
  elsif p_status = 'open' then
    return query select v.* from interlock.approval_view v
      where v.tenant = p_tenant and v.status = 'open' and (p_id is null or (v.opened_at, v.id) < (p_at, p_id))
      order by v.opened_at desc, v.id desc limit p_limit;
  else
    return query select v.* from interlock.approval_view v
      where v.tenant = p_tenant and (p_status is null or v.status = p_status)
        and (p_id is null or (v.opened_at, v.id) < (p_at, p_id))
      order by v.opened_at desc, v.id desc limit p_limit;
  end if;
end $$;

-- Return the decided approvals of each job, oldest first.
create or replace function interlock.decisions(p_tenant text, p_job_ids uuid[]) returns setof interlock.approval_view language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select v.* from unnest(p_job_ids) i(job_id) cross join lateral
    (select w.* from interlock.approval_view w where w.tenant = p_tenant and w.job_id = i.job_id and w.status in ('approved', 'denied')
     order by w.fence) v;
end $$;

create or replace function interlock.vote(
  p_tenant text, p_id uuid, p_job_id uuid, p_voter text, p_decision text, p_comment text, p_at timestamptz
) returns void language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true), set_config('interlock.verb', 'on', true);
  insert into interlock.approval_vote (tenant, approval_id, job_id, voter, decision, comment, at)
  values (p_tenant, p_id, p_job_id, p_voter, p_decision, p_comment, p_at);
  perform set_config('interlock.verb', '', true);
end $$;

create or replace function interlock.close_approval(
  p_tenant text, p_id uuid, p_status text, p_by text, p_at timestamptz, p_comment text, p_data text
) returns void language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true), set_config('interlock.verb', 'on', true);
  update interlock.approval a set status = p_status, closed_by = p_by, closed_at = p_at, comment = p_comment, data = p_data
  where a.tenant = p_tenant and a.id = p_id;
  perform set_config('interlock.verb', '', true);
end $$;

create or replace function interlock.create_link(p_tenant text, p_id uuid, p_sha256 bytea, p_actor text) returns void language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  update interlock.approval a set token_sha256 = p_sha256, link_created_by = p_actor, link_created_at = interlock.clock()
  where a.tenant = p_tenant and a.id = p_id;
end $$;
