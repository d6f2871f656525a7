-- Return the histories of the next jobs in arrival order.
create or replace function interlock.histories(p_tenant text, p_after bigint, p_jobs integer)
returns table (seq bigint, job_id uuid, version integer, from_status interlock.status, to_status interlock.status, verb text,
  actor text, attempt integer, fence bigint, reason text, metadata text, at timestamptz, hash bytea) language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query
  with chosen as materialized (
    select j.seq, j.id from interlock.job j where j.tenant = p_tenant and j.seq > p_after order by j.seq limit p_jobs
  )
  select c.seq, h.job_id, h.version, h.from_status, h.to_status, h.verb, h.actor, h.attempt, h.fence, h.reason, h.metadata, h.at,
    h.hash
  from chosen c join interlock.job_history h on h.tenant = p_tenant and h.job_id = c.id
  order by c.seq, h.version;
end $$;

-- Return a job that has no history, with an id above p_after and up to p_upto (null: no upper bound).
create or replace function interlock.bare_job(p_tenant text, p_after uuid, p_upto uuid) returns setof uuid language plpgsql as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  return query select j.id from interlock.job j
    where j.tenant = p_tenant and j.id > p_after and (p_upto is null or j.id <= p_upto)
    and not exists (select from interlock.job_history h where h.tenant = j.tenant and h.job_id = j.id) limit 1;
end $$;
