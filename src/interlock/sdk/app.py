"""The app: tasks, and a client for the place where their jobs are stored."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from types import CodeType
from typing import Any, Concatenate, Final, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from interlock.client.port import Client
from interlock.domain.json_text import NAME_RULE, is_visible_name
from interlock.errors import Invalid
from interlock.sdk import groups, serialization
from interlock.sdk.context import Context
from interlock.sdk.declared import (
    Declared,
    DeclaredAgent,
    DeclaredBudget,
    DeclaredLimit,
    Disagreement,
    register_schedule,
)
from interlock.sdk.failures import FailurePolicy
from interlock.sdk.handle import JobHandle
from interlock.sdk.hooks import Hooks, Lifespan
from interlock.sdk.limit_requests import budget_request, checked_budget, checked_limit, limit_request
from interlock.sdk.sync import background_loop, sync_version
from interlock.sdk.tasks import Options, Task
from interlock.sdk.values import Caller, Cron, Defaults, Published, value_of

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[[], Any])
L = TypeVar("L", bound=Lifespan)
H = TypeVar("H", bound=Callable[[Context], Any])
E = TypeVar("E", bound=Callable[[Context, Exception], Any])
_DECLARABLE: Final = ("limit", "budget", "agent")


class App:
    """Tasks by name, and one client for each event loop, connected at the first call."""

    def __init__(self, connect: Callable[[], Awaitable[Client]]) -> None:
        self.tasks: dict[str, Task[..., Any]] = {}
        self._hooks = Hooks()
        self._declared: dict[tuple[str, str], Declared] = {}  # by what they are, and name
        self._schedules: dict[str, Cron] = {}
        self._connect = connect
        self._clients: dict[asyncio.AbstractEventLoop, asyncio.Future[Client]] = {}
        self.jobs = groups.Jobs(self._client)
        self.approvals = groups.Approvals(self._client)
        self.queues = groups.Queues(self._client)
        self.agents = groups.Agents(self._client)
        self.types = groups.Types(self._client)
        self.schedules = groups.Schedules(self._client)
        self.limits = groups.Limits(self._client)
        self.budgets = groups.Budgets(self._client)
        self.tokens = groups.Tokens(self._client)
        self.subscriptions = groups.Subscriptions(self._client)
        self.channels = groups.Channels(self._client)
        self.artifacts = groups.Artifacts(self._client)
        self.workers = groups.Workers(self._client)
        self.audit = groups.Audit(self._client)

    @overload
    def task(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        retry_on: type[Exception] | Iterable[type[Exception]] | None = None,
        fail_on: type[Exception] | Iterable[type[Exception]] | None = None,
        schedule: Cron | None = None,
        **options: Unpack[Options],
    ) -> Declare: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retry_on: type[Exception] | Iterable[type[Exception]] | None = None,
        fail_on: type[Exception] | Iterable[type[Exception]] | None = None,
        schedule: Cron | None = None,
        **options: Unpack[Options],
    ) -> Any:
        """Declare a function as a task. Its name is the type of its jobs, unless `name` is given.

        Exceptions of `fail_on` fail the job permanently. With `retry_on`, only those are retried. `schedule` enqueues
        the task without arguments; a worker registers it at its start.
        """
        if schedule is not None and not isinstance(schedule, Cron):
            raise TypeError(f"schedule is {schedule!r}: expected interlock.Cron")
        declare = Declare(self, name, options, FailurePolicy.of(retry_on, fail_on), schedule)
        return declare if function is None else declare(function)

    def lifespan(self, function: L) -> L:
        """Declare an async context manager that each worker enters at its start and leaves at its end.

        A function with one `yield` is enough. Tasks get the value that it yields with `ctx.dependency(type)`.
        """
        self._hooks.add_lifespan(function)
        return function

    def on_start(self, function: F) -> F:
        """Declare a function that each worker calls before its first claim; if it raises, the worker does not start."""
        self._hooks.start.append(function)
        return function

    def on_stop(self, function: F) -> F:
        """Declare a function that each worker calls after its last run."""
        self._hooks.stop.append(function)
        return function

    def before_run(self, function: H) -> H:
        """Declare a function that is called with the context before each run; if it raises, the task does not run.

        Its exception counts as one of the task.
        """
        self._hooks.before.append(function)
        return function

    def after_run(self, function: H) -> H:
        """Declare a function that is called with the context after each run, regardless of how it ended."""
        self._hooks.after.append(function)
        return function

    def on_failure(self, function: E) -> E:
        """Declare a function that is called with the context and the exception after each failed attempt."""
        self._hooks.failure.append(function)
        return function

    async def _client(self) -> Client:
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

    def _connect_by(self, connect: Callable[[], Awaitable[Client]]) -> Callable[[], Awaitable[Client]]:
        """Replace how clients are created, and return the previous function."""
        before, self._connect = self._connect, connect
        self._clients.clear()
        return before

    def job(self, job_id: str) -> JobHandle[Any]:
        """Return a handle for a job by its ID."""
        return JobHandle(job_id, self._client)

    async def me(self) -> Caller:
        """Return the authenticated caller and its roles."""
        return value_of(Caller, await (await self._client()).me())

    def agent(
        self,
        kind: str,
        id: str,
        /,
        *,
        max_concurrency: int | None = None,
        strict: bool = False,
        defaults: Defaults | None = None,
    ) -> tuple[str, str]:
        """Declare an agent and return its kind and ID, for the option `agent` of tasks.

        A worker registers it at its start.
        """
        agent = DeclaredAgent(kind, id, max_concurrency, strict, defaults or Defaults())
        self._declare("agent", f"{kind}/{id}", agent)
        return kind, id

    def limit(
        self,
        name: str,
        /,
        *,
        concurrency: int | None = None,
        rate: Mapping[str, float] | None = None,
        per: float | timedelta = 60,
        burst: Mapping[str, float] | None = None,
        keyed: bool = False,
        fair: bool = False,
        weights: Mapping[str, float] | None = None,
    ) -> str:
        """Declare a limit and return its name, for the option `limits` of tasks and for `RateLimited`.

        A worker registers it at its start.
        """
        request = limit_request(
            concurrency=concurrency, rate=rate, per=per, burst=burst, keyed=keyed, fair=fair, weights=weights
        )
        checked_limit(name, request)
        self._declare("limit", name, DeclaredLimit(name, request))
        return name

    def budget(
        self,
        name: str,
        /,
        amount: Mapping[str, float],
        *,
        per: Literal["hour", "day", "month"] | None = None,
        timezone: str = "UTC",
        on_exceed: Literal["pause", "ask", "fail", "warn"] = "pause",
    ) -> str:
        """Declare a budget and return its name, for the option `budgets` of tasks.

        A worker registers it at its start.
        """
        request = budget_request(amount, per=per, timezone=timezone, on_exceed=on_exceed)
        checked_budget(name, request)
        self._declare("budget", name, DeclaredBudget(name, request))
        return name

    async def publish(
        self, topic: str, payload: Any = None, *, id: str | None = None, retain: float | timedelta = 0
    ) -> Published:
        """Send a message to all jobs that wait for a topic, and to those that begin to wait within `retain`.

        With an `id`, a repeated call delivers nothing more. A message is retained for up to 7 days.
        """
        text = None if payload is None else serialization.encode(payload)
        seconds = retain.total_seconds() if isinstance(retain, timedelta) else retain
        client = await self._client()
        return value_of(Published, await client.jobs.publish(topic, text, id=id, retain_seconds=seconds))

    publish_sync = sync_version(publish)

    async def register(self, *, overwrite: bool = False) -> list[Disagreement]:
        """Register the types of all tasks, so that servers reject invalid payloads, and all declared objects.

        An agent, limit, budget or schedule that is registered with other values is not changed, but returned;
        `overwrite` replaces it.
        """
        client = await self._client()
        for task in self.tasks.values():
            await client.types.set(task.name, **task.definition())
        return await self._register_declared(overwrite=overwrite)

    async def _register_declared(self, *, overwrite: bool = False) -> list[Disagreement]:
        """Register all declared objects. Types are left out: they change which payloads are accepted."""
        client = await self._client()
        found = await self._register_on(client, overwrite=overwrite)
        found += [
            await register_schedule(client, self.tasks[name], cron, overwrite=overwrite)
            for name, cron in self._schedules.items()
        ]
        return [one for one in found if one is not None]

    async def _register_on(self, client: Client, *, overwrite: bool = False) -> list[Disagreement | None]:
        """Register declared objects that are not of a task: limits and budgets first, as others may name them."""
        declared = [one for kind in _DECLARABLE for (of, _), one in self._declared.items() if of == kind]
        return [await one.register(client, overwrite=overwrite) for one in declared]

    async def close(self) -> None:
        """Close the client of the running event loop; the next call opens another."""
        connecting = self._clients.pop(asyncio.get_running_loop(), None)
        if connecting is None:
            return
        connecting.cancel()  # no effect if it is done
        await asyncio.wait([connecting])
        if not connecting.cancelled() and connecting.exception() is None:
            await connecting.result().close()

    me_sync = sync_version(me)
    register_sync = sync_version(register)
    close_sync = sync_version(close)

    async def __aenter__(self) -> Self:
        await self._client()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _declare(self, kind: str, name: str, one: Declared) -> None:
        if (kind, name) in self._declared:
            raise ValueError(f"{kind} {name} is declared twice: declare it once and pass it on")
        self._declared[kind, name] = one

    def _forget_closed_loops(self) -> None:
        for loop in [loop for loop in self._clients if loop.is_closed()]:
            del self._clients[loop]
            warnings.warn("an event loop was closed before its app: use `async with app`", ResourceWarning, 3)

    def _loop_for_blocking(self) -> asyncio.AbstractEventLoop:
        return background_loop()


class Declare:
    """Declares functions as tasks of an app, with options."""

    def __init__(
        self, app: App, name: str | None, options: Options, failures: FailurePolicy, schedule: Cron | None
    ) -> None:
        self._app, self._name, self._options, self._failures = app, name, options, failures
        self._schedule = schedule

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
        task: Task[..., Any] = Task(self._app, function, name, self._options, self._failures)
        earlier = self._app.tasks.get(task.name)
        if earlier is not None and not self._is_repeated(earlier, task):
            raise ValueError(
                f"two tasks are named {task.name!r}: {_place_of(earlier.function)} and {_place_of(function)}; "
                "give one of them another name with @app.task(name=…)"
            )
        if self._schedule is not None:
            try:
                task._request((), {})
            except (TypeError, Invalid) as error:
                raise TypeError(f"{name} has a schedule, which enqueues it without arguments: {error}") from None
            self._app._schedules[task.name] = self._schedule
        self._app.tasks[task.name] = task
        return task

    def _is_repeated(self, earlier: Task[..., Any], task: Task[..., Any]) -> bool:
        """Return whether a module that was loaded again repeats its declaration; a program is also loaded by name."""
        return (
            _place_of(earlier.function) == _place_of(task.function)
            and _code_of(earlier.function) == _code_of(task.function)
            and (earlier._options, earlier.failures) == (self._options, self._failures)
            and self._app._schedules.get(task.name) == self._schedule
        )


def _place_of(function: Any) -> str:
    """Return where a function is defined, for people."""
    code, name = _code_of(function), getattr(function, "__qualname__", repr(function))
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def _code_of(function: Any) -> CodeType | None:
    return getattr(inspect.unwrap(function), "__code__", None)


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
