"""The context of a run: steps, checkpoints, events, approvals, artifacts and children."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import math
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeVar, overload

from interlock.client.port import Client, JobRequest, LeasedJob
from interlock.domain.approval import DEFAULT_EXPIRY_SECONDS, OnDeny, RequestApproval
from interlock.domain.artifact import File, Holder, Link
from interlock.domain.job import Checkpoint, Enqueued, Job
from interlock.domain.json_text import is_blank, is_visible_name
from interlock.domain.lifecycle import TERMINAL
from interlock.domain.progress import Event, Level, Report, Step
from interlock.domain.usage import USAGE, kept_by, summed, together
from interlock.errors import IdempotencyKeyReuse, Indeterminate, Unavailable
from interlock.pauses import Pauses
from interlock.sdk import serialization
from interlock.sdk.clock import ServerClock
from interlock.sdk.exceptions import AwaitsApproval, AwaitsChildren, StepMismatch, in_seconds
from interlock.sdk.handle import JobHandle, outcome
from interlock.sdk.replay import APPROVAL, PATCHED, ApprovalResult, StepReplay, check_name, identity_of
from interlock.sdk.sync import sync_version
from interlock.sdk.threads import Threads

if TYPE_CHECKING:
    from interlock.sdk.tasks import Task

P = ParamSpec("P")
R = TypeVar("R")
BATCH_SIZE: Final = 1000  # children, or events, in one call
LARGEST_EVENT_PAYLOAD: Final = 6 * 1024  # so that there is room for the message
MAX_UPLOADS: Final = 5  # of one file, each as patient as its client


class Context:
    """One run of one job. Writes are rejected once its lease is lost."""

    def __init__(
        self,
        lease: LeasedJob,
        client: Client,
        loop: asyncio.AbstractEventLoop,
        threads: Threads,
        received: int | None = None,
    ) -> None:
        self.job: Job = lease.job
        self.cancelled = False  # an asynchronous task is interrupted, a blocking one must look here
        self._client = client
        self._loop = loop
        self._threads = threads
        self._memory = StepReplay(lease.job.id, lease.steps, lease.approvals)
        # A job that an earlier version of the code may have started continues with that code path.
        self._is_new = lease.job.started_at == lease.job.run_started_at and not lease.steps and not lease.job.checkpoint
        self._patches: dict[str, bool] = {}
        self._unsaved: list[str] = []
        self._usages = [step for step in lease.steps if step.name == USAGE]
        self._checkpoint_seq = lease.job.checkpoint_seq or 0
        self._saving, self._asking, self._patching = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self._is_waiting_for_approval = False
        self._events: list[Event] = []
        self._clock = ServerClock(lease.job.run_started_at, received)
        self._given: Counter[tuple[str, str, str | None]] = Counter()
        self._usage: defaultdict[str, float] = defaultdict(int)
        self._children = 0
        self._named_children: Counter[str] = Counter()

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1."""
        return self.job.attempt

    @property
    def checkpoint(self) -> Any:
        """The last checkpoint of an earlier run, or None."""
        return serialization.decode(self.job.checkpoint)

    @overload
    async def step(self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a function once per name and occurrence; later runs of the job return its saved result.

        The result is what a later run decodes: JSON, by the return type of the function.
        """
        _check_step(name, function)
        occurrence = self._memory.next(name)
        kept = self._memory.step(name, occurrence)
        if kept is None:
            await self.keep_patches()  # before the work that belongs to them
            result = serialization.encode(await self._call(function, args, kwargs))
            serialization.decode(result, _returned_by(function))  # a result that no run could decode is not saved
            step = Step(*self._holder(), name, occurrence, result, identity_of(function))
            kept = await self._insist(lambda: self._client.work.save_step(step))
            self._clock.observe(kept.at)
        return serialization.decode(kept.result, _returned_by(function))

    async def save_checkpoint(self, value: Any) -> None:
        """Save one progress value, replacing the previous one; a later run reads it from `ctx.checkpoint`."""
        data = serialization.encode(value)
        await self.keep_patches()
        async with self._saving:  # one at a time: each seq must be higher than the last
            checkpoint = Checkpoint(*self._holder(), self._checkpoint_seq + 1, data)
            await self._insist(lambda: self._client.work.checkpoint(checkpoint))
            self._checkpoint_seq += 1

    def event(self, message: str, /, *, level: Literal["info", "warn", "error"] = "info", **payload: Any) -> None:
        """Emit a progress event; sent with the next heartbeat, and before the run ends.

        A resumed run emits its earlier events under the same IDs, so that each is stored once.
        """
        results = _payload_text(payload) if payload else None
        message = _text(message)
        given = (level, message, results)
        self._given[given] += 1
        name = repr((self.id, self.attempt, self._given[given], *given))
        id = uuid.UUID(bytes=hashlib.sha256(name.encode()).digest()[:16], version=5)
        self._events.append(Event(str(id), Level(level), message, results, at=self._clock.now()))

    def progress(self, done: float, message: str = "progress") -> None:
        """Emit the progress of the job, from 0 to 1."""
        self.event(message, progress=done)

    def usage(self, **amounts: float) -> None:
        """Add to the usage of the job, such as tokens and cost; also stored for failed attempts."""
        for name, amount in amounts.items():
            if not math.isfinite(amount) or amount < 0:
                raise ValueError(f"usage[{name!r}] is {amount}: expected a finite number >= 0")
            if not is_visible_name(name):
                raise ValueError(f"usage name {name!r} is not valid: expected 1 to 200 visible characters")
            self._usage[name] += amount if isinstance(amount, int) else float(amount)

    async def approve(
        self,
        prompt: str,
        *,
        name: str | None = None,
        details: Any = None,
        risk: str | None = None,
        schema: Mapping[str, Any] | None = None,
        required: int = 1,
        on_deny: Literal["fail", "resume"] = "fail",
        expires_in: float | timedelta | None = None,
    ) -> ApprovalResult:
        """Request an approval and wait for it without a worker; a later run finds it by name and occurrence.

        Requests without a name are numbered in the order of the calls.
        """
        key = APPROVAL if name is None else check_name(name, "an approval")
        occurrence = self._memory.next(key)
        encoded = None if details is None else serialization.encode(details)
        form = None if schema is None else serialization.encode(schema)
        seconds = in_seconds(expires_in)
        expiry = DEFAULT_EXPIRY_SECONDS if seconds is None else seconds
        async with self._asking:  # one after another: opening one ends the lease
            answer, is_kept = self._memory.decision(key, occurrence)
            if answer is None and not self._is_waiting_for_approval:
                await self.keep_patches()
                await self._send_events()
                await self.keep_usage()
                approval = RequestApproval(
                    *self._holder(), "", prompt, encoded, risk, form, required, OnDeny(on_deny), expiry,
                    name=name, occurrence=occurrence,
                )  # fmt: skip
                await self._insist(lambda: self._client.work.request_approval(approval))
                self._is_waiting_for_approval = True
            if answer is None:
                raise AwaitsApproval(prompt)
            if not is_kept:  # among the steps, so that a job redriven from one of them has it too
                step = Step(*self._holder(), key, occurrence, serialization.encode(answer), APPROVAL)
                self._memory.check_decision(await self._insist(lambda: self._client.work.save_step(step)))
            return answer

    def patched(self, name: str) -> bool:
        """Return whether the job started with code that has this change, so that old and new code can coexist.

        False for a job that ran before the change was deployed. The name should be a literal in the task or in a
        function of its module: such names are recorded before the first run begins, so that a killed run changes
        nothing. Other names are recorded with the next operation of the run.
        """
        check_name(name, "a patch")
        known = self._memory.patch(name)
        if known is not None:
            return known
        if name not in self._patches:
            self._patches[name] = self._is_new
            self._unsaved.append(name)
        return self._patches[name]

    async def attach(self, name: str, content: bytes | str, *, content_type: str | None = None) -> str:
        """Store a file of the job and return its ID; an artifact of the same name is replaced."""
        if isinstance(content, str):
            content, content_type = content.encode(), content_type or "text/plain; charset=utf-8"
        elif not isinstance(content, (bytes, bytearray, memoryview)):
            raise TypeError(f"content is {type(content).__name__}: expected bytes or str")
        file = File(name, content, content_type)
        return await self._insist(
            lambda: self._client.work.attach(Holder(*self._holder()), file), most_unsure=MAX_UPLOADS
        )

    async def link(self, name: str, url: str) -> str:
        """Store a link of the job and return its ID; it is never fetched."""
        return await self._insist(lambda: self._client.work.attach(Holder(*self._holder()), Link(name, url)))

    @overload
    async def enqueue(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Child[R]: ...
    @overload
    async def enqueue(self, task: Task[..., R], /, *args: Any, name: str, **kwargs: Any) -> Child[R]: ...
    async def enqueue(self, task: Task[..., R], /, *args: Any, **kwargs: Any) -> Child[R]:
        """Enqueue a child of this job; a later run finds the same child by its name and occurrence.

        Children without a name are numbered. A task with a parameter `name` receives that argument; name its
        children with `enqueue_many`.
        """
        name = None if task.signature.takes("name") else kwargs.pop("name", None)
        (child,) = await self._enqueue(task, [self._child_request(task, name, args, kwargs)])
        return child

    async def enqueue_many(
        self, task: Task[..., R], calls: Iterable[Mapping[str, Any]], /, *, name: str | None = None
    ) -> list[Child[R]]:
        """Enqueue a child for each call, given as its named arguments."""
        requests = [self._child_request(task, name, (), call, number) for number, call in enumerate(calls)]
        children: list[Child[R]] = []
        for start in range(0, len(requests), BATCH_SIZE):
            children += await self._enqueue(task, requests[start : start + BATCH_SIZE])
        return children

    async def results(self, children: Iterable[Child[R]], /) -> list[R]:
        """Return the results of the children; until all are terminal the job waits without a worker, then resumes."""
        wanted = list(children)
        jobs = await asyncio.gather(*(self._insist(partial(self._client.jobs.get, child.id)) for child in wanted))
        if pending := [job.id for job in jobs if job.status not in TERMINAL]:
            raise AwaitsChildren(pending)
        return [outcome(job, child.returns) for job, child in zip(jobs, wanted, strict=True)]

    step_sync = sync_version(step)
    save_checkpoint_sync = sync_version(save_checkpoint)
    approve_sync = sync_version(approve)
    attach_sync = sync_version(attach)
    link_sync = sync_version(link)
    enqueue_sync = sync_version(enqueue)
    enqueue_many_sync = sync_version(enqueue_many)
    results_sync = sync_version(results)

    def take_events(self) -> tuple[Event, ...]:
        """Return the events since the last call, up to the limit of one request."""
        taken = tuple(self._events[:BATCH_SIZE])
        del self._events[: len(taken)]  # in place: a synchronous task may add events from its thread meanwhile
        return taken

    def give_back(self, events: Sequence[Event]) -> None:
        """Return events that could not be sent to the buffer."""
        self._events[:0] = events

    def used(self) -> str | None:
        """Return all usage of the job as JSON, for a run with a result."""
        if not self._usages:
            return serialization.encode(dict(self._usage)) if self._usage else None
        earlier = summed(self.id, self._usages, has_ended=False)
        return serialization.encode(together([earlier, self._usage])) if earlier or self._usage else None

    async def keep_usage(self) -> None:
        """Save the usage of a run without a result as a step, which later runs add up."""
        if not self._usage:
            return
        whose = kept_by(self.id, is_repeated=self._memory.was_met or self._children > 0 or bool(self._named_children))
        used = serialization.encode(dict(self._usage))
        step = Step(*self._holder(), USAGE, len(self._usages) + 1, used, whose)
        self._usages.append(await self._insist(lambda: self._client.work.save_step(step)))

    async def _call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an asynchronous function on the loop, any other in a thread."""
        if inspect.iscoroutinefunction(inspect.unwrap(function)):
            return await function(*args, **kwargs)
        result = await self._threads.run(partial(function, *args, **kwargs))
        return await result if isinstance(result, Awaitable) else result

    async def _use_patches(self, names: Iterable[str]) -> None:
        """Record patches that the code of the task names, if this is the first run, before the task begins."""
        if self._is_new:
            for name in names:
                self.patched(name)
            await self.keep_patches()

    async def keep_patches(self) -> None:
        """Record which patches this run uses, before anything that depends on them is recorded."""
        async with self._patching:
            while self._unsaved:
                name = self._unsaved[0]
                step = Step(*self._holder(), PATCHED + name, 1, serialization.encode(self._patches[name]))
                await self._insist(partial(self._client.work.save_step, step))
                self._unsaved.remove(name)

    def _child_request(
        self,
        task: Task[..., Any],
        name: str | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        number: int | None = None,
    ) -> JobRequest:
        """Build the request of a child. Its key is the same in every run; an explicit idempotency key is kept."""
        fields = {"parent_id": self.id}
        if name is None:
            self._children += 1
            key = f"child/{self.id}/{self._children}"
        else:
            self._named_children[check_name(name, "a child")] += 1
            key = f"child/{self.id}/{name}/{self._named_children[name]}"
            if not is_visible_name(key):  # too long
                key = f"child/{self.id}/{hashlib.sha256(key.encode()).hexdigest()}"
        if not task.has_key:
            fields["idempotency_key"] = key
        return task.request(args, kwargs, number, **fields)

    async def _enqueue(self, task: Task[..., R], requests: Sequence[JobRequest]) -> list[Child[R]]:
        await self.keep_patches()
        try:
            created = await self._insist(lambda: self._client.jobs.enqueue(requests, within=task._within))
        except IdempotencyKeyReuse as error:
            created = await self._found_again(task, requests, error)
        return [Child(one.id, self, task.signature.returns, replayed=one.replayed) for one in created]

    async def _found_again(
        self, task: Task[..., Any], requests: Sequence[JobRequest], error: IdempotencyKeyReuse
    ) -> list[Enqueued]:
        """Return the children of an earlier run, whose arguments may differ, and enqueue the missing ones."""
        earlier = {job.idempotency_key: job for job in await self._insist(lambda: self._client.jobs.children(self.id))}
        if not any(child_request.idempotency_key in earlier for child_request in requests):
            raise error  # the key was set by the caller and belongs to a job that is not a child of this one
        for child_request in requests:
            known = earlier.get(child_request.idempotency_key)
            if known is not None and known.type != child_request.type:
                name, _, occurrence = (known.idempotency_key or "").removeprefix(f"child/{self.id}/").rpartition("/")
                recorded, asked = f"a child of type {known.type}", f"a child of type {child_request.type}"
                place = int(occurrence) if occurrence.isdecimal() else 1
                raise StepMismatch(self.id, name or "child", place, recorded, asked) from error
        new = [child_request for child_request in requests if child_request.idempotency_key not in earlier]
        created = await self._insist(lambda: self._client.jobs.enqueue(new, within=task._within)) if new else []
        made = iter(created)
        return [
            next(made) if known is None else Enqueued(known.id, known.seq, replayed=True)
            for known in (earlier.get(child_request.idempotency_key) for child_request in requests)
        ]

    async def _send_events(self) -> None:
        while events := self.take_events():
            report = Report(*self._holder(), events)
            await self._insist(partial(self._client.work.add_events, [report]))

    async def _insist(self, call: Callable[[], Awaitable[R]], *, most_unsure: int | None = None) -> R:
        """Repeat the call until the queue is available; every call made this way is idempotent.

        With `most_unsure`, give up once the outcome has been unknown that many times: the call is expensive to repeat.
        """
        pauses, unsure = Pauses(), 0
        while True:
            try:
                return await call()
            except Unavailable as error:
                unsure += isinstance(error, Indeterminate)
                if unsure == most_unsure:
                    raise
                await pauses.wait()

    async def _given_client(self) -> Client:
        return self._client

    def _holder(self) -> tuple[str, int, str]:
        return self.job.id, self.job.fence, self.job.worker or ""

    def _loop_for_blocking(self) -> asyncio.AbstractEventLoop:
        if self.cancelled:
            raise asyncio.CancelledError
        return self._loop


class Child(JobHandle[R]):
    """A child job."""

    def __init__(self, id: str, parent: Context, returns: Any, *, replayed: bool) -> None:
        super().__init__(id, parent._given_client, returns, replayed=replayed)
        self._parent = parent

    @property
    def returns(self) -> Any:
        return self._returns

    async def result(self, /, timeout: float | timedelta | None = None) -> R:  # noqa: ASYNC109 - part of the verb
        """Return the result of the child. Without a timeout the parent waits without a worker; with one, in place."""
        if timeout is not None:
            return await super().result(timeout)
        (result,) = await self._parent.results([self])
        return result

    def _loop_for_blocking(self) -> asyncio.AbstractEventLoop:
        return self._parent._loop_for_blocking()


def _check_step(name: object, function: object) -> None:
    """Reject common mistakes in a step call, and names reserved for the SDK."""
    if inspect.iscoroutine(function):
        function.close()  # it is never awaited
    if not isinstance(name, str) or not callable(function):
        raise TypeError("step takes a name, a function and its arguments, not a call: step('search', search, topic)")
    check_name(name, "a step")


def _text(message: object) -> str:
    """Return the message of an event: an exception becomes its text, or its name if it has none."""
    text = str(message)
    if not is_blank(text):
        return text
    if isinstance(message, str):
        raise ValueError(f"message is {message[:20]!r}: expected text that people can read")
    return type(message).__name__


def _payload_text(payload: Mapping[str, Any]) -> str:
    """Encode the payload of an event for human readers: use `repr` where JSON fails, and leave out large payloads."""
    try:
        results = serialization.encode(payload)
    except (TypeError, ValueError, OverflowError, RecursionError):
        results = serialization.encode({name: repr(value) for name, value in payload.items()})
    if len(results.encode()) > LARGEST_EVENT_PAYLOAD:
        return serialization.encode({"left_out": f"{len(results)} characters of {', '.join(payload)}"[:1000]})
    return results


def _returned_by(function: Callable[..., Any]) -> Any:
    """Return the declared return type of a function, if JSON can be decoded as it."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    try:
        returns = inspect.signature(function, eval_str=True).return_annotation
        return Any if returns is inspect.Signature.empty or returns is None else serialization.readable(returns)
    except (TypeError, ValueError, NameError):
        return Any
