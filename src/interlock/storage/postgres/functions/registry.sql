-- Sum up the counter rows that triggers wrote; minutes older than an hour become one row. Rows locked by another
-- process are skipped.
create or replace function interlock.fold_counters(p_tenant text) returns void language plpgsql security definer
  set search_path = interlock, pg_temp as $$
begin
  perform set_config('interlock.tenant', p_tenant, true);
  with old as (
    delete from queue_counter y using (
      select x.ctid as at from queue_counter x where x.tenant = p_tenant and (not x.folded or x.minute < interlock.clock() - interval '61 minutes')
      limit 5000 for update skip locked) o
    where y.ctid = o.at returning y.*
  )
  insert into queue_counter (tenant, type, minute, from_status, to_status, count, last_seq, folded)
  select o.tenant, o.type, case when o.minute < interlock.clock() - interval '60 minutes' then 'epoch'::timestamptz else o.minute end as m,
    o.from_status, o.to_status, sum(o.count), case when bool_and(o.last_seq is not null) then max(o.last_seq) end, true
  from old o group by o.tenant, o.type, m, o.from_status, o.to_status having sum(o.count) > 0;
end $$;
