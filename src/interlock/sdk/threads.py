"""Threads for blocking tasks. They never keep the process alive: what cannot be interrupted ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple


class _Call(NamedTuple):
    function: Callable[[], Any]
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]


class Threads:
    """As many daemon threads as were ever busy at once; the caller bounds that."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._count = 0
        self._busy = 0

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """The answer of a function that runs in a thread, in a copy of the caller's context."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        if self._busy == self._count:
            self._count += 1
            threading.Thread(target=self._serve, name=f"interlock-task-{self._count}", daemon=True).start()
        self._busy += 1
        self._calls.put(_Call(function, contextvars.copy_context(), loop, answer))
        return answer

    def close(self) -> None:
        """Let every thread go once it is done."""
        for _ in range(self._count):
            self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = call.context.run(call.function)
            except StopIteration as stray:  # which no future can carry
                error = RuntimeError(f"the task raised {type(stray).__name__}")
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                call.loop.call_soon_threadsafe(self._tell, call.answer, result, error)

    def _tell(self, answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if answer.cancelled():
            return
        if error is None:
            answer.set_result(result)
        elif isinstance(error, asyncio.CancelledError):
            answer.cancel()
        else:
            answer.set_exception(error)
