"""The chain of hashes: the same bytes on both engines, and what an audit finds when the owner tampers with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from interlock.domain.audit import history_hash
from interlock.domain.lifecycle import Status
from interlock.storage import history_chain
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from tests.contract.builders import TenantQueue, cancel, complete, new_job
from tests.contract.connections import MASTER, SqlConnection, move, open_connection
from tests.contract.test_history import eventful
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, ENGINES, ManualClock, fresh_database, open_store


async def test_each_hash_covers_its_row_and_the_previous_hash(queue: TenantQueue) -> None:
    id = await eventful(queue)
    previous = None
    for r in await queue.history(id):
        who_and_what = (r.version, r.from_status, r.to_status, r.verb, r.actor, r.attempt, r.fence)
        assert r.hash == history_hash(previous, queue.tenant, id, *who_and_what, r.reason, r.metadata, r.at)
        previous = r.hash


async def test_the_same_script_produces_the_same_hashes_on_both_engines(tmp_path: Path, postgres: Postgres) -> None:
    """G30, down to the bytes of the audit."""
    reported, heads = [], []
    ids = [f"0193a1b2-0000-7000-8000-{n:012x}" for n in range(4)]
    for engine in ENGINES:
        clock = ManualClock()
        async with open_store(engine, directory=tmp_path, postgres=postgres, clock=clock) as store:
            queue = TenantQueue(store, "größe 🐢", clock)
            await eventful(queue, id=ids[0])
            job = await queue.running(id=ids[1], type="other")
            await queue.do(complete(job, result='"done"'))
            await queue.add(id=ids[2], type="late", deadline=queue.after(5))
            clock.advance(5)
            await queue.sweep()
            await TenantQueue(store, "b", clock).add(id=ids[3])
            reported.append([[row.hash for row in await queue.history(id)] for id in ids])
            heads.append(await store.audit.head())
            assert (await store.audit.verify()).first_bad is None
    assert reported[0] == reported[1]
    assert heads[0] == heads[1]


async def test_an_untouched_store_is_verified_and_counted(queue: TenantQueue, rival: TenantQueue) -> None:
    rows = len(await queue.history(await eventful(queue)))
    await queue.add_all([new_job() for _ in range(5)])
    await rival.add()
    verdict = await queue.store.audit.verify(queue.tenant)
    assert verdict == (6, rows + 5, None)
    assert (await queue.store.audit.verify(rival.tenant)) == (1, 1, None)
    assert (await queue.store.audit.verify("nobody")) == (0, 0, None)


# What an owner might do to a history of twelve rows, once the guards are taken away.
KEY = {"sqlite": "seq = (SELECT seq FROM job WHERE tenant = $1 AND id = $2)", "postgres": "job_id = $2"}
TAMPERINGS = {
    "another actor": ("UPDATE job_history SET actor = 'user:mallory' WHERE tenant = $1 AND {key} AND version = 3", 3),
    "another reason": ("UPDATE job_history SET reason = 'none' WHERE tenant = $1 AND {key} AND version = 3", 3),
    "no reason": ("UPDATE job_history SET reason = NULL WHERE tenant = $1 AND {key} AND version = 3", 3),
    "other metadata": ("UPDATE job_history SET metadata = '{{}}' WHERE tenant = $1 AND {key} AND version = 5", 5),
    "another verb": ("UPDATE job_history SET verb = 'revoke' WHERE tenant = $1 AND {key} AND version = 7", 7),
    "another attempt": ("UPDATE job_history SET attempt = 9 WHERE tenant = $1 AND {key} AND version = 4", 4),
    "another fence": ("UPDATE job_history SET fence = 9 WHERE tenant = $1 AND {key} AND version = 4", 4),
    "another hash": (
        "UPDATE job_history SET hash = (SELECT hash FROM job_history WHERE tenant = $1 AND {key} AND version = 1)"
        " WHERE tenant = $1 AND {key} AND version = 6", 6),
    "another status": ("UPDATE job_history SET to_status = 'retry' WHERE tenant = $1 AND {key} AND version = 3", 3),
    "another time": (
        "UPDATE job_history SET at = (SELECT at FROM job_history WHERE tenant = $1 AND {key} AND version = 12)"
        " WHERE tenant = $1 AND {key} AND version = 2", 2),
    "a row gone": ("DELETE FROM job_history WHERE tenant = $1 AND {key} AND version = 6", 7),
    "the first row gone": ("DELETE FROM job_history WHERE tenant = $1 AND {key} AND version = 1", 2),
    "the last row gone": ("DELETE FROM job_history WHERE tenant = $1 AND {key} AND version = 12", 11),
    "all rows gone": ("DELETE FROM job_history WHERE tenant = $1 AND {key}", None),
    "a row renumbered": ("UPDATE job_history SET version = 20 WHERE tenant = $1 AND {key} AND version = 7", 8),
    "another status of the job": (
        "UPDATE job SET status = 'succeeded', error = NULL WHERE tenant = $1 AND id = $2", 12),
    "another version of the job": ("UPDATE job SET version = 11 WHERE tenant = $1 AND id = $2", 12),
    "another head of the job": (
        "UPDATE job SET head = (SELECT hash FROM job_history WHERE tenant = $1 AND {key} AND version = 11)"
        " WHERE tenant = $1 AND id = $2", 12),
}  # fmt: skip


@pytest.mark.parametrize("kind", TAMPERINGS)
async def test_an_audit_finds_the_first_tampered_row(queue: TenantQueue, sql: SqlConnection, kind: str) -> None:
    id = await eventful(queue)
    other = await queue.add()
    await queue.verify()
    await sql.without_rules()
    statement, version = TAMPERINGS[kind]
    await sql.run(statement.format(key=KEY[sql.engine]), queue.tenant, id)
    verdict = await queue.store.audit.verify(queue.tenant)
    assert verdict.first_bad is not None
    assert id in verdict.first_bad
    assert other not in verdict.first_bad
    assert version is None or f"version {version}:" in verdict.first_bad


@pytest.mark.parametrize("engine", ["postgres"])
async def test_on_postgresql_an_invented_hash_is_rejected(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.running()
    await move(sql, job, Status.SUCCEEDED, queue.clock.now, head=bytes(32))
    await queue.verify()


async def test_an_audit_finds_history_without_its_job(queue: TenantQueue, sql: SqlConnection) -> None:
    id = await eventful(queue)
    await sql.without_rules()
    await sql.run("DELETE FROM job WHERE tenant = $1 AND id = $2", queue.tenant, id)
    verdict = await queue.store.audit.verify(queue.tenant)
    assert verdict.first_bad is not None
    assert "the job is gone" in verdict.first_bad


async def test_tampering_with_one_tenant_is_not_reported_for_another(
    queue: TenantQueue, rival: TenantQueue, sql: SqlConnection
) -> None:
    id = await queue.add()
    await rival.add()
    await sql.without_rules()
    await sql.run(TAMPERINGS["all rows gone"][0].format(key=KEY[sql.engine]), queue.tenant, id)
    assert (await queue.store.audit.verify(queue.tenant)).first_bad is not None
    assert (await queue.store.audit.verify(rival.tenant)).first_bad is None


async def with_own_store(
    engine: str, directory: Path, postgres: Postgres, use: Callable[[Store, str], Awaitable[None]]
) -> None:
    """A store that no other test has touched, since the head covers all tenants."""
    clock = ManualClock()
    if engine == "sqlite":
        path = str(directory / "own.db")
        store: Store = await SQLiteStore.open(path, clock=clock)
        try:
            await use(store, path)
        finally:
            await store.close()
    else:
        async with fresh_database(postgres) as name:
            store = await PostgresStore.open(postgres.dsn(name, user=APP_LOGIN), size=2, clock=clock)
            try:
                await use(store, name)
            finally:
                await store.close()


async def test_the_head_changes_with_every_transition_and_with_nothing_else(
    engine: str, tmp_path: Path, postgres: Postgres
) -> None:
    async def use(store: Store, place: str) -> None:
        queue = TenantQueue(store, "t", ManualClock())
        seen = [await store.audit.head()]
        id = await queue.add()
        seen.append(await store.audit.head())
        await queue.add(type="x", delay_seconds=9.0)
        seen.append(await store.audit.head())
        await queue.claim()
        seen.append(await store.audit.head())
        assert await store.audit.head() == seen[-1]
        await queue.do(cancel(id))
        seen.append(await store.audit.head())
        assert len(set(seen)) == len(seen)
        assert all(len(head) == 64 for head in seen)

    await with_own_store(engine, tmp_path, postgres, use)


async def test_the_head_of_a_tenant_depends_on_no_other_tenant(
    engine: str, tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_chain, "ENDS_BATCH_SIZE", 2)  # so that it is read in several pieces

    async def use(store: Store, place: str) -> None:
        one, other = TenantQueue(store, "one", ManualClock()), TenantQueue(store, "other", ManualClock())
        nothing = await store.audit.head("one")
        await one.add_all([new_job() for _ in range(5)])
        head, local_principal = await store.audit.head("one"), await store.audit.head()
        assert nothing != head == local_principal
        await other.add()
        assert (await store.audit.head("one"), await store.audit.head("nobody")) == (head, nothing)
        assert len({head, await store.audit.head("other"), await store.audit.head()}) == 3
        await one.claim()
        assert await store.audit.head("one") != head

    await with_own_store(engine, tmp_path, postgres, use)


async def test_only_an_external_copy_of_the_head_reveals_a_rewritten_chain(
    engine: str, tmp_path: Path, postgres: Postgres
) -> None:
    async def use(store: Store, place: str) -> None:
        clock = ManualClock()
        queue = TenantQueue(store, "t", clock)
        id = await queue.add()
        (row,) = await queue.history(id)
        head = await store.audit.head()
        rest = (1, None, "queued", "enqueue", "user:mallory", 1, 0, None, row.metadata, row.at)
        forged = history_hash(None, "t", id, *rest)
        async with open_connection(MASTER[engine], place=place, tenant="t", clock=clock, postgres=postgres) as sql:
            await sql.without_rules()
            await sql.run("UPDATE job_history SET actor = 'user:mallory', hash = $1", forged)
            await sql.run("UPDATE job SET head = $1", forged)
        assert (await store.audit.verify()).first_bad is None
        assert await store.audit.head() != head

    await with_own_store(engine, tmp_path, postgres, use)
