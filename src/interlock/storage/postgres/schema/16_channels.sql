-- Notification channels. The deliveries of a channel are those of its subscription.

create table interlock.channel (
  tenant               text collate "C" not null,
  name                 text collate "C" not null,
  subscription_id      uuid        not null,
  kind                 text collate "C" not null check (kind in ('slack', 'teams', 'email', 'webhook')),
  address              text collate "C" not null,
  credentials          text collate "C" not null,
  events               text[] collate "C" not null check (cardinality(events) > 0),
  types                text[] collate "C",
  tags                 text[] collate "C" check (cardinality(tags) > 0),
  min_risk             text collate "C" check (min_risk in ('low', 'medium', 'high', 'critical')),
  min_interval_seconds double precision not null check (min_interval_seconds >= 0),
  created_at           timestamptz not null,
  created_by           text collate "C" not null,
  updated_at           timestamptz not null,
  primary key (tenant, name)
);
comment on table interlock.channel is 'Notification channels.';
comment on column interlock.channel.name is 'Its name, unique within the tenant.';
comment on column interlock.channel.subscription_id is 'Subscription that queues its deliveries.';
comment on column interlock.channel.kind is 'slack, teams, email or webhook.';
comment on column interlock.channel.address is 'JSON: the public part of the destination.';
comment on column interlock.channel.credentials is 'JSON: the secret part of the destination, stored because sending needs it.';
comment on column interlock.channel.events is 'Events that it receives.';
comment on column interlock.channel.types is 'Job types whose events it receives; null means all.';
comment on column interlock.channel.tags is 'Tags, one of which a job must have; null means any job.';
comment on column interlock.channel.min_risk is 'Lowest risk of approvals that it receives; null means all approvals.';
comment on column interlock.channel.min_interval_seconds is 'Minimum interval; events of one kind within it are coalesced into one message.';
comment on column interlock.channel.created_at is 'Time of its creation.';
comment on column interlock.channel.created_by is 'Principal that created it.';
comment on column interlock.channel.updated_at is 'Time of the last change.';

grant select, insert, update, delete on interlock.channel to interlock_app;
