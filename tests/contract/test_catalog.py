"""The catalogs: tenant leads every key, row-level security is forced, comments exist."""

from __future__ import annotations

from interlock.domain.lifecycle import EDGES, Status
from interlock.domain.registry import Agent
from tests.contract.builders import TenantQueue
from tests.contract.connections import SqlConnection

# One row or one table for the whole database: there is no tenant to lead their keys.
WITHOUT_TENANT = {"epoch", "history_partition", "promotion", "schema_migration", "signing_key", "shard"}
WITHOUT_TENANT_BY_ENGINE = {
    "sqlite": WITHOUT_TENANT - {"shard", "history_partition"} | {"promotion_change"},
    "postgres": WITHOUT_TENANT | {"promotion_progress"},
}
# Hashes of secrets that are looked up before a tenant is known.
HASHES = {("approval", "token_sha256"), ("token", "hash"), ("session", "hash")}


async def keys(sql: SqlConnection) -> dict[str, list[list[str]]]:
    """The columns of every primary and unique key, by table."""
    if sql.engine == "postgres":
        rows = await sql.run(
            """select c.relname, array(select coalesce(a.attname, '(expression)')
                 from unnest(i.indkey) with ordinality k(no, ordinal)
                 left join pg_attribute a on a.attrelid = c.oid and a.attnum = k.no order by ordinal)
               from pg_index i join pg_class c on c.oid = i.indrelid join pg_namespace n on n.oid = c.relnamespace
               where n.nspname = 'interlock' and i.indisunique"""
        )
        pairs = [(table, list(columns)) for table, columns in rows]
    else:
        pairs = []
        for (table,) in await sql.run("SELECT name FROM sqlite_schema WHERE type = 'table'"):
            info = await sql.run(f"SELECT name, pk FROM pragma_table_info('{table}') WHERE pk > 0 ORDER BY pk")
            pairs.append((table, [name for name, _ in info]))
            for (index,) in await sql.run(f"SELECT name FROM pragma_index_list('{table}') WHERE \"unique\""):
                info = await sql.run(f"SELECT coalesce(name, '(expression)') FROM pragma_index_info('{index}')")
                pairs.append((table, [name for (name,) in info]))
    found: dict[str, list[list[str]]] = {}
    for table, columns in pairs:
        found.setdefault(table, []).append(columns)
    return found


async def test_tenant_leads_every_primary_and_unique_key(sql: SqlConnection) -> None:
    found = await keys(sql)
    assert {
        "job",
        "job_history",
        "eligibility_key",
        "queue",
        "claim_result",
        "job_await",
        "job_checkpoint",
    } <= found.keys()
    for table, columns in found.items():
        for key in columns:
            alone = WITHOUT_TENANT_BY_ENGINE[sql.engine]
            assert key[0] == "tenant" or table in alone or (table, *key) in HASHES, (table, key)


async def test_every_other_table_has_a_tenant(sql: SqlConnection) -> None:
    if sql.engine == "postgres":
        rows = await sql.run(
            """select c.relname, exists (select from pg_attribute a
                 where a.attrelid = c.oid and a.attname = 'tenant' and a.attnotnull)
               from pg_class c join pg_namespace n on n.oid = c.relnamespace
               where n.nspname = 'interlock' and c.relkind in ('r', 'p')"""
        )
    else:
        rows = await sql.run(
            """SELECT s.name, EXISTS (SELECT 1 FROM pragma_table_info(s.name) WHERE name = 'tenant' AND "notnull")
               FROM sqlite_schema s WHERE type = 'table'"""
        )
    without = {table for table, has in rows if not has}
    assert without == WITHOUT_TENANT_BY_ENGINE[sql.engine]


async def test_texts_are_compared_by_bytes_in_any_database_locale(sql: SqlConnection) -> None:
    """Else names would be in another order than on SQLite, and a new version of a library could break an index."""
    if sql.engine == "postgres":
        rows = await sql.run(
            """select c.relname, a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid
               join pg_namespace n on n.oid = c.relnamespace join pg_collation l on l.oid = a.attcollation
               where n.nspname = 'interlock' and c.relkind in ('r', 'p') and l.collname <> 'C'"""
        )
    else:
        rows = await sql.run("SELECT name, sql FROM sqlite_schema WHERE upper(sql) LIKE '%COLLATE%'")
    assert rows == []


async def test_names_are_ordered_by_their_bytes(queue: TenantQueue) -> None:
    names = ["a-1", "a_1", "a1", "A2", "B", "b", "z", "Z", "é", "e", "ß", "大"]
    for name in names:
        await queue.add(type=name, agent_kind=name, agent_id="x")
    in_order = sorted(names, key=str.encode)
    assert [stats.type for stats in await queue.store.registry.stats(queue.tenant)] == in_order
    agents: list[Agent] = []
    while page := await queue.store.registry.agents(
        queue.tenant, (agents[-1].kind, agents[-1].id) if agents else ("", ""), 5
    ):
        agents += page
    assert [agent.kind for agent in agents] == in_order


async def test_the_schema_knows_all_statuses_and_no_others(queue: TenantQueue, sql: SqlConnection) -> None:
    if sql.engine == "postgres":
        rows = await sql.run(
            "select e.enumlabel from pg_enum e join pg_type t on t.oid = e.enumtypid where t.typname = 'status' "
            "order by e.enumsortorder"
        )
        assert [label for (label,) in rows] == [str(status) for status in Status]
    else:
        ((text,),) = await sql.run("SELECT sql FROM sqlite_schema WHERE name = 'job'")
        assert all(f"WHEN '{status}' THEN 1" in text for status in Status)
    assert {target for _, target in EDGES} == set(Status)
