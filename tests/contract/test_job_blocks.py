"""Lists with rare matches are read from job blocks that maintenance indexed; their contents never depend on that."""

from __future__ import annotations

import random

import asyncpg
import pytest

from interlock.domain.edit import EditJob
from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import Status
from interlock.domain.operations import PruneCommand
from tests.contract.builders import OPERATOR, TenantQueue, ask, cancel, complete, fail, new_id, new_job
from tests.contract.connections import SqlConnection
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN

MANY_TENANTS = 10_000
TYPES = ("common", "common", "common", "seldom")
TAGS = ("red", "green", "blue")


async def note(queue: TenantQueue, jobs: int = 4) -> None:
    while await queue.store.index_job_blocks(jobs, MANY_TENANTS):
        pass


async def job_blocks(queue: TenantQueue, sql: SqlConnection) -> list[tuple[int, int]]:
    rows = await sql.run("SELECT first_seq, last_seq FROM job_block WHERE tenant = $1 ORDER BY first_seq", queue.tenant)
    return [(first, last) for first, last in rows]


async def every_page(queue: TenantQueue, filter: Filter) -> list[str]:
    found: list[str] = []
    while page := await queue.store.find(queue.tenant, filter):
        found += [job.id for job in page]
        filter = filter._replace(before_seq=page[-1].seq)
    return found


def fits(job: Job, f: Filter) -> bool:
    """The expected list, computed again in a simple way."""
    return (
        (not f.statuses or job.status in f.statuses)
        and f.type in (None, job.type)
        and (f.agent is None or f.agent == (job.agent_kind, job.agent_id))
        and f.worker in (None, job.worker)
        and set(f.tags) <= set(job.tags)
        and (f.created_after is None or job.created_at >= f.created_after)
        and (f.created_before is None or job.created_at < f.created_before)
    )


async def live_a_little(queue: TenantQueue, chance: random.Random) -> None:
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
            await queue.add_all(made)
        case 3:
            for job in await queue.claim(limit=chance.randrange(1, 5), worker=chance.choice(("w1", "w2"))):
                outcome = chance.randrange(4)
                if outcome < 3:
                    await queue.do(complete(job) if outcome else fail(job, retryable=chance.random() < 0.7))
        case 4:
            for job in await queue.store.find(queue.tenant, Filter(statuses=(Status.QUEUED, Status.RETRY), limit=30)):
                if chance.random() < 0.2:
                    await queue.do(cancel(job.id))
                elif chance.random() < 0.2:
                    await queue.do(EditJob(job.id, OPERATOR, tags=(chance.choice(TAGS),)))
        case 5:
            cutoff = queue.clock.now - chance.randrange(40_000_000)
            await queue.store.prune(queue.tenant, PruneCommand(new_id(), OPERATOR, cutoff, 0, 1000))
        case _:
            await note(queue)
    queue.clock.advance(chance.randrange(5))


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
async def test_every_list_equals_a_plain_filter_after_indexing_edits_and_deletions(
    queue: TenantQueue, seed: int
) -> None:
    chance, start = random.Random(seed), queue.clock.now
    for _ in range(8):
        for _ in range(3):
            await live_a_little(queue, chance)
        everything: list[Job] = []
        before = None
        while page := await queue.store.find(queue.tenant, Filter(limit=200, before_seq=before)):
            everything += page
            before = page[-1].seq
        for _ in range(8):
            filter = some_filter(chance, start, queue.clock.now)
            assert await every_page(queue, filter) == [job.id for job in everything if fits(job, filter)], filter


async def test_a_job_block_is_indexed_when_full_and_deleted_with_its_last_job(
    queue: TenantQueue, sql: SqlConnection
) -> None:
    ids = await queue.add_all([new_job(type="a", tags=("x",)) for _ in range(11)])
    await note(queue)
    seqs = [(await queue.job(id)).seq for id in ids]
    assert await job_blocks(queue, sql) == [(seqs[0], seqs[3]), (seqs[4], seqs[7])]
    for id in ids[:7]:
        await queue.do(cancel(id))
    queue.clock.advance(1)
    await queue.store.prune(queue.tenant, PruneCommand(new_id(), OPERATOR, queue.clock.now, 0, 5))
    assert await job_blocks(queue, sql) == [(seqs[4], seqs[7])]
    ((words,),) = await sql.run("SELECT count(*) FROM job_block_term WHERE tenant = $1", queue.tenant)
    assert words == 2
    assert await every_page(queue, Filter(type="a", tags=("x",))) == ids[:4:-1]


async def test_a_tag_added_later_is_found(queue: TenantQueue) -> None:
    ids = await queue.add_all([new_job() for _ in range(6)])
    await note(queue)
    for id in (ids[1], ids[5]):  # in a block, and after the last one
        await queue.do(EditJob(id, OPERATOR, tags=("late",)))
    await note(queue, jobs=2)
    assert await every_page(queue, Filter(tags=("late",))) == [ids[5], ids[1]]


async def test_each_tenant_has_its_own_job_blocks(
    queue: TenantQueue, neighbour: TenantQueue, sql: SqlConnection
) -> None:
    for _ in range(3):
        await queue.add_all([new_job(type="mine") for _ in range(2)])
        await neighbour.add_all([new_job(type="theirs") for _ in range(2)])
    await note(queue)
    assert len(await job_blocks(queue, sql)) == len(await job_blocks(neighbour, sql)) == 1
    assert await every_page(queue, Filter(type="theirs")) == []
    assert len(await every_page(neighbour, Filter(type="theirs"))) == 6


async def test_succeeded_jobs_are_found_among_any_number_of_waiting_ones(queue: TenantQueue) -> None:
    ids = await queue.add_all([new_job() for _ in range(9)])
    assert await every_page(queue, Filter(statuses=(Status.SUCCEEDED,))) == []
    for job in await queue.store.claim(queue.tenant, ask(limit=3)):
        await queue.do(complete(job))
    await queue.store.registry.fold_counters(1, MANY_TENANTS)
    assert await every_page(queue, Filter(statuses=(Status.SUCCEEDED,))) == ids[2::-1]
    late = await queue.running(type="late")
    await queue.do(complete(late))
    assert await every_page(queue, Filter(statuses=(Status.SUCCEEDED,))) == [late.id, *ids[2::-1]]
    assert await every_page(queue, Filter(statuses=(Status.SUCCEEDED,), type="work")) == ids[2::-1]


@pytest.mark.parametrize("engine", ["postgres"])
async def test_a_job_in_an_open_transaction_is_not_missed(
    queue: TenantQueue, sql: SqlConnection, place: str, postgres: Postgres
) -> None:
    """Its position is among existing jobs, and no other transaction can see it yet."""
    before = await queue.add_all([new_job(type="late"), new_job()])  # neither waits for the other's keys
    await note(queue, jobs=2)
    connection = await asyncpg.connect(postgres.dsn(place, user=APP_LOGIN))
    try:
        transaction = connection.transaction()
        await transaction.start()
        late = new_job(type="late")
        await queue.store.enqueue_within(connection, queue.tenant, [late])
        others = await queue.add_all([new_job() for _ in range(5)])
        assert await queue.store.index_job_blocks(2, MANY_TENANTS) == 0
        assert len(await job_blocks(queue, sql)) == 1
        await transaction.commit()
    finally:
        await connection.close()
    await note(queue, jobs=2)
    seqs = [(await queue.job(id)).seq for id in (late.id, others[0])]
    assert (await job_blocks(queue, sql))[1] == (seqs[0], seqs[1])
    assert await every_page(queue, Filter(type="late")) == [late.id, before[0]]
