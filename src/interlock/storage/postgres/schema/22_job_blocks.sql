-- Index of job blocks, so that a list with a rare filter need not scan all jobs: the types, tags and creation times of
-- each block of consecutive jobs. Maintenance indexes a block once it is full, so that enqueue pays nothing.

create table interlock.job_block (
  first_seq bigint      not null,
  last_seq  bigint      not null,
  earliest  timestamptz not null,
  latest    timestamptz not null,
  tenant    text collate "C" not null,
  primary key (tenant, first_seq)
);
comment on table interlock.job_block is 'Blocks of 256 jobs of a tenant in order of arrival.';
comment on column interlock.job_block.first_seq is 'Seq of its first job.';
comment on column interlock.job_block.last_seq is 'Seq of its last job.';
comment on column interlock.job_block.earliest is 'Earliest creation time of its jobs.';
comment on column interlock.job_block.latest is 'Latest creation time of its jobs.';

create table interlock.job_block_term (
  first_seq bigint not null,
  tenant    text collate "C" not null,
  kind      text collate "C" not null constraint kind_is_known check (kind in ('type', 'tag')),
  word      text collate "C" not null,
  primary key (tenant, kind, word, first_seq)
);
create index job_block_term_block on interlock.job_block_term (tenant, first_seq);
comment on table interlock.job_block_term is 'The blocks with jobs of a type or with a tag.';
comment on column interlock.job_block_term.kind is 'Whether it is a type or a tag.';
comment on column interlock.job_block_term.word is 'The type or the tag.';
comment on column interlock.job_block_term.first_seq is 'The seq of the first job of the block.';

grant select on interlock.job_block, interlock.job_block_term to interlock_app;
grant select on interlock.job_block to interlock_sweep;

-- Advisory lock of a tenant: exclusive while maintenance indexes a block, shared for changes of tags.
create function interlock.job_block_lock(p_tenant text) returns bigint
  language sql immutable parallel safe return hashtextextended('interlock job_block ' || p_tenant, 0);

create function interlock.note_new_tags() returns trigger
  language plpgsql security definer set search_path = interlock, pg_temp as $$
begin
  perform pg_advisory_xact_lock_shared(job_block_lock(new.tenant));
  insert into job_block_term (tenant, kind, word, first_seq)
  select new.tenant, 'tag', t.tag, s.first_seq
  from (select x.first_seq, x.last_seq from job_block x where x.tenant = new.tenant and x.first_seq <= new.seq order by x.first_seq desc limit 1) s
  cross join unnest(new.tags) t(tag) where s.last_seq >= new.seq
  on conflict do nothing;
  return null;
end $$;
create trigger note_new_tags after update of tags on interlock.job for each row
  when (old.tags is distinct from new.tags) execute function interlock.note_new_tags();

create function interlock.long_tails(p_jobs integer, p_limit integer) returns setof text
  language sql stable security definer set search_path = interlock, pg_temp as $$
  select t.tenant from tenant t
  cross join lateral (select coalesce((select s.last_seq from job_block s where s.tenant = t.tenant order by s.first_seq desc limit 1), 0) as seq) noted
  where exists (select from job j where j.tenant = t.tenant and j.seq > noted.seq order by j.seq offset p_jobs - 1)
  limit p_limit
$$;

create function interlock.last_job_seq() returns bigint
  language sql stable security definer set search_path = interlock, pg_temp as $$ select last_value from job_seq_seq $$;
