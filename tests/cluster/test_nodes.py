"""One URL may name several servers: the one that accepts writes is found, and unreplicated data is not built upon."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from interlock.domain.job import Enqueued, NewJob, Rejected
from interlock.errors import Invalid, Unavailable
from interlock.storage.postgres.connection import Conn, Link
from interlock.storage.postgres.hosts import Node, Nodes, read
from interlock.storage.postgres.store import PostgresStore
from interlock.wire import new_id
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.postgres import PostgresServer, free_port
from tests.support.stores import APP_LOGIN, TEMPLATE, make_template

TENANT = "nodes"


@pytest.mark.parametrize(
    ("url", "nodes"),
    [
        ("postgresql://u:p@a/db", [Node("a")]),
        ("postgresql://u:p%40@a:1,b:2,c/db", [Node("a", 1), Node("b", 2), Node("c")]),
        ("postgresql://[::1]:1,[::2]/db", [Node("::1", 1), Node("::2")]),
        ("postgresql://u@/db?host=a,b&port=1,2", [Node("a", 1), Node("b", 2)]),
        ("postgresql://u@/db?host=a,b&port=1", [Node("a", 1), Node("b", 1)]),
        ("postgresql://u@/db?host=/run/postgresql", [Node("/run/postgresql")]),
        ("postgresql://%2Frun%2Fpostgresql/db", [Node("/run/postgresql")]),
        ("postgresql:///db", [Node()]),
    ],
)
def test_a_url_lists_its_hosts(url: str, nodes: list[Node]) -> None:
    assert read(url) == ("read-write", nodes)


@pytest.mark.parametrize("target", ["read-write", "primary", "any"])
def test_a_url_may_require_a_kind_of_host(target: str) -> None:
    assert read(f"postgresql://a,b/db?target_session_attrs={target}") == (target, [Node("a"), Node("b")])


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://a/db?target_session_attrs=read-only", "read-only hosts"),
        ("postgresql://a/db?target_session_attrs=prefer-standby", "read-only hosts"),
        ("postgresql://a/db?target_session_attrs=whatever", "use read-write"),
        ("postgresql://a:port/db", "cannot be read"),
        ("postgresql:///db?host=a,b,c&port=1,2", "2 ports for 3 hosts"),
    ],
)
def test_an_invalid_url_is_rejected(url: str, expected: str) -> None:
    with pytest.raises(Invalid, match=expected):
        read(url)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A separate server, since its settings are changed."""
    with PostgresServer() as started:
        asyncio.run(make_template(started))
        yield started


@pytest.fixture
async def admin(server: PostgresServer) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(server.dsn(TEMPLATE))
    # The owner may write in any state that a test left the server in.
    await connection.execute("set default_transaction_read_only = off; set synchronous_commit = local")
    try:
        yield connection
    finally:
        await connection.execute("alter system reset all")
        await connection.fetchval("select pg_reload_conf()")
        await connection.close()


async def change(admin: asyncpg.Connection[asyncpg.Record], setting: str, value: str) -> None:
    """Every process of the server takes notice in its own time."""
    await admin.execute(f"alter system set {setting} = '{value}'")
    await admin.fetchval("select pg_reload_conf()")


async def insist(store: PostgresStore, id: str) -> Enqueued | Rejected:
    """Enqueue one job, without a time limit."""
    while True:
        with contextlib.suppress(Unavailable):
            return (await store.enqueue(TENANT, [NewJob(id, "t")]))[0]


@asynccontextmanager
async def stranger(manner: str) -> AsyncIterator[int]:
    """The port of a program that is not a usable PostgreSQL."""

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if manner == "talks nonsense":
            writer.write(b"Nnonsense" * 100)
            await writer.drain()
        elif manner == "is silent":
            await reader.read()  # a connection is taken and never served, as by a machine that hangs
        writer.close()

    listening = await asyncio.start_server(meet, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()


@pytest.mark.parametrize("manner", ["is silent", "hangs up", "talks nonsense", "is not there"])
async def test_a_broken_host_does_not_prevent_connections_to_the_others(server: PostgresServer, manner: str) -> None:
    async with stranger(manner) as port:
        if manner == "is not there":
            port = free_port()
        nodes = Nodes(f"postgresql://{APP_LOGIN}@127.0.0.1:{port},127.0.0.1:{server.port}/{TEMPLATE}")
        connections: list[asyncpg.Connection[asyncpg.Record]] = []

        async def connected() -> bool:
            try:
                connections.append(await nodes.connect())
            except ConnectionError:  # the machine was so busy that the real one did not answer in time either
                return False
            return True

        await eventually(connected)
        assert await connections[0].fetchval("select current_setting('port')") == str(server.port)
        await connections[0].close()
    # Where it was found it is looked for first: the other is gone, and is not asked.
    await eventually(connected)
    await connections[1].close()


@pytest.fixture
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node gets as long as a busy machine takes to respond: each of these responds."""
    monkeypatch.setattr("interlock.storage.postgres.hosts.ONE_OF_SEVERAL_SECONDS", RETRY_SECONDS)


@pytest.mark.usefixtures("_no_hurry")
async def test_an_error_names_every_host(server: PostgresServer, admin: asyncpg.Connection[asyncpg.Record]) -> None:
    await change(admin, "default_transaction_read_only", "on")
    missing = free_port()
    url = f"postgresql://{APP_LOGIN}@127.0.0.1:{missing},127.0.0.1:{server.port}/{TEMPLATE}"
    given: list[str] = []

    async def refused() -> bool:
        try:
            await (await PostgresStore.open(url)).close()
        except Unavailable as error:
            given.append(str(error))
        return bool(given)

    await eventually(refused)
    assert f"127.0.0.1:{missing}: " in given[0]
    assert f"127.0.0.1:{server.port}: takes no writes" in given[0]


@pytest.mark.usefixtures("_no_hurry")
async def test_a_wrong_login_is_reported_as_such(server: PostgresServer) -> None:
    url = f"postgresql://nobody_we_know@127.0.0.1:{server.port},127.0.0.1:{server.port}/{TEMPLATE}"
    with pytest.raises(Unavailable, match=r"refused the connection.*nobody_we_know"):
        await PostgresStore.open(url)


async def test_a_pooler_that_mixes_prepared_statements_is_reported_as_such(server: PostgresServer) -> None:
    link = await Link.open(server.dsn(TEMPLATE, user=APP_LOGIN), size=1)

    def count(connection: Conn) -> Awaitable[int]:
        return connection.fetchval("select count(*) from interlock.shard where name <> $1", "")

    try:
        assert await link.run(count) == 0
        await link.run(lambda connection: connection.execute("deallocate all"))  # as if it led to another backend
        with pytest.raises(Unavailable, match="max_prepared_statements above 0"):
            await link.run(count)
    finally:
        await link.close()


async def test_connections_to_a_read_only_host_are_replaced(
    server: PostgresServer, admin: asyncpg.Connection[asyncpg.Record]
) -> None:
    store = await PostgresStore.open(server.dsn(TEMPLATE, user=APP_LOGIN), size=2)
    ours = "select pid from pg_stat_activity where usename = $1 and backend_type = 'client backend'"
    try:
        before = {row[0] for row in await admin.fetch(ours, APP_LOGIN)}
        await change(admin, "default_transaction_read_only", "on")
        enqueuing = asyncio.create_task(insist(store, new_id()))

        async def given_up() -> bool:
            nonlocal enqueuing
            if enqueuing.done():  # its connection did not know of the change
                enqueuing = asyncio.create_task(insist(store, new_id()))
            return not before & {row[0] for row in await admin.fetch(ours, APP_LOGIN)}

        await eventually(given_up)
        await change(admin, "default_transaction_read_only", "off")
        assert isinstance(await enqueuing, Enqueued)
    finally:
        await store.close()


@pytest.mark.parametrize("how", ["its backend is ended", "its caller disconnects", "it is repeated meanwhile"])
async def test_a_commit_that_the_standbys_lack_is_not_built_upon(
    server: PostgresServer, admin: asyncpg.Connection[asyncpg.Record], how: str
) -> None:
    store = await PostgresStore.open(server.dsn(TEMPLATE, user=APP_LOGIN), size=2)
    waiting = "select pid from pg_stat_activity where wait_event = 'SyncRep' and usename = $1"
    id = new_id()
    try:
        await insist(store, id)
        await asyncio.gather(store.now(), store.now())  # both connections are there, and in no doubt
        await store.now()
        await change(admin, "synchronous_standby_names", "a_standby_that_is_away")
        enqueuing = asyncio.create_task(insist(store, id))

        async def waits_for_the_standby() -> bool:
            return len(await admin.fetch(waiting, APP_LOGIN)) == 1

        async def waits_for_the_first() -> bool:
            held = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and usename = $1"
            return bool(await admin.fetchval(held, APP_LOGIN))

        async def a_commit_waits() -> bool:
            nonlocal id, enqueuing
            if enqueuing.done():  # it was made before the server had heard of the change
                id = new_id()
                enqueuing = asyncio.create_task(insist(store, id))
            return await waits_for_the_standby()

        await eventually(a_commit_waits)
        if how == "its caller disconnects":
            enqueuing.cancel()
            enqueuing = asyncio.create_task(insist(store, id))
        elif how == "it is repeated meanwhile":
            first, enqueuing = enqueuing, asyncio.create_task(insist(store, id))
            await eventually(waits_for_the_first)
            first.cancel()
        else:
            await admin.fetch("select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'")

        async def can_be_read() -> bool:
            return bool(await admin.fetchval("select count(*) from interlock.job where id = $1", id))

        # A repeated call would find its work done. It waits for the standby all the same.
        await eventually(can_be_read)
        await eventually(waits_for_the_standby)
        assert not enqueuing.done()
        await change(admin, "synchronous_standby_names", "")
        assert isinstance(await enqueuing, Enqueued)
    finally:
        await store.close()


@pytest.mark.usefixtures("_no_hurry")
async def test_concurrent_waiters_for_a_host_skip_it_once() -> None:
    ports = [free_port(), free_port()]
    nodes = Nodes(f"postgresql://u@{','.join(f'127.0.0.1:{port}' for port in ports)}/db")
    for _ in range(2):  # the second has waited since the same turn, and has no new result
        nodes.pass_over(0)
    with pytest.raises(ConnectionError, match=rf":{ports[1]}: .*; 127.0.0.1:{ports[0]}: "):
        await nodes.connect()
    assert not Nodes("postgresql://u@127.0.0.1/db").pass_over(0)


async def test_a_host_cut_off_from_its_standbys_is_skipped(
    server: PostgresServer, admin: asyncpg.Connection[asyncpg.Record]
) -> None:
    await change(admin, "synchronous_standby_names", "a_standby_that_is_away")
    with PostgresServer() as leader:
        await make_template(leader)
        url = f"postgresql://{APP_LOGIN}@127.0.0.1:{server.port},127.0.0.1:{leader.port}/{TEMPLATE}"
        stores: list[PostgresStore] = []

        async def open() -> bool:
            with contextlib.suppress(Unavailable):
                stores.append(await PostgresStore.open(url, size=2))
            return bool(stores)

        await eventually(open)
        id = new_id()
        try:
            assert isinstance(await insist(stores[0], id), Enqueued)
        finally:
            await stores[0].close()
        connection = await asyncpg.connect(leader.dsn(TEMPLATE))
        try:
            assert await connection.fetchval("select count(*) from interlock.job where id = $1", id) == 1
        finally:
            await connection.close()
    assert await admin.fetchval("select count(*) from interlock.job where id = $1", id) == 0
