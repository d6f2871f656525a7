"""PostgreSQL only: what the app role may not do, and the row-level security behind every predicate."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from interlock.domain.operations import PruneOrder
from interlock.domain.registry import JobType
from interlock.domain.token import NewToken
from interlock.domain.worker_presence import Sighting
from interlock.storage.contract import Store
from interlock.storage.postgres.migrate import verbs
from interlock.storage.postgres.store import PostgresStore
from tests.contract.approvals import ballot, decided, waiting
from tests.contract.artifacts import file, opened, show
from tests.contract.builders import OPERATOR, Desk, ask, cancel, new_id, release, save
from tests.contract.connections import Door, open_door, refusal
from tests.contract.progress import event, keep, report, step, tell
from tests.contract.webhooks import overheard
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, ManualClock

DENIED = "permission denied"


@pytest.fixture
def engine() -> str:
    return "postgres"


@pytest_asyncio.fixture(loop_scope="module")
async def app(place: str, store: Store, tenant: str, clock: ManualClock, postgres: Postgres) -> AsyncIterator[Door]:
    """A connection as the app role, acting for the tenant of the test."""
    async with open_door("app", place=place, tenant=tenant, clock=clock, postgres=postgres) as opened:
        yield opened


async def tables(door: Door, *, with_tenant: bool) -> list[str]:
    rows = await door.run(
        """select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
           where n.nspname = 'interlock' and c.relkind in ('r', 'p') and $1 = exists
             (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant') order by 1""",
        with_tenant,
    )
    return [table for (table,) in rows]


async def furnish(desk: Desk) -> None:
    """At least one row in every table that has a tenant."""
    job = await desk.running(type="held")
    await desk.checkpoint(save(job, 1))
    await keep(desk, step(job))
    await tell(desk, report(job, event()))
    await show(desk, file(job))
    await opened(desk, file(job, "begun"))
    await desk.add(type="ready")
    parent = await desk.running(type="parent")
    child = await desk.add(type="child", parent_id=parent.id)
    await desk.do(release(parent, children=(child,)))
    await desk.store.pause(desk.tenant, "paused", actor=OPERATOR, reason=None)
    _, gate = await waiting(desk, job=await desk.running(type="gated"), required=2)
    await decided(desk, ballot(gate))
    await overheard(desk)
    await desk.claim(claim_id="named", types=frozenset({"ready"}))
    await desk.add(type="ready", agent_kind="bot", agent_id="1")
    for type in ("deleted", "cancelled"):
        await desk.do(cancel(await desk.add(type=type)))
        desk.clock.advance(1)
    await desk.store.prune(desk.tenant, PruneOrder(new_id(), OPERATOR, desk.clock.now - 1_500_000, 0, 100))
    await desk.store.set_type(desk.tenant, JobType("registered"))
    hash = hashlib.sha256(desk.tenant.encode()).digest()
    await desk.store.create_tokens(desk.tenant, [NewToken(new_id(), hash, ("read",), OPERATOR)])
    await desk.store.note_workers(desk.tenant, [Sighting("w1", (ask(),))])
    await desk.store.note_stretches(1, 1000)
    assert isinstance(desk.store, PostgresStore)
    await desk.store.place(desk.tenant, "a")


FORBIDDEN = [
    "INSERT INTO prune SELECT * FROM prune",
    "UPDATE prune SET jobs = 0",
    "DELETE FROM prune",
    "INSERT INTO setback SELECT * FROM setback",
    "DELETE FROM setback",
    "INSERT INTO straggler SELECT * FROM straggler",
    "DELETE FROM straggler",
    "INSERT INTO stretch SELECT * FROM stretch",
    "DELETE FROM stretch",
    "DELETE FROM stretch_word",
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
    "INSERT INTO tally SELECT * FROM tally",
    "DELETE FROM tally",
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
    "DELETE FROM route",
    "UPDATE route SET type = 'x'",
    "UPDATE epoch SET value = 7",
    "UPDATE seal SET key = key",
    "DELETE FROM seal",
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
]


async def test_the_app_role_may_do_no_more_than_the_verbs_need(desk: Desk, app: Door) -> None:
    await furnish(desk)
    for statement in FORBIDDEN:
        message = await refusal(app, statement)
        assert DENIED in message or "must be owner" in message, statement
    await app.run("SET row_security = off")
    assert "row-level security" in await refusal(app, "SELECT * FROM job")
    await desk.verify()


async def test_the_app_role_owns_nothing_and_is_nobody_special(door: Door) -> None:
    owned = await door.run(
        """select c.relname from pg_class c where pg_get_userbyid(c.relowner) in ('interlock_app', $1)
           union all select p.proname from pg_proc p where pg_get_userbyid(p.proowner) in ('interlock_app', $1)
           union all select n.nspname from pg_namespace n where pg_get_userbyid(n.nspowner) in ('interlock_app', $1)
           union all select t.typname from pg_type t where pg_get_userbyid(t.typowner) in ('interlock_app', $1)""",
        APP_LOGIN,
    )
    assert owned == []
    special = await door.run(
        """select rolname from pg_roles where rolname in ('interlock_app', 'interlock_sweep', $1)
           and (rolsuper or rolbypassrls or rolcreaterole or rolcreatedb or rolreplication)""",
        APP_LOGIN,
    )
    assert special == []
    logins = await door.run(
        "select rolname from pg_roles where rolname in ('interlock_app', 'interlock_sweep') and rolcanlogin"
    )
    assert logins == []


async def test_the_app_role_deletes_no_token_that_still_counts(desk: Desk, app: Door) -> None:
    new = NewToken(new_id(), hashlib.sha256(desk.tenant.encode()).digest(), ("read",), OPERATOR, expires_in_seconds=60)
    await desk.store.create_tokens(desk.tenant, [new])
    forget = "SELECT forget_tokens($1, $2, 'infinity'::text::timestamptz)"
    assert await app.run(forget, desk.tenant, [new.id]) == [(0,)]
    assert [token.id for token in await desk.store.tokens(desk.tenant)] == [new.id]
    desk.clock.advance(61)
    assert await app.run(forget, desk.tenant, [new.id]) == [(1,)]
    assert await desk.store.tokens(desk.tenant) == []


async def test_the_sweeper_owns_only_functions_that_tell_tenant_and_id(door: Door) -> None:
    rows = await door.run(
        """select p.proname, pg_get_function_result(p.oid) from pg_proc p
           where pg_get_userbyid(p.proowner) = 'interlock_sweep' order by 1"""
    )
    assert dict(rows) == {
        "any_job": "boolean",
        "due_channels": "TABLE(tenant text, channel text)",
        "old_deliveries": "TABLE(tenant text, id uuid)",
        "old_subscriptions": "TABLE(tenant text, id uuid)",
        "due_deadlines": "TABLE(tenant text, job_id uuid)",
        "due_gates": "TABLE(tenant text, job_id uuid)",
        "due_waits": "TABLE(tenant text, job_id uuid)",
        "gate_of_token": "TABLE(tenant text, gate_id uuid)",
        "due_leases": "TABLE(tenant text, job_id uuid)",
        "due_lines": "SETOF text",
        "long_tails": "SETOF text",
        "long_tallies": "SETOF text",
        "moves": "TABLE(tenant text, shard text, other text, phase text)",
        "places_given": "bigint",
        "population": "TABLE(shard text, tenants bigint)",
        "old_tokens": "TABLE(tenant text, token_id uuid)",
        "old_workers": "TABLE(tenant text, name text)",
        "token_owner": "TABLE(tenant text, token_id uuid)",
        "due_orphans": "TABLE(tenant text, object_key text)",
        "old_claims": "TABLE(tenant text, worker text, claim_id text)",
        "tenants": "SETOF text",
    }


async def test_functions_with_the_rights_of_their_owner_have_a_fixed_search_path(door: Door) -> None:
    rows = await door.run(
        """select p.proname, coalesce(array_to_string(p.proconfig, ','), '') from pg_proc p
           join pg_namespace n on n.oid = p.pronamespace where n.nspname = 'interlock' and p.prosecdef"""
    )
    assert {"after_insert", "after_update", "tenants"} <= {name for name, _ in rows}
    for name, settings in rows:
        assert "search_path=interlock, pg_temp" in settings, name


async def test_nobody_else_may_call_our_functions(door: Door) -> None:
    rows = await door.run(
        """select p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace
           where n.nspname = 'interlock' and has_function_privilege('public', p.oid, 'execute')"""
    )
    assert rows == []


async def test_row_level_security_is_on_and_forced_on_every_table_with_a_tenant(door: Door) -> None:
    rows = await door.run(
        """select c.relname, c.relrowsecurity, c.relforcerowsecurity,
             (select count(*) from pg_policy p where p.polrelid = c.oid and p.polname = 'tenant_only' and p.polcmd = '*')
           from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'interlock' and c.relkind in ('r', 'p')"""
    )
    found = {table: (on, forced, policies) for table, on, forced, policies in rows}
    for table in await tables(door, with_tenant=True):
        assert found[table] == (True, True, 1), table


async def test_views_have_the_rights_of_whoever_asks(door: Door) -> None:
    rows = await door.run(
        """select c.relname, coalesce(array_to_string(c.reloptions, ','), '') from pg_class c
           join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'interlock' and c.relkind = 'v'"""
    )
    assert rows
    for view, options in rows:
        assert "security_invoker=true" in options, view


@pytest.mark.parametrize("setting", ["unset", "empty", "another tenant", "a null byte's neighbour"])
async def test_without_its_tenant_no_row_of_any_table_is_seen(
    desk: Desk, door: Door, app: Door, place: str, postgres: Postgres, clock: ManualClock, setting: str
) -> None:
    await furnish(desk)
    # Written by triggers of a shard, while a tenant is leaving it.
    await door.run("insert into straggler (tenant, job_id) select tenant, id from job where tenant = $1", desk.tenant)
    names = await tables(door, with_tenant=True)
    for table in names:
        assert await app.run(f"select 1 from {table} limit 1"), f"{table} has no row to hide"
    async with open_door("app", place=place, tenant="", clock=clock, postgres=postgres) as other:
        if setting == "unset":
            await other.run("reset interlock.tenant")
        elif setting != "empty":
            value = "rival" if setting == "another tenant" else f"{desk.tenant} "
            await other.run("select set_config('interlock.tenant', $1, false)", value)
        for table in [*names, "job_view"]:
            assert await other.run(f"select * from {table}") == [], table


async def test_the_owner_too_sees_only_its_tenant(
    desk: Desk, neighbour: Desk, door: Door, place: str, clock: ManualClock, postgres: Postgres
) -> None:
    """FORCE: the owner of a table is not exempt, nor is whoever has the sweeper's role without acting as it."""
    await furnish(desk)
    await furnish(neighbour)
    await door.run("insert into straggler (tenant, job_id) select tenant, id from job")
    async with open_door("owner", place=place, tenant=desk.tenant, clock=clock, postgres=postgres) as owner:
        assert await owner.run("select pg_has_role(current_user, 'interlock_sweep', 'usage')") == [(True,)]
        for table in await tables(door, with_tenant=True):
            seen = {tenant for (tenant,) in await owner.run(f"select tenant from {table}")}
            assert seen == {desk.tenant}, table


async def test_a_statement_that_lost_its_tenant_predicate_still_sees_no_other_tenant(
    desk: Desk, rival: Desk, app: Door, door: Door
) -> None:
    """The predicate is taken out of a real statement of ours; row-level security stands behind it."""
    mine, theirs = await desk.add(), await rival.add()
    text = verbs().text
    start = text.index("select v.*", text.index("function interlock.jobs"))
    statement = text[start : text.index(";", start)]
    for name, value in {"v.tenant = p_tenant and ": "", "v.id = any(p_ids)": "true"}.items():
        assert name in statement
        statement = statement.replace(name, value)
    assert "tenant =" not in statement
    as_superuser = {row[1] for row in await door.run(statement)}
    assert {mine, theirs} <= as_superuser
    as_app = await app.run(statement)
    assert [row[1] for row in as_app] == [mine]
    await app.run("select set_config('interlock.tenant', '', false)")
    assert await app.run(statement) == []


async def test_the_app_role_cannot_put_a_row_under_another_tenant(desk: Desk, rival: Desk, app: Door) -> None:
    job = await desk.running()
    theirs = await rival.running()
    message = await refusal(
        app, "insert into job_checkpoint (tenant, job_id, seq, data, sanitized, at) values ($1, $2, 1, '1', false, now())",
        rival.tenant, theirs.id,
    )  # fmt: skip
    assert "row-level security" in message
    await app.run("update lease set heartbeat_at = now()")
    assert (await rival.job(theirs.id)).heartbeat_at is None
    assert (await desk.job(job.id)).heartbeat_at is not None


async def test_every_table_and_every_column_has_a_comment(door: Door) -> None:
    rows = await door.run(
        """select c.relname, coalesce(a.attname, '') from pg_class c join pg_namespace n on n.oid = c.relnamespace
           left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and c.relkind <> 'v'
           where n.nspname = 'interlock' and c.relkind in ('r', 'p', 'v')
             and (obj_description(c.oid, 'pg_class') is null
               or (a.attnum is not null and col_description(c.oid, a.attnum) is null)) order by 1, 2"""
    )
    assert rows == []
