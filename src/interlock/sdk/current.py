"""The context of the running task, found without passing it on."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.sdk.context import Context

_running: ContextVar[Callable[[], Context] | None] = ContextVar("interlock_running", default=None)


def current() -> Context:
    """Return the context of the running task, also in its steps, in their threads and in functions they call."""
    context = _running.get()
    if context is None:
        raise RuntimeError("no task runs here: interlock.current() works in a task, and in functions that it calls")
    return context()


def enter(context: Callable[[], Context]) -> None:
    """Record the running task for this asyncio task, and for the tasks and threads that it starts."""
    _running.set(context)


def running() -> Callable[[], Context] | None:
    """Return how to get the context of the running task, or None outside of tasks."""
    return _running.get()
