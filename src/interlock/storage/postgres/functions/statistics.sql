-- Planner statistics. Queries look up jobs by tenant and an array of ids. Before version 17, PostgreSQL reads all rows
-- of the tenant instead if it estimates that a tenant has few. One plan serves all tenants, so it must suit the
-- largest: n_distinct = 1 makes the planner assume a single tenant.
do $$
declare
  part record;
begin
  for part in select c.oid::regclass as name from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant'
      where c.relnamespace = 'interlock'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition and a.attoptions is null loop
    execute format('alter table %s alter column tenant set (n_distinct = 1, n_distinct_inherited = 1)', part.name);
  end loop;
end $$;

-- Analyze tables that have grown and were never analyzed: a plan cached for an empty table is kept until then, and
-- autovacuum may take a minute.
create or replace function interlock.look_at_new_tables() returns void
  language plpgsql security definer set search_path = interlock, pg_temp as $$
declare
  part record;
begin
  for part in select c.oid::regclass as name from pg_class c
      where c.relnamespace = 'interlock'::regnamespace and c.relkind = 'r' and c.reltuples < 0 and pg_relation_size(c.oid) >= 500000 loop
    execute format('analyze (skip_locked) %s', part.name);
  end loop;
end $$;
