"""Tasks: functions that run as jobs and can still be called directly."""

from __future__ import annotations

import asyncio
import dis
import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any, Final, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, get_type_hints

import msgspec

from interlock.client.port import Client, EncodedRequest, JobRequest
from interlock.domain.policy import MAX_LEASE_SECONDS
from interlock.errors import Invalid
from interlock.sdk.context import Context
from interlock.sdk.current import running
from interlock.sdk.exceptions import in_seconds
from interlock.sdk.failures import EVERYTHING_RETRIED, FailurePolicy
from interlock.sdk.handle import JobHandle
from interlock.sdk.replay import is_recordable
from interlock.sdk.signature import Signature
from interlock.sdk.sync import background_loop, sync_version
from interlock.sdk.values import Backoff

P = ParamSpec("P")
R = TypeVar("R")
BATCH_SIZE: Final = 1000


class Options(TypedDict, total=False):
    """Options of the jobs of a task; unset ones come from the type, the agent and the server."""

    max_attempts: int
    priority: int
    timeout: float | timedelta
    backoff: Backoff | Mapping[str, Any]
    expiry_delay: float | timedelta
    lease: float | timedelta
    requires: Sequence[str]
    agent: tuple[str, str]
    tags: Sequence[str]
    headers: Mapping[str, str]
    affinity_key: str
    repository: str
    webhook: str
    limits: Sequence[str | Mapping[str, Any]]
    budgets: Sequence[str]
    budget: Mapping[str, float]
    run_at: datetime
    delay: float | timedelta
    deadline: datetime
    idempotency_key: str
    parent_id: str
    requested_by: str
    traceparent: str


class Connected(Protocol):
    """An object that provides the client of tasks."""

    async def _client(self) -> Client: ...


class Task(Generic[P, R]):
    """A function with a type name. Calling it runs the function directly; `enqueue` creates a job."""

    __name__: str

    def __init__(
        self,
        app: Connected,
        function: Callable[..., Any],
        name: str,
        options: Options,
        failures: FailurePolicy = EVERYTHING_RETRIED,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.signature = Signature(function, Context)
        self.is_async = inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(function)
        self.enqueues = _enqueues(getattr(inspect.unwrap(function), "__code__", None))
        self._app = app
        self.failures = failures
        self._options = options
        self._fields = request_fields(options)
        self._within: object = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @functools.cached_property
    def patches(self) -> list[str]:
        """The patches that the code of the task names; read at its first run, when all its modules are imported."""
        return _patches(inspect.unwrap(self.function))

    def __repr__(self) -> str:
        return f"Task({self.name!r})"

    @property
    def _lease_seconds(self) -> float | None:
        """The lease duration in seconds; None leaves it to the worker."""
        return in_seconds(self._options.get("lease"))

    @property
    def has_key(self) -> bool:
        return self._options.get("idempotency_key") is not None

    def options(self, **options: Unpack[Options]) -> Task[P, R]:
        """Return the same task with other options for the jobs enqueued through it."""
        other: Task[P, R] = self._copy()
        other._options = {**self._options, **options}
        other._fields = request_fields(other._options)
        return other

    def within(self, transaction: object) -> Task[P, R]:
        """Return the same task, which enqueues in the caller's open PostgreSQL transaction and commits with it.

        Accepts a connection of asyncpg or psycopg, or a connection or session of SQLAlchemy.
        """
        if transaction is None:
            raise TypeError("within() got None: expected a connection with an open transaction")
        other: Task[P, R] = self._copy()
        other._within = transaction
        return other

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a job for this call. Inside a running task of the same app, it is a child of that task's job."""
        parent = self._parent()
        if parent is None:
            return await self.enqueue_detached(*args, **kwargs)
        return await parent._on_loop(lambda: parent._enqueue_child(self, args, kwargs))

    async def enqueue_many(self, calls: Iterable[Mapping[str, Any]]) -> list[JobHandle[R]]:
        """Enqueue a job for each call, given as its named arguments, in batches of 1000; each batch is all or none.

        Inside a running task of the same app, they are children of that task's job.
        """
        parent = self._parent()
        if parent is None:
            return await self.enqueue_many_detached(calls)
        return [*await parent._on_loop(lambda: parent.enqueue_many(self, calls))]

    async def enqueue_detached(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a job for this call, without a parent also inside a running task; a later run enqueues it again."""
        (handle,) = await self._enqueue([self._request(args, kwargs)])
        return handle

    async def enqueue_many_detached(self, calls: Iterable[Mapping[str, Any]]) -> list[JobHandle[R]]:
        """Enqueue a job for each call, without a parent also inside a running task."""
        requests = [self._request((), call, number) for number, call in enumerate(calls)]
        handles: list[JobHandle[R]] = []
        for start in range(0, len(requests), BATCH_SIZE):
            handles += await self._enqueue(requests[start : start + BATCH_SIZE])
        return handles

    enqueue_sync = sync_version(enqueue)
    enqueue_many_sync = sync_version(enqueue_many)
    enqueue_detached_sync = sync_version(enqueue_detached)
    enqueue_many_detached_sync = sync_version(enqueue_many_detached)

    def _request(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], number: int | None = None, /, **fields: Any
    ) -> JobRequest:
        """Validate a call and return it as a job request; errors of a batch name the number of the call."""
        try:
            payload = msgspec.Raw(self.signature.pack(args, kwargs))
        except (TypeError, Invalid) as error:
            if number is None:
                raise
            results = f"call {number}: {error}"
            raise (
                TypeError(results) if isinstance(error, TypeError) else Invalid(results, pointer=error.pointer)
            ) from None
        make = EncodedRequest if self.signature.is_flat else JobRequest
        return make(type=self.name, payload=payload, **(self._fields | fields))

    def _handle(self, id: str, client: Callable[[], Awaitable[Client]], *, replayed: bool = False) -> JobHandle[R]:
        return JobHandle(id, client, self.signature.returns, replayed=replayed)

    def definition(self) -> dict[str, Any]:
        """Return the type of this task for registration: payload schema, required capabilities and defaults."""
        kept = {"max_attempts", "backoff", "timeout_seconds", "priority"}
        defaults: dict[str, Any] = {name: value for name, value in self._fields.items() if name in kept}
        if self._lease_seconds is not None:
            defaults["lease_seconds"] = self._lease_seconds
        schema = json.dumps(self.signature.schema(), ensure_ascii=False, separators=(",", ":"))
        return {"schema": schema, "requires": self._fields.get("requires", ()), "defaults": defaults}

    async def _enqueue(self, requests: Sequence[JobRequest]) -> list[JobHandle[R]]:
        client = await self._app._client()
        enqueued = await client.jobs.enqueue(requests, within=self._within)
        return [self._handle(one.id, self._app._client, replayed=one.replayed) for one in enqueued]

    def _parent(self) -> Context | None:
        """Return the context of the running task if a new job is its child, else None."""
        found = running()
        if found is None or "parent_id" in self._fields:
            return None
        parent = found()
        return parent if parent._task._app is self._app else None

    def _copy(self) -> Task[P, R]:
        other: Task[P, R] = Task.__new__(Task)
        other.__dict__.update(self.__dict__)
        return other

    def _loop_for_blocking(self) -> asyncio.AbstractEventLoop:
        return background_loop()


_ENQUEUES: Final = frozenset(
    f"{verb}{detached}{sync}"
    for verb in ("enqueue", "enqueue_many")
    for detached in ("", "_detached")
    for sync in ("", "_sync")
)


def _enqueues(code: CodeType | None) -> bool:
    """Return whether a function, or a function defined in it, calls one of these names."""
    if code is None:
        return False
    return not _ENQUEUES.isdisjoint(code.co_names) or any(
        _enqueues(one) for one in code.co_consts if isinstance(one, CodeType)
    )


MAX_SCANNED: Final = 200


def _patches(task: object) -> list[str]:
    """Return the literal names in calls of `patched`, in a task and in the functions of its package that it calls."""
    names: dict[str, None] = {}
    functions = [task] if isinstance(task, FunctionType) else []
    package = functions[0].__module__.partition(".")[0] if functions else ""
    for function in functions:
        codes = [function.__code__]
        for code in codes:
            codes += [const for const in code.co_consts if isinstance(const, CodeType)]
            for called, argument in pairwise(dis.get_instructions(code)):
                name = argument.argval
                if called.argval == "patched" and isinstance(name, str) and is_recordable(name):
                    names[name] = None
            for found in _named_in(function, code):
                if found.__module__.partition(".")[0] == package and len(functions) < MAX_SCANNED:
                    functions += [found] if found not in functions else []
    return list(names)


def _named_in(function: FunctionType, code: CodeType) -> Iterator[FunctionType]:
    """Yield the functions that a piece of code names: global ones and those of an enclosing function."""
    enclosed = inspect.getclosurevars(function).nonlocals if code is function.__code__ and function.__closure__ else {}
    for name in (*code.co_names, *code.co_freevars):
        try:
            found = inspect.unwrap(enclosed.get(name, function.__globals__.get(name)))
        except Exception:  # a proxy that cannot be inspected now
            continue
        if isinstance(found, FunctionType):
            yield found


_RENAMED: Final = {"timeout": "timeout_seconds", "expiry_delay": "expiry_delay_seconds", "delay": "delay_seconds"}
_SHAPES: Final = get_type_hints(JobRequest)


def request_fields(options: Options) -> dict[str, Any]:
    """Convert options to request fields; None means unset."""
    fields: dict[str, Any] = {}
    for option, value in options.items():
        if option not in Options.__annotations__:
            raise TypeError(f"unknown task option {option!r}: expected one of {', '.join(Options.__annotations__)}")
        if option == "lease":
            _check_lease(value)
        elif value is not None:
            name = _RENAMED.get(option, option)
            fields[name] = _shaped(option, value, _SHAPES[name])
    return fields


def _check_lease(lease: Any) -> None:
    """Reject an invalid lease at declaration; rejected by a claim or heartbeat, it would cost the job."""
    seconds = in_seconds(lease)
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"lease is {seconds!r}: expected seconds or a timedelta")
    if not 1 <= seconds <= MAX_LEASE_SECONDS:
        raise ValueError(f"lease is {seconds}: expected 1 to {MAX_LEASE_SECONDS:g}; heartbeats extend a lease")


def _shaped(option: str, value: Any, shape: Any) -> Any:
    """Convert an option to its form in a request. Reject what a server would reject, also without a server."""
    match option:
        case "timeout" | "expiry_delay" | "delay":
            value = in_seconds(value)
        case "backoff" if isinstance(value, Backoff):
            value = value.to_json()
        case "agent" if not isinstance(value, Mapping):
            value = dict(zip(("kind", "id"), _several(option, value, "a kind and an id"), strict=True))
        case "limits":
            named = _several(option, value, "a list of names, or of name, key and cost")
            value = [{"name": one} if isinstance(one, str) else one for one in named]
        case "requires" | "tags" | "budgets":
            value = _several(option, value, "a list of texts")
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise TypeError(f"{option} is {value!r}: {error}") from None


def _several(option: str, given: Any, wanted: str) -> list[Any]:
    """Return the values of a list option; reject a single string, which would be split into letters."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{option} is {given!r}: expected {wanted}")
    parts = list(given)
    if option == "agent" and len(parts) != 2:
        raise TypeError(f"{option} is {given!r}: expected {wanted}")
    return parts
