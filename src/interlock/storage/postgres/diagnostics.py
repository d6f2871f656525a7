"""Diagnostics of a PostgreSQL database for operators."""

from __future__ import annotations

from typing import Final

from interlock.errors import Unavailable
from interlock.storage.contract import Fitness
from interlock.storage.migrate import lacking
from interlock.storage.postgres.connection import Conn
from interlock.storage.postgres.migrate import PACKAGE

_SETTINGS: Final = ("synchronous_commit", "fsync", "full_page_writes")

_FACTS: Final = """
select current_user::text as role,
  case when (select rolsuper or rolbypassrls from pg_roles where rolname = session_user) then 'superuser'
       when pg_has_role(session_user, (select nspowner from pg_namespace where nspname = 'interlock'), 'member')
       then 'owner'
       else 'app' end as rights,
  (select name from interlock.schema_migration order by number desc limit 1) as schema,
  coalesce((select 'not forced on ' || string_agg(c.relname, ', ' order by c.relname) from pg_class c
    where c.relnamespace = 'interlock'::regnamespace and c.relkind in ('r', 'p')
      and exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant' and not a.attisdropped)
      and not (c.relrowsecurity and c.relforcerowsecurity)), 'forced') as row_security,
  case when exists (select from pg_class c left join pg_inherits i on i.inhrelid = c.oid
         where 'interlock.job_history'::regclass in (c.oid, i.inhparent) and c.relkind in ('r', 'p')
           and has_table_privilege('interlock_app', c.oid, 'insert, update, delete, truncate'))
       then 'writable by the app role' else 'append-only' end as history,
  coalesce((select
      case when p.before_id > interlock.id_at(interlock.clock()) then 'made until ' else 'missing since ' end
      || to_char(interlock.id_time(p.before_id) at time zone 'UTC', 'YYYY-MM-DD')
    from interlock.history_partition p order by p.before_id desc limit 1), 'none') as history_partitions
"""


async def read(connection: Conn) -> dict[str, str]:
    """Return the version, rights, schema, and the settings that affect durability."""
    (row,) = await connection.fetch(_FACTS)
    version = await connection.fetchval("show server_version")
    settings = {name: str(await connection.fetchval(f"show {name}")) for name in _SETTINGS}
    return {"engine": f"PostgreSQL {version}", **dict(row), **settings}


_FITNESS: Final = """
select number, current_setting('fsync') = 'on' and current_setting('synchronous_commit') <> 'off',
  pg_is_in_recovery() or current_setting('transaction_read_only')::boolean
from interlock.schema_migration where number > 0
"""


async def fitness(connection: Conn) -> Fitness:
    """Return the missing migration, if any, and whether a commit is on disk before it is acknowledged."""
    rows = await connection.fetch(_FITNESS)
    if any(row[2] for row in rows):
        raise Unavailable("PostgreSQL accepts no writes here", public="the database accepts no writes now")
    return Fitness(lacking(PACKAGE, {row[0] for row in rows}), all(row[1] for row in rows))
