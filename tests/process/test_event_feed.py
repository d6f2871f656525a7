"""The feed under writers that overtake each other: numbers are not in commit order, and no reader may miss one."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence

import asyncpg
import pytest

from interlock.domain.job import Heartbeat, Job
from interlock.domain.progress import SMALLEST_ID, Event, FeedEvent, FeedPosition, Level, Report
from interlock.storage.contract import Store
from interlock.storage.postgres import progress as on_postgres
from interlock.storage.postgres.connection import prepare
from tests.process.actions import TENANT, given
from tests.process.conftest import FAST, Checker, new_id
from tests.support.postgres import Postgres
from tests.support.workers import Failed, ProcessGroup, until

START = FeedPosition(0, 0, SMALLEST_ID, 0)
WRITERS = 32

# Every commit with events takes a different time, with all its rows already numbered.
SLOW_COMMITS = """
create function interlock.dawdle() returns trigger language plpgsql as
  $$ begin perform pg_sleep(random() * 0.01); return null; end $$;
grant execute on function interlock.dawdle() to interlock_app;
create constraint trigger dawdle after insert on interlock.job_event deferrable initially deferred
  for each row execute function interlock.dawdle();
"""


def event(id: str) -> Event:
    return Event(id, Level.INFO, f"event {id}")


async def append_events(store: Store, writer: int, jobs: Sequence[Job], calls: int) -> list[tuple[str, str]]:
    """Emit events of a few of the jobs at a time, by calls or by heartbeats, and report the acknowledged ones."""
    chance = random.Random(writer)
    reported: list[tuple[str, str]] = []
    for call in range(calls):
        chosen = chance.sample(jobs, chance.randint(1, 3))
        ids = [f"{writer:08x}-{call:04x}-7000-8000-{n:012x}" for n in range(len(chosen) * 2)]
        pairs = [(job, ids[2 * i : 2 * i + chance.randint(1, 2)]) for i, job in enumerate(chosen)]
        if call % 3:
            reports = [Report(job.id, job.fence, "w", tuple(map(event, ids))) for job, ids in pairs]
            answers = given(await store.add_events(TENANT, reports))
        else:
            heartbeats = [Heartbeat(job.id, job.fence, "w", events=tuple(map(event, ids))) for job, ids in pairs]
            answers = given(await store.heartbeat(TENANT, heartbeats))
        assert not [answer for answer in answers if isinstance(answer, str)], answers
        reported += [(job.id, id) for job, ids in pairs for id in ids]
    return reported


async def read_until(store: Store, done: asyncio.Event, expected: set[tuple[str, str]]) -> list[FeedEvent]:
    """What a reader sees that resumes from its last position, from the start until it has seen all events."""
    seen: list[FeedEvent] = []

    async def all_seen() -> bool:
        seen.extend(await store.feed(TENANT, seen[-1].position if seen else START, limit=50))
        return done.is_set() and len(seen) >= len(expected)

    await until(all_seen, "every event was fed")
    seen += await store.feed(TENANT, seen[-1].position, limit=50)
    return seen


async def test_no_event_is_missed_in_any_commit_order_of_32_writers(checker: Checker) -> None:
    """P45."""
    if checker.admin_dsn is not None:
        admin = await asyncpg.connect(checker.admin_dsn)
        await admin.execute(SLOW_COMMITS)
        await admin.close()
    jobs = await checker.running(8)
    done = asyncio.Event()
    reported: set[tuple[str, str]] = set()
    readers = [asyncio.create_task(read_until(checker.store, done, reported)) for _ in range(3)]
    with ProcessGroup(checker.place, 8) as workers:
        calls = [(append_events, writer, jobs, 4 if FAST else 12) for writer in range(WRITERS)]
        answers = await asyncio.to_thread(workers.race, *calls)
    assert not [answer for answer in answers if isinstance(answer, Failed)], answers
    for answer in answers:
        reported.update(answer)
    done.set()
    for seen in await asyncio.gather(*readers):
        assert sorted((fed.event.job_id, fed.event.id) for fed in seen) == sorted(reported)
        assert [fed.position for fed in seen] == sorted(fed.position for fed in seen)
        numbers = defaultdict(list)
        for fed in seen:
            numbers[fed.event.job_id].append(fed.event.seq)
        assert all(given == list(range(1, len(given) + 1)) for given in numbers.values())
    await checker.check()


async def test_a_reader_of_one_job_misses_no_event_either(checker: Checker) -> None:
    (job,) = await checker.running()
    seen: list[int] = []
    done = asyncio.Event()

    async def caught_up() -> bool:
        finished = done.is_set()
        page = await checker.store.events(TENANT, job.id, after=seen[-1] if seen else 0, limit=7)
        seen.extend(row.seq for row in page)
        return finished and not page

    reader = asyncio.create_task(until(caught_up, "every event was read"))
    with ProcessGroup(checker.place, 4) as workers:
        calls = [(append_events_of_one_job, writer, job, 5 if FAST else 15) for writer in range(WRITERS)]
        answers = await asyncio.to_thread(workers.race, *calls)
    done.set()
    await reader
    assert sorted(number for answer in answers for number in answer) == seen == list(range(1, len(seen) + 1))


async def append_events_of_one_job(store: Store, writer: int, job: Job, calls: int) -> list[int]:
    """Emit events of one job, one by one; return their numbers."""
    numbers: list[int] = []
    for call in range(calls):
        reported = Report(job.id, job.fence, "w", (event(f"{writer:08x}-{call:04x}-7000-8000-000000000000"),))
        ((number,),) = given(await store.add_events(TENANT, [reported]))
        numbers.append(number)
    return numbers


class TestOnPostgres:
    """Commits held open by hand, so that every order of them is met each time."""

    @pytest.fixture
    def engine(self) -> str:
        return "postgres"

    @pytest.fixture
    async def two(
        self, checker: Checker, postgres: Postgres
    ) -> AsyncIterator[list[asyncpg.Connection[asyncpg.Record]]]:
        """Two connections of the app role whose transactions the test ends itself."""
        connections = [await asyncpg.connect(checker.place.address) for _ in range(2)]
        for connection in connections:
            await prepare(connection)
        yield connections
        for connection in connections:
            await connection.close()

    async def append_event(self, connection: asyncpg.Connection[asyncpg.Record], job: Job) -> None:
        reported = Report(job.id, job.fence, "w", (event(new_id()),))
        (numbers,) = await on_postgres.append_events(connection, TENANT, [reported])
        assert numbers is not None

    async def fed(self, checker: Checker, after: FeedPosition = START) -> list[FeedEvent]:
        return await checker.store.feed(TENANT, after, limit=200)

    async def fed_by(self, checker: Checker, count: int) -> list[tuple[str, int]]:
        """The jobs and numbers of the feed, once there are this many."""

        async def enough() -> bool:
            return len(await self.fed(checker)) >= count

        await until(enough, f"{count} events were fed")
        return [(fed.event.job_id, fed.event.seq) for fed in await self.fed(checker)]

    async def test_a_late_commit_is_waited_for(
        self, checker: Checker, two: list[asyncpg.Connection[asyncpg.Record]]
    ) -> None:
        first, second = await checker.running(2)
        late, quick = two
        await late.execute("begin")
        await self.append_event(late, first)
        end = await checker.store.feed_end(TENANT)
        await self.append_event(quick, second)
        assert await self.fed(checker) == []
        assert len(await checker.store.events(TENANT, second.id, limit=9)) == 1
        await late.execute("commit")
        assert await self.fed_by(checker, 2) == [(first.id, 1), (second.id, 1)]
        assert len(await self.fed(checker, end)) == 2

    async def test_a_rollback_delays_no_reader(
        self, checker: Checker, two: list[asyncpg.Connection[asyncpg.Record]]
    ) -> None:
        first, second = await checker.running(2)
        late, quick = two
        await late.execute("begin")
        await self.append_event(late, first)
        await self.append_event(quick, second)
        await late.execute("rollback")
        assert await self.fed_by(checker, 1) == [(second.id, 1)]
        await self.append_event(quick, first)
        assert await self.fed_by(checker, 2) == [(second.id, 1), (first.id, 1)]

    async def test_the_events_of_a_job_keep_their_order_though_the_later_one_has_the_older_transaction(
        self, checker: Checker, two: list[asyncpg.Connection[asyncpg.Record]]
    ) -> None:
        first, second = await checker.running(2)
        old, young = two
        await old.execute("begin")
        await self.append_event(old, first)
        await self.append_event(young, second)
        await self.append_event(old, second)
        await old.execute("commit")
        fed = await self.fed_by(checker, 3)
        assert fed == [(first.id, 1), (second.id, 1), (second.id, 2)]
        places = [fed.position for fed in await self.fed(checker)]
        assert [len(await self.fed(checker, place)) for place in places] == [2, 1, 0]

    async def test_a_reader_with_an_open_snapshot_delays_no_other(
        self, checker: Checker, two: list[asyncpg.Connection[asyncpg.Record]]
    ) -> None:
        (job,) = await checker.running()
        idle, quick = two
        await idle.execute("begin isolation level repeatable read")
        await idle.fetch("select 1 from interlock.job")
        await self.append_event(quick, job)
        assert await self.fed_by(checker, 1) == [(job.id, 1)]
        await idle.execute("rollback")
