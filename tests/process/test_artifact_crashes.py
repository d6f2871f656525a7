"""SIGKILL during uploads: visible files are complete, acknowledged ones exist, unused bytes are deleted (G23)."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import random
import resource
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from interlock.domain.artifact import COLLECT_AGAIN_SECONDS, UNFINISHED_KEPT_SECONDS, Artifact, Holder
from interlock.domain.job import NewJob
from interlock.domain.policy import ClaimFilter
from interlock.engine.engine import Engine
from interlock.errors import Unavailable
from interlock.storage.object_store.filesystem import FileObjects
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from tests.process.actions import TENANT
from tests.process.conftest import FAST, Checker
from tests.support.forms import chance
from tests.support.stores import ManualClock
from tests.support.workers import Member, Place, members

KILLS = 10 if FAST else 40
NAMES = ("one", "two", "three")
PIECE = 64 * 1024
LARGE = 16 * 1024 * 1024
MAX_WAIT = 0.05  # more than most uploads take


class Upload(NamedTuple):
    """One version of a file; its content follows from its number."""

    job_id: str
    name: str
    number: int

    @property
    def content(self) -> bytes:
        return hashlib.sha256(f"{self}".encode()).digest() * (random.Random(self.number).randrange(1, 8) * PIECE // 32)


async def pieces(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), PIECE):
        yield content[start : start + PIECE]
        await asyncio.sleep(0)


async def leased(engine: Engine, worker: str) -> Holder:
    await engine.store.enqueue(TENANT, [NewJob(new_id_of(worker), worker)])
    (job,) = await engine.leases.claim(TENANT, ClaimFilter(worker, types=frozenset({worker}), lease_seconds=3600))
    return Holder(job.id, job.fence, worker)


def new_id_of(worker: str) -> str:
    return f"{int(worker[1:]):08x}-0000-7000-8000-000000000000"


def upload_without_end(pipe: Connection, place: Place, root: Path, number: int) -> None:
    """Upload versions of a few files, reporting before and after each."""

    async def work() -> None:
        engine = Engine(await place.open(size=1), objects=FileObjects(root))
        holder = await leased(engine, f"w{number}")
        pipe.send(None)
        pipe.recv()
        for version in itertools.count():
            upload = Upload(holder.job_id, NAMES[version % len(NAMES)], version)
            pipe.send(("before", upload))
            await engine.artifacts.put(TENANT, holder, upload.name, pieces(upload.content))
            pipe.send(("after", upload))

    asyncio.run(work())


async def test_a_process_killed_during_an_upload_leaves_complete_files_and_no_leftovers(
    checker: Checker, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    root, dice = tmp_path / "artifacts", chance()
    acknowledged: dict[tuple[str, str], Upload] = {}
    perhaps: dict[tuple[str, str], Upload] = {}
    moments: Counter[str] = Counter()
    for number in range(KILLS):
        member = Member(upload_without_end, checker.place, root, number)
        with members(member):
            reported = killed_at_some_moment(member, dice)
        for when, upload in reported:
            book = acknowledged if when == "after" else perhaps
            book[upload.job_id, upload.name] = upload
        moments[reported[-1][0]] += 1
    async with later(checker, root) as engine:
        encoded = 0
        for number in range(KILLS):
            job_id = new_id_of(f"w{number}")
            artifacts = {artifact.name: artifact for artifact in await engine.artifacts.list(TENANT, job_id)}
            encoded += len(artifacts)
            for name in NAMES:
                possible = [book[job_id, name] for book in (acknowledged, perhaps) if (job_id, name) in book]
                if name in artifacts:
                    content = await content_of(engine, artifacts[name])
                    assert content in [upload.content for upload in possible], f"{job_id} {name} is torn or old"
                else:
                    assert (job_id, name) not in acknowledged, f"{job_id} {name} was acknowledged and is lost"
        left_over = len(files(root)) - encoded
        while await engine.artifacts.collect_orphans():
            pass
        assert len(files(root)) == encoded
        assert await engine.artifacts.collect_orphans() == 0
    line = f"{checker.place.engine}: {KILLS} kills {dict(moments)}; {encoded} files seen, {left_over} left over and collected"
    print(line)
    record_property("kills", line)
    assert moments["before"] > 0, "no upload was in progress when its process was killed"
    assert left_over > 0 or FAST, "no kill left anything to collect"


def killed_at_some_moment(member: Member, dice: random.Random) -> list[tuple[str, Upload]]:
    """Run it until it begins an upload, and kill it a moment later; return its reports."""
    assert member.receive() is None
    member.pipe.send("go")
    reported: list[tuple[str, Upload]] = []
    times = dice.randrange(1, 6)
    while times:
        reported.append(member.receive())
        times -= reported[-1][0] == "before"
    return reported + member.kill_within(dice.uniform(0, MAX_WAIT))


class HaltingDirectory(FileObjects):
    """A directory whose user stops in between: every byte is on disk, but no row refers to it."""

    pipe: Connection

    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> None:
        await super().put(key, chunks)
        self.pipe.send(key)
        await asyncio.Event().wait()


def stop_at_the_gap(pipe: Connection, place: Place, root: Path) -> None:
    async def work() -> None:
        objects = HaltingDirectory(root)
        objects.pipe = pipe
        engine = Engine(await place.open(size=1), objects=objects)
        holder = await leased(engine, "w1")
        await engine.artifacts.put(TENANT, holder, "file", pieces(b"content"))

    asyncio.run(work())


async def test_a_kill_between_the_file_and_its_row_publishes_nothing_and_the_file_is_collected(
    checker: Checker, tmp_path: Path
) -> None:
    root = tmp_path / "artifacts"
    member = Member(stop_at_the_gap, checker.place, root)
    with members(member):
        key = member.receive()
        member.signal(signal.SIGKILL)
        member.wait()
    assert ["".join(path.relative_to(root).parts) for path in files(root)] == [key]
    async with later(checker, root) as engine:
        assert await engine.artifacts.list(TENANT, new_id_of("w1")) == []
        assert [await engine.artifacts.collect_orphans() for _ in range(2)] == [1, 0]
        assert files(root) == []


async def test_a_kill_between_deleting_the_file_and_its_row_is_completed_by_the_next_collector(
    checker: Checker, tmp_path: Path
) -> None:
    """What a collector had condemned when it died comes up again, whether its bytes were deleted or not."""
    root = tmp_path / "artifacts"
    engine = Engine(checker.store, objects=FileObjects(root))
    holder = await leased(engine, "w1")
    for content in (b"deleted", b"not deleted", b"seen"):
        await engine.artifacts.put(TENANT, holder, "file", pieces(content))
    async with later(checker, root) as after:
        due = [orphan.key for orphan in await after.store.artifacts.due_orphans(10)]
        assert len(await after.store.artifacts.condemn_orphans(TENANT, due)) == 2
        assert after.objects is not None
        await after.objects.delete(due[:1])
        assert await after.artifacts.collect_orphans() == 0
    async with later(checker, root, UNFINISHED_KEPT_SECONDS + COLLECT_AGAIN_SECONDS + 60) as after:
        assert await after.artifacts.collect_orphans() == 2
        assert len(files(root)) == 1


def upload_to_a_full_disk(pipe: Connection, path: Path, root: Path) -> None:
    """The kernel lets no file of this process grow beyond a limit, as a full disk would."""

    async def work() -> None:
        engine = Engine(await SQLiteStore.open(str(path)), objects=FileObjects(root))
        holder = await leased(engine, "w1")
        before = await engine.artifacts.put(TENANT, holder, "before", pieces(bytes(2 * PIECE)))
        usual = resource.getrlimit(resource.RLIMIT_FSIZE)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE // 2, usual[1]))  # still room for the database
        try:
            await engine.artifacts.put(TENANT, holder, "during", pieces(bytes(LARGE)))
            given = "nothing"
        except Unavailable as error:
            given = str(error)
        read = await content_of(engine, before)
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        after = await engine.artifacts.put(TENANT, holder, "after", pieces(bytes(LARGE)))
        names = [artifact.name for artifact in await engine.artifacts.list(TENANT, holder.job_id)]
        await engine.close()
        pipe.send((given, len(read), after.size, sorted(names), len(files(root))))

    asyncio.run(work())


def test_a_full_disk_rejects_an_upload_and_recovers_by_itself(tmp_path: Path) -> None:
    member = Member(upload_to_a_full_disk, tmp_path / "full.db", tmp_path / "artifacts")
    with members(member):
        given, read, size, names, kept = member.receive()
    assert "is full; nothing was kept" in given
    assert (read, size, names, kept) == (2 * PIECE, LARGE, ["after", "before"], 2)


class later:
    """An engine on the same place, in a time when everything that was left behind is due."""

    def __init__(self, checker: Checker, root: Path, seconds: float = UNFINISHED_KEPT_SECONDS + 60) -> None:
        self._judge, self._root = checker, root
        self._clock = ManualClock(time.time_ns() // 1000 + round(seconds * 1e6))

    async def __aenter__(self) -> Engine:
        place = self._judge.place
        store = (
            await SQLiteStore.open(place.address, clock=self._clock)
            if place.engine == "sqlite"
            else await PostgresStore.open(place.address, size=2, clock=self._clock)
        )
        self._engine = Engine(store, objects=FileObjects(self._root))
        return self._engine

    async def __aexit__(self, *_: object) -> None:
        await self._engine.close()


async def content_of(engine: Engine, artifact: Artifact) -> bytes:
    download = await engine.artifacts.read(TENANT, artifact.job_id, artifact.id)
    return b"".join([piece async for piece in download.chunks])


def files(root: Path) -> Sequence[Path]:
    return [Path(folder, name) for folder, _, names in os.walk(root) for name in names]
