"""The app: tasks, and a client for the place where their jobs are stored."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from interlock.client.port import Client
from interlock.domain.json_text import NAME_RULE, is_visible_name
from interlock.sdk.context import Context
from interlock.sdk.handle import JobHandle
from interlock.sdk.sync import background_loop, sync_version
from interlock.sdk.tasks import Options, Task

P = ParamSpec("P")
R = TypeVar("R")


class App:
    """Tasks by name, and one client for each event loop, connected at the first call."""

    def __init__(self, connect: Callable[[], Awaitable[Client]]) -> None:
        self.tasks: dict[str, Task[..., Any]] = {}
        self._connect = connect
        self._clients: dict[asyncio.AbstractEventLoop, asyncio.Future[Client]] = {}

    @overload
    def task(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, *, name: str | None = None, **options: Unpack[Options]) -> Declare: ...
    def task(
        self, function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Unpack[Options]
    ) -> Any:
        """Declare a function as a task. Its name is the type of its jobs, unless `name` is given."""
        declare = Declare(self, name, options)
        return declare if function is None else declare(function)

    async def client(self) -> Client:
        """Return the client of the running event loop."""
        loop = asyncio.get_running_loop()
        self._forget_closed_loops()
        if (connecting := self._clients.get(loop)) is None:
            connecting = self._clients[loop] = asyncio.ensure_future(self._connect())
        try:
            return await asyncio.shield(connecting)
        except BaseException:
            if connecting.done() and (connecting.cancelled() or connecting.exception() is not None):
                self._clients.pop(loop, None)  # the next call tries again
            raise

    def connect_by(self, connect: Callable[[], Awaitable[Client]]) -> Callable[[], Awaitable[Client]]:
        """Replace how clients are created, and return the previous function."""
        before, self._connect = self._connect, connect
        self._clients.clear()
        return before

    def job(self, job_id: str) -> JobHandle[Any]:
        """Return a handle for a job by its ID."""
        return JobHandle(job_id, self.client)

    async def register(self) -> None:
        """Register the types of all tasks, so that servers reject invalid payloads from any producer."""
        client = await self.client()
        for task in self.tasks.values():
            await client.types.set(task.name, **task.definition())

    async def close(self) -> None:
        """Close the client of the running event loop; the next call opens another."""
        connecting = self._clients.pop(asyncio.get_running_loop(), None)
        if connecting is None:
            return
        connecting.cancel()  # no effect if it is done
        await asyncio.wait([connecting])
        if not connecting.cancelled() and connecting.exception() is None:
            await connecting.result().close()

    register_sync = sync_version(register)
    close_sync = sync_version(close)

    async def __aenter__(self) -> Self:
        await self.client()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _forget_closed_loops(self) -> None:
        for loop in [loop for loop in self._clients if loop.is_closed()]:
            del self._clients[loop]
            warnings.warn("an event loop was closed before its app: use `async with app`", ResourceWarning, 3)

    def _loop_for_blocking(self) -> asyncio.AbstractEventLoop:
        return background_loop()


class Declare:
    """Declares functions as tasks of an app, with options."""

    def __init__(self, app: App, name: str | None, options: Options) -> None:
        self._app, self._name, self._options = app, name, options

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Task[..., Any]:
        own = _name_of(function)
        name = own if self._name is None else self._name
        if not is_visible_name(name):
            raise ValueError(f"{name!r} is not a valid task name: a name has {NAME_RULE}")
        task: Task[..., Any] = Task(self._app, function, name, self._options)
        if task.name in self._app.tasks:
            raise ValueError(f"two tasks are named {task.name!r}: names must be unique")
        self._app.tasks[task.name] = task
        return task


def _name_of(function: Any) -> str:
    """Return the name of a declared function; reject other objects and generators."""
    name: str | None = getattr(function, "__name__", None)
    if name is None or not callable(function):
        raise TypeError(f"{function!r} is not a function: use @app.task or @app.task(name=…)")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{name} is a generator: a task returns once; use ctx.event for progress")
    place = getattr(function, "__qualname__", name).rpartition("<locals>.")[2]
    if "." in place and next(iter(inspect.signature(function).parameters), None) == "self":
        raise TypeError(f"{place} is a method: a task must be a function")
    return name
