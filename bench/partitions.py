"""`python -m bench.partitions`: history in one table beside partitions, by the time of the server process."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import NamedTuple

import asyncpg
from rich.console import Console
from rich.table import Table

from bench.__main__ import running_server
from bench.workload import TYPES, payload
from interlock import wire
from interlock.domain.decide import CompleteJob
from interlock.domain.job import NewJob
from interlock.domain.operations import PruneCommand
from interlock.domain.policy import ClaimFilter
from interlock.domain.retry import SECOND
from interlock.storage.postgres.partition_history import partition
from interlock.storage.postgres.store import PostgresStore
from tests.support.postgres import OWNER, Postgres
from tests.support.stores import fresh_database, make_template

TENANT = "bench"
STEP = 500
FAR = timedelta(days=400)


class Layout:
    """A database with so many partitions, the one of now in the middle of them; none: one table."""

    def __init__(self, partitions: int, store: PostgresStore, process: int) -> None:
        self.partitions, self.store, self._process = partitions, store, process

    @classmethod
    async def open(cls, server: Postgres, name: str, partitions: int) -> Layout:
        if partitions:
            now = datetime.now(UTC)
            admin = await asyncpg.connect(server.dsn(name, user=OWNER))
            try:
                for day in range(2 - partitions, 1):
                    moment = now + timedelta(days=day)
                    await admin.execute(f"alter database {name} set interlock.clock = '{moment.isoformat()}'")
                    await partition(server.dsn(name, user=OWNER), 1)
                    await admin.execute(f"set interlock.clock = '{moment.isoformat()}'")
                    await admin.execute("select interlock.extend_history()")
                await admin.execute(f"alter database {name} reset interlock.clock")
            finally:
                await admin.close()
        store = await PostgresStore.open(server.dsn(name, user=OWNER), size=1)
        ((process,),) = await store._fetch("select pg_backend_pid()")
        return cls(len(await store.history_parts()) if partitions else 0, store, process)

    def spent(self) -> float:
        """Seconds of a core that the process of the server has used."""
        return int(Path(f"/proc/{self._process}/schedstat").read_text().split()[0]) / 1e9

    async def enqueue(self, jobs: int) -> float:
        begun = self.spent()
        for start in range(0, jobs, 1_000):
            some = range(start, min(start + 1_000, jobs))
            await self.store.enqueue(TENANT, [NewJob(wire.new_id(), TYPES[0], payload(i)) for i in some])
        return (self.spent() - begun) / jobs

    async def work(self, jobs: int, batch: int) -> float:
        begun = self.spent()
        for _ in range(0, jobs, batch):
            leased = await self.store.claim(TENANT, ClaimFilter("worker", types=frozenset(TYPES), limit=batch))
            await self.store.carry_out(TENANT, [CompleteJob(job.id, job.fence, "worker") for job in leased])
        return (self.spent() - begun) / jobs

    async def prune(self) -> tuple[float, float]:
        """All jobs as retention does, and the vacuum after it or the drop: time and log for each job."""
        jobs, begun, log = 0, self.spent(), await self._log()
        after = await self.store.now() + round(FAR.total_seconds() * SECOND)
        await self.store._fetch(
            "select set_config('interlock.clock', to_timestamp($1 / 1e6)::text, false)", float(after)
        )
        await self.store.leave_history(after)
        step = await self.store.prune(TENANT, PruneCommand(wire.new_id(), "system:bench", after, 0, STEP))
        while jobs := jobs + step.deleted:
            if step.at_end:
                break
            order = PruneCommand(wire.new_id(), "system:bench", after, step.last_seq, STEP)
            step = await self.store.prune(TENANT, order)
        await self.store.drop_history(after)
        await self.store._fetch("reset role")
        await self.store._fetch("vacuum interlock.job_history")
        return (self.spent() - begun) / jobs, (await self._log() - log) / jobs

    async def _log(self) -> int:
        ((bytes,),) = await self.store._fetch("select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")
        return int(bytes)


class Found(NamedTuple):
    """Microseconds of the server for each job, by layout; and of log, for the last."""

    enqueue: list[float]
    batch: list[float]
    few: list[float]
    prune: tuple[float, float]


async def measure(server: Postgres, turns: int, jobs: int) -> dict[int, Found]:
    """The layouts take turns, every other time in the other order; the first turn is not counted."""
    await make_template(server)
    async with AsyncExitStack() as stack:
        layouts = []
        for partitions in (0, 5, 29):
            name = await stack.enter_async_context(fresh_database(server))
            layouts.append(await Layout.open(server, name, partitions))
            stack.push_async_callback(layouts[-1].store.close)
        found = {layout.partitions: Found([], [], [], (0, 0)) for layout in layouts}
        for commit_seq in range(turns + 1):
            for layout in layouts if commit_seq % 2 else reversed(layouts):
                few = max(jobs // 10, 10)
                created = await layout.enqueue(jobs + few)
                many, some = await layout.work(jobs, 100), await layout.work(few, 5)
                if commit_seq:
                    found[layout.partitions].enqueue.append(created * 1e6)
                    found[layout.partitions].batch.append(many * 1e6)
                    found[layout.partitions].few.append(some * 1e6)
        for layout in layouts:
            spent, log = await layout.prune()
            found[layout.partitions] = found[layout.partitions]._replace(prune=(spent * 1e6, log))
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.partitions", description=__doc__)
    parser.add_argument("--turns", type=int, default=10, help="turns of each layout (default: 10)")
    parser.add_argument("--jobs", type=int, default=2_000, help="jobs of a turn (default: 2000)")
    options = parser.parse_args(arguments)
    begun = time.perf_counter()
    with running_server() as server:
        found = asyncio.run(measure(server, options.turns, options.jobs))
    table = Table("µs of the server for each job", *(f"{n} partitions" if n else "one table" for n in found))
    table.add_row("enqueue, 1,000 at a time", *(f"{median(one.enqueue):.1f}" for one in found.values()))
    table.add_row("claim + complete, 100 at a time", *(f"{median(one.batch):.1f}" for one in found.values()))
    table.add_row("claim + complete, 5 at a time", *(f"{median(one.few):.1f}" for one in found.values()))
    table.add_row("prune, with the vacuum of history or the drop", *(f"{one.prune[0]:.1f}" for one in found.values()))
    table.add_row("bytes of log for the same", *(f"{one.prune[1]:.0f}" for one in found.values()))
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    console.print(f"{time.perf_counter() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
