-- For prune: delete jobs with everything they own, except history that is left to its partition.
create or replace function interlock.delete_jobs(p_tenant text, p_ids uuid[], p_chained uuid[]) returns void language plpgsql as $$
begin
  delete from interlock.unsuccessful_job s using interlock.job j
    where j.tenant = p_tenant and j.id = any(p_ids) and s.tenant = p_tenant and s.status = j.status::text and s.seq = j.seq;
  -- Delete the job first: the guards reject deleting what belongs to an existing job.
  perform set_config('interlock.verb', 'on', true);
  delete from interlock.job j where j.tenant = p_tenant and j.id = any(p_ids);
  perform set_config('interlock.verb', '', true);
  delete from interlock.job_history h where h.tenant = p_tenant and h.job_id = any(p_chained)
    and h.job_id between p_chained[1] and p_chained[cardinality(p_chained)];  -- so that no other partition is opened
  delete from interlock.job_checkpoint c where c.tenant = p_tenant and c.job_id = any(p_ids);
  delete from interlock.job_step s where s.tenant = p_tenant and s.job_id = any(p_ids);
  delete from interlock.job_event e where e.tenant = p_tenant and e.job_id = any(p_ids);
  delete from interlock.job_message m where m.tenant = p_tenant and m.job_id = any(p_ids);
  delete from interlock.message_wait w where w.tenant = p_tenant and w.job_id = any(p_ids);
  delete from interlock.stream_chunk s where s.tenant = p_tenant and s.job_id = any(p_ids);
  delete from interlock.job_effect e where e.tenant = p_tenant and e.job_id = any(p_ids);
  delete from interlock.job_stream s where s.tenant = p_tenant and s.job_id = any(p_ids);
  delete from interlock.approval_vote v where v.tenant = p_tenant and v.job_id = any(p_ids);
  delete from interlock.approval a where a.tenant = p_tenant and a.job_id = any(p_ids);
  delete from interlock.outbox o where o.tenant = p_tenant and o.job_id = any(p_ids) and o.settled_at is not null;
  delete from interlock.run_usage u where u.tenant = p_tenant and u.job_id = any(p_ids);
end $$;

-- For prune: the budgets of trees end with their roots, unless a descendant is still to run.
create or replace function interlock.drop_tree_budgets(p_tenant text) returns void language plpgsql as $$
begin
  delete from interlock.flow_limit f where f.tenant = p_tenant and f.name like 'tree:%'
    and not exists (select from interlock.job j where j.tenant = p_tenant and j.id = substr(f.name, 6)::uuid)
    and not exists (
      with recursive below(id, status) as (
        select j.id, j.status from interlock.job j where j.tenant = p_tenant and j.parent_id = substr(f.name, 6)::uuid
        union all select j.id, j.status from below b join interlock.job j on j.tenant = p_tenant and j.parent_id = b.id)
      select from below where below.status < 'succeeded')
    and not exists (select from interlock.flow_bucket b where b.tenant = p_tenant and b.name = f.name and (b.used > 0 or b.parked));
  delete from interlock.flow_bucket b where b.tenant = p_tenant and b.name like 'tree:%'
    and not exists (select from interlock.flow_limit f where f.tenant = p_tenant and f.name = b.name);
end $$;

-- Delete those of the next p_step jobs that finished before a time, with everything they own, and record the prune.
-- This is the only way for the app role to delete a job, and it deletes no other jobs.
create or replace function interlock.prune(
  p_tenant text, p_id uuid, p_actor text, p_cutoff timestamptz, p_after bigint, p_step integer, p_dry_run boolean, p_most integer,
  p_kept_seconds double precision, out deleted integer, out last_seq bigint, out at_end boolean
) language plpgsql security definer set search_path = interlock, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_hashjoin = off set jit = off as $$
declare
  old uuid[]; chained uuid[]; found_last bigint; found_more boolean;
begin
  perform set_config('interlock.tenant', p_tenant, true);
  p_cutoff := least(p_cutoff, clock());
  -- A job created after the cutoff cannot have finished before it: if no older job is left, skip the rest.
  select coalesce(max(w.seq), p_after), count(*) < p_step or bool_and(w.created_at >= p_cutoff) into last_seq, at_end
  from (select j.seq, j.created_at from job j where j.tenant = p_tenant and j.seq > p_after order by j.seq limit p_step) w;
  select coalesce(array_agg(x.id order by x.id) filter (where x.ordinal <= p_most), '{}'), max(x.seq) filter (where x.ordinal <= p_most),
    count(*) > p_most into old, found_last, found_more
  from (select w.id, w.seq, row_number() over (order by w.seq) as ordinal from (
    select j.id, j.seq from job j where j.tenant = p_tenant and j.seq > p_after and j.seq <= last_seq and j.status >= 'succeeded'
      and j.finished_at < p_cutoff order by j.seq limit p_most + 1 for update skip locked) w) x;
  deleted := cardinality(old);
  if found_more then
    last_seq := coalesce(found_last, p_after);
    at_end := false;
  end if;
  if p_dry_run or deleted = 0 then
    return;
  end if;
  -- Where history is dropped by whole partitions, leave the history of old jobs to them. The lock keeps that choice
  -- stable until this transaction ends.
  perform from history_partition p where p.left_below is not null for share;
  chained := old;
  if found then
    chained := array(select x.id from unnest(old) x(id) where not exists (select from history_partition p where not p.kept
      and x.id < p.left_below and x.id >= coalesce(p.first_id, '00000000-0000-0000-0000-000000000000')) order by x.id);
  end if;
  insert into prune (tenant, at, id, actor, cutoff, jobs, first_seq, last_seq, hash)
  select p_tenant, clock(), p_id, p_actor, p_cutoff, count(*), min(j.seq), max(j.seq),
    sha256(string_agg(convert_to(octet_length(p_tenant)::text || ':' || p_tenant || j.id::text, 'UTF8') || h.hash, ''::bytea order by j.id))
  from job j join job_history h on h.tenant = j.tenant and h.job_id = j.id and h.version = j.version
  where j.tenant = p_tenant and j.id = any(old);
  perform log(p_tenant, p_actor, 'jobs.prune', p_id::text, format('{"ended_before":"%s","jobs":%s}',
    to_char(p_cutoff at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), deleted));
  perform delete_jobs(p_tenant, old, chained);
  perform drop_tree_budgets(p_tenant);
  perform forget_artifacts(p_tenant, old, p_kept_seconds);
  perform drop_emptied_blocks(p_tenant, p_after + 1, last_seq);
end $$;
