-- What the planner is told. Jobs are named by tenant and an array of ids; before version 17 PostgreSQL seeks all rows of the tenant
-- instead and looks at each, where it believes that a tenant has only a few. One plan serves all tenants, so it must suit the largest:
-- as far as the planner knows, there is only one.
do $$
declare
  part record;
begin
  for part in select c.oid::regclass as name from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant'
      where c.relnamespace = 'interlock'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition and a.attoptions is null loop
    execute format('alter table %s alter column tenant set (n_distinct = 1, n_distinct_inherited = 1)', part.name);
  end loop;
end $$;

-- Looks at tables that have grown since they were made and that nobody has looked at yet: a plan that was made for an empty table
-- is kept until somebody does, and autovacuum may take a minute.
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
