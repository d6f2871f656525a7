"""Synchronous versions of async methods: the same method, run on a background event loop while the caller waits."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class HasSyncMethods(Protocol):
    """Protocol of classes with synchronous versions of their async methods."""

    def _loop_for_blocking(self) -> asyncio.AbstractEventLoop: ...


S = TypeVar("S", bound=HasSyncMethods)


def sync_version(verb: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[S, P], R]:
    """Return the synchronous version of an async method: same name with `_sync`, same arguments."""

    @functools.wraps(verb)
    def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        own: Callable[P, Coroutine[Any, Any, R]] = getattr(self, verb.__name__)  # a subclass may have its own
        return run(self._loop_for_blocking(), lambda: own(*args, **kwargs))

    twin.__name__ = f"{verb.__name__}_sync"
    twin.__qualname__ = f"{verb.__qualname__}_sync"
    return twin


def run(loop: asyncio.AbstractEventLoop, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run a coroutine on another thread's event loop and return its result."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        try:
            return asyncio.run_coroutine_threadsafe(call(), loop).result()
        except concurrent.futures.CancelledError:
            raise asyncio.CancelledError from None  # which no `except Exception` catches
    raise RuntimeError("a *_sync method would block the running event loop: await the method without _sync")


def iterate(loop: asyncio.AbstractEventLoop, values: AsyncIterator[R]) -> Iterator[R]:
    """Yield the values of an async iterator, which runs on another thread's event loop while the caller waits."""

    async def following() -> R | None:
        return await anext(values, None)

    while (value := run(loop, following)) is not None:
        yield value


class _Background:
    """An event loop in a daemon thread, started at first use and again after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="interlock-blocking", daemon=True).start()
            return self._loop

    def forget(self) -> None:
        """Discard the loop in a forked child, which does not have the thread that ran it."""
        self.__init__()  # type: ignore[misc]


_background = _Background()
os.register_at_fork(after_in_child=_background.forget)


def background_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that synchronous callers of this process share."""
    return _background.loop()
