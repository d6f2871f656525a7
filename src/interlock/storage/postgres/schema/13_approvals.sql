-- Approvals: the request while a job waits, its votes and decision, and the hash of the approval link.

create table interlock.approval (
  id              uuid        not null,
  job_id          uuid        not null,
  fence           bigint      not null,
  opened_at       timestamptz not null,
  expires_at      timestamptz not null,
  required        integer     not null,
  occurrence      integer     not null,
  deadline        timestamptz,
  closed_at       timestamptz,
  link_created_at timestamptz,
  tenant          text collate "C" not null,
  status          text collate "C" not null,
  on_deny         text collate "C" not null,
  kind            text collate "C" not null,
  digest          text collate "C" not null,
  opened_by       text collate "C" not null,
  name            text collate "C",
  closed_by       text collate "C",
  comment         text collate "C",
  risk            text collate "C",
  link_created_by text collate "C",
  token_sha256    bytea,
  prompt          text collate "C" not null,
  details         text collate "C",
  schema          text collate "C",
  data            text collate "C",
  primary key (tenant, id),
  constraint status_is_known check (status in ('open', 'approved', 'denied', 'expired', 'void')),
  constraint closed_exactly_when_not_open check ((closed_at is null) = (status = 'open')),
  constraint decided_by_a_principal check ((closed_by is not null) = (status in ('approved', 'denied'))),
  constraint data_only_with_approval check (data is null or (status = 'approved' and required = 1)),
  constraint link_only_for_one_vote check (token_sha256 is null or (required = 1 and length(token_sha256) = 32)),
  constraint link_has_a_maker check
    ((token_sha256 is null) = (link_created_by is null) and (token_sha256 is null) = (link_created_at is null)),
  constraint digest_is_sha256 check (length(digest) = 64),
  constraint required_in_range check (required between 1 and 100),
  constraint on_deny_is_known check (on_deny in ('fail', 'resume')),
  constraint kind_is_known check (kind = 'approval' or (kind = 'question' and required = 1 and on_deny = 'resume'))
);
create unique index approval_one_open on interlock.approval (tenant, job_id) where status = 'open';
create unique index approval_of_lease on interlock.approval (tenant, job_id, fence);
create unique index approval_token on interlock.approval (token_sha256) where token_sha256 is not null;
create index approval_newest on interlock.approval (tenant, opened_at, id);
create index approval_open on interlock.approval (tenant, opened_at, id) where status = 'open';
create index approval_due on interlock.approval (tenant, expires_at) where status = 'open';
create index approval_deadline on interlock.approval (tenant, deadline) where status = 'open' and deadline is not null;
comment on table interlock.approval is 'Every approval that a job requested, and its decision. One open per job.';
comment on column interlock.approval.id is 'ID of the approval.';
comment on column interlock.approval.job_id is 'Job that requested it.';
comment on column interlock.approval.fence is 'Fence of the lease that ended with the request; a lease requests at most one approval.';
comment on column interlock.approval.status is 'open, approved, denied, expired, or void: its job no longer waits for it. Closed is final.';
comment on column interlock.approval.prompt is 'Prompt for approvers.';
comment on column interlock.approval.details is 'JSON text: details for approvers.';
comment on column interlock.approval.risk is 'Risk of the request, as set by the caller.';
comment on column interlock.approval.schema is 'JSON Schema of the data that an approver may send.';
comment on column interlock.approval.digest is 'SHA-256 over payload, prompt, details and schema, which the decision covers.';
comment on column interlock.approval.required is 'Number of approvals required.';
comment on column interlock.approval.on_deny is 'What a denial does to the job: fail fails it, resume resumes it with the denial.';
comment on column interlock.approval.kind is 'approval: a decision is requested; question: data that the job needs.';
comment on column interlock.approval.name is 'Name by which a later run finds the decision; null if the request has none.';
comment on column interlock.approval.occurrence is 'Occurrence of the name in a run, from 1.';
comment on column interlock.approval.opened_by is 'Principal that requested it, and therefore cannot decide it.';
comment on column interlock.approval.opened_at is 'Time of the request.';
comment on column interlock.approval.expires_at is 'Time at which it expires and the job fails.';
comment on column interlock.approval.deadline is 'Deadline of the job at the time of the request.';
comment on column interlock.approval.closed_by is 'Principal that closed it.';
comment on column interlock.approval.closed_at is 'Time at which it was decided, expired or became void.';
comment on column interlock.approval.comment is 'Comment of the approver.';
comment on column interlock.approval.data is 'JSON text from the approver, valid against the schema.';
comment on column interlock.approval.token_sha256 is 'SHA-256 of the newest link token; looked up before the tenant is known.';
comment on column interlock.approval.link_created_by is 'Principal that created the link.';
comment on column interlock.approval.link_created_at is 'Time of creation of the link.';

create table interlock.approval_vote (
  approval_id uuid        not null,
  job_id      uuid        not null,
  at          timestamptz not null,
  tenant      text collate "C" not null,
  voter       text collate "C" not null,
  decision    text collate "C" not null,
  comment     text collate "C",
  primary key (tenant, approval_id, voter),
  constraint decision_is_known check (decision in ('approve', 'deny'))
);
create index approval_vote_job on interlock.approval_vote (tenant, job_id);
comment on table interlock.approval_vote is 'The vote of each principal on an approval; one per principal.';
comment on column interlock.approval_vote.approval_id is 'The approval.';
comment on column interlock.approval_vote.voter is 'Principal that voted.';
comment on column interlock.approval_vote.job_id is 'Job that requested it.';
comment on column interlock.approval_vote.decision is 'approve or deny.';
comment on column interlock.approval_vote.comment is 'Comment of the voter.';
comment on column interlock.approval_vote.at is 'Time of the vote.';

create view interlock.approval_view with (security_invoker = true) as
select a.tenant, a.id, a.job_id, a.fence, a.status, a.prompt, a.details, a.risk, a.schema, a.digest, a.required, a.on_deny,
  a.kind, a.name, a.occurrence, a.opened_by, a.opened_at, a.expires_at, a.closed_by, a.closed_at, a.comment, a.data, a.token_sha256, a.link_created_by,
  a.link_created_at,
  (select coalesce(json_agg(json_build_array(v.voter, v.decision, v.comment, interlock.micros(v.at)) order by v.at, v.voter), '[]')::text
   from interlock.approval_vote v where v.tenant = a.tenant and v.approval_id = a.id) as votes
from interlock.approval a;
comment on view interlock.approval_view is 'An approval with its votes as JSON, in the order of the record.';

grant select, insert on interlock.approval, interlock.approval_vote to interlock_app;
grant update (status, closed_by, closed_at, comment, data, token_sha256, link_created_by, link_created_at) on interlock.approval
  to interlock_app;
grant select on interlock.approval_view to interlock_app;
grant select (tenant, id, job_id, status, expires_at, deadline, token_sha256) on interlock.approval to interlock_sweep;

-- An approval is open only while its job waits. A decision closes it first; any other transition out of the wait closes
-- it here.
create function interlock.close_approval_with_job() returns trigger language plpgsql as $$
begin
  update interlock.approval a set status = case new.verb when 'expire' then 'expired' else 'void' end, closed_at = interlock.clock()
  where a.tenant = old.tenant and a.id = old.approval_id and a.status = 'open';
  return null;
end $$;
create trigger approval_closes_with_the_wait after update of approval_id on interlock.job for each row
  when (old.approval_id is not null and new.approval_id is distinct from old.approval_id) execute function interlock.close_approval_with_job();

create function interlock.refuse_approval_change() returns trigger language plpgsql as $$
begin
  if old.status <> 'open' then
    raise exception 'interlock: an approval is decided once; a closed one never changes' using errcode = 'check_violation';
  end if;
  raise exception 'interlock: what people are asked never changes' using errcode = 'check_violation';
end $$;
create trigger approval_is_decided_once before update on interlock.approval for each row
  when (old.status <> 'open') execute function interlock.refuse_approval_change();
create trigger approval_keeps_its_question before update of tenant, id, job_id, fence, prompt, details, risk, schema, digest, required,
  on_deny, kind, name, occurrence, opened_by, opened_at, expires_at, deadline on interlock.approval for each row execute function interlock.refuse_approval_change();

create function interlock.refuse_vote_change() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: a vote never changes' using errcode = 'check_violation';
end $$;
create trigger vote_never_changes before update on interlock.approval_vote for each row execute function interlock.refuse_vote_change();

create function interlock.refuse_approval_delete() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: approvals and votes go only with their job' using errcode = 'check_violation';
end $$;
create trigger approval_goes_with_its_job before delete on interlock.approval for each row
  when (interlock.job_lives(old.tenant, old.job_id)) execute function interlock.refuse_approval_delete();
create trigger vote_goes_with_its_job before delete on interlock.approval_vote for each row
  when (interlock.job_lives(old.tenant, old.job_id)) execute function interlock.refuse_approval_delete();

create trigger approval_is_decided_with_its_job before update of status, closed_by, closed_at, comment, data on interlock.approval for each row
  when (old.status = 'open' and pg_trigger_depth() = 0 and current_setting('interlock.verb', true) is distinct from 'on')
  execute function interlock.refuse_by_hand('an approval is closed by the operation that moves its job on; decide it with interlock approvals');
create trigger z_not_by_hand_insert before insert on interlock.approval for each statement
  when (pg_trigger_depth() = 0 and current_setting('interlock.verb', true) is distinct from 'on')
  execute function interlock.refuse_by_hand('an approval is opened by the operation that makes its job wait');
create trigger z_not_by_hand_insert before insert on interlock.approval_vote for each statement
  when (pg_trigger_depth() = 0 and current_setting('interlock.verb', true) is distinct from 'on')
  execute function interlock.refuse_by_hand('a vote is cast only by deciding the approval');

-- When the transaction ends, a job waits for an approval exactly if it is open, regardless of the statement that
-- changed it.
create function interlock.refuse_parted() returns trigger language plpgsql as $$
declare
  status text;
  waits boolean;
begin
  perform set_config('interlock.tenant', new.tenant, true);
  select a.status into status from interlock.approval a where a.tenant = new.tenant and a.id = new.id;
  waits := exists (select from interlock.job j where j.tenant = new.tenant and j.id = new.job_id and j.approval_id = new.id);
  if waits <> (status = 'open') then
    raise exception 'interlock: an approval is open exactly while its job waits for it: decide it with interlock approvals'
      using errcode = 'check_violation';
  end if;
  return null;
end $$;
create constraint trigger approval_and_job_go_together after insert or update of status on interlock.approval
  deferrable initially deferred for each row execute function interlock.refuse_parted();

-- Return the tenant and id of the approval with this link token; everything else is read as that tenant.
create function interlock.approval_of_token(p_sha256 bytea) returns table (tenant text, approval_id uuid)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select a.tenant, a.id from approval a where a.token_sha256 = p_sha256
$$;

-- Both skip from one tenant with an open approval to the next: tenants without any cost nothing.
create function interlock.due_approvals(p_now timestamptz, p_limit integer) returns table (tenant text, job_id uuid)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  with recursive t(tenant) as (
    (select x.tenant from approval x where x.status = 'open' order by x.tenant limit 1)
    union all
    select (select x.tenant from approval x where x.tenant > t.tenant and x.status = 'open' order by x.tenant limit 1) from t
    where t.tenant is not null
  )
  select a.tenant, a.job_id from t cross join lateral
    (select tenant, job_id from approval where tenant = t.tenant and status = 'open' and expires_at <= p_now
     order by expires_at limit p_limit) a
  limit p_limit
$$;

create function interlock.due_waits(p_now timestamptz, p_limit integer) returns table (tenant text, job_id uuid)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  with recursive t(tenant) as (
    (select x.tenant from approval x where x.status = 'open' and x.deadline is not null order by x.tenant limit 1)
    union all
    select (select x.tenant from approval x where x.tenant > t.tenant and x.status = 'open' and x.deadline is not null
            order by x.tenant limit 1) from t
    where t.tenant is not null
  )
  select a.tenant, a.job_id from t cross join lateral
    (select tenant, job_id from approval where tenant = t.tenant and status = 'open' and deadline <= p_now
     order by deadline limit p_limit) a
  limit p_limit
$$;
