"""One database among several: while it does not respond, calls fail immediately."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from interlock.errors import Indeterminate, TenantMoved, Unavailable
from interlock.storage.postgres.store import PostgresStore

log = logging.getLogger(__name__)
T = TypeVar("T")
Open = Callable[[], Awaitable[PostgresStore]]

PROBE_EVERY_SECONDS: Final = 1.0
PROBE_SECONDS: Final = 10.0


class Shard:
    """A store that may be down. It is probed while calls are in flight, and while it is down until it is back."""

    def __init__(self, name: str, no: int, open: Open) -> None:
        self.name = name
        self.no = no
        self.trouble: str | None = None
        self._open = open
        self._store: PostgresStore | None = None
        self._welcome: Callable[[PostgresStore], None] | None = None
        self._calls = 0
        self._watch: asyncio.Task[None] | None = None
        self._doubt = asyncio.Event()

    @property
    def store(self) -> PostgresStore:
        """The store itself, for calls that do not query it."""
        if self._store is None:
            raise self._unavailable()
        return self._store

    @property
    def is_open(self) -> bool:
        """Whether it was ever reached."""
        return self._store is not None

    def when_open(self, welcome: Callable[[PostgresStore], None]) -> None:
        """Call `welcome` with the store, now or when it is reached for the first time."""
        self._welcome = welcome
        if self._store is not None:
            welcome(self._store)

    def adopt(self, store: PostgresStore) -> None:
        """Use a store that is already open."""
        self._store = store
        if self._welcome is not None:
            self._welcome(store)

    async def connect(self) -> None:
        """Connect; if the database is unreachable, retry in the background."""
        try:
            self.adopt(await self._open())
        except Unavailable as error:
            self._lost(str(error))

    async def run(self, call: Callable[[PostgresStore], Awaitable[T]]) -> T:
        """Return the result of a call; errors name the shard."""
        if self.trouble is not None:
            raise self._unavailable()
        self._calls += 1
        self._look_after()
        try:
            return await call(self.store)
        except TenantMoved:
            raise
        except Indeterminate as error:
            self._doubt.set()
            raise Indeterminate(f"shard {self.name}: {error}") from error
        except Unavailable as error:
            self._doubt.set()
            raise Unavailable(f"shard {self.name}: {error}") from error
        finally:
            self._calls -= 1

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._store is not None:
            await self._store.close()

    def _unavailable(self) -> Unavailable:
        return Unavailable(f"shard {self.name} cannot be reached now: {self.trouble or 'it was not opened'}")

    def _lost(self, why: str) -> None:
        if self.trouble is None:
            log.warning("shard %s does not respond; its tenants wait, others continue: %s", self.name, why)
        self.trouble = why
        self._look_after()

    def _look_after(self) -> None:
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._keep_looking())

    async def _keep_looking(self) -> None:
        """Probe while calls are in flight or the shard is down."""
        while self._calls or self.trouble is not None:
            self._doubt.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROBE_EVERY_SECONDS):
                    await self._doubt.wait()
            if self._calls or self._doubt.is_set() or self.trouble is not None:
                await self._probe()

    async def _probe(self) -> None:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                if self._store is None:
                    self.adopt(await self._open())
                await self.store.now()
        except TimeoutError:
            self._lost(f"no answer within {PROBE_SECONDS:g} s")
        except Exception as error:  # any error: only this task detects recovery
            self._lost(str(error))
        else:
            if self.trouble is not None:
                log.warning("shard %s answers again", self.name)
            self.trouble = None
