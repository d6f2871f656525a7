"""The connections of a PostgreSQL store: lent in order, never more than allowed, and never one that is still busy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import asyncpg
import pytest

from interlock.storage.postgres.pool import Conn, Pool
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN

FOR_EVER = "select pg_sleep(3600)"


class Server:
    """Makes connections, and remembers them all."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.made: list[Conn] = []
        self.most = 0
        self.may_connect = asyncio.Event()
        self.may_connect.set()
        self.rejects = 0

    async def connect(self) -> Conn:
        await self.may_connect.wait()
        if self.rejects:
            self.rejects -= 1
            raise ConnectionRefusedError
        self.made.append(await asyncpg.connect(self._dsn))
        self.most = max(self.most, len(self.open()))
        return self.made[-1]

    def open(self) -> list[Conn]:
        return [connection for connection in self.made if not connection.is_closed()]

    @contextlib.asynccontextmanager
    async def pool(self, size: int) -> AsyncIterator[Pool]:
        pool = Pool(self.connect, size=size)
        try:
            yield pool
        finally:
            pool.terminate()


@pytest.fixture
async def server(postgres: Postgres, database: str) -> Server:
    return Server(postgres.dsn(database, user=APP_LOGIN))


async def backend(pool: Pool) -> int:
    """The server process behind the next connection."""
    async with pool.lend(RETRY_SECONDS) as connection:
        return int(await connection.fetchval("select pg_backend_pid()"))


async def test_connections_are_opened_when_needed_and_reused(server: Server) -> None:
    async with server.pool(3) as pool:
        assert server.made == []
        assert await backend(pool) == await backend(pool)
        assert len(server.made) == 1


async def test_there_are_never_more_connections_than_allowed(server: Server) -> None:
    async with server.pool(3) as pool:
        backends = await asyncio.gather(*(backend(pool) for _ in range(50)))
        assert len(server.made) == server.most == len(set(backends)) == 3


async def test_waiters_are_served_in_order_and_before_later_ones(server: Server) -> None:
    served: list[int] = []

    async def use(pool: Pool, number: int) -> None:
        async with pool.lend():
            served.append(number)

    async with server.pool(1) as pool:
        async with pool.lend():
            waiting = [asyncio.create_task(use(pool, number)) for number in range(9)]
            await asyncio.sleep(0)
        await use(pool, 9)
        await asyncio.gather(*waiting)
    assert served == list(range(10))


async def test_a_waiter_that_gives_up_takes_no_connection(server: Server) -> None:
    async with server.pool(1) as pool:
        async with pool.lend():
            waiting = [asyncio.create_task(backend(pool)) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            with pytest.raises(TimeoutError):
                await pool.acquire(0)
        waiting[1].cancel()  # it has been served, and does not know yet
        assert await waiting[2] == await backend(pool)
        assert [task.cancelled() for task in waiting] == [True, True, False]
        assert len(server.made) == 1


async def test_a_waiter_that_gives_up_while_it_is_served_leaves_its_connection_to_the_next(server: Server) -> None:
    async with server.pool(1) as pool:
        async with pool.lend() as connection:
            waiting = [asyncio.create_task(backend(pool)) for _ in range(2)]
            await asyncio.sleep(0)
            connection.terminate()
        waiting[0].cancel()
        assert await waiting[1] == await backend(pool)


async def test_a_waiter_whose_connection_breaks_while_it_is_served_gets_another(server: Server) -> None:
    async with server.pool(1) as pool:
        async with pool.lend() as connection:
            waiting = asyncio.create_task(backend(pool))
            await asyncio.sleep(0)
        connection.terminate()
        assert await waiting == await backend(pool)
        assert server.most == 1


async def test_a_cancelled_statement_ends_and_its_connection_is_not_reused(
    server: Server,
) -> None:
    running: list[int] = []

    async def use(pool: Pool) -> None:
        async with pool.lend() as connection:
            running.append(connection.get_server_pid())
            await connection.fetch(FOR_EVER)

    async with server.pool(2) as pool, pool.lend() as watching:
        cancelled = asyncio.create_task(use(pool))

        async def runs() -> bool:
            return bool(await watching.fetchval("select count(*) from pg_stat_activity where query = $1", FOR_EVER))

        await eventually(runs)
        waiting = asyncio.create_task(backend(pool))
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert not await watching.fetchval(
            "select count(*) from pg_stat_activity where state = 'active' and query = $1", FOR_EVER
        )
        assert await waiting not in running
        assert server.most == 2


async def test_a_connection_whose_statement_timed_out_is_replaced(server: Server) -> None:
    async with server.pool(1) as pool:
        first = await backend(pool)
        with pytest.raises(TimeoutError):
            async with pool.lend() as connection:
                await connection.fetch(FOR_EVER, timeout=0.01)
        assert await backend(pool) != first
        assert server.most == 1


async def test_an_unresponsive_server_does_not_block_the_pool(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.storage.postgres.pool.CLOSE_SECONDS", 0.01)

    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncpg.Connection, "close", hang)
    async with server.pool(1) as pool:
        with pytest.raises(ConnectionError):
            async with pool.lend():
                raise ConnectionError
        await backend(pool)
        assert [connection.is_closed() for connection in server.made] == [True, False]


async def test_a_failed_statement_keeps_its_connection(server: Server) -> None:
    async with server.pool(1) as pool:
        for statement in ("select 1 / 0", "nonsense"):
            with pytest.raises(asyncpg.PostgresError):
                async with pool.lend() as connection:
                    await connection.fetch(statement)
        assert await backend(pool)
        assert len(server.made) == 1


async def test_an_open_transaction_is_not_passed_to_the_next_caller(server: Server) -> None:
    async with server.pool(1) as pool:
        async with pool.lend() as connection:
            await connection.execute("begin")
        async with pool.lend() as connection:
            assert not connection.is_in_transaction()


async def test_a_connection_that_the_server_closed_is_replaced(server: Server) -> None:
    async with server.pool(2) as pool, pool.lend() as watching:
        first = await backend(pool)
        await watching.fetch("select pg_terminate_backend($1)", first)

        async def closed() -> bool:
            return server.made[1].is_closed()

        await eventually(closed)
        assert await backend(pool) != first
        assert server.most == 2


async def test_a_connection_that_cannot_be_opened_leaves_its_slot_to_a_waiter(server: Server) -> None:
    async with server.pool(1) as pool:
        server.rejects = 1
        server.may_connect.clear()
        refused = asyncio.create_task(backend(pool))
        waiting = asyncio.create_task(backend(pool))
        await asyncio.sleep(0)
        server.may_connect.set()
        with pytest.raises(ConnectionRefusedError):
            await refused
        assert await waiting == await backend(pool)


async def test_expired_connections_are_replaced_the_idle_ones_immediately(server: Server) -> None:
    async with server.pool(2) as pool:
        async with pool.lend() as in_use:
            async with pool.lend() as idle:
                pass
            pool.expire()
            assert (in_use.is_closed(), idle.is_closed()) == (False, True)
        assert in_use.is_closed()
        assert await backend(pool) == await backend(pool)
        assert len(server.made) == 3


async def test_a_connection_being_opened_when_all_expire_is_used_once(server: Server) -> None:
    async with server.pool(1) as pool:
        server.may_connect.clear()
        on_its_way = asyncio.create_task(backend(pool))
        await asyncio.sleep(0)
        pool.expire()
        server.may_connect.set()
        assert await on_its_way != await backend(pool)


async def test_a_connection_is_replaced_after_a_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.storage.postgres.pool.LIFETIME_SECONDS", -1.0)
    async with server.pool(1) as pool:
        assert await backend(pool) != await backend(pool)


async def test_idle_connections_are_closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.storage.postgres.pool.IDLE_SECONDS", 0.05)
    async with server.pool(3) as pool, pool.lend() as in_use:
        await asyncio.gather(backend(pool), backend(pool))

        async def gone() -> bool:
            return server.open() == [in_use]

        await eventually(gone)
        await backend(pool)
        await eventually(gone)


async def test_closing_waits_for_connections_in_use_and_admits_no_caller(server: Server) -> None:
    async with server.pool(2) as pool:
        async with pool.lend() as in_use:
            async with pool.lend():
                waiting = asyncio.create_task(backend(pool))
                await asyncio.sleep(0)
                closing = asyncio.create_task(pool.close())
                with pytest.raises(asyncpg.InterfaceError):
                    await waiting
            assert await in_use.fetchval("select 1") == 1
            with pytest.raises(asyncpg.InterfaceError):
                await backend(pool)
            assert not closing.done()
        await closing
        assert server.open() == []
        await pool.close()


async def test_terminating_cuts_connections_in_use(server: Server) -> None:
    async with server.pool(2) as pool:
        await asyncio.gather(backend(pool), backend(pool))

        async def use() -> None:
            async with pool.lend() as connection:
                await connection.fetch(FOR_EVER)

        using = asyncio.create_task(use())
        await asyncio.sleep(0)
        pool.terminate()
        assert server.open() == []
        with pytest.raises(asyncpg.PostgresConnectionError):
            await using
        await pool.close()


async def test_a_connection_opened_too_late_is_closed(server: Server) -> None:
    async with server.pool(1) as pool:
        server.may_connect.clear()
        late = asyncio.create_task(backend(pool))
        await asyncio.sleep(0)
        closing = asyncio.create_task(pool.close())
        server.may_connect.set()
        with pytest.raises(asyncpg.InterfaceError):
            await late
        await closing
        assert server.open() == []
