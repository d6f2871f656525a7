"""Daemon threads for synchronous tasks. They cannot be interrupted and do not keep the process alive."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, NamedTuple


class _ThreadCall(NamedTuple):
    function: Callable[[], Any]
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]


_is_in_call: ContextVar[bool] = ContextVar("interlock_is_in_call", default=False)


class Threads:
    """A pool of daemon threads: as many as were ever busy at the same time, at most `most`; further calls wait.

    A call from inside the pool gets an additional thread; otherwise the two could wait for each other.
    """

    def __init__(self, *, most: int | None = None, name: str = "interlock-task") -> None:
        self._calls: SimpleQueue[_ThreadCall | None] = SimpleQueue()
        self._most = most
        self._name = name
        self._count = 0
        self._busy = 0

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a function in a thread, in a copy of the caller's context, and return its result."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        if self._busy >= self._count and (self._most is None or self._count < self._most or _is_in_call.get()):
            self._count += 1
            threading.Thread(target=self._serve, name=f"{self._name}-{self._count}", daemon=True).start()
        self._busy += 1
        context = contextvars.copy_context()
        context.run(_is_in_call.set, self._most is not None)
        self._calls.put(_ThreadCall(function, context, loop, answer))
        return answer

    def close(self) -> None:
        """End every thread once it is idle."""
        for _ in range(self._count):
            self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            result: Any = None
            error: BaseException | None = None
            try:
                if not call.answer.cancelled():  # while it waited for a thread
                    result = call.context.run(call.function)
            except StopIteration as stray:  # a future cannot carry it
                error = RuntimeError(f"the task raised {type(stray).__name__}")
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the event loop is closed and nothing awaits the result
                call.loop.call_soon_threadsafe(self._deliver, call.answer, result, error)

    def _deliver(self, answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if answer.cancelled():
            return
        if error is None:
            answer.set_result(result)
        elif isinstance(error, asyncio.CancelledError):
            answer.cancel()
        else:
            answer.set_exception(error)
