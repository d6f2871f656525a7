"""The bare limit: a table of nine narrow columns, no rule, no history; the same durability and client library.

Everything here is as quick as we know how to make it, so that the ratios beside it mean something.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import count as numbers
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import asyncpg

from bench.plan import BenchFailed, Measurement
from bench.workload import LOAD_BATCH_SIZE, payload, type_of
from interlock.storage.sqlite.connection import CHECKPOINT_PAGES, WRITER_CACHE_KIB, wall_clock

if TYPE_CHECKING:
    from asyncpg.prepared_stmt import PreparedStatement

    Connection = asyncpg.Connection[asyncpg.Record]
    Prepared = PreparedStatement[asyncpg.Record]
else:
    Connection = Prepared = Any

WAITING, RUNNING, SUCCEEDED = 0, 1, 2
Row = tuple[str, str]


def _rows(count: int) -> list[Row]:
    return [(type_of(i), payload(i)) for i in range(count)]


def _expect(counts: dict[int, int], wanted: dict[int, int]) -> None:
    if counts != wanted:
        raise BenchFailed(f"the bare table holds {counts} jobs by status, not {wanted}")


class BareSQLite:
    """In this thread, without an event loop; prepared statements come from apsw's cache."""

    SCHEMA = """
        CREATE TABLE job (
          id INTEGER PRIMARY KEY, type TEXT NOT NULL, status INTEGER NOT NULL, priority INTEGER NOT NULL,
          run_at INTEGER NOT NULL, attempt INTEGER NOT NULL, worker TEXT, lease_until INTEGER, payload TEXT NOT NULL);
        CREATE INDEX job_ready ON job (priority DESC, run_at, id) WHERE status = 0;
        """
    INSERT = "INSERT INTO job (type, status, priority, run_at, attempt, payload) VALUES (?, 0, 0, ?, 0, ?)"
    CLAIM = """
        UPDATE job SET status = 1, attempt = attempt + 1, worker = ?1, lease_until = ?2 + 60000000
        WHERE id IN (SELECT id FROM job WHERE status = 0 AND run_at <= ?2 ORDER BY priority DESC, run_at, id LIMIT ?3)
        RETURNING id, payload"""
    COMPLETE = """
        UPDATE job SET status = 2, worker = NULL, lease_until = NULL WHERE id IN (SELECT value FROM json_each(?))"""

    def __init__(self, path: Path) -> None:
        self.added = 0
        self._waiting: list[Row] = []
        self._db = db = apsw.Connection(str(path))
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "full")
        db.pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
        db.pragma("cache_size", -WRITER_CACHE_KIB)
        db.execute(self.SCHEMA)

    def prepare(self, count: int) -> None:
        self._waiting = _rows(count)

    async def load(self, count: int) -> None:
        rows = _rows(count)
        for i in range(0, count, LOAD_BATCH_SIZE):
            self._insert(rows[i : i + LOAD_BATCH_SIZE])

    async def enqueue(self, what: Measurement, start: int, stop: int) -> None:
        if what.batch == 1:
            execute = self._db.execute
            for type, body in self._waiting[start:stop]:
                execute(self.INSERT, (type, wall_clock(), body))
            self.added += stop - start
            return
        for i in range(start, stop, what.batch):
            self._insert(self._waiting[i : min(i + what.batch, stop)])

    def _insert(self, rows: list[Row]) -> None:
        now = wall_clock()
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(self.INSERT, [(type, now, body) for type, body in rows])
        self._db.execute("COMMIT")
        self.added += len(rows)

    async def drain(self, batch: int, loops: int, tickets: int | None) -> int:
        execute = self._db.execute
        done = 0
        for _ in numbers() if tickets is None else range(tickets):
            rows = execute(self.CLAIM, ("worker-0", wall_clock(), batch)).fetchall()
            if not rows:
                break
            execute(self.COMPLETE, (json.dumps([id for id, _ in rows]),))
            done += len(rows)
        return done

    async def check(self, *, drained: bool) -> None:
        counts = dict(self._db.execute("SELECT status, count(*) FROM job GROUP BY status"))
        _expect(counts, {SUCCEEDED if drained else WAITING: self.added})

    def close(self) -> None:
        self._db.close()


class BarePostgres:
    """Prepared statements on connections of their own: no pool, no role, no transaction block."""

    SCHEMA = """
        create table job (
          id bigint generated always as identity primary key, type text not null, status smallint not null default 0,
          priority smallint not null default 0, run_at timestamptz not null default now(),
          attempt smallint not null default 0, worker text, lease_until timestamptz, payload text not null);
        create index job_ready on job (priority desc, run_at, id) where status = 0;
        """
    # Planned once, by index, as the hot functions of Interlock are.
    SETTINGS = """
        set plan_cache_mode = force_generic_plan; set jit = off; set enable_seqscan = off; set enable_bitmapscan = off;
        set enable_mergejoin = off; set enable_hashjoin = off;
        """
    INSERT = "insert into job (type, payload) values ($1, $2)"
    INSERT_MANY = "insert into job (type, payload) select * from unnest($1::text[], $2::text[])"
    CLAIM = """
        with picked as materialized (
          select ctid as at from job where status = 0 and run_at <= now()
          order by priority desc, run_at, id limit $1 for update skip locked)
        update job set status = 1, attempt = attempt + 1, worker = $2, lease_until = now() + interval '60 s'
        from picked where job.ctid = picked.at returning id, payload"""
    COMPLETE = "update job set status = 2, worker = null, lease_until = null where id = any($1::bigint[])"

    def __init__(self) -> None:
        self.added = 0
        self._waiting: list[Row] = []
        self._connections: list[Connection] = []
        self._insert: list[Prepared] = []
        self._insert_many: list[Prepared] = []
        self._claim: list[Prepared] = []
        self._complete: list[Prepared] = []

    async def open(self, dsn: str, connections: int) -> None:
        for _ in range(connections):
            connection = await asyncpg.connect(dsn)
            self._connections.append(connection)
            if len(self._connections) == 1:
                await connection.execute(self.SCHEMA)
            await connection.execute(self.SETTINGS)
            self._insert.append(await connection.prepare(self.INSERT))
            self._insert_many.append(await connection.prepare(self.INSERT_MANY))
            self._claim.append(await connection.prepare(self.CLAIM))
            self._complete.append(await connection.prepare(self.COMPLETE))

    def prepare(self, count: int) -> None:
        self._waiting = _rows(count)

    async def load(self, count: int) -> None:
        rows = _rows(count)
        for i in range(0, count, LOAD_BATCH_SIZE):
            await self._insert_many[0].fetch(*zip(*rows[i : i + LOAD_BATCH_SIZE], strict=True))
        self.added += count

    async def enqueue(self, what: Measurement, start: int, stop: int) -> None:
        if what.batch > 1:
            for i in range(start, stop, what.batch):
                columns = zip(*self._waiting[i : min(i + what.batch, stop)], strict=True)
                await self._insert_many[0].fetch(*columns)
        else:
            waiting = iter(self._waiting[start:stop])
            clients = self._insert if what.ways > 1 else self._insert[:1]
            await asyncio.gather(*(self._one_by_one(insert, waiting) for insert in clients))
        self.added += stop - start

    async def _one_by_one(self, insert: Prepared, waiting: Iterator[Row]) -> None:
        for type, body in waiting:
            await insert.fetch(type, body)

    async def drain(self, batch: int, loops: int, tickets: int | None) -> int:
        left: Iterator[int] = iter(numbers() if tickets is None else range(tickets))
        return sum(await asyncio.gather(*(self._work(i, batch, left) for i in range(loops))))

    async def _work(self, number: int, batch: int, left: Iterator[int]) -> int:
        claim, complete, worker = self._claim[number], self._complete[number], f"worker-{number}"
        done = 0
        for _ in left:
            rows = await claim.fetch(batch, worker)
            if not rows:
                break
            await complete.fetch([row[0] for row in rows])
            done += len(rows)
        return done

    async def check(self, *, drained: bool) -> None:
        rows = await self._connections[0].fetch("select status, count(*) from job group by status")
        _expect({row[0]: row[1] for row in rows}, {SUCCEEDED if drained else WAITING: self.added})

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()
