"""PostgreSQL only: what the app role may not do, and the row-level security behind every predicate."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from interlock.domain.effect import BeginEffect, Begun
from interlock.domain.limits import Limit
from interlock.domain.message import AwaitMessage, Publish, Published, SendMessage, Sent
from interlock.domain.operations import PruneCommand
from interlock.domain.principal import Person
from interlock.domain.registry import JobType
from interlock.domain.schedule import CatchUp, Overlap, Schedule
from interlock.domain.session import NewSession
from interlock.domain.stream import Append, NewChunk
from interlock.domain.token import NewToken
from interlock.domain.worker_presence import WorkerSeen
from interlock.storage.contract import Store
from interlock.storage.postgres.migrate import functions
from interlock.storage.postgres.store import PostgresStore
from tests.contract.approvals import command, decided, waiting
from tests.contract.artifacts import file, opened, show
from tests.contract.builders import OPERATOR, TenantQueue, ask, cancel, heartbeat, new_id, release, save
from tests.contract.connections import SqlConnection, open_connection, rejection
from tests.contract.progress import append_events, event, keep, report, step
from tests.contract.webhooks import channel, overheard
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, ManualClock

DENIED = "permission denied"


@pytest.fixture
def engine() -> str:
    return "postgres"


@pytest_asyncio.fixture(loop_scope="module")
async def app(
    place: str, store: Store, tenant: str, clock: ManualClock, postgres: Postgres
) -> AsyncIterator[SqlConnection]:
    """A connection as the app role, acting for the tenant of the test."""
    async with open_connection("app", place=place, tenant=tenant, clock=clock, postgres=postgres) as opened:
        yield opened


async def tables(sql: SqlConnection, *, with_tenant: bool) -> list[str]:
    rows = await sql.run(
        """select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
           where n.nspname = 'interlock' and c.relkind in ('r', 'p') and $1 = exists
             (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant') order by 1""",
        with_tenant,
    )
    return [table for (table,) in rows]


def schedule() -> Schedule:
    return Schedule(
        "nightly", "0 3 * * *", None, "UTC", None, None, '{"type":"report"}', Overlap.ALLOW, CatchUp.NONE, 0,
        None, None, None, None, None, None, 1, 0, OPERATOR, 0,
    )  # fmt: skip


async def furnish(queue: TenantQueue) -> None:
    """At least one row in every table that has a tenant."""
    job = await queue.running(type="held", budget='{"usd":5.0}')
    await queue.store.heartbeat(queue.tenant, [heartbeat(job, usage='{"usd":1.0}')])
    await queue.checkpoint(save(job, 1))
    await keep(queue, step(job))
    await append_events(queue, report(job, event()))
    chunk = Append(job.id, job.fence, job.worker or "", "tokens", 0, (NewChunk(b"a", True),))
    assert await queue.store.streams.append(queue.tenant, chunk, limit=10) == 1
    begun = await queue.store.effects.begin(queue.tenant, BeginEffect(job.id, job.fence, job.worker or "", "charge", 1))
    assert isinstance(begun, Begun)
    sent = await queue.store.messages.send(queue.tenant, SendMessage(job.id, "m1", OPERATOR, "go"))
    assert isinstance(sent, Sent)
    assert await queue.store.messages.publish(queue.tenant, Publish("news", "m1", OPERATOR)) == Published("m1", 0)
    patient = await queue.running(type="patient")
    await queue.do(release(patient, message=AwaitMessage("go")))
    await show(queue, file(job))
    await opened(queue, file(job, "begun"))
    await queue.add(type="ready")
    parent = await queue.running(type="parent")
    child = await queue.add(type="child", parent_id=parent.id)
    await queue.do(release(parent, children=(child,)))
    await queue.store.registry.pause(queue.tenant, "paused", actor=OPERATOR, reason=None)
    _, approval = await waiting(queue, job=await queue.running(type="gated"), required=2)
    await decided(queue, command(approval))
    await overheard(queue)
    await queue.claim(claim_id="named", types=frozenset({"ready"}))
    await queue.add(type="ready", agent_kind="bot", agent_id="1")
    for type in ("deleted", "cancelled"):
        await queue.do(cancel(await queue.add(type=type)))
        queue.clock.advance(1)
    await queue.store.prune(queue.tenant, PruneCommand(new_id(), OPERATOR, queue.clock.now - 1_500_000, 0, 100))
    await queue.store.registry.set_type(queue.tenant, JobType("registered"))
    hash = hashlib.sha256(queue.tenant.encode()).digest()
    await queue.store.tokens.create(queue.tenant, [NewToken(new_id(), hash, ("read",), OPERATOR)])
    await queue.store.workers.note(queue.tenant, [WorkerSeen("w1", (ask(),))])
    await queue.store.schedules.set(queue.tenant, schedule(), actor=OPERATOR)
    new = NewSession(new_id(), hash, OPERATOR, 60.0, ("read",), Person("Ada"))
    await queue.store.sessions.begin(queue.tenant, new)
    await queue.store.limits.set(queue.tenant, Limit("llm", concurrency=1), actor=OPERATOR)
    await queue.store.limits.hold(queue.tenant, "llm", key="", until=queue.after(9), actor=OPERATOR, reason=None)
    await queue.store.channels.set(queue.tenant, channel())
    await queue.store.index_job_blocks(1, 1000)
    if isinstance(queue.store, PostgresStore):
        await queue.store.assign_shard(queue.tenant, "a")


FORBIDDEN = [
    "INSERT INTO prune SELECT * FROM prune",
    "UPDATE prune SET jobs = 0",
    "DELETE FROM prune",
    "INSERT INTO unsuccessful_job SELECT * FROM unsuccessful_job",
    "DELETE FROM unsuccessful_job",
    "INSERT INTO move_delta SELECT * FROM move_delta",
    "DELETE FROM move_delta",
    "INSERT INTO job_block SELECT * FROM job_block",
    "DELETE FROM job_block",
    "DELETE FROM job_block_term",
    "UPDATE artifact SET sha256 = sha256",
    "DELETE FROM artifact_usage",
    "UPDATE approval SET prompt = 'x'",
    "UPDATE approval SET expires_at = 'infinity'",
    "DELETE FROM approval",
    "UPDATE approval_vote SET decision = 'approve'",
    "DELETE FROM approval_vote",
    "UPDATE job_history SET reason = 'x'",
    "DELETE FROM job_history",
    "TRUNCATE job_history",
    "INSERT INTO job_history SELECT * FROM job_history",
    "DELETE FROM job",
    "TRUNCATE job",
    "UPDATE agent SET used = 0",
    "UPDATE ready SET blocked = false",
    "UPDATE ready SET tenant = tenant",
    "DELETE FROM ready",
    "SELECT * FROM ready FOR UPDATE",
    "DELETE FROM token",
    "UPDATE session SET roles = roles",
    "DELETE FROM person",
    "INSERT INTO queue_counter SELECT * FROM queue_counter",
    "DELETE FROM queue_counter",
    "INSERT INTO lease SELECT * FROM lease",
    "INSERT INTO ready SELECT * FROM ready",
    "DELETE FROM lease",
    "DELETE FROM job_checkpoint",
    "UPDATE job_step SET result = '0'",
    "DELETE FROM job_step",
    "UPDATE job_event SET message = 'x'",
    "DELETE FROM job_event",
    "TRUNCATE job_event",
    "INSERT INTO outbox SELECT * FROM outbox",
    "DELETE FROM webhook_secret",
    "DELETE FROM eligibility_key",
    "UPDATE eligibility_key SET type = 'x'",
    "UPDATE epoch SET value = 7",
    "UPDATE signing_key SET key = key",
    "DELETE FROM signing_key",
    "UPDATE schema_migration SET checksum = ''",
    "ALTER TABLE job DISABLE TRIGGER ALL",
    "ALTER TABLE job NO FORCE ROW LEVEL SECURITY",
    "DROP POLICY tenant_only ON job",
    "DROP TABLE job_history",
    "DROP TRIGGER guard_move ON job",
    "CREATE TABLE interlock.mine (a int)",
    "CREATE FUNCTION interlock.mine() RETURNS int LANGUAGE sql AS 'select 1'",
    "SET session_replication_role = replica",
    "SET ROLE pg_write_all_data",
    "SET ROLE interlock_sweep",
    "SET ROLE interlock_verbs",
]


async def test_the_app_role_has_only_the_privileges_the_operations_need(queue: TenantQueue, app: SqlConnection) -> None:
    await furnish(queue)
    for statement in FORBIDDEN:
        message = await rejection(app, statement)
        assert DENIED in message or "must be owner" in message, statement
    await app.run("SET row_security = off")
    assert "row-level security" in await rejection(app, "SELECT * FROM job")
    await queue.verify()


async def test_the_app_role_owns_nothing_and_has_no_special_attributes(sql: SqlConnection) -> None:
    owned = await sql.run(
        """select c.relname from pg_class c where pg_get_userbyid(c.relowner) in ('interlock_app', $1)
           union all select p.proname from pg_proc p where pg_get_userbyid(p.proowner) in ('interlock_app', $1)
           union all select n.nspname from pg_namespace n where pg_get_userbyid(n.nspowner) in ('interlock_app', $1)
           union all select t.typname from pg_type t where pg_get_userbyid(t.typowner) in ('interlock_app', $1)""",
        APP_LOGIN,
    )
    assert owned == []
    special = await sql.run(
        """select rolname from pg_roles where rolname in ('interlock_app', 'interlock_sweep', 'interlock_verbs', $1)
           and (rolsuper or rolbypassrls or rolcreaterole or rolcreatedb or rolreplication)""",
        APP_LOGIN,
    )
    assert special == []
    logins = await sql.run(
        """select rolname from pg_roles where rolname in ('interlock_app', 'interlock_sweep', 'interlock_verbs')
           and rolcanlogin"""
    )
    assert logins == []


async def test_the_app_role_cannot_delete_a_valid_token(queue: TenantQueue, app: SqlConnection) -> None:
    new = NewToken(new_id(), hashlib.sha256(queue.tenant.encode()).digest(), ("read",), OPERATOR, expires_in_seconds=60)
    await queue.store.tokens.create(queue.tenant, [new])
    forget = "SELECT forget_tokens($1, $2, 'infinity'::text::timestamptz)"
    assert await app.run(forget, queue.tenant, [new.id]) == []
    assert [token.id for token in await queue.store.tokens.page(queue.tenant)] == [new.id]
    queue.clock.advance(61)
    assert await app.run(forget, queue.tenant, [new.id]) == [(new.id,)]
    assert await queue.store.tokens.page(queue.tenant) == []


async def test_the_sweeper_owns_only_functions_that_return_tenant_and_id(sql: SqlConnection) -> None:
    rows = await sql.run(
        """select p.proname, pg_get_function_result(p.oid) from pg_proc p
           where pg_get_userbyid(p.proowner) = 'interlock_sweep' order by 1"""
    )
    assert dict(rows) == {
        "any_job": "boolean",
        "due_channels": "TABLE(tenant text, channel text)",
        "old_deliveries": "TABLE(tenant text, id uuid)",
        "old_subscriptions": "TABLE(tenant text, id uuid)",
        "due_deadlines": "TABLE(tenant text, job_id uuid)",
        "due_approvals": "TABLE(tenant text, job_id uuid)",
        "due_schedules": "TABLE(tenant text, name text)",
        "due_waits": "TABLE(tenant text, job_id uuid)",
        "acting_budgets": "TABLE(tenant text, name text)",
        "watched_budgets": "TABLE(tenant text, name text)",
        "keyed_limits": "TABLE(tenant text, name text)",
        "limit_tenants": "SETOF text",
        "approval_of_token": "TABLE(tenant text, approval_id uuid)",
        "due_leases": "TABLE(tenant text, job_id uuid)",
        "due_agents": "SETOF text",
        "long_tails": "SETOF text",
        "long_counters": "SETOF text",
        "moves": "TABLE(tenant text, shard text, other text, phase text)",
        "last_job_seq": "bigint",
        "population": "TABLE(shard text, tenants bigint)",
        "old_tokens": "TABLE(tenant text, token_id uuid)",
        "old_workers": "TABLE(tenant text, name text)",
        "token_owner": "TABLE(tenant text, token_id uuid)",
        "session_owner": "TABLE(tenant text, session_id uuid)",
        "old_sessions": "TABLE(tenant text, session_id uuid)",
        "due_orphans": "TABLE(tenant text, object_key text)",
        "old_claims": "TABLE(tenant text, worker text, claim_id text)",
        "tenants": "SETOF text",
    }


async def test_security_definer_functions_have_a_fixed_search_path(sql: SqlConnection) -> None:
    rows = await sql.run(
        """select p.proname, coalesce(array_to_string(p.proconfig, ','), '') from pg_proc p
           join pg_namespace n on n.oid = p.pronamespace where n.nspname = 'interlock' and p.prosecdef"""
    )
    assert {"settle_row", "claim", "tenants"} <= {name for name, _ in rows}
    for name, settings in rows:
        assert "search_path=interlock, pg_temp" in settings, name


async def test_no_other_role_may_call_our_functions(sql: SqlConnection) -> None:
    rows = await sql.run(
        """select p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace
           where n.nspname = 'interlock' and has_function_privilege('public', p.oid, 'execute')"""
    )
    assert rows == []


async def test_row_level_security_is_on_and_forced_on_every_table_with_a_tenant(sql: SqlConnection) -> None:
    rows = await sql.run(
        """select c.relname, c.relrowsecurity, c.relforcerowsecurity,
             (select count(*) from pg_policy p where p.polrelid = c.oid and p.polname = 'tenant_only' and p.polcmd = '*')
           from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'interlock' and c.relkind in ('r', 'p')"""
    )
    found = {table: (on, forced, policies) for table, on, forced, policies in rows}
    for table in await tables(sql, with_tenant=True):
        assert found[table] == (True, True, 1), table


async def test_views_have_the_privileges_of_their_caller(sql: SqlConnection) -> None:
    rows = await sql.run(
        """select c.relname, coalesce(array_to_string(c.reloptions, ','), '') from pg_class c
           join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'interlock' and c.relkind = 'v'"""
    )
    assert rows
    for view, options in rows:
        assert "security_invoker=true" in options, view


@pytest.mark.parametrize("setting", ["unset", "empty", "another tenant", "a null byte's neighbour"])
async def test_without_a_tenant_no_row_of_any_table_is_visible(
    queue: TenantQueue,
    sql: SqlConnection,
    app: SqlConnection,
    place: str,
    postgres: Postgres,
    clock: ManualClock,
    setting: str,
) -> None:
    await furnish(queue)
    # Written by triggers of a shard, while a tenant is leaving it.
    await sql.run("insert into move_delta (tenant, job_id) select tenant, id from job where tenant = $1", queue.tenant)
    names = await tables(sql, with_tenant=True)
    for table in names:
        assert await app.run(f"select 1 from {table} limit 1"), f"{table} has no row to hide"
    async with open_connection("app", place=place, tenant="", clock=clock, postgres=postgres) as other:
        if setting == "unset":
            await other.run("reset interlock.tenant")
        elif setting != "empty":
            value = "rival" if setting == "another tenant" else f"{queue.tenant} "
            await other.run("select set_config('interlock.tenant', $1, false)", value)
        for table in [*names, "job_view"]:
            assert await other.run(f"select * from {table}") == [], table


async def test_the_owner_too_sees_only_its_tenant(
    queue: TenantQueue, neighbour: TenantQueue, sql: SqlConnection, place: str, clock: ManualClock, postgres: Postgres
) -> None:
    """FORCE: the owner of a table is not exempt, nor is a member of the sweeper's role that does not act as it."""
    await furnish(queue)
    await furnish(neighbour)
    await sql.run("insert into move_delta (tenant, job_id) select tenant, id from job")
    async with open_connection("owner", place=place, tenant=queue.tenant, clock=clock, postgres=postgres) as owner:
        assert await owner.run("select pg_has_role(current_user, 'interlock_sweep', 'usage')") == [(True,)]
        for table in await tables(sql, with_tenant=True):
            seen = {tenant for (tenant,) in await owner.run(f"select tenant from {table}")}
            assert seen == {queue.tenant}, table


async def test_a_statement_without_its_tenant_predicate_still_sees_no_other_tenant(
    queue: TenantQueue, rival: TenantQueue, app: SqlConnection, sql: SqlConnection
) -> None:
    """The predicate is taken out of a real statement of ours; row-level security stands behind it."""
    mine, theirs = await queue.add(), await rival.add()
    text = functions().text
    start = text.index("select v.*", text.index("function interlock.jobs"))
    statement = text[start : text.index(";", start)]
    for name, value in {"v.tenant = p_tenant and ": "", "v.id = any(p_ids)": "true"}.items():
        assert name in statement
        statement = statement.replace(name, value)
    assert "tenant =" not in statement
    as_superuser = {row[1] for row in await sql.run(statement)}
    assert {mine, theirs} <= as_superuser
    as_app = await app.run(statement)
    assert [row[1] for row in as_app] == [mine]
    await app.run("select set_config('interlock.tenant', '', false)")
    assert await app.run(statement) == []


async def test_the_app_role_cannot_insert_a_row_for_another_tenant(
    queue: TenantQueue, rival: TenantQueue, app: SqlConnection
) -> None:
    job = await queue.running()
    theirs = await rival.running()
    message = await rejection(
        app, "insert into job_checkpoint (tenant, job_id, seq, data, sanitized, at) values ($1, $2, 1, '1', false, now())",
        rival.tenant, theirs.id,
    )  # fmt: skip
    assert "row-level security" in message
    await app.run("update lease set heartbeat_at = now()")
    assert (await rival.job(theirs.id)).heartbeat_at is None
    assert (await queue.job(job.id)).heartbeat_at is not None


async def test_every_table_and_every_column_has_a_comment(sql: SqlConnection) -> None:
    rows = await sql.run(
        """select c.relname, coalesce(a.attname, '') from pg_class c join pg_namespace n on n.oid = c.relnamespace
           left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and c.relkind <> 'v'
           where n.nspname = 'interlock' and c.relkind in ('r', 'p', 'v')
             and (obj_description(c.oid, 'pg_class') is null
               or (a.attnum is not null and col_description(c.oid, a.attnum) is null)) order by 1, 2"""
    )
    assert rows == []
