-- Assign slots to jobs that have become due before reading, so that `blocked` is current.
create or replace function interlock.jobs(p_tenant text, p_ids uuid[]) returns setof interlock.job_view language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  if exists (select from interlock.agent a where a.tenant = p_tenant and a.next_due <= interlock.clock()) then
    perform interlock.fill_slots(p_tenant);
  end if;
  return query select v.* from interlock.job_view v where v.tenant = p_tenant and v.id = any(p_ids);
end $$;

-- Return the conditions of a list, with the parameters of find_jobs. There is always one on seq: the planner considers the
-- index on seq only then.
create or replace function interlock.list_conditions(
  p_statuses interlock.status[], p_type text, p_agent_kind text, p_worker text, p_stale_seconds double precision, p_parent_id uuid,
  p_tags text[], p_created_after timestamptz, p_created_before timestamptz, p_before_seq bigint
) returns text language sql immutable return
  case when p_before_seq is null then ' and v.seq <= 9223372036854775807' else ' and v.seq < $12' end
    || case when p_statuses is null then '' else ' and v.status = any($2)' end
    || case when p_type is null then '' else ' and v.type = $3' end
    || case when p_agent_kind is null then '' else ' and v.agent_kind = $4 and v.agent_id = $5' end
    || case when p_worker is null then '' else ' and v.worker = $6' end
    || case when p_stale_seconds is null then '' else ' and v.status = ''running''
         and coalesce(v.heartbeat_at, v.run_started_at) <= interlock.clock() - $7 * interval ''1 second''' end
    || case when p_parent_id is null then '' else ' and v.parent_id = $8' end
    || case when cardinality(p_tags) = 0 then '' else ' and v.tags @> $9' end
    || case when p_created_after is null then '' else ' and v.created_at >= $10' end
    || case when p_created_before is null then '' else ' and v.created_at < $11' end;

-- Return the job blocks that have the type and tags of a list, newest first.
create or replace function interlock.list_blocks(
  p_type text, p_tags text[], p_created_after timestamptz, p_created_before timestamptz, p_before_seq bigint
) returns text language sql immutable return
  '(select s.first_seq, s.last_seq from '
    || case when cardinality(p_tags) > 0 then 'interlock.job_block_term w join interlock.job_block s on s.tenant = $1 and s.first_seq = w.first_seq
         where w.tenant = $1 and w.kind = ''tag'' and w.word = ($9)[1]'
       else 'interlock.job_block_term w join interlock.job_block s on s.tenant = $1 and s.first_seq = w.first_seq
         where w.tenant = $1 and w.kind = ''type'' and w.word = $3' end
    || case when cardinality(p_tags) > 1 then ' and not exists (select from unnest($9) t(tag) where not exists (
         select from interlock.job_block_term o where o.tenant = $1 and o.kind = ''tag'' and o.word = t.tag and o.first_seq = w.first_seq))' else '' end
    || case when cardinality(p_tags) > 0 and p_type is not null then ' and exists (
         select from interlock.job_block_term o where o.tenant = $1 and o.kind = ''type'' and o.word = $3 and o.first_seq = w.first_seq)' else '' end
    || case when p_before_seq is null then '' else ' and w.first_seq < $12' end
    || case when p_created_after is null then '' else ' and s.latest >= $10' end
    || case when p_created_before is null then '' else ' and s.earliest < $11' end
    || ' order by w.first_seq desc offset 0) r cross join lateral ';

-- Return the newest matching jobs of each source, up to the limit; the caller sorts them. A source is the index that
-- reads the fewest rows for a status. Each statement has only the conditions requested, so that an index can serve it.
-- Columns that a list omits are null here, so that PostgreSQL does not read them.
create or replace function interlock.find_jobs(
  p_tenant text, p_statuses interlock.status[], p_type text, p_agent_kind text, p_agent_id text, p_worker text,
  p_stale_seconds double precision, p_parent_id uuid, p_tags text[],
  p_created_after timestamptz, p_created_before timestamptz, p_before_seq bigint, p_limit integer
) returns setof interlock.job_view language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_hashjoin = off set jit = off
  set max_parallel_workers_per_gather = 0 as $$
declare
  sources text[] := interlock.where_to_find(p_tenant, p_statuses, p_type, p_agent_kind is not null,
    case when p_worker is not null or p_stale_seconds is not null then 'running' when p_parent_id is not null then 'anywhere' end);
  source text;
  part text;
  row_total integer;
  noted_to bigint := 0;
  first_block_seq bigint;
  last_block_seq bigint;
  last_succeeded bigint;
  timed constant boolean := p_created_after is not null or p_created_before is not null;
  worded constant boolean := p_type is not null or cardinality(p_tags) > 0;
  fits constant text := interlock.list_conditions(p_statuses, p_type, p_agent_kind, p_worker, p_stale_seconds, p_parent_id, p_tags,
    p_created_after, p_created_before, p_before_seq);
  job_blocks constant text := interlock.list_blocks(p_type, p_tags, p_created_after, p_created_before, p_before_seq);
  -- The limit makes the planner look up the listed jobs one by one, instead of computing the view for more jobs. The order
  -- makes it use the index on seq even if statistics of an empty table let the primary key look as good.
  those constant text := ' cross join lateral (select w.* from interlock.job_view w where w.tenant = $1 and w.seq between c.seq and c.seq
    order by w.seq limit 1) v';
  those_by_id constant text := ' cross join lateral (select w.* from interlock.job_view w where w.tenant = $1 and w.id = c.job_id offset 0) v';
begin
  perform set_config('interlock.tenant', p_tenant, true);
  if timed or worded then
    select coalesce((select s.last_seq from interlock.job_block s where s.tenant = p_tenant order by s.first_seq desc limit 1), 0) into noted_to;
  end if;
  if timed and not worded then
    select min(s.first_seq), max(s.last_seq) into first_block_seq, last_block_seq from interlock.job_block s
    where s.tenant = p_tenant and s.latest >= coalesce(p_created_after, '-infinity') and s.earliest < coalesce(p_created_before, 'infinity');
  end if;
  if 'succeeded' = any(sources) then
    -- the newest jobs mostly wait: no job after this sequence number has succeeded
    select case when bool_or(y.last_seq is null) then 9223372036854775807 else coalesce(max(y.last_seq), 0) end into last_succeeded
    from interlock.queue_counter y where y.tenant = p_tenant and y.to_status = 'succeeded';
  end if;
  foreach source in array sources loop
    foreach part in array case when source in ('running', 'waiting_for_approval', 'queued') or noted_to = 0 then '{everywhere}'
        when worded then '{not_noted,job_blocks}' else '{not_noted,between}' end::text[] loop
      return query execute
        'select {view_list} from '
        || case
          when source = 'running' then
            '(select l.job_id from interlock.lease l where l.tenant = $1 and ($6 is null or l.worker = $6) offset 0) c'
            || those_by_id || ' where true' || fits || ' order by v.seq desc'
          when source = 'waiting_for_approval' then
            '(select a.job_id from interlock.approval a where a.tenant = $1 and a.status = ''open'' offset 0) c'
            || those_by_id || ' where true' || fits || ' order by v.seq desc'
          when source = 'queued' then
            '(select q.seq from interlock.due_some_time($1, $3) q(seq)' || case when p_before_seq is null then '' else ' where q.seq < $12' end
            || ' order by q.seq desc offset 0) c' || those || ' where true' || fits || ' order by c.seq desc'
          when source in ('anywhere', 'succeeded') and part = 'job_blocks' then
            '(select v.seq from ' || job_blocks || '(select v.seq from interlock.job v where v.tenant = $1 and v.seq between r.first_seq and r.last_seq' || fits
            || case when source = 'succeeded' then ' and r.first_seq <= $18' else '' end
            || ' offset 0) v order by r.first_seq desc, v.seq desc limit $13) c' || those || ' order by c.seq desc'
          when source in ('anywhere', 'succeeded') then
            '(select v.seq from interlock.job v where v.tenant = $1' || fits
            || case part when 'not_noted' then ' and v.seq > $15' when 'between' then ' and v.seq between $16 and $17' else '' end
            || case when source = 'succeeded' then ' and v.seq <= $18' else '' end
            || ' order by v.seq desc limit $13) c' || those || ' order by c.seq desc'
          when part = 'job_blocks' and cardinality(p_tags) > 0 then
            job_blocks || '(select b.seq from interlock.unsuccessful_job b where b.tenant = $1 and b.status = $14 and b.seq between r.first_seq and r.last_seq
              offset 0) c' || those || ' where true' || fits || ' order by r.first_seq desc, c.seq desc'
          else
            '(select b.seq from interlock.unsuccessful_job b where b.tenant = $1 and b.status = $14' || case when p_type is null then '' else ' and b.type = $3' end
            || case part when 'not_noted' then ' and b.seq > $15' when 'between' then ' and b.seq between $16 and $17' when 'job_blocks' then ' and b.seq <= $15' else '' end
            || case when p_before_seq is null then '' else ' and b.seq < $12' end
            || ' order by b.seq desc offset 0) c' || those || ' where true' || fits || ' order by c.seq desc'
          end
        || ' limit $13'
        using p_tenant, p_statuses, p_type, p_agent_kind, p_agent_id, p_worker, p_stale_seconds, p_parent_id, p_tags, p_created_after,
          p_created_before, p_before_seq, p_limit, source, noted_to, first_block_seq, last_block_seq,
          last_succeeded;
      get diagnostics row_total = row_count;
      exit when row_total = p_limit;
    end loop;
  end loop;
end $$;

-- Return the sequence numbers of jobs that wait for run_at, a concurrency slot, or children. With a type, the result
-- may include jobs of other types.
create or replace function interlock.due_some_time(p_tenant text, p_type text) returns setof bigint language sql stable as $$
  select q.seq from interlock.ready q where q.tenant = p_tenant and not q.blocked and p_type is null
  union all
  select q.seq from interlock.eligibility_key r join interlock.ready q on q.tenant = p_tenant and q.eligibility_key = r.no and not q.blocked
  where r.tenant = p_tenant and r.type = p_type
  union all
  select q.seq from interlock.ready q where q.tenant = p_tenant and q.agent_no is not null and q.blocked
  union all
  select j.seq from (select distinct a.job_id from interlock.job_await a where a.tenant = p_tenant) w
  join interlock.job j on j.tenant = p_tenant and j.id = w.job_id
$$;

-- Return the sources that hold the jobs of these statuses, or `anywhere` if there are too many rows to sort.
create or replace function interlock.where_to_find(
  p_tenant text, p_statuses interlock.status[], p_type text, p_of_agent boolean, p_known text
) returns text[] language plpgsql as $$
declare
  few constant integer := 5000;  -- sorting up to this many rows is faster than walking all jobs
  unsuccessful constant interlock.status[] := '{retry,failed,dead_letter,cancelled}';
begin
  perform set_config('interlock.tenant', p_tenant, true);
  if exists (select from interlock.agent a where a.tenant = p_tenant and a.next_due <= interlock.clock()) then
    perform interlock.fill_slots(p_tenant);
  end if;
  if p_known is not null then
    return array[p_known];
  elsif p_statuses is null
    or ('queued' = any(p_statuses) and few < (select count(*) from (select from interlock.due_some_time(p_tenant, p_type) limit few + 1) x))
    or (p_of_agent and few < (select count(*) from (
          select from interlock.unsuccessful_job b where b.tenant = p_tenant and b.status = any(p_statuses::text[]) limit few + 1) x)) then
    return '{anywhere}';
  end if;
  -- The source of `queued` includes `retry`.
  return array(select distinct s::text from unnest(p_statuses) s where not (s = 'retry' and 'queued' = any(p_statuses)));
end $$;

create or replace function interlock.newest_transition(p_tenant text, p_job_id uuid) returns setof interlock.job_history language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select h.* from interlock.job_history h where h.tenant = p_tenant and h.job_id = p_job_id order by h.version desc limit 1;
end $$;

-- Return the next part of a tenant's history chains, by job id, with the status, version and chain head of each job.
create or replace function interlock.chains(p_tenant text, p_after uuid, p_jobs integer)
returns table (tenant text, job_id uuid, version integer, from_status interlock.status, to_status interlock.status, verb text,
  actor text, attempt integer, fence bigint, reason text, metadata text, at timestamptz, hash bytea, job_version integer,
  job_status interlock.status, job_head bytea) language plpgsql as $$
declare
  some_left boolean := exists (select from interlock.history_partition p where p.left_below is not null);
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query
  with recursive chosen(id, n) as (
    select p_after, 0
    union all
    -- Skip history of pruned jobs that is left for its partition.
    select (select h.job_id from interlock.job_history h where h.tenant = p_tenant and h.job_id > chosen.id
      and (not some_left or exists (select from interlock.job j where j.tenant = h.tenant and j.id = h.job_id)
           or not interlock.history_left(h.job_id)) order by h.job_id limit 1), n + 1
    from chosen where chosen.id is not null and n < p_jobs
  )
  select h.tenant, h.job_id, h.version, h.from_status, h.to_status, h.verb, h.actor, h.attempt, h.fence, h.reason, h.metadata, h.at,
    h.hash, j.version, j.status, j.head
  from chosen join interlock.job_history h on h.tenant = p_tenant and h.job_id = chosen.id and chosen.n > 0
  left join interlock.job j on j.tenant = h.tenant and j.id = h.job_id
  order by h.job_id, h.version;
end $$;
