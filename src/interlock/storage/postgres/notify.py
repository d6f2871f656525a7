"""Wakes waiting claims: a hint sent after the commit, at most one per process every few milliseconds.

It names its tenants, so that no process looks for work of other tenants.
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
from interlock.storage.wakeup import ALL_TENANTS, NextLook, Wakeup

CHANNEL: Final = "interlock_ready"
AT_MOST_EVERY_SECONDS: Final = 0.005
MAX_PAYLOAD_LENGTH: Final = 7900  # PostgreSQL accepts slightly more
RECONNECT_SECONDS: Final = 1.0
# A hint may be lost, so its commit waits neither for the disk nor for standbys.
_HASTY: Final = "set synchronous_commit = off"


class Notifier:
    """Sends and receives hints between processes. Never part of a job's transaction; a lost hint only adds latency."""

    def __init__(self, dsn: str) -> None:
        self._nodes = Nodes(dsn)
        self._signal = Wakeup()
        self._rung = asyncio.Event()
        self._tenants: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def ring(self, tenant: str) -> None:
        """Wake the tenant's claims in this process immediately, those of other processes shortly after."""
        self._signal.fire(tenant)
        self._tenants.add(tenant)
        self._start()
        self._rung.set()

    def ring_in(self, key: str, next_look: NextLook) -> None:
        """Wake those who watch this key in this process at a time; other processes look for themselves."""
        self._signal.fire_in(key, next_look)

    def event(self, tenant: str) -> asyncio.Event:
        """Return an event that the next hint for the tenant sets, from this or another process."""
        self._start()
        return self._signal.event(tenant)

    def hear(self, hearer: Callable[[str | None], None]) -> None:
        """Call `hearer` with the tenant of every hint, from this or another process; None stands for all tenants."""
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
        """Receive a hint. The connection may be closed by now, so `ours` is bound when it opens."""
        if sender != ours:  # our own hints were delivered locally
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
            except Exception:  # any error: only this task can reconnect
                await asyncio.sleep(RECONNECT_SECONDS)
            finally:
                if connection is not None:
                    connection.terminate()

    async def _pass_on(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        while True:
            try:
                # Not wait_for: before Python 3.12 it loses a cancellation that arrives together with the hint.
                async with asyncio.timeout(10):
                    await self._rung.wait()
            except TimeoutError:
                await connection.execute("select 1")  # detects a dead peer
                continue
            self._rung.clear()
            tenants, self._tenants = self._tenants, set()
            await connection.execute("select pg_notify($1, $2)", CHANNEL, _payload(tenants))
            await asyncio.sleep(AT_MOST_EVERY_SECONDS)


def _payload(tenants: Iterable[str]) -> str:
    """Encode the tenants; an empty payload if they do not fit, which stands for all tenants."""
    named = msgspec.json.encode(sorted(tenants))
    return named.decode() if len(named) <= MAX_PAYLOAD_LENGTH else ""


def _named(payload: object) -> list[str] | list[None]:
    """Decode the tenants; an invalid payload stands for all tenants."""
    try:
        return msgspec.json.decode(str(payload), type=list[str])
    except msgspec.DecodeError:
        return [ALL_TENANTS]
