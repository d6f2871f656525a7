-- Subscriptions and the outbox: one row per event and receiver, written in the transaction of the transition.

create table interlock.subscription (
  tenant               text collate "C" not null,
  id                   uuid        not null,
  created_at           timestamptz not null,
  min_interval_seconds double precision not null check (min_interval_seconds >= 0),
  failures             integer     not null default 0,
  commit_seq           bigint      not null default 0,
  expires_at           timestamptz,
  ended_at             timestamptz,
  resting_until        timestamptz,
  previous_until       timestamptz,
  channel              text collate "C" not null,
  url                  text collate "C" not null,
  events               text[] collate "C" not null check (cardinality(events) > 0),
  types                text[] collate "C",
  tags                 text[] collate "C",
  ignored_risks        text[] collate "C",
  mode                 text collate "C" not null check (mode in ('broadcast', 'group')),
  group_id             text collate "C",
  ended_reason         text collate "C",
  secret               text collate "C" not null,
  previous_secret      text collate "C",
  created_by           text collate "C" not null,
  key                  text collate "C",
  body_sha256          bytea,
  primary key (tenant, id),
  constraint grouped_exactly_in_group_mode check ((mode = 'group') = (group_id is not null)),
  constraint ended_for_a_reason check ((ended_at is null) = (ended_reason is null)),
  constraint previous_secret_for_a_while check ((previous_secret is null) = (previous_until is null))
);
create unique index subscription_key on interlock.subscription (tenant, key) where key is not null;
create index subscription_channel on interlock.subscription (tenant, channel);
comment on table interlock.subscription is 'Webhook subscriptions.';
comment on column interlock.subscription.id is 'A UUIDv7.';
comment on column interlock.subscription.created_at is 'Time of creation.';
comment on column interlock.subscription.min_interval_seconds is 'Minimum interval; events of one kind within it are coalesced into one delivery.';
comment on column interlock.subscription.failures is 'Number of consecutive failed attempts.';
comment on column interlock.subscription.commit_seq is 'The group member with the lowest number gets the next event.';
comment on column interlock.subscription.expires_at is 'Time of expiry, after which it gets no new events; null means never.';
comment on column interlock.subscription.ended_at is 'Time at which it was disabled.';
comment on column interlock.subscription.resting_until is 'After a failure, other members of its group come first until this time.';
comment on column interlock.subscription.previous_until is 'Time until which the previous secret also signs.';
comment on column interlock.subscription.channel is 'Queue of its deliveries: its own, or that of its group.';
comment on column interlock.subscription.url is 'URL of the endpoint.';
comment on column interlock.subscription.events is 'Events that it receives.';
comment on column interlock.subscription.types is 'Job types whose events it receives; null means all.';
comment on column interlock.subscription.tags is 'Tags, one of which a job must have; null means any job. Only for notification channels.';
comment on column interlock.subscription.ignored_risks is 'Risks of approvals that it does not receive, nor those without a risk; null means all. Only for notification channels.';
comment on column interlock.subscription.mode is 'broadcast: it receives every event; group: one member of the group does.';
comment on column interlock.subscription.group_id is 'Group that it belongs to.';
comment on column interlock.subscription.ended_reason is 'Why it was disabled; gone means that its endpoint returned 410.';
comment on column interlock.subscription.secret is 'Signing secret; shown once, stored because signing needs it.';
comment on column interlock.subscription.previous_secret is 'Previous signing secret, during a rotation.';
comment on column interlock.subscription.created_by is 'Principal that created it.';
comment on column interlock.subscription.key is 'Idempotency key; a repeated request returns the same subscription.';
comment on column interlock.subscription.body_sha256 is 'SHA-256 of the request with the key.';

create table interlock.webhook_secret (
  tenant          text collate "C" primary key,
  secret          text collate "C" not null,
  previous_secret text collate "C",
  previous_until  timestamptz,
  check ((previous_secret is null) = (previous_until is null))
);
comment on table interlock.webhook_secret is 'Signing secrets of job webhooks.';
comment on column interlock.webhook_secret.tenant is 'Tenant of the row.';
comment on column interlock.webhook_secret.secret is 'Signing secret, created at first use; shown once, at a rotation.';
comment on column interlock.webhook_secret.previous_secret is 'Previous signing secret, during a rotation.';
comment on column interlock.webhook_secret.previous_until is 'Time until which the previous secret also signs.';

create table interlock.webhook_throttle (
  tenant      text collate "C" not null,
  channel     text collate "C" not null,
  event       text collate "C" not null,
  type        text collate "C" not null,
  quiet_until timestamptz not null,
  primary key (tenant, channel, event, type)
);
comment on table interlock.webhook_throttle is 'Time until which a throttled channel gets no more events of one kind.';
comment on column interlock.webhook_throttle.channel is 'Queue of deliveries.';
comment on column interlock.webhook_throttle.event is 'Name of the event.';
comment on column interlock.webhook_throttle.type is 'Type of the jobs.';
comment on column interlock.webhook_throttle.quiet_until is 'Earliest time of the next delivery.';

create table interlock.outbox (
  tenant           text collate "C" not null,
  id               uuid        not null,
  at               timestamptz not null,
  job_id           uuid,
  attempt          integer     not null,
  version          integer     not null,
  attempts         integer     not null default 0,
  grabs            integer     not null default 0,
  job_status       interlock.status,
  previous_status  interlock.status,
  folded           integer,
  last_status_code integer,
  next_try_at      timestamptz,
  last_tried_at    timestamptz,
  settled_at       timestamptz,
  subscription_id  uuid,
  channel          text collate "C" not null,
  event            text collate "C" not null,
  type             text collate "C" not null,
  status           text collate "C" not null default 'pending' check (status in ('pending', 'delivered', 'failed', 'dead')),
  agent_kind       text collate "C",
  agent_id         text collate "C",
  tags             text[] collate "C" not null,
  approval_id      text collate "C",
  budget           text collate "C",
  url              text collate "C",
  last_error       text collate "C",
  primary key (tenant, id),
  constraint about_a_job_or_a_budget check
    ((job_id is null) = (job_status is null) and (job_id is not null or budget is not null)),
  constraint due_exactly_until_settled check
    ((next_try_at is null) = (status in ('delivered', 'dead')) and (settled_at is not null) = (next_try_at is null))
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index outbox_due on interlock.outbox (tenant, channel, next_try_at) where next_try_at is not null;
create index outbox_channel on interlock.outbox (tenant, channel, id);
create index outbox_job on interlock.outbox (tenant, job_id);
create index outbox_settled on interlock.outbox (settled_at) where settled_at is not null;
comment on table interlock.outbox is
  'Webhook deliveries, written by the triggers of job in the transaction of the change.';
comment on column interlock.outbox.id is 'A UUIDv7; ID of the message, the same for every attempt.';
comment on column interlock.outbox.at is 'Time of the event.';
comment on column interlock.outbox.job_id is 'Job of the event; null for a budget without an unfinished job.';
comment on column interlock.outbox.attempt is 'The attempt of the job.';
comment on column interlock.outbox.version is 'The version of the job.';
comment on column interlock.outbox.attempts is 'Number of delivery attempts.';
comment on column interlock.outbox.grabs is 'Number of leases of the row; fence of the sender that holds it.';
comment on column interlock.outbox.job_status is 'New status of the job.';
comment on column interlock.outbox.previous_status is 'Previous status of the job.';
comment on column interlock.outbox.folded is 'Number of other events coalesced into it; null until a throttled channel releases it.';
comment on column interlock.outbox.last_status_code is 'HTTP status of the last response.';
comment on column interlock.outbox.next_try_at is 'Time of the next attempt; a sender that leases the row moves it forward, so that the row is due again if the sender dies.';
comment on column interlock.outbox.last_tried_at is 'Time of the last attempt.';
comment on column interlock.outbox.settled_at is 'Time at which it was delivered or became dead.';
comment on column interlock.outbox.subscription_id is 'Subscription that receives it, or received it last.';
comment on column interlock.outbox.channel is 'Queue of deliveries.';
comment on column interlock.outbox.event is 'Name of the event.';
comment on column interlock.outbox.type is 'The type of the job.';
comment on column interlock.outbox.status is 'pending, delivered, failed (will be retried), or dead.';
comment on column interlock.outbox.agent_kind is 'The agent of the job.';
comment on column interlock.outbox.agent_id is 'The agent of the job.';
comment on column interlock.outbox.tags is 'The tags of the job.';
comment on column interlock.outbox.approval_id is 'Approval of the event.';
comment on column interlock.outbox.budget is 'Budget of the event, as in flow_limit.';
comment on column interlock.outbox.url is 'The webhook of the job; null for a subscription.';
comment on column interlock.outbox.last_error is 'Error code of the last failed attempt.';

grant select, insert, update, delete on interlock.subscription, interlock.webhook_throttle to interlock_app;
grant select, insert, update on interlock.webhook_secret to interlock_app;
grant select, update, delete on interlock.outbox to interlock_app;  -- only the triggers of job insert rows
grant select (tenant, channel, next_try_at, settled_at, id) on interlock.outbox to interlock_sweep;
grant select (tenant, id, events, ended_at, expires_at) on interlock.subscription to interlock_sweep;

create function interlock.delivery_id() returns uuid language sql volatile
  return encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
    placing substring(int8send(floor(extract(epoch from interlock.clock()) * 1000)::bigint) from 3) from 1 for 6), 52, 1), 53, 1), 'hex')::uuid;
comment on function interlock.delivery_id() is 'A new UUIDv7.';

-- A job may become claimable without a transition: it gets a concurrency slot, or an edit changes its run_at.
create function interlock.announce_slot() returns trigger
  language plpgsql security definer set search_path = interlock, pg_temp as $$
declare
  whose text;
begin
  select n.tenant into whose from slotted n limit 1;
  if whose is not null
      and exists (select from subscription s where s.tenant = whose and s.ended_at is null and 'queue.ready' = any(s.events))
      and coalesce(current_setting('interlock.untold', true), '') = '' then
    perform deliver_ready(whose, array(select n.job_id from slotted n where not n.blocked));
  end if;
  return null;
end $$;
create trigger announce_slot after update on interlock.ready referencing new table as slotted
  for each statement execute function interlock.announce_slot();

-- Return channels with due deliveries, round-robin over tenants: the oldest of each tenant, then the second of each,
-- and so on.
create function interlock.due_channels(p_now timestamptz, p_limit integer) returns table (tenant text, channel text)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  with recursive c(tenant, channel) as (
    (select o.tenant, o.channel from outbox o where o.next_try_at is not null order by o.tenant, o.channel limit 1)
    union all
    select n.tenant, n.channel from c cross join lateral (
      select o.tenant, o.channel from outbox o where o.next_try_at is not null and (o.tenant, o.channel) > (c.tenant, c.channel)
      order by o.tenant, o.channel limit 1) n
  ), due as (
    select c.tenant, c.channel, d.next_try_at as since, row_number() over (partition by c.tenant order by d.next_try_at) as ordinal
    from c cross join lateral (select o.next_try_at from outbox o
      where o.tenant = c.tenant and o.channel = c.channel and o.next_try_at is not null order by o.next_try_at limit 1) d
    where d.next_try_at <= p_now
  )
  select due.tenant, due.channel from due order by due.ordinal, due.since limit p_limit
$$;

create function interlock.old_subscriptions(p_before timestamptz, p_limit integer) returns table (tenant text, id uuid)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select s.tenant, s.id from subscription s where coalesce(s.ended_at, s.expires_at) <= p_before limit p_limit
$$;

create function interlock.old_deliveries(p_before timestamptz, p_limit integer) returns table (tenant text, id uuid)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select o.tenant, o.id from outbox o where o.settled_at <= p_before order by o.settled_at limit p_limit
$$;
