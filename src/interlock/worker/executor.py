"""Runs one job and returns its finish, or None if there is nothing to report."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator
from datetime import timedelta
from functools import partial
from inspect import isawaitable
from typing import Any, Final

from interlock import tracing
from interlock.client.port import error_body
from interlock.domain.decide import MAX_CHILDREN, AcknowledgeCancel, CompleteJob, Finish
from interlock.domain.decide import FailJob as Failed
from interlock.domain.decide import ReleaseJob as Released
from interlock.domain.json_text import sanitize_text
from interlock.domain.message import AwaitMessage
from interlock.domain.retry import SECOND
from interlock.domain.timestamps import micros
from interlock.errors import CancelRequested, Error, Forbidden, LeaseLost, NotRunning, TooLarge, WouldDeadlock
from interlock.sdk import serialization
from interlock.sdk.exceptions import (
    AwaitsApproval,
    AwaitsChildren,
    AwaitsMessage,
    BudgetExceeded,
    Fail,
    RateLimited,
    Release,
    Retry,
    StepMismatch,
    Suspended,
)
from interlock.sdk.hooks import Hooks
from interlock.sdk.signature import UnknownArgument
from interlock.sdk.threads import Threads
from interlock.worker.lifespan import call_hook, name_of
from interlock.worker.run import Run, StopReason

MAX_TRACEBACK_LENGTH: Final = 6000
UNKNOWN_ARGUMENT: Final = "unknown_argument"
MAX_DEPLOY_SECONDS: Final = 3600.0
ROLE_DELAY_SECONDS: Final = 300.0  # time for an operator to replace the worker's token
HELD_SECONDS: Final = 1.0
DEPLOY_SECONDS: Final = 30.0  # time for a newer worker to claim the job, or for a deployment


def execute(run: Run, threads: Threads, hooks: Hooks, log: Any) -> Coroutine[Any, Any, Finish | None]:
    """Run the task and return the finish of the job, regardless of how the task ends."""
    return _traced(run, threads, hooks, log) if tracing.is_on() else _execute(run, threads, hooks, log)


async def _traced(run: Run, threads: Threads, hooks: Hooks, log: Any) -> Finish | None:
    """Run the task in a span that is a child of the enqueuer's span."""
    job = run.job
    results = {"interlock.job.id": job.id, "interlock.job.type": job.type, "interlock.job.attempt": job.attempt}
    with tracing.span(f"run {job.type}", "consumer", parent=job.traceparent, attributes=results) as span:
        outcome = await _execute(run, threads, hooks, log)
        if span is not None and outcome is not None:
            span.set_attribute("interlock.outcome", outcome.verb)
        return outcome


async def _execute(run: Run, threads: Threads, hooks: Hooks, log: Any) -> Finish | None:
    order = await _ended(run, threads, hooks)
    if hooks.after or (hooks.failure and type(order) is Failed):
        order = await _after(run, threads, hooks, log, order)
    if run.context is not None and order is not None:
        await run.context._send_streams()
    if run.context is not None and order is not None and type(order) is not CompleteJob:
        with contextlib.suppress(Error):  # the finish of a run matters more than its usage
            await run.context._keep_patches()
            await run.context._keep_usage()
    return order


async def _after(run: Run, threads: Threads, hooks: Hooks, log: Any, order: Finish | None) -> Finish | None:
    """Call the hooks after a run. They cannot change how it ended, but they may add to its usage."""
    context = run.needed_context()
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [(hook, (context,)) for hook in hooks.after]
    if type(order) is Failed:
        calls = [(hook, (context, _error_of(run, order))) for hook in hooks.failure] + calls
    for hook, arguments in calls:
        try:
            await call_hook(hook, threads, *arguments)
        except GeneratorExit:
            raise
        except BaseException as error:  # also when interrupted: the finish of the run must not be lost
            log.error("hook failed", hook=name_of(hook), job=run.job.id, error=repr(error), exc_info=error)
    return order._replace(usage=context._used()) if type(order) is CompleteJob else order


def _error_of(run: Run, order: Failed) -> Exception:
    """Return the exception that failed the attempt; others than `Exception`, such as SystemExit, are wrapped."""
    if isinstance(run.error, Exception):
        return run.error
    message = serialization.decode(order.error)["message"]
    error = TimeoutError(message) if run.ending is StopReason.TIMED_OUT else RuntimeError(message)
    error.__cause__ = run.error
    return error


async def _ended(run: Run, threads: Threads, hooks: Hooks) -> Finish | None:
    try:
        arguments = run.task.signature.unpack(run.job.payload)
    except UnknownArgument as error:  # possibly from a newer version of the task
        run.error = error
        return failure(run, str(error), kind=UNKNOWN_ARGUMENT, retry_after_seconds=DEPLOY_SECONDS)
    except Error as error:
        run.error = error
        return failure(run, str(error), kind="invalid_payload", retryable=False)
    if run.task.signature.context is not None:
        arguments[run.task.signature.context] = run.needed_context()
    try:
        for hook in hooks.before:
            await call_hook(hook, threads, run.needed_context())
        if run.task.patches:
            await run.needed_context()._use_patches(run.task.patches)
        if run.task.is_async:
            result = await run.task.function(**arguments)
        else:
            result = await _in_thread(run, threads, arguments)
            if isawaitable(result):  # a plain function that returns an awaitable
                result = await result
    except asyncio.CancelledError:
        if run.ending is None and _is_cancelled_from_outside():
            raise  # the whole worker is stopped, not this run
        return stopped(run)
    except Suspended as suspended:
        await _hold_limits(run, [suspended])
        return _suspended(run, suspended)
    except BaseExceptionGroup as group:
        await _hold_limits(run, _leaves(group))
        return _raised_together(run, group)
    except GeneratorExit:
        raise  # a closed coroutine must not continue; the worker checks whether the task itself raised this
    except BaseException as error:
        return _raised(run, error)
    return _returned(run, result)


def stopped(run: Run) -> Finish | None:
    """Return the finish of a run that was stopped from outside."""
    match run.ending:
        case StopReason.LOST:
            return None
        case StopReason.CANCELLED:
            return AcknowledgeCancel(*run.holder)
        case StopReason.SHUTDOWN:
            return Released(*run.holder, reason="worker shut down")
        case StopReason.TIMED_OUT:
            message = f"the run exceeded its timeout of {run.job.timeout_seconds} s"
            # Same delay as after a lease expiry, which happens at the same moment.
            return failure(run, message, kind="timeout", retry_after_seconds=run.job.expiry_delay_seconds or 0.0)
        case None:
            return failure(run, "the task cancelled itself", kind="CancelledError")


def failure(
    run: Run,
    message: str,
    *,
    kind: str,
    details: object = None,
    retryable: bool = True,
    retry_after_seconds: float | None = None,
) -> Failed:
    """Return a failure that is never rejected: details that are too large or not JSON are left out."""
    try:
        error, sanitized = error_body(message, kind=kind, details=details)
    except Error:
        error, sanitized = error_body(message, kind=kind)
    return Failed(*run.holder, error, retryable, retry_after_seconds, sanitized)


def in_place_of(refused: CompleteJob | Released, run: Run, error: Error) -> Failed:
    """Return the failure for a rejected result or release. A result is not retried: it would be rejected again."""
    if isinstance(refused, Released):
        kind = error.code if isinstance(error, WouldDeadlock) else "invalid_release"
        return failure(run, f"the release was rejected: {error}", kind=kind)
    kind = "result_too_large" if isinstance(error, TooLarge) else "invalid_result"
    return failure(run, f"the result was rejected: {error}", kind=kind, retryable=False)


async def _in_thread(run: Run, threads: Threads, arguments: dict[str, Any]) -> Any:
    working = threads.run(partial(run.task.function, **arguments))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        if not working.done():
            run.abandoned = working
        raise


def _returned(run: Run, result: Any) -> Finish:
    used = run.context._used() if run.context is not None else None
    if result is None:
        return CompleteJob(*run.holder, None, None, used)
    try:
        text = serialization.encode(result)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return failure(run, f"the result is not JSON: {error}", kind="invalid_result", retryable=False)
    return CompleteJob(*run.holder, text, None, used)


def _suspended(run: Run, suspended: Suspended) -> Finish | None:
    match suspended:
        case Release(until=until):
            run_at = None if until is None else int(until.timestamp() * SECOND)
            return Released(*run.holder, suspended.reason, run_at, suspended.after_seconds)
        case RateLimited():
            # A later time than now: such a release is not counted. The hold decides when the job runs again.
            if suspended.is_held or suspended.until is None:
                seconds = HELD_SECONDS if suspended.is_held else max(suspended.after_seconds or 0.0, HELD_SECONDS)
                return Released(*run.holder, _message(suspended), None, seconds)
            opens_at, now = run.needed_context()._hold_until(suspended)
            if opens_at <= now + timedelta(seconds=HELD_SECONDS):
                return Released(*run.holder, _message(suspended), None, HELD_SECONDS)
            return Released(*run.holder, _message(suspended), micros(opens_at))
        case BudgetExceeded():
            return Released(*run.holder, _message(suspended), None, HELD_SECONDS)
        case AwaitsChildren(children=children):
            # The next run finds the remaining children and waits for them.
            return Released(*run.holder, "waiting for children", children=children[:MAX_CHILDREN])
        case AwaitsMessage(name=name, after=after, until=until, topic=topic):
            return Released(*run.holder, "waiting for a message", until, message=AwaitMessage(name, after, topic))
        case AwaitsApproval():
            return None  # requesting the approval has ended the lease
        case _:
            return Released(*run.holder, _message(suspended))


async def _hold_limits(run: Run, raised: Iterable[BaseException]) -> None:
    """Hold the limits that the run reports; a release until the same time replaces a hold that is rejected."""
    for one in raised:
        if isinstance(one, RateLimited):
            with contextlib.suppress(Error):
                await run.needed_context()._hold(one)
                one.is_held = True


def _raised_together(run: Run, group: BaseExceptionGroup[BaseException]) -> Finish | None:
    """Unwrap a task group: a suspension inside it suspends the run, and a single error counts as itself."""
    raised = list(_leaves(group))
    if raised and all(isinstance(one, Forbidden) for one in raised):
        return _raised(run, raised[0])
    if not all(isinstance(one, Suspended) for one in raised):
        return _raised(run, raised[0] if len(raised) == 1 else group)
    children = [child for one in raised if isinstance(one, AwaitsChildren) for child in one.children]
    others = [one for one in raised if isinstance(one, Suspended) and not isinstance(one, AwaitsChildren)]
    # An approval request has already ended the lease; next come releases, which have a reason; then children.
    others.sort(key=lambda one: not isinstance(one, AwaitsApproval))
    return _suspended(run, others[0] if others else AwaitsChildren(list(dict.fromkeys(children))))


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for one in group.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from _leaves(one)
        else:
            yield one


def _raised(run: Run, error: BaseException) -> Finish | None:
    run.error = error
    match error:
        case LeaseLost() | NotRunning() if error.job_id == run.job.id:
            return None
        case CancelRequested() if error.job_id == run.job.id:
            return AcknowledgeCancel(*run.holder)
        case Fail():
            return failure(run, _message(error), kind=error.kind or "Fail", details=error.details, retryable=False)
        case Retry():
            return failure(run, _message(error), kind="Retry", retry_after_seconds=error.after_seconds)
        case Forbidden():
            return _not_permitted(run, error)
        case StepMismatch():
            # Doubles each time, so that a fix can be deployed before the attempts are used up.
            wait = min(DEPLOY_SECONDS * 2 ** (run.job.attempt - 1), MAX_DEPLOY_SECONDS)
            return failure(run, str(error), kind=error.code, retry_after_seconds=wait)
    kind = type(error).__name__
    lines = "".join(traceback.format_exception(error))[-MAX_TRACEBACK_LENGTH:]
    details = {"traceback": sanitize_text(lines)[0]}
    return failure(
        run, _message(error), kind=kind, details=details, retryable=not run.task.failures.is_permanent(error)
    )


def _not_permitted(run: Run, error: Forbidden) -> Finish:
    """Release the job without using an attempt: every run fails until the worker's credential has the role."""
    run.trouble = f"the token of this worker does not allow what the task does: {error}"
    return Released(*run.holder, run.trouble, None, ROLE_DELAY_SECONDS)


def _message(error: BaseException) -> str:
    """Return the text of an error, or its class name if the text is empty or cannot be printed."""
    try:
        return str(error) or type(error).__name__
    except BaseException:
        return f"{type(error).__name__} (its text cannot be printed)"


def _is_cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
