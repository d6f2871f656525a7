"""Hooks of an app: functions that a worker calls at its start and stop, and around each run."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interlock.sdk.context import Context

Lifespan = Callable[[], AbstractAsyncContextManager[Any] | AsyncIterator[Any]]


class Hooks:
    """The hooks of an app, in the order of their declaration."""

    def __init__(self) -> None:
        self.lifespans: list[Callable[[], AbstractAsyncContextManager[Any]]] = []
        self.start: list[Callable[[], Any]] = []
        self.stop: list[Callable[[], Any]] = []
        self.before: list[Callable[[Context], Any]] = []
        self.after: list[Callable[[Context], Any]] = []
        self.failure: list[Callable[[Context, Exception], Any]] = []

    def add_lifespan(self, function: Any) -> None:
        """Add an async context manager, or an async generator function with one `yield`."""
        if not callable(function):
            raise TypeError(f"{function!r} is not a function: use @app.lifespan above an async function with one yield")
        self.lifespans.append(asynccontextmanager(function) if inspect.isasyncgenfunction(function) else function)

    def extend(self, other: Hooks) -> None:
        """Add the hooks of another app."""
        for name, hooks in vars(other).items():
            vars(self)[name] += hooks
