-- Artifacts of jobs, orphaned objects that no artifact references, and the bytes stored per tenant.

create table interlock.artifact (
  job_id       uuid        not null,
  id           uuid        not null,
  fence        bigint      not null,
  created_at   timestamptz not null,
  size         bigint,
  tenant       text collate "C" not null,
  worker       text collate "C" not null,
  name         text collate "C" not null,
  sha256       bytea,
  content_type text collate "C",
  object_key   text collate "C",
  url          text collate "C",
  primary key (tenant, job_id, id),
  constraint file_or_link check
    ((url is null) = (object_key is not null) and (url is null) = (size is not null) and (url is null) = (sha256 is not null)
     and (url is null) = (content_type is not null)),
  constraint whole_hash check (length(sha256) = 32),
  constraint size_not_negative check (size >= 0)
);
create unique index artifact_name on interlock.artifact (tenant, job_id, name);
create index artifact_newest on interlock.artifact (tenant, job_id, created_at, id);
create index artifact_id on interlock.artifact (tenant, id);
create index artifact_object on interlock.artifact (tenant, object_key) where object_key is not null;
comment on table interlock.artifact is 'Named files and links of jobs. A row is visible only after all its bytes are stored.';
comment on column interlock.artifact.tenant is 'Tenant of the row.';
comment on column interlock.artifact.job_id is 'Job that it belongs to.';
comment on column interlock.artifact.id is 'ID; a replacement gets a new one.';
comment on column interlock.artifact.fence is 'The fence under which it was added.';
comment on column interlock.artifact.worker is 'The worker that added it.';
comment on column interlock.artifact.created_at is 'Time of creation.';
comment on column interlock.artifact.name is 'Name, unique within the job; never part of a path.';
comment on column interlock.artifact.size is 'Bytes of a file; null for a link.';
comment on column interlock.artifact.sha256 is 'SHA-256 of the bytes of a file, computed here.';
comment on column interlock.artifact.content_type is 'Content type set by the worker; never trusted.';
comment on column interlock.artifact.object_key is 'Random key of the stored object; never returned.';
comment on column interlock.artifact.url is 'URL of a link; never fetched.';

create table interlock.artifact_orphan (
  collect_at timestamptz not null,
  condemned  boolean     not null default false,
  tenant     text collate "C" not null,
  object_key text collate "C" not null,
  primary key (tenant, object_key)
);
create index artifact_orphan_due on interlock.artifact_orphan (collect_at);
comment on table interlock.artifact_orphan is
  'Objects that no artifact refers to: uploads in progress, abandoned and replaced ones.';
comment on column interlock.artifact_orphan.tenant is 'Tenant of the row.';
comment on column interlock.artifact_orphan.object_key is 'Key of the object, which may exist.';
comment on column interlock.artifact_orphan.collect_at is 'Time from which it may be deleted.';
comment on column interlock.artifact_orphan.condemned is 'Being deleted: it can no longer become an artifact, regardless of the clock.';

create table interlock.artifact_usage (
  bytes  bigint not null check (bytes >= 0),
  tenant text collate "C" not null primary key
);
comment on table interlock.artifact_usage is 'Stored bytes of each tenant, for its quota.';
comment on column interlock.artifact_usage.tenant is 'Tenant of the row.';
comment on column interlock.artifact_usage.bytes is 'Total size of all its files.';

grant select, insert, delete on interlock.artifact to interlock_app;
grant select, insert, update, delete on interlock.artifact_orphan to interlock_app;
grant select, insert, update on interlock.artifact_usage to interlock_app;
grant select on interlock.artifact_orphan to interlock_sweep;

create function interlock.due_orphans(p_now timestamptz, p_limit integer) returns table (tenant text, object_key text)
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select o.tenant, o.object_key from artifact_orphan o where o.collect_at <= p_now order by o.collect_at limit p_limit
$$;
