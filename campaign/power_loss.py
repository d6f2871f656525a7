"""Power loss on SQLite: a layer below it records every write and sync; images are built as a crash would leave them.

The crash model: a sync of a file makes everything written to it before durable. Of later writes, any subset may have
reached the disk, in any order, each whole or torn at 512 bytes; a truncation may have happened or not. The write-ahead
index (`-shm`) does not survive.

The promise: the file is intact, everything acknowledged before the crash is in it, with its history, and nothing is
half there.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from campaign.results import Outcome, Plan, Stopwatch
from campaign.stores import scratch_parent
from interlock.domain.approval import CastVote, Decision, RequestApproval
from interlock.domain.decide import CancelJob, CompleteJob, FailJob, ReleaseJob
from interlock.domain.job import Checkpoint, Enqueued, Job, NewJob, Receipt
from interlock.domain.lifecycle import TERMINAL
from interlock.domain.policy import ClaimFilter
from interlock.domain.progress import Step, StepRow
from interlock.storage.contract import Store
from interlock.storage.sqlite import connection
from interlock.storage.sqlite.store import SQLiteStore
from tests.support.invariants import check_history, check_sqlite
from tests.support.stores import START, ManualClock, migrated_file

TENANT: Final = "default"
SECTOR: Final = 512
CALLS: Final = 60  # of one workload
IMAGES: Final = 250  # of one workload


class Write(NamedTuple):
    name: str
    offset: int
    data: bytes


class Truncate(NamedTuple):
    name: str
    size: int


class Sync(NamedTuple):
    name: str


class Acknowledged(NamedTuple):
    """A call returned: the job exists at this version or a later one, and has these steps."""

    id: str
    version: int
    payload: str
    steps: tuple[str, ...] = ()


Entry = Write | Truncate | Sync | Acknowledged


class RecordingDisk(apsw.VFS):
    """A file system that passes everything on and keeps a log of what reached it, in order."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.real = apsw.vfs_names()[0]
        super().__init__("recording-disk", self.real, makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return _RecordedFile(self, name, flags)


class _RecordedFile(apsw.VFSFile):
    def __init__(self, disk: RecordingDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._log = disk.log
        self._name = Path(str(name.filename() if isinstance(name, apsw.URIFilename) else name)).name
        super().__init__(disk.real, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._log.append(Write(self._name, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._log.append(Truncate(self._name, newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._log.append(Sync(self._name))


class Workload:
    """Seeded calls of producers, workers, approvers and operators; each acknowledgement goes into the log."""

    def __init__(self, store: Store, log: list[Entry], dice: random.Random, clock: ManualClock) -> None:
        self._store, self._log, self._dice, self._clock = store, log, dice, clock
        self._held: dict[str, Job] = {}
        self._steps: dict[str, tuple[str, ...]] = {}
        self._waiting: dict[str, str] = {}
        self._known: dict[str, tuple[int, str]] = {}

    def _acknowledge(self, id: str, version: int, payload: str | None = None) -> None:
        text = payload if payload is not None else self._known[id][1]
        self._known[id] = (version, text)
        self._log.append(Acknowledged(id, version, text, self._steps.get(id, ())))

    async def run(self) -> None:
        acts = (
            self._enqueue,
            self._enqueue,
            self._claim,
            self._claim,
            self._finish,
            self._finish,
            self._save,
            self._ask,
        )
        for _ in range(CALLS):
            await self._dice.choice((*acts, self._decide, self._cancel, self._pass_time))()

    async def _enqueue(self) -> None:
        jobs = []
        for _ in range(self._dice.choice((1, 1, 3, 20))):
            id = f"{self._dice.getrandbits(32):08x}-0000-7000-8000-{self._dice.getrandbits(48):012x}"
            size = self._dice.choice((2, 200, 200, 9000))  # the largest needs overflow pages
            jobs.append(NewJob(id, "t", payload=f'"{self._dice.randbytes(size // 2).hex()}"', max_attempts=2))
        for job, answer in zip(jobs, await self._store.enqueue(TENANT, jobs, whole=True), strict=True):
            assert isinstance(answer, Enqueued)
            self._acknowledge(job.id, 1, job.payload)

    async def _claim(self) -> None:
        for job in await self._store.claim(TENANT, ClaimFilter("w", limit=self._dice.choice((1, 5)), lease_seconds=60)):
            self._held[job.id] = job
            self._acknowledge(job.id, job.version)

    def _pick(self) -> Job | None:
        return self._held[self._dice.choice(sorted(self._held))] if self._held else None

    async def _save(self) -> None:
        if (job := self._pick()) is None:
            return
        name = f"step {len(self._steps.get(job.id, ()))}"
        (answer,) = await self._store.save_steps(TENANT, [Step(job.id, job.fence, "w", name, 1, '"kept"', None)])
        if isinstance(answer, StepRow):
            self._steps[job.id] = (*self._steps.get(job.id, ()), name)
            self._acknowledge(job.id, self._known[job.id][0])
            await self._store.checkpoint(
                TENANT, [Checkpoint(job.id, job.fence, "w", len(self._steps[job.id]), '"saved"')]
            )

    async def _finish(self) -> None:
        if (job := self._pick()) is None:
            return
        del self._held[job.id]
        order = self._dice.choice(
            (
                CompleteJob(job.id, job.fence, "w", '"done"'),
                FailJob(job.id, job.fence, "w", '{"message":"no"}'),
                ReleaseJob(job.id, job.fence, "w"),
            )
        )
        (answer,) = await self._store.carry_out(TENANT, [order])
        if isinstance(answer, Receipt):
            self._acknowledge(job.id, answer.version)

    async def _ask(self) -> None:
        if (job := self._pick()) is None:
            return
        del self._held[job.id]
        approval = f"{self._dice.getrandbits(32):08x}-0000-7000-8000-{self._dice.getrandbits(48):012x}"
        order = RequestApproval(job.id, job.fence, "w", approval, "Sure?", opened_by="token:w")
        (answer,) = await self._store.carry_out(TENANT, [order])
        if isinstance(answer, Receipt):
            self._waiting[approval] = job.id
            self._acknowledge(job.id, answer.version)

    async def _decide(self) -> None:
        if self._waiting:
            approval = self._dice.choice(sorted(self._waiting))
            del self._waiting[approval]
            await self._store.approvals.decide(
                TENANT, [CastVote(approval, "user:ann", self._dice.choice(tuple(Decision)), None)]
            )

    async def _cancel(self) -> None:
        if self._known:
            id = self._dice.choice(sorted(self._known))
            (answer,) = await self._store.carry_out(TENANT, [CancelJob(id, "user:ann")])
            if isinstance(answer, Receipt):
                self._acknowledge(id, answer.version)

    async def _pass_time(self) -> None:
        self._clock.advance(self._dice.choice((1.0, 61.0)))


class Image:
    """The files as a crash leaves them: what was synced, and of the rest what chance kept."""

    def __init__(self, start: dict[str, bytes]) -> None:
        self._synced = {name: bytearray(data) for name, data in start.items()}
        self._later: list[Write | Truncate] = []

    def add(self, entry: Write | Truncate | Sync) -> None:
        if not isinstance(entry, Sync):
            self._later.append(entry)
            return
        for one in self._later:
            if one.name == entry.name:
                _apply(self._synced, one)
        self._later = [one for one in self._later if one.name != entry.name]

    def crash(self, dice: random.Random) -> dict[str, bytearray]:
        files = {name: bytearray(data) for name, data in self._synced.items()}
        kept = dice.choice((0.0, 0.5, 0.5, 0.9, 1.0))
        later = [one for one in self._later if dice.random() < kept]
        if dice.random() < 0.5:
            dice.shuffle(later)
        for one in later:
            if isinstance(one, Write) and dice.random() < 0.3:
                for part in _torn(one, dice):
                    _apply(files, part)
            else:
                _apply(files, one)
        return files


def _torn(write: Write, dice: random.Random) -> Iterator[Write]:
    """Those sectors of a write that reached the disk."""
    first = write.offset // SECTOR * SECTOR
    for sector in range(first, write.offset + len(write.data), SECTOR):
        begin, end = max(sector, write.offset), min(sector + SECTOR, write.offset + len(write.data))
        if dice.random() < 0.5:
            yield Write(write.name, begin, write.data[begin - write.offset : end - write.offset])


def _apply(files: dict[str, bytearray], one: Write | Truncate) -> None:
    data = files.setdefault(one.name, bytearray())
    if isinstance(one, Truncate):
        del data[one.size :]
        return
    if len(data) < one.offset:
        data.extend(bytes(one.offset - len(data)))
    data[one.offset : one.offset + len(one.data)] = one.data


async def check_image(path: Path, expected: dict[str, Acknowledged]) -> int:
    """Open the file as a restarted process does, and compare it with what was acknowledged; returns the jobs seen."""
    store = await SQLiteStore.open(str(path))
    try:
        jobs = await store.get(TENANT, list(expected))
        for job, known in zip(jobs, expected.values(), strict=True):
            assert job is not None, f"job {known.id} was acknowledged and is lost"
            assert job.payload == known.payload, f"job {known.id} has another payload"
            assert job.version >= known.version, f"job {known.id} is back at version {job.version}, was {known.version}"
            check_history(job, await store.history(TENANT, job.id))
            if known.steps:
                ((*steps,),) = await store.steps(TENANT, [job.id], limit=1000)
                missing = set(known.steps) - {step.name for step in steps}
                assert not missing, f"job {known.id} lost the steps {sorted(missing)}"
        verdict = await store.audit.verify(TENANT)
        assert verdict.first_bad is None, f"history: {verdict.first_bad}"
        leased = await store.claim(TENANT, ClaimFilter("after", limit=3))  # it goes on working
        answers = await store.carry_out(TENANT, [CompleteJob(job.id, job.fence, "after") for job in leased])
        assert all(isinstance(answer, Receipt) and answer.status in TERMINAL for answer in answers)
    finally:
        await store.close()
    check_sqlite(path, integrity=True)
    return verdict.jobs


async def _record(disk: RecordingDisk, directory: Path, dice: random.Random) -> tuple[dict[str, bytes], list[Entry]]:
    """Run one workload and return the files before it and the log of it."""
    path = Path(await asyncio.to_thread(migrated_file, directory / "queue.db"))
    start = {path.name: await asyncio.to_thread(path.read_bytes)}
    clock = ManualClock(START)
    disk.log.clear()
    connection.CHECKPOINT_PAGES = dice.choice((5, 50, 1000))  # type: ignore[misc] # often, so that crashes meet them
    store = await SQLiteStore.open(str(path), clock=clock)
    try:
        await Workload(store, disk.log, dice, clock).run()
        log = list(disk.log)
    finally:
        await store.close()
    return start, log


def run(plan: Plan, image: Callable[[dict[str, bytes]], Image] = Image) -> Outcome:
    """Record workloads and open images of them; `image` is the disk that is believed in."""
    outcome = Outcome("power loss", "images", plan.seed, plan.size)
    watch = Stopwatch(plan, outcome)
    disk, pages = RecordingDisk(), connection.CHECKPOINT_PAGES
    workloads = jobs = 0
    try:
        while not watch.is_over and len(outcome.violations) < 10:
            seed = plan.seed + workloads
            workloads += 1
            with tempfile.TemporaryDirectory(dir=scratch_parent()) as scratch:
                jobs += _crash_often(Path(scratch), disk, seed, image, outcome, watch)
    finally:
        disk.unregister()
        connection.CHECKPOINT_PAGES = pages  # type: ignore[misc] # as it was
    outcome.numbers |= {"workloads": workloads, "jobs found in images": jobs}
    return outcome


def _crash_often(
    scratch: Path,
    disk: RecordingDisk,
    seed: int,
    make: Callable[[dict[str, bytes]], Image],
    outcome: Outcome,
    watch: Stopwatch,
) -> int:
    dice = random.Random(seed)
    (scratch / "recorded").mkdir()
    start, log = asyncio.run(_record(disk, scratch / "recorded", dice))
    points = sorted(dice.choices(range(len(log) + 1), k=min(IMAGES, outcome.asked)))
    image, expected, jobs, at = make(start), dict[str, Acknowledged](), 0, 0
    for number, point in enumerate(points):
        if watch.is_over:
            break
        for entry in log[at:point]:
            if isinstance(entry, Acknowledged):
                expected[entry.id] = entry
            else:
                image.add(entry)
        at = point
        directory = scratch / "image"
        directory.mkdir()
        for name, data in image.crash(dice).items():
            if not name.endswith("-shm"):
                (directory / name).write_bytes(data)
        try:
            jobs += asyncio.run(check_image(directory / "queue.db", expected))
        except Exception as error:
            outcome.violations.append(f"seed {seed}, image {number} at entry {point}: {type(error).__name__}: {error}")
        outcome.done += 1
        shutil.rmtree(directory)
    return jobs
