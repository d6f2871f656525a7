"""A process that promotes a file and is killed in between; and the load that follows the jobs to their new place."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any, cast

from interlock.errors import DatabasePromoted
from interlock.storage.contract import Store
from interlock.storage.promotion.promoter import Promoter
from tests.support.workers import failed

STEP = 25


def promote(pipe: Connection, path: str, dsn: str, die_at: str | None) -> None:
    """Promote a file, and report the result and the points passed; killed by the kernel at the named point."""
    points: dict[str, None] = {}

    def at(point: str) -> None:
        points[point] = None
        if point == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        done = asyncio.run(Promoter(path, dsn, step=STEP, at=at).promote())
    except Exception as error:
        pipe.send(failed(error))
    else:
        pipe.send((done._replace(rows=dict(done.rows)), list(points)))


class Following:
    """A store whose calls wait, when the file refuses them, for the new store; then they are made again there."""

    def __init__(self, store: Store) -> None:
        self.current: Any = store
        self.refused = 0
        self._successor: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def follow(self, store: Store) -> None:
        self._successor.set_result(store)

    @property
    def store(self) -> Store:
        return cast(Store, _Part(self, ()))

    async def call(self, path: tuple[str, ...], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        try:
            return await self._method(path)(*arguments, **options)
        except DatabasePromoted:
            self.refused += 1
            self.current = await asyncio.shield(self._successor)
            return await self._method(path)(*arguments, **options)

    def _method(self, path: tuple[str, ...]) -> Callable[..., Awaitable[Any]]:
        found = self.current
        for name in path:
            found = getattr(found, name)
        return cast(Callable[..., Awaitable[Any]], found)


class _Part:
    def __init__(self, following: Following, path: tuple[str, ...]) -> None:
        self._following = following
        self._path = path

    def __getattr__(self, name: str) -> _Part:
        return _Part(self._following, (*self._path, name))

    async def __call__(self, *arguments: Any, **options: Any) -> Any:
        return await self._following.call(self._path, arguments, options)
