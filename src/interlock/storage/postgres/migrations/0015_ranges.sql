-- A worker that accepts any repository or affinity key finds its jobs in one index range, regardless of their number.

alter table interlock.eligibility_key add column across_repositories bigint, add column across_keys bigint;
comment on column interlock.eligibility_key.across_repositories is 'The same route without its repository, if it has one.';
comment on column interlock.eligibility_key.across_keys is 'The same route without its affinity key, if it has one.';

-- Lookup columns of a claim, which never reads the keys, repositories and capabilities of other workers. A worker that
-- has all required capabilities has the first one. They are columns because row-level security prevents an index search
-- by an expression that is not leakproof.
alter table interlock.eligibility_key add column found_by_key text collate "C" not null generated always as (coalesce(affinity_key, '')) stored,
  add column found_by_repository text collate "C" not null generated always as (coalesce(repository, '')) stored,
  add column found_by_need text collate "C" not null generated always as (coalesce(requires[1], '')) stored;
comment on column interlock.eligibility_key.found_by_key is 'Its affinity key; empty if it has none.';
comment on column interlock.eligibility_key.found_by_repository is 'Its repository; empty if it has none.';
comment on column interlock.eligibility_key.found_by_need is 'The first capability its jobs require; empty if they require none.';
create unique index eligibility_key_found on interlock.eligibility_key (tenant, found_by_key, found_by_repository, found_by_need, type, priority, requires)
  where found_by_key is not null;
create index eligibility_key_bases on interlock.eligibility_key (tenant, type) where no = base;
create index eligibility_key_bound on interlock.eligibility_key (tenant) where no <> base;
drop index interlock.eligibility_key_unique;
drop index interlock.eligibility_key_wide;
drop index interlock.eligibility_key_affinity;

alter table interlock.ready add column across_repositories bigint, add column across_keys bigint;
comment on column interlock.ready.across_repositories is 'Route of the job without its repository, if it has one.';
comment on column interlock.ready.across_keys is 'Route of the job without its affinity key, if it has one.';
create index ready_across_repositories on interlock.ready (tenant, across_repositories, run_at, seq)
  where across_repositories is not null and not blocked;
create index ready_across_keys on interlock.ready (tenant, across_keys, run_at, seq) where across_keys is not null and not blocked;

create function interlock.range_ready() returns trigger language plpgsql set search_path = interlock, pg_temp as $$
begin
  select r.across_repositories, r.across_keys into new.across_repositories, new.across_keys
  from eligibility_key r where r.tenant = new.tenant and r.no = new.eligibility_key;
  return new;
end $$;
create trigger range_ready before insert on interlock.ready for each row
  when (new.eligibility_key <> new.base) execute function interlock.range_ready();
