"""A backup is restored, and workers that know more than it does come back: nothing of theirs counts any more (G29)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import apsw
import asyncpg

from interlock.domain.decide import Command, CompleteJob, FailJob
from interlock.domain.job import Heartbeat, Job, Receipt
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.engine.restore import Restore
from interlock.storage.postgres.store import PostgresStore
from tests.process.actions import TENANT, given
from tests.process.conftest import Checker
from tests.process.load import Book, run_load
from tests.support.eventually import eventually
from tests.support.workers import Place, until

ENOUGH = 60
MINE = ClaimFilter(
    "w", types=frozenset({"waiting"}), affinity_keys=frozenset({"w"}), lease_seconds=600.0, claim_id="mine"
)


async def test_a_backup_made_under_load_is_consistent_and_no_lease_from_before_or_after_it_is_valid(
    checker: Checker,
) -> None:
    (before,) = await checker.running(lease_seconds=600.0)
    (waiting,) = await checker.add(type="waiting", affinity_key="w")
    book = Book()
    stop = asyncio.Event()
    work = asyncio.create_task(run_load(checker.store, 1, book.writer(1), stop=stop))
    await until(lambda: at_least(book, ENOUGH), "there is load")
    acknowledged = set(book.enqueued)
    async with backup(checker, stop, work) as copy:
        (after,) = await checker.store.claim(TENANT, MINE)  # the backup does not contain this lease
        assert after.id == waiting
        await restored(copy)
        again = Checker(copy.place, await copy.place.open(), copy.admin_dsn)
        try:
            assert {job.id for job in await again.everything()} >= acknowledged | {before.id, waiting}
            await refused(again, before)
            await refused(again, after)
            (leased,) = await again.store.claim(TENANT, MINE)
            assert (leased.id, leased.worker) == (after.id, after.worker)
            await refused(again, after)  # though the same worker holds the same job now
            (receipt,) = await again.store.carry_out(TENANT, [CompleteJob(leased.id, leased.fence, "w")])
            assert isinstance(receipt, Receipt)
            assert receipt.status is Status.SUCCEEDED
            await again.check(integrity=True)
        finally:
            await again.store.close()


async def at_least(book: Book, answers: int) -> bool:
    return book.answers >= answers


async def refused(checker: Checker, job: Job) -> None:
    """Every call of a worker under an old lease is lost."""
    mine = (job.id, job.fence, str(job.worker))
    orders: list[Command] = [CompleteJob(*mine), FailJob(*mine, '{"message":"late"}')]
    assert given(await checker.store.carry_out(TENANT, orders)) == ["lease_lost"] * 2
    assert given(await checker.store.heartbeat(TENANT, [Heartbeat(*mine)])) == ["lease_lost"]


async def restored(copy: Checker) -> None:
    """As the owner of the database runs it."""
    store = await (copy.place.open() if copy.admin_dsn is None else PostgresStore.open(copy.admin_dsn, size=1))
    try:
        await Restore(store).restored(local())
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def backup(checker: Checker, stop: asyncio.Event, work: asyncio.Task[None]) -> AsyncIterator[Checker]:
    """The database as it is at one moment, elsewhere: on SQLite made by SQLite under load, on PostgreSQL when it is quiet."""
    if checker.admin_dsn is None:
        path = f"{checker.place.address}.backup"
        await asyncio.to_thread(_vacuum_into, checker.place.address, path)
        stop.set()
        await work
        yield Checker(Place("sqlite", path), checker.store, None)
        return
    stop.set()
    await work
    name = urlsplit(checker.admin_dsn).path[1:]
    admin = await asyncpg.connect(checker.admin_dsn.replace(f"/{name}", "/postgres"))
    try:
        await eventually(lambda: _copied(admin, name))
        elsewhere = [dsn.replace(f"/{name}", f"/{name}_restored") for dsn in (checker.place.address, checker.admin_dsn)]
        yield Checker(Place("postgres", elsewhere[0]), checker.store, elsewhere[1])
    finally:
        await admin.execute(f"drop database if exists {name}_restored with (force)")
        await admin.close()


async def _copied(admin: asyncpg.Connection[asyncpg.Record], name: str) -> bool:
    """Without connections, which may take longer to close than PostgreSQL waits."""
    await admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name)
    try:
        await admin.execute(f"create database {name}_restored template {name}")
    except asyncpg.ObjectInUseError:
        return False
    return True


def _vacuum_into(source: str, target: str) -> None:
    with contextlib.closing(apsw.Connection(source)) as db:
        db.set_busy_timeout(60_000)
        db.execute("VACUUM INTO ?", (target,))
