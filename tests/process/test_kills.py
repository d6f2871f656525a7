"""SIGKILL at any moment: what was acknowledged is there, what was not is there whole or not at all (G01, G02, G07, G09, G16)."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from collections import Counter, deque
from collections.abc import Callable
from multiprocessing.connection import Connection

import asyncpg
import pytest

from interlock.domain.decide import AcknowledgeCancel, Command, CompleteJob, FailJob, ReleaseJob
from interlock.domain.job import Checkpoint, Heartbeat, NewJob, Receipt
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.policy import ClaimFilter
from interlock.storage.contract import Store
from tests.process.actions import TENANT, given
from tests.process.conftest import FAST, Checker, new_id
from tests.process.load import VERBS, Book, run_load_in_a_process
from tests.support.forms import chance
from tests.support.workers import Member, Place, members, until

KILLS = 50 if FAST else 210
MAX_WAIT = 0.004  # more than most calls take
AHEAD = 3  # processes made ready while another works

Property = Callable[[str, object], None]


async def test_a_process_killed_at_any_moment_loses_and_invents_nothing(
    checker: Checker, record_property: Property
) -> None:
    book = Book()
    moments: Counter[str] = Counter()
    numbers = itertools.count(1)
    waiting: deque[tuple[int, Member]] = deque()
    dice = chance()
    try:
        for _ in range(KILLS):
            while len(waiting) < AHEAD:
                number = next(numbers)
                waiting.append((number, Member(run_load_in_a_process, checker.place, number)))
            number, member = waiting.popleft()
            moments[kill_at_some_moment(member, number, book, dice)] += 1
            member.close()
    finally:
        for _, member in waiting:
            member.close()
    if checker.place.engine == "postgres":
        await orphans_gone(checker)
    await book.compare(checker)
    ends = await book.finish_remaining(checker)
    line = (
        f"{checker.place.engine}: {KILLS} kills: {dict(sorted(moments.items()))}; {book.answers} calls answered, "
        f"{len(book.enqueued)} jobs acknowledged, {len(book.perhaps)} batches without an answer; ends: "
        f"{ {str(status): count for status, count in ends.items()} }"
    )
    print(line)
    record_property("kills", line)
    assert sum(moments.values()) == KILLS
    assert all(moments[f"in {verb}"] > 0 for verb in VERBS), moments


def kill_at_some_moment(member: Member, number: int, book: Book, dice: random.Random) -> str:
    """Let it work until it begins a certain call, and kill it a moment later; where it was then."""
    note = book.writer(number)
    assert member.receive() is None
    member.pipe.send("go")
    verb, times = dice.choice(VERBS), dice.randrange(1, 4)
    last = ("before", "start")
    while times:
        when, what, facts = member.receive()
        note(when, what, facts)
        last = (when, what)
        times -= last == ("before", verb)
    for when, what, facts in member.kill_within(dice.uniform(0, MAX_WAIT)):
        note(when, what, facts)
        last = (when, what)
    return f"in {last[1]}" if last[0] == "before" else f"after {last[1]}"


async def orphans_gone(checker: Checker) -> None:
    """PostgreSQL may still be at what a killed client sent last."""
    admin = await asyncpg.connect(checker.admin_dsn)
    ours = "select count(*) from pg_stat_activity where datname = current_database() and state = 'active' and pid <> pg_backend_pid()"

    async def none_left() -> bool:
        return not await admin.fetchval(ours)

    await until(none_left, "the backends of killed clients are idle or gone")
    await admin.close()


def claim_and_die(pipe: Connection, place: Place) -> None:
    """A poison job: it takes its worker with it, every time."""

    async def work() -> None:
        store = await place.open(size=1)
        jobs = await store.claim(TENANT, ClaimFilter("poisoned", lease_seconds=0.05))
        pipe.send([job.fence for job in jobs])
        if jobs:
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(work())


@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_a_job_that_always_kills_its_worker_is_claimed_max_attempts_times(
    checker: Checker, max_attempts: int
) -> None:
    (id,) = await checker.add(max_attempts=max_attempts)
    fences: list[int] = []

    async def dead() -> bool:
        member = Member(claim_and_die, checker.place)
        with members(member):
            fences.extend(member.receive())
        (job,) = await checker.jobs([id])
        return job.status == Status.DEAD_LETTER

    await until(dead, "the job is given up")
    assert fences == list(range(1, max_attempts + 1))
    (job,) = await checker.jobs([id])
    assert (job.attempt, job.error is not None and "lease_expired" in job.error) == (max_attempts, True)
    rows = await checker.store.history(TENANT, id)
    assert [row.verb for row in rows].count(Verb.CLAIM) == max_attempts
    await checker.check()


def hold(pipe: Connection, place: Place) -> None:
    """Claim a job; on a signal, continue with it as if nothing had happened, with every operation, and report."""

    async def work() -> None:
        store = await place.open(size=1)
        (job,) = await store.claim(TENANT, ClaimFilter("stopped", lease_seconds=0.3))
        pipe.send((job.id, job.fence))
        pipe.recv()
        lease = (job.id, job.fence, "stopped")
        reported = given(await store.heartbeat(TENANT, [Heartbeat(*lease)]))
        error = '{"message":"late","kind":"X"}'
        orders: list[Command] = [
            CompleteJob(*lease, '"late"'),
            FailJob(*lease, error),
            ReleaseJob(*lease),
            AcknowledgeCancel(*lease),
        ]
        reported += given(await store.carry_out(TENANT, orders))
        reported += given(await store.checkpoint(TENANT, [Checkpoint(*lease, 1, '"late"')]))
        pipe.send(reported)

    asyncio.run(work())


async def test_a_worker_paused_beyond_its_lease_finds_it_lost_and_changes_nothing(checker: Checker) -> None:
    await checker.add()
    member = Member(hold, checker.place)
    with members(member):
        id, fence = member.receive()
        member.signal(signal.SIGSTOP)
        heirs: list[int] = []

        async def taken_over() -> bool:
            heirs.extend(
                job.fence for job in await checker.store.claim(TENANT, ClaimFilter("heir", lease_seconds=600.0))
            )
            return bool(heirs)

        await until(taken_over, "another worker has the job")
        assert heirs == [fence + 1]
        before = await checker.jobs([id])
        member.signal(signal.SIGCONT)
        member.pipe.send("go on")
        assert member.receive() == ["lease_lost"] * 6
        assert await checker.jobs([id]) == before
    assert before[0].worker == "heir"
    (receipt,) = await checker.store.carry_out(TENANT, [CompleteJob(id, heirs[0], "heir", '"done"')])
    assert isinstance(receipt, Receipt)
    await checker.check()


def fill(pipe: Connection, place: Place, ids: list[str]) -> None:
    """One batch, as large as they come."""

    async def work() -> None:
        store: Store = await place.open(size=1)
        pipe.send("before")
        await store.enqueue(TENANT, [NewJob(id, "t") for id in ids], whole=True)
        pipe.send("after")
        await asyncio.get_running_loop().create_future()  # until it is killed

    asyncio.run(work())


async def test_a_batch_of_a_thousand_is_stored_completely_or_not_at_all(checker: Checker) -> None:
    outcomes: Counter[str] = Counter()
    for i in range(6 if FAST else 24):
        ids = [new_id() for _ in range(1000)]
        member = Member(fill, checker.place, ids)
        with members(member):
            assert member.receive() == "before"
            if member.pipe.poll(i * 0.004):  # earlier and later, up to after the end
                assert member.receive() == "after"
                outcomes["acknowledged"] += 1
            member.signal(signal.SIGKILL)
            member.wait()
        if checker.place.engine == "postgres":
            await orphans_gone(checker)
        there = sum(job is not None for job in await checker.store.get(TENANT, ids))
        assert there in (0, 1000)
        outcomes["whole" if there else "nothing"] += 1
    assert outcomes["whole"] >= outcomes["acknowledged"]
    print(dict(outcomes))
    await checker.check(histories=False, integrity=True)
