-- A job as the API returns it: the row, its lease and its checkpoint, in the column order of the record.

create view interlock.job_view with (security_invoker = true) as
select j.tenant, j.id, j.seq, j.type, j.status, j.priority, j.payload, j.headers, j.traceparent, j.tags, j.agent_kind, j.agent_id,
  j.affinity_key, j.repository, j.requires, j.idempotency_key, j.webhook, j.parent_id, j.redrive_of, j.created_by, j.requested_by,
  j.run_at, j.deadline, j.timeout_seconds, j.backoff, j.expiry_delay_seconds, j.attempt, j.max_attempts, j.worker, j.fence,
  coalesce(l.expires_at, j.lease_expires_at) as lease_expires_at, l.heartbeat_at, j.approval_id,
  case when j.status = 'queued' and j.releases > 0 then
    array(select a.child_id from interlock.job_await a where a.tenant = j.tenant and a.job_id = j.id order by a.child_id)
  else '{}' end as awaiting,
  j.cancel_requested_at, j.cancel_reason, c.data as checkpoint, c.seq as checkpoint_seq, j.usage, j.result, j.result_summary,
  j.error, j.sanitized or coalesce(c.sanitized, false) as sanitized, j.version, j.releases, j.created_at,
  greatest(j.updated_at, l.heartbeat_at, c.at) as updated_at, j.started_at, j.run_started_at, j.finished_at,
  case when j.agent_no is not null and j.status <= 'retry' then exists
    (select from interlock.ready q where q.tenant = j.tenant and q.agent_no = j.agent_no and q.blocked and q.run_at = j.run_at and q.seq = j.seq)
  else false end as blocked
from interlock.job j
left join interlock.lease l on l.tenant = j.tenant and l.job_id = j.id and j.status = 'running'
left join interlock.job_checkpoint c on c.tenant = j.tenant and c.job_id = j.id and (j.fence > 0 or j.redrive_of is not null);
comment on view interlock.job_view is 'A job as it is shown: what it is now, with its lease and checkpoint.';
grant select on interlock.job_view to interlock_app;
