-- A job as the API returns it: its row, its lease and its checkpoint. Fields that the view computes are in the order of the record.
drop view if exists interlock.job_view cascade;
create view interlock.job_view with (security_invoker = true) as
select {row}, coalesce(l.expires_at, j.lease_expires_at) as lease_expires_at, l.heartbeat_at,
  case when j.status = 'queued' and j.fence > 0 then
    array(select a.child_id from interlock.job_await a where a.tenant = j.tenant and a.job_id = j.id order by a.child_id)
  else '{}' end as awaiting,
  case when j.status = 'queued' and j.fence > 0 then
    (select json_strip_nulls(json_build_object('name', w.name, 'topic', w.topic, 'after', w.after_seq))::text
     from interlock.message_wait w where w.tenant = j.tenant and w.job_id = j.id and w.fence = j.fence) end as awaiting_message,
  c.data as checkpoint, c.seq as checkpoint_seq, j.sanitized or coalesce(c.sanitized, false) as sanitized,
  greatest(j.updated_at, l.heartbeat_at, c.at) as updated_at,
  case when j.agent_no is not null and j.status <= 'retry' then exists
    (select from interlock.ready q where q.tenant = j.tenant and q.agent_no = j.agent_no and q.blocked and q.run_at = j.run_at and q.seq = j.seq)
  else false end as blocked
from interlock.job j
left join interlock.lease l on l.tenant = j.tenant and l.job_id = j.id and j.status = 'running'
left join interlock.job_checkpoint c on c.tenant = j.tenant and c.job_id = j.id and (j.fence > 0 or j.redrive_of is not null);
comment on view interlock.job_view is 'A job as the API returns it, with its lease and checkpoint.';
grant select on interlock.job_view to interlock_app;
