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

-- Column comments.
do $$
declare
  name text;
begin
  for name in select c.relname from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant'
              where c.relnamespace = 'interlock'::regnamespace and c.relkind = 'r' loop
    execute format('comment on column interlock.%I.tenant is %L', name, 'Whose row this is; it leads every key.');
  end loop;
end $$;

comment on column interlock.job.id is 'A UUIDv7. It names the job; it is no order.';
comment on column interlock.job.seq is 'The order of arrival.';
comment on column interlock.job.eligibility_key is 'Which combination of type, requires, priority, repository and affinity key this job has.';
comment on column interlock.job.agent_no is 'The number of the agent it is for.';
comment on column interlock.job.slot_epoch is
  'The epoch of its agent in which it last stopped running and kept its slot; null: it released the slot.';
comment on column interlock.job.base is 'The route without repository and affinity key.';
comment on column interlock.job.fence is 'Rises with every lease and is never reused; proves that a worker holds the current lease.';
comment on column interlock.job.run_at is 'The earliest start; in retry, of the next try.';
comment on column interlock.job.created_at is 'When it was enqueued, by the clock of the database.';
comment on column interlock.job.updated_at is 'When the row last changed; set by the database.';
comment on column interlock.job.status is 'Where the job is in its life; guarded by the trigger guard_move.';
comment on column interlock.job.priority is 'Higher first, -1000 to 1000.';
comment on column interlock.job.attempt is '1 for the first try, one more whenever another is scheduled.';
comment on column interlock.job.max_attempts is 'How many tries there are, 1 to 100.';
comment on column interlock.job.version is 'The number of the newest row of its history; every change raises it by one.';
comment on column interlock.job.releases is 'How often it was released.';
comment on column interlock.job.sanitized is 'Whether lone surrogates were replaced in something a worker sent.';
comment on column interlock.job.lease_expires_at is 'Until when the lease was first granted; heartbeats move it on in lease, not here.';
comment on column interlock.job.started_at is 'When the first run started.';
comment on column interlock.job.run_started_at is 'When the newest run started.';
comment on column interlock.job.finished_at is 'When it became terminal.';
comment on column interlock.job.deadline is 'No run starts at or after this time.';
comment on column interlock.job.cancel_requested_at is 'When a cancel was first requested.';
comment on column interlock.job.previous is 'The status before the newest change; null at creation.';
comment on column interlock.job.head is 'The hash of the newest row of its history.';
comment on column interlock.job.lease_seconds is 'How long a lease was asked for.';
comment on column interlock.job.timeout_seconds is 'How long one run may take.';
comment on column interlock.job.expiry_delay_seconds is 'Delay after a lease expiry; null means none.';
comment on column interlock.job.approval_id is 'The approval it waits for.';
comment on column interlock.job.parent_id is 'The job that made this one; a soft reference.';
comment on column interlock.job.redrive_of is 'The terminal job that this one redrives; a soft reference.';
comment on column interlock.job.type is 'Names the function to run; the jobs of one type are a queue.';
comment on column interlock.job.worker is 'Who holds the lease.';
comment on column interlock.job.verb is 'What made the newest change; copied into history.';
comment on column interlock.job.actor is 'Who made the newest change; copied into history.';
comment on column interlock.job.reason is 'Why the newest change was made; copied into history.';
comment on column interlock.job.metadata is 'JSON: what the newest change decided; copied into history.';
comment on column interlock.job.cancel_reason is 'Why it is to be stopped.';
comment on column interlock.job.error is 'JSON: message, kind and details of the last failed attempt.';
comment on column interlock.job.created_by is 'Who enqueued it.';
comment on column interlock.job.requires is 'Capabilities a worker must have, sorted.';
comment on column interlock.job.tags is 'Free words to find it by.';
comment on column interlock.job.agent_kind is 'Which kind of agent it is for.';
comment on column interlock.job.agent_id is 'Which agent it is for.';
comment on column interlock.job.repository is 'Only workers allowed in it may claim the job.';
comment on column interlock.job.affinity_key is 'Only workers that name it may claim the job.';
comment on column interlock.job.idempotency_key is 'The same key with the same body finds this job again.';
comment on column interlock.job.body_sha256 is 'SHA-256 of the request that carried the idempotency key.';
comment on column interlock.job.backoff is 'JSON: how the delay before another try grows; null means the default.';
comment on column interlock.job.headers is 'JSON map of text to text, passed on to the worker.';
comment on column interlock.job.traceparent is 'W3C trace context of the caller.';
comment on column interlock.job.webhook is 'URL that gets the terminal event.';
comment on column interlock.job.requested_by is 'On whose behalf, as given by the caller; never trusted.';
comment on column interlock.job.result is 'JSON text exactly as the worker sent it.';
comment on column interlock.job.result_summary is 'A short text for lists.';
comment on column interlock.job.usage is 'JSON: tokens and cost.';
comment on column interlock.job.payload is 'JSON text exactly as it was sent; never changes.';

comment on column interlock.eligibility_key.no is 'Its number.';
comment on column interlock.eligibility_key.base is 'The route with no repository and no affinity key; itself if it has neither.';
comment on column interlock.eligibility_key.type is 'Type of its jobs.';
comment on column interlock.eligibility_key.requires is 'Capabilities its jobs require, sorted.';
comment on column interlock.eligibility_key.priority is 'Priority of its jobs.';
comment on column interlock.eligibility_key.repository is 'Repository of its jobs.';
comment on column interlock.eligibility_key.affinity_key is 'Affinity key of its jobs.';

comment on column interlock.tenant.registry is 'Rises whenever a type or the defaults of an agent change; an enqueue that was validated against an older one is repeated.';

comment on column interlock.agent.no is 'Its number, named by the jobs.';
comment on column interlock.agent.kind is 'What sort of agent it is.';
comment on column interlock.agent.id is 'Which one of its kind.';
comment on column interlock.agent.max_concurrency is 'How many of its jobs may run concurrently; null: any number.';
comment on column interlock.agent.strict is 'Whether a started job keeps its slot until it is terminal.';
comment on column interlock.agent.strict_epoch is 'Raised when it stops being strict: places that jobs kept before are lost.';
comment on column interlock.agent.used is 'How many places of a limited agent are given out.';
comment on column interlock.agent.next_due is 'With a free slot: the time at which the next job becomes due.';
comment on column interlock.agent.implicit is 'Whether it was made by a job that named it.';
comment on column interlock.agent.backoff is 'JSON: default backoff of its jobs.';
comment on column interlock.agent.defaults is 'JSON: defaults for fields that its jobs do not set.';
comment on column interlock.agent.created_at is 'When it was made.';
comment on column interlock.agent.updated_at is 'When it was last registered.';

comment on column interlock.queue_counter.type is 'The type of the jobs.';
comment on column interlock.queue_counter.minute is 'When they moved; the oldest minutes are one.';
comment on column interlock.queue_counter.from_status is 'The previous status; null at creation.';
comment on column interlock.queue_counter.to_status is 'The status they reached; null when they were deleted.';
comment on column interlock.queue_counter.count is 'How many they were.';
comment on column interlock.queue_counter.folded is 'Whether the row is already a sum of others.';

comment on column interlock.queue.type is 'The type of the jobs.';
comment on column interlock.queue.paused_at is 'Since when no job of this type is leased.';
comment on column interlock.queue.paused_by is 'Who paused it.';
comment on column interlock.queue.pause_reason is 'Why.';

comment on column interlock.ready.eligibility_key is 'Route of the job.';
comment on column interlock.ready.base is 'Base of that route.';
comment on column interlock.ready.run_at is 'When it is due.';
comment on column interlock.ready.seq is 'Order of arrival.';
comment on column interlock.ready.job_id is 'The job.';
comment on column interlock.ready.deadline is 'When it may no longer start.';
comment on column interlock.ready.agent_no is 'The agent it is for.';
comment on column interlock.ready.blocked is 'Whether it lacks a concurrency slot of its agent.';

comment on column interlock.lease.job_id is 'The running job.';
comment on column interlock.lease.fence is 'The fence of this lease.';
comment on column interlock.lease.worker is 'Who holds it.';
comment on column interlock.lease.seconds is 'By how much a heartbeat extends it by default.';
comment on column interlock.lease.expires_at is 'When it ends unless it is moved on.';
comment on column interlock.lease.run_ends_at is 'When the timeout of the run ends it at the latest.';
comment on column interlock.lease.heartbeat_at is 'The last heartbeat.';
comment on column interlock.lease.agent_no is 'The agent the job is for.';

comment on column interlock.claim_result.worker is 'Who claimed.';
comment on column interlock.claim_result.claim_id is 'The name the worker gave this claim.';
comment on column interlock.claim_result.job_ids is 'What was granted.';
comment on column interlock.claim_result.fences is 'The fence of each lease, in the same order.';
comment on column interlock.claim_result.at is 'When it was last looked at.';

comment on column interlock.job_await.child_id is 'The child that has not ended yet.';
comment on column interlock.job_await.job_id is 'The parent that waits.';
comment on column interlock.job_await.deadline is 'When the parent may no longer start.';

comment on column interlock.job_checkpoint.job_id is 'The job.';
comment on column interlock.job_checkpoint.seq is 'Its number, given by the worker; only a higher one replaces it.';
comment on column interlock.job_checkpoint.data is 'JSON text exactly as the worker sent it.';
comment on column interlock.job_checkpoint.sanitized is 'Whether lone surrogates were replaced in it.';
comment on column interlock.job_checkpoint.at is 'When it was saved.';

comment on column interlock.job_history.job_id is 'The job.';
comment on column interlock.job_history.version is '1 to n without a gap.';
comment on column interlock.job_history.from_status is 'The previous status; null at creation.';
comment on column interlock.job_history.to_status is 'The status it reached.';
comment on column interlock.job_history.verb is 'What made the change.';
comment on column interlock.job_history.actor is 'Who made it.';
comment on column interlock.job_history.attempt is 'The attempt that the change was about.';
comment on column interlock.job_history.fence is 'The fence of the lease that the change concerns.';
comment on column interlock.job_history.reason is 'Why.';
comment on column interlock.job_history.metadata is 'JSON: the error, the next try, why it was cancelled.';
comment on column interlock.job_history.at is 'When, by the clock of the database.';
comment on column interlock.job_history.hash is 'SHA-256 over the hash before and all fields of this row.';

comment on column interlock.epoch.only_row is 'Makes sure that there is one row.';
comment on column interlock.epoch.value is 'Fences start above this times 2^32.';
