"""What the clock has ended is found for every tenant, and tenants that have nothing of the kind cost nothing."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Final

import apsw
import pytest

from interlock.domain.lifecycle import Status
from interlock.domain.principal import local
from interlock.engine.engine import Engine
from interlock.engine.maintenance import Maintenance
from interlock.storage.sql_files import load
from interlock.storage.sqlite.store import SQLiteStore
from interlock.wire import job_request
from tests.contract.approvals import waiting
from tests.contract.builders import TenantQueue, ask
from tests.contract.connections import SqlConnection
from tests.support.eventually import RETRY_SECONDS

SWEEPS: Final = (
    ("read.sql", "due_leases"),
    ("read.sql", "due_deadlines"),
    ("approvals.sqlite.sql", "due"),
    ("registry.sqlite.sql", "tenants_with_due_agents"),
)


async def test_sweeps_find_due_work_of_every_tenant(queue: TenantQueue, rival: TenantQueue) -> None:
    due: dict[str, set[str]] = {"due_leases": set(), "due_deadlines": set(), "due_approvals": set()}
    for of in (queue, rival):
        for _ in range(2):
            due["due_approvals"].add((await waiting(of, expires_in_seconds=5.0))[0].id)
        for _ in range(2):
            due["due_deadlines"].add(await of.add(type="late", deadline=of.clock.now + 5_000_000))
        await of.add(type="held")
        await of.add(type="held")
        held = await of.store.claim(of.tenant, ask(types=frozenset({"held"}), limit=2, lease_seconds=5.0))
        due["due_leases"] |= {job.id for job in held}
        await of.add(type="waits")
    tenants = {queue.tenant, rival.tenant}
    store = queue.store
    sweeps = {
        "due_leases": store.due_leases, "due_deadlines": store.due_deadlines, "due_approvals": store.approvals.due,
    }  # fmt: skip
    for sweep, ids in due.items():
        found = await sweeps[sweep](10_000)
        assert not [item for item in found if item.tenant in tenants]
        assert len(ids) == 4
    queue.clock.advance(5)
    for sweep, ids in due.items():
        found = await sweeps[sweep](10_000)
        assert {item.job_id for item in found if item.tenant in tenants} == ids, sweep
        assert 0 < len(await sweeps[sweep](1)) < len(ids)


async def test_a_corrupt_row_blocks_no_other(queue: TenantQueue, sql: SqlConnection) -> None:
    jobs = [await queue.running(lease_seconds=5.0) for _ in range(5)]
    await sql.without_rules()
    where = "job_id = $1" if sql.engine == "postgres" else "seq = (SELECT seq FROM job WHERE id = $1)"
    await sql.run(f"DELETE FROM job_history WHERE {where}", jobs[2].id)
    queue.clock.advance(5)
    maintenance = Maintenance(queue.store)
    for _ in range(2):  # it is found again every time, and passed over every time
        async with asyncio.timeout(RETRY_SECONDS):
            await maintenance.sweep()
    after = [(await queue.job(job.id)).status for job in jobs]
    assert [status for i, status in enumerate(after) if i != 2] == [Status.RETRY] * 4


async def test_on_sqlite_maintenance_of_an_idle_file_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "idle.db"
    engine = Engine(await SQLiteStore.open(str(path)), retention_days=1)
    try:
        await engine.jobs.enqueue(local("acme"), job_request({"type": "t"}))
        for task in engine.maintenance.tasks:
            await task.run()
        before = [file.read_bytes() for file in (path, path.with_name("idle.db-wal"))]
        for _ in range(2):
            for task in engine.maintenance.tasks:
                await task.run()
        assert [file.read_bytes() for file in (path, path.with_name("idle.db-wal"))] == before
    finally:
        await engine.close()


def machine_steps(db: apsw.Connection, statement: str) -> int:
    """How many steps SQLite's machine takes to find nothing."""
    steps = itertools.count()
    db.set_progress_handler(lambda: next(steps) < 0, 1)
    assert db.execute(statement, {"now": 1 << 60, "limit": 500}).fetchall() == []
    db.set_progress_handler(None)
    return next(steps)


@pytest.mark.parametrize(("file", "name"), SWEEPS, ids=[name for _, name in SWEEPS])
async def test_on_sqlite_idle_tenants_are_not_visited(tmp_path: Path, file: str, name: str) -> None:
    path = str(tmp_path / "idle.db")
    await (await SQLiteStore.open(path)).close()
    package = "interlock.storage.parts" if ".sqlite." in file else "interlock.storage.sqlite"
    statement = load(package, file)[name]
    db = apsw.Connection(path)
    try:
        steps: list[int] = []
        for count in (1, 2000):
            tenants = [(f"tenant {count} {n}",) for n in range(count)]
            db.executemany("INSERT INTO tenant (tenant, next_seq) VALUES (?, 1)", tenants)
            steps.append(machine_steps(db, statement))
        assert 0 < steps[0] == steps[1]
    finally:
        db.close()
