-- Messages: the inboxes of jobs, and what released jobs wait for.

create table interlock.job_message (
  job_id  uuid        not null,
  seq     bigint      not null check (seq > 0),
  at      timestamptz not null,
  tenant  text collate "C" not null,
  id      text collate "C" not null,
  name    text collate "C",
  topic   text collate "C",
  sender  text collate "C" not null,
  payload text collate "C",
  primary key (tenant, job_id, seq),
  constraint name_or_topic check (num_nonnulls(name, topic) = 1)
);
create unique index job_message_id on interlock.job_message (tenant, job_id, id, coalesce(topic, ''));
create index job_message_name on interlock.job_message (tenant, job_id, name, seq);
create index job_message_topic on interlock.job_message (tenant, job_id, topic, seq) where topic is not null;
comment on table interlock.job_message is 'Messages to jobs, append-only.';
comment on column interlock.job_message.job_id is 'Job that receives it.';
comment on column interlock.job_message.seq is 'Number in the inbox of the job, from 1.';
comment on column interlock.job_message.id is 'ID from the sender; each is stored once, and once for each topic.';
comment on column interlock.job_message.name is 'Name of the message; null if it came from a topic.';
comment on column interlock.job_message.topic is 'Topic that it was sent to, if any.';
comment on column interlock.job_message.payload is 'JSON text.';
comment on column interlock.job_message.sender is 'Principal that sent it.';
comment on column interlock.job_message.at is 'Time of arrival.';

create table interlock.message_wait (
  job_id    uuid   not null,
  fence     bigint not null,
  after_seq bigint not null check (after_seq >= 0),
  tenant    text collate "C" not null,
  name      text collate "C",
  topic     text collate "C",
  primary key (tenant, job_id),
  constraint name_or_topic check (num_nonnulls(name, topic) = 1)
);
create index message_wait_topic on interlock.message_wait (tenant, topic, job_id) where topic is not null;
comment on table interlock.message_wait is 'What a released job waits for; it counts only while the job is queued and has this fence.';
comment on column interlock.message_wait.job_id is 'Job that waits.';
comment on column interlock.message_wait.fence is 'Fence of the lease whose release began the wait.';
comment on column interlock.message_wait.name is 'Name of the message, or null for a topic.';
comment on column interlock.message_wait.topic is 'Topic of the message, if it waits for one.';
comment on column interlock.message_wait.after_seq is 'Only messages with a higher number end the wait.';

grant select, insert on interlock.job_message to interlock_app;
create table interlock.topic_message (
  at         timestamptz not null,
  expires_at timestamptz,
  delivered  integer,
  reached    integer not null default 0,
  tenant     text collate "C" not null,
  topic      text collate "C" not null,
  id         text collate "C" not null,
  sender     text collate "C" not null,
  payload    text collate "C",
  primary key (tenant, topic, id)
);
create index topic_message_at on interlock.topic_message (tenant, at);
comment on table interlock.topic_message is 'Messages to topics: to recognize repeated ones, and for jobs that begin to wait while they are retained.';
comment on column interlock.topic_message.topic is 'The topic.';
comment on column interlock.topic_message.id is 'ID from the sender; each is delivered once.';
comment on column interlock.topic_message.payload is 'JSON text.';
comment on column interlock.topic_message.sender is 'Principal that sent it.';
comment on column interlock.topic_message.at is 'Time of arrival.';
comment on column interlock.topic_message.expires_at is 'Jobs that begin to wait before this time get it; null if it is not retained.';
comment on column interlock.topic_message.delivered is 'Number of jobs that waited for it; null until it is delivered to them.';
comment on column interlock.topic_message.reached is 'Number of them that have it so far: many are served in several transactions.';

grant select, insert, update, delete on interlock.message_wait, interlock.topic_message to interlock_app;

create function interlock.refuse_message_change() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: messages are sent by operations, never change and go only with their job; % is refused', tg_op
    using errcode = 'insufficient_privilege';
end $$;
create trigger message_never_changes before update on interlock.job_message for each row execute function interlock.refuse_message_change();
create trigger message_is_sent before insert on interlock.job_message for each row
  when (current_setting('interlock.verb', true) is distinct from 'on') execute function interlock.refuse_message_change();
create trigger message_goes_with_its_job before delete on interlock.job_message for each row
  when (interlock.job_lives(old.tenant, old.job_id)) execute function interlock.refuse_message_change();
create trigger message_is_not_truncated before truncate on interlock.job_message for each statement execute function interlock.refuse_message_change();
create trigger wait_begins_with_a_release before insert or update on interlock.message_wait for each row
  when (current_setting('interlock.verb', true) is distinct from 'on') execute function interlock.refuse_message_change();
create trigger wait_ends_with_its_message before delete on interlock.message_wait for each row
  when (current_setting('interlock.verb', true) is distinct from 'on' and interlock.job_lives(old.tenant, old.job_id)) execute function interlock.refuse_message_change();
create trigger wait_is_not_truncated before truncate on interlock.message_wait for each statement execute function interlock.refuse_message_change();
create trigger topic_message_is_published before insert or update or delete on interlock.topic_message for each row
  when (current_setting('interlock.verb', true) is distinct from 'on') execute function interlock.refuse_message_change();
create trigger topic_message_is_not_truncated before truncate on interlock.topic_message for each statement execute function interlock.refuse_message_change();
