"""The context of a run: steps, checkpoints, events, approvals, artifacts and children."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import math
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, ParamSpec, TypeVar, overload

import msgspec

from interlock.client.port import Client, JobRequest, LeasedJob
from interlock.domain.approval import DEFAULT_EXPIRY_SECONDS, ApprovalKind, OnDeny, RequestApproval
from interlock.domain.artifact import File, Holder, Link
from interlock.domain.effect import BeginEffect, Effect, EffectState, SettleEffect
from interlock.domain.job import MAX_DELAY_SECONDS, Checkpoint, Enqueued, Heartbeat, Rejected
from interlock.domain.job import Job as JobRecord
from interlock.domain.job_tree import has_budget
from interlock.domain.json_text import is_blank, is_visible_name
from interlock.domain.lifecycle import TERMINAL
from interlock.domain.limits import MAX_HOLD_SECONDS
from interlock.domain.message import Message
from interlock.domain.progress import Event, Level, Report, Step, StepRow
from interlock.domain.retry import SECOND
from interlock.domain.stream import Append, NewChunk
from interlock.domain.timestamps import EPOCH, micros
from interlock.domain.usage import USAGE, kept_by, summed, together
from interlock.errors import (
    ArtifactsNotConfigured,
    Error,
    IdempotencyKeyReuse,
    Indeterminate,
    Invalid,
    LeaseLost,
    NotRunning,
    TooLarge,
    Unavailable,
)
from interlock.pauses import Pauses
from interlock.sdk import effect as effects
from interlock.sdk import large, serialization, values
from interlock.sdk.answers import AnswerForm
from interlock.sdk.child_keys import ChildKeys
from interlock.sdk.clock import ServerClock
from interlock.sdk.effect import Done, default_key, question_form, question_name, verified, with_key
from interlock.sdk.exceptions import (
    AwaitsApproval,
    AwaitsChildren,
    AwaitsMessage,
    BudgetExceeded,
    Declined,
    Fail,
    RateLimited,
    Release,
    Retry,
    StepMismatch,
    in_seconds,
)
from interlock.sdk.handle import JobHandle, outcome
from interlock.sdk.replay import (
    APPROVAL,
    EFFECT,
    PATCHED,
    QUESTION,
    RECEIVE,
    SLEEP,
    WAIT,
    ApprovalResult,
    StepReplay,
    check_name,
    identity_of,
)  # fmt: skip
from interlock.sdk.step_policy import NOT_RETRIED, StepPolicy
from interlock.sdk.stream import StreamWriter
from interlock.sdk.sync import sync_version
from interlock.sdk.threads import Threads
from interlock.sdk.values import Backoff, Job, value_of

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
        task: Task[..., Any],
        received: int | None = None,
        dependencies: Sequence[Any] = (),
    ) -> None:
        self._job = lease.job
        self._task = task
        self._dependencies = dependencies
        self._stopped = asyncio.Event()
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
        self._is_waiting_for_approval = self._ends_lease = False
        self._events: list[Event] = []
        self._streams: dict[str, StreamWriter] = {}
        self._clock = ServerClock(lease.job.run_started_at, received)
        self._given: Counter[tuple[str, str, str | None]] = Counter()
        self._usage: defaultdict[str, float] = defaultdict(int)
        self._step_usage: defaultdict[str, float] = defaultdict(int)  # within steps: no later run reports it again
        self._has_budget = has_budget(lease.job.limits)
        self._reported: str | None = None  # usage of this run, as in the last heartbeat
        self.is_budget_spent = False  # as of the last heartbeat
        self._child_keys = ChildKeys(lease.job.id)
        self._receiving = asyncio.Lock()
        self._last_received: Counter[_Inbox] = Counter()
        self._taken = self._memory.received()

    @property
    def job(self) -> Job:
        """The job as it was when this run started."""
        return value_of(Job, self._job)

    @property
    def id(self) -> str:
        """The ID of the job."""
        return self._job.id

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1."""
        return self._job.attempt

    @property
    def cancelled(self) -> bool:
        """Whether the run must stop: an asynchronous task is interrupted, a synchronous one must look here."""
        return self._stopped.is_set()

    def _stop(self) -> None:
        """Mark the run as stopped; called on the event loop of the worker."""
        self._stopped.set()

    @property
    def checkpoint(self) -> Any:
        """The last checkpoint of an earlier run, or None."""
        return serialization.decode(self._job.checkpoint)

    def dependency(self, kind: type[R], /) -> R:
        """Return the value of this type that a lifespan of the app yields: `ctx.dependency(Database)`."""
        for value in self._dependencies:
            if isinstance(value, kind):
                return value
        raise LookupError(f"no lifespan yields a {kind.__name__}: declare one with @app.lifespan")

    # The overloads with options come first: arguments of these names never reach the function.
    @overload
    async def step(
        self, name: str, function: Callable[..., Awaitable[R]], /, *args: Any, attempts: int, retry: Backoff = ...,
        timeout: float | timedelta = ..., **kwargs: Any,  # noqa: ASYNC109 - part of the verb
    ) -> R: ...  # fmt: skip
    @overload
    async def step(
        self, name: str, function: Callable[..., R], /, *args: Any, attempts: int, retry: Backoff = ...,
        timeout: float | timedelta = ..., **kwargs: Any,  # noqa: ASYNC109 - part of the verb
    ) -> R: ...  # fmt: skip
    @overload
    async def step(
        self, name: str, function: Callable[..., Awaitable[R]], /, *args: Any,
        timeout: float | timedelta, **kwargs: Any,  # noqa: ASYNC109 - part of the verb
    ) -> R: ...  # fmt: skip
    @overload
    async def step(
        self, name: str, function: Callable[..., R], /, *args: Any,
        timeout: float | timedelta, **kwargs: Any,  # noqa: ASYNC109 - part of the verb
    ) -> R: ...  # fmt: skip
    @overload
    async def step(self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a function once per name and occurrence; later runs of the job return its saved result.

        The result is what a later run decodes: JSON, by the return type of the function. With `attempts=`, a step that
        raises is retried in this run after the delays of `retry=`, except after `Fail`; the job's attempt fails when
        the last one does. Each attempt may take `timeout=`, else it raises TimeoutError. Pass arguments of these three
        names with `functools.partial`.
        """
        _check_step(name, function)
        policy = StepPolicy.of(*(kwargs.pop(option, None) for option in ("retry", "attempts", "timeout")))
        occurrence = self._memory.next(name)
        kept = self._memory.step(name, occurrence)
        if kept is None:
            await self._spend()
            await self._keep_patches()  # before the work that belongs to them
            result = serialization.encode(
                await self._attempts(name, occurrence, policy, partial(self._call, function, args, kwargs))
            )
            serialization.decode(result, _returned_by(function))  # a result that no run could decode is not saved
            step = Step(*self._holder(), name, occurrence, result, identity_of(function))
            await self._send_streams()  # a later run does not call the function again, so it would be lost
            kept = await self._save_step(step)
            self._clock.observe(kept.at)
        whole = await self._insist(lambda: large.step_result(self._client, self.id, kept.result))
        return self._recorded(name, occurrence, "a result", whole, _returned_by(function))

    async def _save_step(self, step: Step) -> StepRow:
        """Save the result of a step; one that is too large becomes an artifact, which the step names."""
        try:
            return await self._insist(lambda: self._client.work.save_step(step))
        except TooLarge as too_large:
            named = step._replace(result=await self._elsewhere("step", step, step.result, too_large))
        return await self._insist(lambda: self._client.work.save_step(named))

    async def _elsewhere(self, what: str, of: Step | SettleEffect, result: str, too_large: TooLarge) -> str:
        """Store a result that is too large as an artifact, and return what names it."""
        content, name = result.encode(), large.step_name(of.name, of.occurrence)
        try:
            await self.attach(name, content, content_type="application/json")
        except (ArtifactsNotConfigured, TooLarge) as error:
            # No later attempt could save it either.
            raise Fail(
                f"the result of {what} {of.name!r} cannot be saved: {too_large}; nor as an artifact: {error}",
                kind=f"{what}_too_large",
            ) from error
        return large.in_step(large.reference_to(name, content))

    # In both overloads, the function also takes `key`, if it has a parameter of this name.
    @overload
    async def effect(
        self, name: str, function: Callable[..., Awaitable[R]], /, *args: Any, key: str | None = None,
        verify: Callable[..., Any] | None = None, **kwargs: Any,
    ) -> R: ...  # fmt: skip
    @overload
    async def effect(
        self, name: str, function: Callable[..., R], /, *args: Any, key: str | None = None,
        verify: Callable[..., Any] | None = None, **kwargs: Any,
    ) -> R: ...  # fmt: skip
    async def effect(
        self, name: str, function: Callable[..., Any], /, *args: Any, key: str | None = None,
        verify: Callable[..., Any] | None = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Call a function with consequences outside the job, such as a payment; it is never repeated blindly.

        The intent is recorded before the call, the result after it. If a run ends in between, the outcome is unknown,
        also after an exception. The next run then calls `verify` with the same arguments: it returns the result, or
        `Done(result)`, if the effect has happened, and None or False if not. Without `verify`, the job asks approvers
        whether to count it as done, run it again, or fail. A function that raises `Retry` or `RateLimited` has done
        nothing. Both functions get the idempotency key as `key=` if they have such a parameter; pass other arguments
        named `key` and `verify` with `functools.partial`.
        """
        _check_step(name, function, "effect")
        occurrence, returns = self._memory.next(name), _returned_by(function)
        kept = self._memory.step(name, occurrence, EFFECT)
        if kept is not None:
            whole = await self._insist(lambda: large.step_result(self._client, self.id, kept.result))
            return self._recorded(name, occurrence, "a result", whole, returns)
        await self._spend()
        await self._keep_patches()
        intent = BeginEffect(
            *self._holder(), name, occurrence, default_key(self.id, name, occurrence) if key is None else key
        )
        effect = await self._insist(lambda: self._client.work.begin_effect(intent))
        if effect.state is EffectState.STARTED and effect.fence != self._job.fence:
            found = await self._outcome_of(effect, verify, args, kwargs, returns)
            effect = await self._settle(effect, found, returns)
            if found is None:
                effect = await self._insist(lambda: self._client.work.begin_effect(intent))
        if effect.state is not EffectState.DONE:
            try:
                with self._child_keys.of_step(name, occurrence):
                    result = await self._call(function, args, with_key(function, args, kwargs, effect.key or ""))
            except (Retry, RateLimited):
                await self._settle(effect, None, returns)
                raise
            effect = await self._settle(effect, Done(result), returns)
        recorded = effect.result or "null"
        whole = await self._insist(lambda: large.step_result(self._client, self.id, recorded))
        return self._recorded(name, occurrence, "a result", whole, returns)

    async def _outcome_of(
        self, effect: Effect, verify: Callable[..., Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any],
        returns: Any,
    ) -> Done | None:  # fmt: skip
        """Return the outcome of an effect that another run began: `verify` knows it, or approvers decide."""
        if verify is not None:
            return verified(await self._call(verify, args, with_key(verify, args, kwargs, effect.key or "")))
        name, problem = question_name(self.id, effect), ""
        prompt = f"Did effect {effect.name!r} happen? Its run ended before the outcome was recorded."
        details = {"effect": effect.name, "key": effect.key, "attempt": effect.attempt}
        while True:
            answer = await self._decided(
                QUESTION, name, prompt + problem, details, None, serialization.encode(question_form(returns)), None,
                kind=ApprovalKind.QUESTION, on_deny=OnDeny.RESUME,
            )  # fmt: skip
            if answer.denied:
                raise Declined(prompt, answer.comment)
            match answer.data["outcome"]:
                case effects.AGAIN:
                    return None
                case effects.FAIL:
                    raise Fail(f"effect {effect.name!r} has an unknown outcome", kind="effect_unknown")
            result = answer.data.get("result")
            try:
                serialization.decode(serialization.encode(result), returns)
            except msgspec.ValidationError as error:
                problem = f" The result must be {_type_name(returns)}: {error}."
                continue
            return Done(result)

    async def _settle(self, effect: Effect, outcome: Done | None, returns: Any) -> Effect:
        """Record the outcome of an effect."""
        state, result = EffectState.NOT_DONE, None
        if outcome is not None:
            state, result = EffectState.DONE, serialization.encode(outcome.result)
            serialization.decode(result, returns)  # a result that no run could decode is not saved
        order = SettleEffect(*self._holder(), effect.name, effect.occurrence, state, result)
        await self._send_streams()
        try:
            return await self._insist(lambda: self._client.work.settle_effect(order))
        except TooLarge as too_large:
            named = order._replace(result=await self._elsewhere("effect", order, result or "", too_large))
        return await self._insist(lambda: self._client.work.settle_effect(named))

    async def save_checkpoint(self, value: Any) -> None:
        """Save one progress value, replacing the previous one; a later run reads it from `ctx.checkpoint`."""
        data = serialization.encode(value)
        await self._keep_patches()
        async with self._saving:  # one at a time: each seq must be higher than the last
            checkpoint = Checkpoint(*self._holder(), self._checkpoint_seq + 1, data)
            await self._send_streams()
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

    def stream(self, name: str) -> StreamWriter:
        """Return the writer of a stream of the job, which others follow while the job runs.

        What a run has written stays if the run is repeated; each chunk names its attempt and fence.
        """
        if not is_visible_name(name):
            raise ValueError(f"stream name {name!r} is not valid: expected 1 to 200 visible characters")
        made = self._streams.get(name) or StreamWriter(
            name, self._loop, self._append, self._stream_end, self._loop_for_blocking
        )
        return self._streams.setdefault(name, made)

    def usage(self, **amounts: float) -> None:
        """Add to the usage of the job, such as tokens and cost; also stored for failed attempts.

        Outside of steps, call it in every run with the saved results; within a step, it counts when the step runs.
        """
        for name, amount in amounts.items():
            if not math.isfinite(amount) or amount < 0:
                raise ValueError(f"usage[{name!r}] is {amount}: expected a finite number >= 0")
            if not is_visible_name(name):
                raise ValueError(f"usage name {name!r} is not valid: expected 1 to 200 visible characters")
            usage = self._step_usage if self._child_keys.is_in_step() else self._usage
            usage[name] += amount if isinstance(amount, int) else float(amount)

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
        form = None if schema is None else serialization.encode(schema)
        checked = None if name is None else check_name(name, "an approval")
        return await self._decided(
            APPROVAL, checked, prompt, details, risk, form, expires_in, required=required, on_deny=OnDeny(on_deny)
        )

    @overload
    async def ask(
        self,
        prompt: str,
        *,
        schema: type[R],
        name: str | None = None,
        details: Any = None,
        risk: str | None = None,
        expires_in: float | timedelta | None = None,
    ) -> R: ...
    @overload
    async def ask(
        self,
        prompt: str,
        *,
        schema: Mapping[str, Any],
        name: str | None = None,
        details: Any = None,
        risk: str | None = None,
        expires_in: float | timedelta | None = None,
    ) -> Any: ...
    @overload
    async def ask(
        self,
        prompt: str,
        *,
        name: str | None = None,
        details: Any = None,
        risk: str | None = None,
        expires_in: float | timedelta | None = None,
    ) -> str: ...
    async def ask(
        self,
        prompt: str,
        *,
        schema: Any = str,
        name: str | None = None,
        details: Any = None,
        risk: str | None = None,
        expires_in: float | timedelta | None = None,
    ) -> Any:
        """Ask approvers for data and wait for the answer without a worker; a later run finds it by name and occurrence.

        The answer has the type `schema`: a class that JSON can be decoded as, or a JSON Schema. Raises `Declined` if
        an approver declines to answer.
        """
        form = AnswerForm.of(schema)
        checked = None if name is None else check_name(name, "a question")
        result = await self._decided(
            QUESTION, checked, prompt, details, risk, serialization.encode(form.schema), expires_in,
            kind=ApprovalKind.QUESTION, on_deny=OnDeny.RESUME,
        )  # fmt: skip
        if result.denied:
            raise Declined(prompt, result.comment)
        try:
            return form.answer(result.data)
        except msgspec.ValidationError as error:  # the form has checked it, so the code has changed
            key = QUESTION if name is None else name
            raise self._other_type(key, self._memory.occurrence(key), "an answer", schema, error) from error

    async def _decided(
        self,
        record: str,
        name: str | None,
        prompt: str,
        details: Any,
        risk: str | None,
        form: str | None,
        expires_in: float | timedelta | None,
        **more: Any,
    ) -> ApprovalResult:
        """Return the decision on an approval or question, or request it and suspend the run."""
        key = record if name is None else name
        occurrence = self._memory.next(key)
        encoded = None if details is None else serialization.encode(details)
        seconds = in_seconds(expires_in)
        expiry = DEFAULT_EXPIRY_SECONDS if seconds is None else seconds
        async with self._asking:  # one after another: opening one ends the lease
            answer, is_kept = self._memory.decision(key, occurrence, record)
            if answer is None and not self._is_waiting_for_approval:
                await self._keep_patches()
                await self._send_streams()
                await self._send_events()
                await self._keep_usage()
                approval = RequestApproval(
                    *self._holder(), "", prompt, encoded, risk, form, expires_in_seconds=expiry,
                    name=name, occurrence=occurrence, **more,
                )  # fmt: skip
                self._ends_lease = True
                try:
                    await self._insist(lambda: self._client.work.request_approval(approval))
                    self._is_waiting_for_approval = True
                finally:
                    self._ends_lease = self._is_waiting_for_approval
            if answer is None:
                raise AwaitsApproval(prompt)
            if not is_kept:  # among the steps, so that a job redriven from one of them has it too
                step = Step(*self._holder(), key, occurrence, serialization.encode(answer), record)
                self._memory.check(await self._insist(lambda: self._client.work.save_step(step)), record)
            return answer

    async def sleep(self, duration: float | timedelta, /, *, name: str | None = None) -> None:
        """Sleep without a worker: the run ends, and a later one continues here. It uses no attempt.

        The time counts from the first call: a run that is repeated sleeps only for the rest. Sleeps without a name
        are numbered.
        """
        seconds = in_seconds(duration)
        if seconds is None or not 0 <= seconds <= MAX_DELAY_SECONDS:
            raise ValueError(f"duration is {duration!r}: expected 0 to {MAX_DELAY_SECONDS} seconds, or a timedelta")
        await self._sleep(name, seconds, None)

    async def sleep_until(self, time: datetime, /, *, name: str | None = None) -> None:
        """Sleep without a worker until a time; a past time returns immediately."""
        if time.tzinfo is None:
            raise ValueError(f"time is {time!r}: expected a time with a UTC offset")
        await self._sleep(name, None, micros(time))

    async def _sleep(self, name: str | None, seconds: float | None, until: int | None) -> None:
        """Record when the sleep ends, then release the job until that time, by the clock of the database."""
        key = SLEEP if name is None else check_name(name, "a sleep")
        occurrence = self._memory.next(key)
        kept = self._memory.step(key, occurrence, SLEEP)
        if kept is None:
            await self._keep_patches()
            step = Step(*self._holder(), key, occurrence, serialization.encode([seconds, until]), SLEEP)
            kept = await self._insist(lambda: self._client.work.save_step(step))
            self._clock.observe(kept.at)
        seconds, until = serialization.decode(kept.result)
        end = kept.at + round((seconds or 0.0) * SECOND) if until is None else until
        if end > (self._clock.now() or 0):
            raise Release(run_at=EPOCH + timedelta(microseconds=end), reason="sleeping")

    @overload
    async def receive(
        self, message: str | None = None, /, *, topic: str | None = None, schema: type[R], name: str | None = None,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109 - part of the verb
    ) -> R: ...  # fmt: skip
    @overload
    async def receive(
        self, message: str | None = None, /, *, topic: str | None = None, name: str | None = None,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109 - part of the verb
    ) -> Any: ...  # fmt: skip
    async def receive(
        self, message: str | None = None, /, *, topic: str | None = None, schema: Any = Any, name: str | None = None,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109 - part of the verb
    ) -> Any:  # fmt: skip
        """Return the payload of the next message with this name, or to this topic; wait for it without a worker.

        Each message is received once: the first receive of a message name gets the first message, the next one the
        second. Raises TimeoutError if none arrives within the timeout, which counts from the first call; 0 only looks.
        With `schema`, the payload has that type. A message to a topic reaches jobs that wait for it; give either a
        message name or `topic`.
        """
        wanted = _Inbox.of(message, topic)
        seconds = in_seconds(timeout)
        if seconds is not None and not 0 <= seconds <= MAX_DELAY_SECONDS:
            raise ValueError(f"timeout is {timeout!r}: expected 0 to {MAX_DELAY_SECONDS} seconds, or a timedelta")
        key = wanted.key() if name is None else check_name(name, "a receive")
        occurrence = self._memory.next(key)
        async with self._receiving:  # one after another, so that no message is received twice
            seq = await self._received(wanted, key, occurrence, seconds)
            if seq is None:
                raise TimeoutError(f"no {wanted} within {seconds} s")
            self._last_received[wanted] = max(seq, self._last_received[wanted])
            try:
                return serialization.decode((await self._message(seq)).payload or "null", schema)
            except msgspec.ValidationError as error:
                raise ValueError(
                    f"{wanted}, seq {seq}, is not {_type_name(schema)}: {error}; change the schema, or "
                    "receive it without one"
                ) from error

    async def _received(self, wanted: _Inbox, key: str, occurrence: int, seconds: float | None) -> int | None:
        """Return the number of the received message, or None after the timeout; record it for later runs."""
        kept = self._memory.step(key, occurrence, RECEIVE)
        if kept is None:
            number = await self._next_message(wanted)
            if number is None:
                await self._wait_for_message(wanted, key, occurrence, seconds)
            await self._keep_patches()
            step = Step(*self._holder(), key, occurrence, serialization.encode(number), RECEIVE)
            kept = await self._insist(lambda: self._client.work.save_step(step))
            self._memory.check(kept, RECEIVE)
            self._clock.observe(kept.at)
        seq: int | None = serialization.decode(kept.result, int | None)
        return seq

    async def _next_message(self, wanted: _Inbox) -> int | None:
        """Return the number of the next message that no receive has taken, also none that the code has lost since."""
        while True:
            after = self._last_received[wanted]
            found = await self._insist(
                partial(
                    self._client.jobs.messages, self.id, name=wanted.name, topic=wanted.topic, after=after, limit=1
                )
            )  # fmt: skip
            if not found:
                return None
            if found[0].seq not in self._taken:
                return found[0].seq
            self._last_received[wanted] = found[0].seq

    async def _wait_for_message(self, wanted: _Inbox, key: str, occurrence: int, seconds: float | None) -> None:
        """Suspend the run until the message arrives; return if its time is over."""
        end = None
        if seconds == 0:
            return
        if seconds is not None:  # the time counts from the first call
            began = self._memory.step(WAIT + key, occurrence, RECEIVE)
            if began is None:
                await self._keep_patches()
                step = Step(*self._holder(), WAIT + key, occurrence, serialization.encode(seconds), RECEIVE)
                began = await self._insist(lambda: self._client.work.save_step(step))
                self._clock.observe(began.at)
            end = began.at + round(serialization.decode(began.result, float) * SECOND)
            if end <= (self._clock.now() or 0):
                return
        raise AwaitsMessage(wanted.name, self._last_received[wanted], end, wanted.topic)

    async def _message(self, seq: int) -> Message:
        (found,) = await self._insist(lambda: self._client.jobs.messages(self.id, after=seq - 1, limit=1))
        return found

    async def inbox(self, message: str | None = None, /, *, after: int = 0) -> list[values.Message]:
        """Return all messages of the job so far, or those with this name, without waiting.

        It is not recorded: read it in a step if later code depends on it. Messages stay in the inbox.
        """
        found: list[Message] = []
        while True:
            last = found[-1].seq if found else after
            page = await self._insist(partial(self._client.jobs.messages, self.id, name=message, after=last))
            if not page:
                break
            found += page
        return [values.value_of(values.Message, one) for one in found]

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

    async def results(self, children: Iterable[JobHandle[R]], /) -> list[R]:
        """Return the results of the children; until all are terminal the job waits without a worker, then resumes."""
        wanted = list(children)
        jobs = await asyncio.gather(*(self._insist(partial(self._client.jobs.get, child.id)) for child in wanted))
        if pending := [job.id for job in jobs if job.status not in TERMINAL]:
            raise AwaitsChildren(pending)
        whole = [await self._whole(job) for job in jobs]
        return [self._outcome(job, child._returns) for job, child in zip(whole, wanted, strict=True)]

    step_sync = sync_version(step)
    effect_sync = sync_version(effect)
    save_checkpoint_sync = sync_version(save_checkpoint)
    approve_sync = sync_version(approve)
    sleep_sync = sync_version(sleep)
    sleep_until_sync = sync_version(sleep_until)
    ask_sync = sync_version(ask)
    receive_sync = sync_version(receive)
    inbox_sync = sync_version(inbox)
    attach_sync = sync_version(attach)
    link_sync = sync_version(link)
    enqueue_sync = sync_version(enqueue)
    enqueue_many_sync = sync_version(enqueue_many)
    results_sync = sync_version(results)

    def _take_events(self) -> tuple[Event, ...]:
        """Return the events since the last call, up to the limit of one request."""
        taken = tuple(self._events[:BATCH_SIZE])
        del self._events[: len(taken)]  # in place: a synchronous task may add events from its thread meanwhile
        return taken

    def _give_back(self, events: Sequence[Event]) -> None:
        """Return events that could not be sent to the buffer."""
        self._events[:0] = events

    def _used(self) -> str | None:
        """Return all usage of the job as JSON, for a run with a result."""
        earlier = summed(self.id, self._usages, has_ended=False) if self._usages else {}
        used = together([earlier, self._usage, self._step_usage])
        return serialization.encode(used) if used else None

    def _usage_so_far(self) -> str | None:
        """Return the usage of this run as JSON, if a budget counts it while the job runs."""
        used = together([self._usage, self._step_usage]) if self._has_budget else {}
        return serialization.encode(used) if used else None

    async def _spend(self) -> None:
        """Report the usage before more work, and stop the run if a budget is spent."""
        if not self._has_budget:
            return
        if (used := self._usage_so_far()) != self._reported:
            heartbeat = Heartbeat(*self._holder(), usage=used)
            (reply,) = await self._insist(lambda: self._client.work.heartbeats([heartbeat]))
            if isinstance(reply, Rejected):
                raise reply.error
            self._reported, self.is_budget_spent = used, reply.budget_exceeded
        if self.is_budget_spent:
            raise BudgetExceeded(self.id)

    async def _keep_usage(self) -> None:
        """Save the usage of a run without a result as a step, which later runs add up."""
        repeats = self._memory.was_met or self._child_keys.is_used
        for used, is_repeated in ((self._step_usage, False), (self._usage, repeats)):
            if used:
                whose = kept_by(self.id, is_repeated=is_repeated)
                step = Step(*self._holder(), USAGE, len(self._usages) + 1, serialization.encode(dict(used)), whose)
                self._usages.append(await self._insist(partial(self._client.work.save_step, step)))

    async def _whole(self, job: JobRecord) -> JobRecord:
        """Return a child with its result, read from its artifact if it was too large."""
        read = partial(large.job_result, self._client, job.id, job.result)
        return job if job.result is None else job._replace(result=await self._insist(read))

    def _outcome(self, job: JobRecord, returns: Any) -> Any:
        try:
            return outcome(job, returns)
        except Invalid as error:
            name, occurrence = self._child_keys.place(job.idempotency_key or "")
            raise self._other_type(name, occurrence, "a child with a result", returns, error) from error

    def _recorded(self, name: str, occurrence: int, what: str, text: str | None, wanted: Any) -> Any:
        """Decode a recorded value, which the code may now expect in another type."""
        try:
            return serialization.decode(text, wanted)
        except msgspec.ValidationError as error:
            raise self._other_type(name, occurrence, what, wanted, error) from error

    def _other_type(self, name: str, occurrence: int, what: str, wanted: Any, error: Exception) -> StepMismatch:
        asked = f"{_type_name(wanted)} ({error})"
        return StepMismatch(self.id, name, occurrence, f"{what} of another type", asked)

    async def _attempts(
        self, name: str, occurrence: int, policy: StepPolicy, call: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Call a step until it succeeds, gives up, or the run is stopped."""
        for attempt in count(1):
            try:
                with self._child_keys.of_step(name, occurrence):
                    return await policy.limited(name, call)
            except NOT_RETRIED:
                raise
            except Exception as error:
                if attempt >= policy.attempts or isinstance(error, self._task.failures.fail_on):
                    raise
                delay = policy.delay(attempt, error)
                self.event("step failed, retrying", level="warn", step=name, attempt=attempt, error=repr(error)[:500])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopped.wait()
                    raise asyncio.CancelledError  # a synchronous task is not interrupted itself
        raise AssertionError

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
            await self._keep_patches()

    async def _keep_patches(self) -> None:
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
        key = self._child_keys.next(name)
        if not task.has_key:
            fields["idempotency_key"] = key
        return task._request(args, kwargs, number, **fields)

    async def _enqueue_child(self, task: Task[..., R], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Child[R]:
        """Enqueue a child for `task.enqueue()`, which passes every named argument to the task."""
        (child,) = await self._enqueue(task, [self._child_request(task, None, args, kwargs)])
        return child

    async def _on_loop(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a call on the event loop of the worker, whose client it uses; a task may run another loop."""
        if asyncio.get_running_loop() is self._loop:
            return await call()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), self._loop))

    async def _enqueue(self, task: Task[..., R], requests: Sequence[JobRequest]) -> list[Child[R]]:
        await self._keep_patches()
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
                name, occurrence = self._child_keys.place(known.idempotency_key or "")
                recorded, asked = f"a child of type {known.type}", f"a child of type {child_request.type}"
                raise StepMismatch(self.id, name, occurrence, recorded, asked) from error
        new = [child_request for child_request in requests if child_request.idempotency_key not in earlier]
        created = await self._insist(lambda: self._client.jobs.enqueue(new, within=task._within)) if new else []
        made = iter(created)
        return [
            next(made) if known is None else Enqueued(known.id, known.seq, replayed=True)
            for known in (earlier.get(child_request.idempotency_key) for child_request in requests)
        ]

    async def _send_events(self) -> None:
        while events := self._take_events():
            report = Report(*self._holder(), events)
            await self._insist(partial(self._client.work.add_events, [report]))

    async def _send_streams(self) -> None:
        """Send what was written to streams; output that is rejected must not fail the run, so an event reports it."""
        for writer in list(self._streams.values()):
            try:
                await writer.flush()
            except Error as error:
                if not isinstance(error, (LeaseLost, NotRunning)):
                    self.event(f"output to stream {writer.name} was lost: {error}", level="warn")

    async def _append(self, name: str, offset: int, chunks: tuple[NewChunk, ...]) -> int:
        append = Append(*self._holder(), name, offset, chunks)
        return await self._insist(lambda: self._client.work.append(append))

    async def _stream_end(self, name: str) -> int:
        """Return the offset of the first chunk of this run."""
        if self._job.runs_first:
            return 0
        streams = await self._insist(lambda: self._client.jobs.streams(self.id))
        return next((one.chunks for one in streams if one.name == name), 0)

    async def _hold(self, error: RateLimited) -> None:
        """Hold the limit that a run reports, under the key by which the job names it."""
        until, _ = self._hold_until(error)
        named = serialization.decode(self._job.limits) or []
        key = next((one["key"] for one in named if one["name"] == error.limit), None)
        hold = partial(self._client.limits.hold, error.limit, until, key=key, reason=error.reason)
        await self._insist(hold)

    def _hold_until(self, error: RateLimited) -> tuple[datetime, datetime]:
        """Return until when a run reports a limit closed, at most as long as a hold may last, and the time now."""
        now = EPOCH + timedelta(microseconds=self._clock.now() or 0)
        until = error.until or now + timedelta(seconds=error.after_seconds or 0.0)
        return min(until, now + timedelta(seconds=MAX_HOLD_SECONDS)), now

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
        return self._job.id, self._job.fence, self._job.worker or ""

    def _loop_for_blocking(self) -> asyncio.AbstractEventLoop:
        if self.cancelled:
            raise asyncio.CancelledError
        return self._loop


class Child(JobHandle[R]):
    """A child job."""

    def __init__(self, id: str, parent: Context, returns: Any, *, replayed: bool) -> None:
        super().__init__(id, parent._given_client, returns, replayed=replayed)
        self._parent = parent

    async def result(self, /, timeout: float | timedelta | None = None) -> R:  # noqa: ASYNC109 - part of the verb
        """Return the result of the child. Without a timeout the parent waits without a worker; with one, in place."""
        if timeout is not None:
            return await super().result(timeout)
        (result,) = await self._parent.results([self])
        return result

    def _loop_for_blocking(self) -> asyncio.AbstractEventLoop:
        return self._parent._loop_for_blocking()


def _check_step(name: object, function: object, what: str = "step") -> None:
    """Reject common mistakes in the call of a step or effect, and names reserved for the SDK."""
    if inspect.iscoroutine(function):
        function.close()  # it is never awaited
    if not isinstance(name, str) or not callable(function):
        raise TypeError(
            f"{what} takes a name, a function and its arguments, not a call: {what}('search', search, topic)"
        )
    check_name(name, f"{'an' if what == 'effect' else 'a'} {what}")


def _type_name(wanted: Any) -> str:
    return wanted.__name__ if isinstance(wanted, type) else str(wanted)


class _Inbox(NamedTuple):
    """The messages that a receive takes in order: those of a name, or those to a topic."""

    name: str | None
    topic: str | None

    @classmethod
    def of(cls, name: str | None, topic: str | None) -> _Inbox:
        if (name is None) == (topic is None):
            raise TypeError("receive takes the name of a message or topic=: expected exactly one")
        if topic is None:
            check_name(name, "a message")
        else:
            check_name(topic, "a topic")
        return cls(name, topic)

    def key(self) -> str:
        """Return the name under which receives are recorded; a long one is shortened."""
        key = f"{RECEIVE}/{self.name}" if self.topic is None else f"{RECEIVE}_topic/{self.topic}"
        return key if is_visible_name(WAIT + key) else f"{RECEIVE}/{hashlib.sha256(key.encode()).hexdigest()}"

    def __str__(self) -> str:
        return f"message {self.name!r}" if self.topic is None else f"message to topic {self.topic!r}"


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
