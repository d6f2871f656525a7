"""Waking claimers: a hint sent after the commit, at most one per process and few milliseconds, and heard by all.

It names the tenants it is about, so that nobody looks for work in vain whenever another tenant has some.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import asyncpg
import msgspec

from interlock.storage.postgres.hosts import Nodes
from interlock.storage.wakeup import ALL_TENANTS, Wakeup

CHANNEL: Final = "interlock_ready"
AT_MOST_EVERY_SECONDS: Final = 0.005
MAX_PAYLOAD_LENGTH: Final = 7900  # what PostgreSQL takes is a little more
RECONNECT_SECONDS: Final = 1.0
# Nothing is lost with a hint, so its commit waits neither for the disk nor for standbys.
_HASTY: Final = "set synchronous_commit = off"


class Notifier:
    """Rings in every process that listens. Never part of a job's transaction; losing it costs only time."""

    def __init__(self, dsn: str) -> None:
        self._nodes = Nodes(dsn)
        self._signal = Wakeup()
        self._rung = asyncio.Event()
        self._tenants: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def ring(self, tenant: str) -> None:
        """Wake the tenant's claimers here at once, those elsewhere in a moment."""
        self._signal.fire(tenant)
        self._tenants.add(tenant)
        self._start()
        self._rung.set()

    def event(self, tenant: str) -> asyncio.Event:
        """Set at the next ring for the tenant, wherever it comes from."""
        self._start()
        return self._signal.event(tenant)

    def hear(self, hearer: Callable[[str | None], None]) -> None:
        """Call somebody at every ring, wherever it comes from, with whom it is for."""
        self._signal.hear(hearer)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._keep_connected())

    def _hear(self, ours: int, _: object, sender: int, channel: str, payload: object) -> None:
        """The connection may be closed by now: whose it was is known from its beginning."""
        if sender != ours:  # our own was heard here when it was rung
            for tenant in _named(payload):
                self._signal.fire(tenant)

    async def _keep_connected(self) -> None:
        while True:
            connection = None
            try:
                connection = await self._nodes.connect(command_timeout=5)
                await connection.execute(_HASTY)
                await connection.add_listener(CHANNEL, partial(self._hear, connection.get_server_pid()))
                await self._pass_on(connection)
            except Exception:  # whatever it was: this task is the only one that can ring again
                await asyncio.sleep(RECONNECT_SECONDS)
            finally:
                if connection is not None:
                    connection.terminate()

    async def _pass_on(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        while True:
            try:
                # Not wait_for: before Python 3.12 it loses a cancellation that comes together with the ring.
                async with asyncio.timeout(10):
                    await self._rung.wait()
            except TimeoutError:
                await connection.execute("select 1")  # a dead peer is noticed here
                continue
            self._rung.clear()
            tenants, self._tenants = self._tenants, set()
            await connection.execute("select pg_notify($1, $2)", CHANNEL, _payload(tenants))
            await asyncio.sleep(AT_MOST_EVERY_SECONDS)


def _payload(tenants: Iterable[str]) -> str:
    """The names of the tenants; nothing where they are too many to be named, which is for everybody."""
    named = msgspec.json.encode(sorted(tenants))
    return named.decode() if len(named) <= MAX_PAYLOAD_LENGTH else ""


def _named(payload: object) -> list[str] | list[None]:
    """The tenants of a payload, whoever wrote it."""
    try:
        return msgspec.json.decode(str(payload), type=list[str])
    except msgspec.DecodeError:
        return [ALL_TENANTS]
