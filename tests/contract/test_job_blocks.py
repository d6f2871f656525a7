"""Lists of what is rare are read from stretches that upkeep has noted; what they show never depends on that."""

from __future__ import annotations

import random

import asyncpg
import pytest

from interlock.domain.edit import Edit
from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import Status
from interlock.domain.operations import PruneOrder
from tests.contract.builders import OPERATOR, Desk, ask, cancel, complete, fail, new_id, new_job
from tests.contract.connections import Door
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN

MANY_TENANTS = 10_000
TYPES = ("common", "common", "common", "seldom")
TAGS = ("red", "green", "blue")


async def note(desk: Desk, jobs: int = 4) -> None:
    while await desk.store.note_stretches(jobs, MANY_TENANTS):
        pass


async def stretches(desk: Desk, door: Door) -> list[tuple[int, int]]:
    rows = await door.run("SELECT first_seq, last_seq FROM stretch WHERE tenant = $1 ORDER BY first_seq", desk.tenant)
    return [(first, last) for first, last in rows]


async def every_page(desk: Desk, filter: Filter) -> list[str]:
    found: list[str] = []
    while page := await desk.store.find(desk.tenant, filter):
        found += [job.id for job in page]
        filter = filter._replace(before_seq=page[-1].seq)
    return found


def fits(job: Job, f: Filter) -> bool:
    """What a list must show, said once more and plainly."""
    return (
        (not f.statuses or job.status in f.statuses)
        and f.type in (None, job.type)
        and (f.agent is None or f.agent == (job.agent_kind, job.agent_id))
        and f.worker in (None, job.worker)
        and set(f.tags) <= set(job.tags)
        and (f.created_after is None or job.created_at >= f.created_after)
        and (f.created_before is None or job.created_at < f.created_before)
    )


async def live_a_little(desk: Desk, chance: random.Random) -> None:
    """Something that happens to jobs, chosen by chance."""
    match chance.randrange(8):
        case 0 | 1 | 2:
            made = [
                new_job(
                    type=chance.choice(TYPES),
                    tags=tuple(chance.sample(TAGS, chance.randrange(3))),
                    max_attempts=chance.choice((1, 2)),
                    **({"agent_kind": "crew", "agent_id": chance.choice("12")} if chance.random() < 0.3 else {}),
                )
                for _ in range(chance.randrange(1, 7))
            ]
            await desk.add_all(made)
        case 3:
            for job in await desk.claim(limit=chance.randrange(1, 5), worker=chance.choice(("w1", "w2"))):
                outcome = chance.randrange(4)
                if outcome < 3:
                    await desk.do(complete(job) if outcome else fail(job, retryable=chance.random() < 0.7))
        case 4:
            for job in await desk.store.find(desk.tenant, Filter(statuses=(Status.QUEUED, Status.RETRY), limit=30)):
                if chance.random() < 0.2:
                    await desk.do(cancel(job.id))
                elif chance.random() < 0.2:
                    await desk.do(Edit(job.id, OPERATOR, tags=(chance.choice(TAGS),)))
        case 5:
            cutoff = desk.clock.now - chance.randrange(40_000_000)
            await desk.store.prune(desk.tenant, PruneOrder(new_id(), OPERATOR, cutoff, 0, 1000))
        case _:
            await note(desk)
    desk.clock.advance(chance.randrange(5))


def some_filter(chance: random.Random, start: int, now: int) -> Filter:
    return Filter(
        statuses=tuple(chance.sample([*Status], chance.choice((0, 0, 1, 1, 2, 4)))),
        type=chance.choice((None, None, "common", "seldom", "never")),
        tags=tuple(chance.sample(TAGS, chance.choice((0, 0, 1, 2)))),
        agent=chance.choice((None, None, ("crew", "1"), ("crew", "9"))),
        worker=chance.choice((None, None, None, "w1")),
        created_after=chance.choice((None, None, chance.randrange(start, now + 1))),
        created_before=chance.choice((None, None, chance.randrange(start, now + 1))),
        limit=chance.choice((4, 200, 200)),
    )


@pytest.mark.parametrize("seed", range(3))
async def test_every_list_is_what_a_plain_filter_finds_whatever_was_noted_edited_or_deleted(
    desk: Desk, seed: int
) -> None:
    chance, start = random.Random(seed), desk.clock.now
    for _ in range(8):
        for _ in range(3):
            await live_a_little(desk, chance)
        everything: list[Job] = []
        before = None
        while page := await desk.store.find(desk.tenant, Filter(limit=200, before_seq=before)):
            everything += page
            before = page[-1].seq
        for _ in range(8):
            filter = some_filter(chance, start, desk.clock.now)
            assert await every_page(desk, filter) == [job.id for job in everything if fits(job, filter)], filter


async def test_a_stretch_is_noted_when_it_is_full_and_goes_with_its_last_job(desk: Desk, door: Door) -> None:
    ids = await desk.add_all([new_job(type="a", tags=("x",)) for _ in range(11)])
    await note(desk)
    seqs = [(await desk.job(id)).seq for id in ids]
    assert await stretches(desk, door) == [(seqs[0], seqs[3]), (seqs[4], seqs[7])]
    for id in ids[:7]:
        await desk.do(cancel(id))
    desk.clock.advance(1)
    await desk.store.prune(desk.tenant, PruneOrder(new_id(), OPERATOR, desk.clock.now, 0, 5))
    assert await stretches(desk, door) == [(seqs[4], seqs[7])]
    ((words,),) = await door.run("SELECT count(*) FROM stretch_word WHERE tenant = $1", desk.tenant)
    assert words == 2
    assert await every_page(desk, Filter(type="a", tags=("x",))) == ids[:4:-1]


async def test_a_tag_that_is_added_later_is_found_all_the_same(desk: Desk) -> None:
    ids = await desk.add_all([new_job() for _ in range(6)])
    await note(desk)
    for id in (ids[1], ids[5]):  # in a stretch, and behind the last one
        await desk.do(Edit(id, OPERATOR, tags=("late",)))
    await note(desk, jobs=2)
    assert await every_page(desk, Filter(tags=("late",))) == [ids[5], ids[1]]


async def test_tenants_have_stretches_of_their_own(desk: Desk, neighbour: Desk, door: Door) -> None:
    for _ in range(3):
        await desk.add_all([new_job(type="mine") for _ in range(2)])
        await neighbour.add_all([new_job(type="theirs") for _ in range(2)])
    await note(desk)
    assert len(await stretches(desk, door)) == len(await stretches(neighbour, door)) == 1
    assert await every_page(desk, Filter(type="theirs")) == []
    assert len(await every_page(neighbour, Filter(type="theirs"))) == 6


async def test_jobs_that_have_succeeded_are_found_below_any_number_that_wait(desk: Desk) -> None:
    ids = await desk.add_all([new_job() for _ in range(9)])
    assert await every_page(desk, Filter(statuses=(Status.SUCCEEDED,))) == []
    for job in await desk.store.claim(desk.tenant, ask(limit=3)):
        await desk.do(complete(job))
    await desk.store.fold_tallies(1, MANY_TENANTS)
    assert await every_page(desk, Filter(statuses=(Status.SUCCEEDED,))) == ids[2::-1]
    late = await desk.running(type="late")
    await desk.do(complete(late))
    assert await every_page(desk, Filter(statuses=(Status.SUCCEEDED,))) == [late.id, *ids[2::-1]]
    assert await every_page(desk, Filter(statuses=(Status.SUCCEEDED,), type="work")) == ids[2::-1]


@pytest.mark.parametrize("engine", ["postgres"])
async def test_a_job_whose_transaction_is_still_open_is_not_left_out(
    desk: Desk, door: Door, place: str, postgres: Postgres
) -> None:
    """It has a place among jobs that are there already, and nobody else can see it yet."""
    before = await desk.add_all([new_job(type="late"), new_job()])  # nobody has to wait for the other's routes
    await note(desk, jobs=2)
    connection = await asyncpg.connect(postgres.dsn(place, user=APP_LOGIN))
    try:
        transaction = connection.transaction()
        await transaction.start()
        late = new_job(type="late")
        await desk.store.enqueue_within(connection, desk.tenant, [late])
        others = await desk.add_all([new_job() for _ in range(5)])
        assert await desk.store.note_stretches(2, MANY_TENANTS) == 0
        assert len(await stretches(desk, door)) == 1
        await transaction.commit()
    finally:
        await connection.close()
    await note(desk, jobs=2)
    seqs = [(await desk.job(id)).seq for id in (late.id, others[0])]
    assert (await stretches(desk, door))[1] == (seqs[0], seqs[1])
    assert await every_page(desk, Filter(type="late")) == [late.id, before[0]]
