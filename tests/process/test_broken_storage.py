"""A disk that lies, rots or is full under SQLite: stop with an error, or wait, but never keep writing (G28)."""

from __future__ import annotations

import asyncio
import sys
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from interlock.domain.decide import CompleteJob
from interlock.domain.job import NewJob
from interlock.domain.policy import ClaimFilter
from interlock.errors import Error, StorageBroken, Unavailable
from interlock.storage.sqlite.store import SQLiteStore
from tests.process.actions import TENANT
from tests.process.conftest import Checker, new_id
from tests.support.eventually import eventually
from tests.support.faults import FullDisk, fail_to_sync, spoil_page
from tests.support.workers import Failed, Member, Place, failed, members

LARGE = '"' + "x" * 200_000 + '"'
MAX_ITEMS = 400  # of these are more than twice what makes SQLite copy its log into the file

pytestmark = pytest.mark.filterwarnings("error")


def fingerprint(path: Path) -> dict[str, str]:
    """Every file of a database but the shared memory, which readers write too."""
    parts = [path, Path(f"{path}-wal"), Path(f"{path}-journal")]
    return {part.name: sha256(part.read_bytes()).hexdigest() for part in parts if part.exists()}


async def every_write(store: SQLiteStore) -> list[Failed | None]:
    """The response of each operation that writes."""

    async def reported(call: Any) -> Failed | None:
        try:
            await call
        except Exception as error:
            return failed(error)
        return None

    return [
        await reported(store.enqueue(TENANT, [NewJob(new_id(), "t")])),
        await reported(store.enqueue("other", [NewJob(new_id(), "t")])),
        await reported(store.claim(TENANT, ClaimFilter("w"))),
        await reported(store.carry_out(TENANT, [CompleteJob(new_id(), 1, "w")])),
        await reported(store.registry.pause(TENANT, "t", actor="user:x", reason=None)),
    ]


def work_until_it_breaks(pipe: Connection, path: Path, suffix: str) -> None:
    """Enqueue on a file that partly cannot be synced any more; report the acknowledged jobs and the error."""

    async def work() -> None:
        store = await SQLiteStore.open(str(path))
        assert fail_to_sync(Path(f"{path}{suffix}")) > 0
        acknowledged: list[str] = []
        fault = None
        while fault is None and len(acknowledged) < MAX_ITEMS:
            id = new_id()
            try:
                await store.enqueue(TENANT, [NewJob(id, "t", payload=LARGE)])
                acknowledged.append(id)
            except Error as error:
                fault = failed(error)
        before = fingerprint(path)
        later = await every_write(store)
        pipe.send((acknowledged, fault, later, before == fingerprint(path)))

    asyncio.run(work())


@pytest.mark.skipif(sys.platform != "linux", reason="the fault is made by a filter of the Linux kernel")
@pytest.mark.parametrize("suffix", ["-wal", ""], ids=["log", "file"])
async def test_a_failed_fsync_stops_all_writing_and_loses_nothing_acknowledged(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "dying.db"
    await (await SQLiteStore.open(str(path))).close()
    member = Member(work_until_it_breaks, path, suffix)
    with members(member):
        acknowledged, fault, later, unchanged = member.receive()
    assert fault is not None, f"{len(acknowledged)} commits on a disk that cannot sync"
    assert fault.code == "storage_broken"
    assert "Nothing more is written" in fault.message
    assert [each and each.code for each in later] == ["storage_broken"] * len(later)
    assert unchanged
    if suffix:
        assert acknowledged == []
    await all_there(path, acknowledged)


async def all_there(path: Path, acknowledged: list[str]) -> None:
    store = await SQLiteStore.open(str(path))
    try:
        jobs = await store.get(TENANT, acknowledged)
        assert all(job is not None and job.payload == LARGE for job in jobs)
        await Checker(Place("sqlite", str(path)), store, None).check(integrity=True)
    finally:
        await store.close()


async def some_jobs(path: Path) -> list[str]:
    store = await SQLiteStore.open(str(path))
    ids = [new_id() for _ in range(100)]
    await store.enqueue(TENANT, [NewJob(id, "t", payload='"' + "y" * 500 + '"') for id in ids])
    await store.close()
    return ids


@pytest.mark.parametrize("table", ["job", "job_history", "job_ready"])
async def test_a_corrupt_page_found_while_writing_stops_all_writing(tmp_path: Path, table: str) -> None:
    path = tmp_path / "rotten.db"
    await some_jobs(path)
    spoil_page(path, table)
    store = await SQLiteStore.open(str(path))
    try:
        with pytest.raises(StorageBroken, match="Nothing more is written"):
            await store.claim(TENANT, ClaimFilter("w"))
        before = fingerprint(path)
        assert [each and each.code for each in await every_write(store)] == ["storage_broken"] * 5
        assert fingerprint(path) == before
    finally:
        await store.close()


async def test_a_corrupt_page_found_while_reading_stops_all_writing_too(tmp_path: Path) -> None:
    path = tmp_path / "rotten.db"
    await some_jobs(path)
    store = await SQLiteStore.open(str(path))
    (held,) = await store.claim(TENANT, ClaimFilter("w"))
    await store.close()
    spoil_page(path, "job_checkpoint")  # which none of the writes below touches
    store = await SQLiteStore.open(str(path))
    try:
        with pytest.raises(StorageBroken):
            await store.get(TENANT, [held.id])
        before = fingerprint(path)
        assert [each and each.code for each in await every_write(store)] == ["storage_broken"] * 5
        assert fingerprint(path) == before
    finally:
        await store.close()


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_deleted_or_replaced_file_accepts_no_more_jobs(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "jobs.db"
    store = await SQLiteStore.open(str(path))
    try:
        await store.enqueue(TENANT, [NewJob(new_id(), "t")])
        await asyncio.to_thread(_delete_all, tmp_path)
        if replaced:
            await (await SQLiteStore.open(str(path))).close()
        await eventually(lambda: _is_rejected(store))
        assert [each and each.code for each in await every_write(store)] == ["storage_broken"] * 5
        with pytest.raises(StorageBroken, match="deleted or replaced"):
            await store.fitness()
    finally:
        await store.close()


def _delete_all(directory: Path) -> None:
    for part in directory.iterdir():
        part.unlink()


async def _is_rejected(store: SQLiteStore) -> bool:
    try:
        await store.enqueue(TENANT, [NewJob(new_id(), "t")])
    except StorageBroken:
        return True
    return False


async def test_a_file_that_is_not_a_database_is_rejected_and_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "letter.db"
    path.write_bytes(b"Dear Sir or Madam, " * 1000)
    path.chmod(0o600)
    before = fingerprint(path)
    with pytest.raises(StorageBroken):
        await SQLiteStore.open(str(path))
    assert fingerprint(path) == before


def work_on_a_full_disk(pipe: Connection, path: Path) -> None:
    """Fill the disk under a store and free it, three times; return all responses and the acknowledged jobs."""

    async def work() -> None:
        disk = FullDisk()
        store = await SQLiteStore.open(str(path))
        acknowledged: list[str] = []
        refusals: list[Failed | None] = []
        queries = []
        for full in ("-wal", ".db", "-wal"):
            disk.full = ()
            # Enough for the log to be copied into the file, which cannot grow while that is full.
            for _ in range(MAX_ITEMS // 2 if full == ".db" else 5):
                if full == ".db" and len(acknowledged) == 20:
                    disk.full = (full,)
                id = new_id()
                await store.enqueue(TENANT, [NewJob(id, "t", payload=LARGE)])
                acknowledged.append(id)
            await store.fitness()
            disk.full = ("-wal", ".db")
            refusals += (await every_write(store))[:3]
            try:
                await store.fitness()
            except Unavailable as error:
                refusals.append(Failed(error.code, str(error)))
            else:
                refusals.append(None)
            queries += [job is not None for job in await store.get(TENANT, acknowledged[-5:])]
        disk.full = ()
        after = await every_write(store)
        await store.close()
        pipe.send((acknowledged, refusals, queries, after))

    asyncio.run(work())


async def test_a_full_disk_makes_writers_wait(tmp_path: Path) -> None:
    path = tmp_path / "full.db"
    member = Member(work_on_a_full_disk, path)
    with members(member):
        acknowledged, refusals, queries, after = member.receive()
    assert [each and each.code for each in refusals] == ["unavailable"] * len(refusals)
    assert all("full" in each.message for each in refusals)
    assert queries == [True] * 15
    assert after == [None] * 5
    await all_there(path, acknowledged)
