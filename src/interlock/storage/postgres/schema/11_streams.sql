-- Streams: output of running jobs in chunks, numbered from 0 over all attempts.

create table interlock.job_stream (
  job_id     uuid        not null,
  chunks     bigint      not null check (chunks > 0),
  bytes      bigint      not null check (bytes > 0),
  updated_at timestamptz not null,
  tenant     text collate "C" not null,
  name       text collate "C" not null,
  primary key (tenant, job_id, name)
);
comment on table interlock.job_stream is 'Streams of jobs, with their size.';
comment on column interlock.job_stream.job_id is 'Job that it belongs to.';
comment on column interlock.job_stream.name is 'Name of the stream.';
comment on column interlock.job_stream.chunks is 'Number of chunks; the next offset.';
comment on column interlock.job_stream.bytes is 'Size of all chunks.';
comment on column interlock.job_stream.updated_at is 'Time of the last append.';

create table interlock.stream_chunk (
  job_id   uuid        not null,
  chunk_no bigint      not null check (chunk_no >= 0),
  fence    bigint      not null,
  at       timestamptz not null,
  attempt  integer     not null,
  is_text  boolean     not null,
  tenant   text collate "C" not null,
  name     text collate "C" not null,
  data     bytea       not null check (octet_length(data) between 1 and 65536),
  primary key (tenant, job_id, name, chunk_no)
);
comment on table interlock.stream_chunk is 'Chunks of streams, append-only.';
comment on column interlock.stream_chunk.job_id is 'Job that it belongs to.';
comment on column interlock.stream_chunk.name is 'Name of the stream.';
comment on column interlock.stream_chunk.chunk_no is 'Offset in the stream, from 0 over all attempts.';
comment on column interlock.stream_chunk.fence is 'Fence of the lease that wrote it.';
comment on column interlock.stream_chunk.attempt is 'Attempt that wrote it.';
comment on column interlock.stream_chunk.at is 'Time of arrival.';
comment on column interlock.stream_chunk.is_text is 'Whether the bytes are UTF-8 text.';
comment on column interlock.stream_chunk.data is 'The bytes.';

grant select, insert, update on interlock.job_stream to interlock_app;
grant select, insert on interlock.stream_chunk to interlock_app;

create function interlock.refuse_stream_change() returns trigger language plpgsql as $$
begin
  raise exception 'interlock: streams are append-only and go only with their job; % is refused', tg_op
    using errcode = 'insufficient_privilege';
end $$;
create trigger chunk_never_changes before update on interlock.stream_chunk for each row execute function interlock.refuse_stream_change();
create trigger chunk_goes_with_its_job before delete on interlock.stream_chunk for each row
  when (interlock.job_lives(old.tenant, old.job_id)) execute function interlock.refuse_stream_change();
create trigger chunk_is_not_truncated before truncate on interlock.stream_chunk for each statement execute function interlock.refuse_stream_change();
create trigger stream_grows_with_its_chunks before insert or update on interlock.job_stream for each row
  when (current_setting('interlock.verb', true) is distinct from 'on') execute function interlock.refuse_stream_change();
create trigger stream_goes_with_its_job before delete on interlock.job_stream for each row
  when (interlock.job_lives(old.tenant, old.job_id)) execute function interlock.refuse_stream_change();
create trigger stream_is_not_truncated before truncate on interlock.job_stream for each statement execute function interlock.refuse_stream_change();

create function interlock.refuse_chunk_outside_a_run() returns trigger language plpgsql as $$
begin
  if not exists (select from interlock.job j where j.tenant = new.tenant and j.id = new.job_id and j.status = 'running' and j.fence = new.fence) then
    raise exception 'interlock: a chunk is appended under the lease of a running job' using errcode = 'check_violation';
  end if;
  return new;
end $$;
create trigger chunk_belongs_to_a_run before insert on interlock.stream_chunk for each row
  when (current_setting('interlock.verb', true) is distinct from 'on') execute function interlock.refuse_chunk_outside_a_run();
