"""The lifespan of a worker: what its app opens before the first claim and closes after the last finish."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from inspect import isawaitable, iscoroutinefunction, unwrap
from typing import Any

from interlock.sdk.hooks import Hooks
from interlock.sdk.threads import Threads


class WorkerLifespan:
    """Holds the lifespans of an app open, in one asyncio task: some libraries must close where they were opened."""

    def __init__(self, hooks: Hooks, log: Any) -> None:
        self.values: list[Any] = []
        self._hooks = hooks
        self._log = log
        self._threads = Threads(name="interlock-hook")
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._holding: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Enter the lifespans and run the start hooks; if one raises, close what is open and raise its error."""
        if not (self._hooks.lifespans or self._hooks.start or self._hooks.stop):
            return
        self._holding = holding = asyncio.create_task(self._hold())
        try:
            await asyncio.wait([holding, self._opened], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            holding.cancel()
            await asyncio.wait([holding])
            raise
        if not self._opened.done():
            holding.result()

    async def close(self) -> None:
        """Run the stop hooks and leave the lifespans; errors are logged, because all jobs are already released."""
        self._over.set()
        if self._holding is not None:
            await asyncio.wait([self._holding])
            if not self._holding.cancelled() and (error := self._holding.exception()) is not None:
                self._log.error("lifespan failed to close", error=repr(error), exc_info=error)
        self._threads.close()

    async def _hold(self) -> None:
        async with AsyncExitStack() as stack:
            for lifespan in self._hooks.lifespans:
                self.values.append(await stack.enter_async_context(lifespan()))
            for hook in self._hooks.start:
                await call_hook(hook, self._threads)
            self._opened.set_result(None)
            await self._over.wait()
            for hook in self._hooks.stop:
                try:
                    await call_hook(hook, self._threads)
                except Exception:
                    self._log.exception("hook failed", hook=name_of(hook))


async def call_hook(hook: Callable[..., Any], threads: Threads, *args: Any) -> None:
    """Call an asynchronous hook on the loop, any other in a thread."""
    if iscoroutinefunction(unwrap(hook)):
        await hook(*args)
        return
    result = await threads.run(lambda: hook(*args))
    if isawaitable(result):
        await result


def name_of(hook: Callable[..., Any]) -> str:
    return getattr(hook, "__qualname__", repr(hook))
