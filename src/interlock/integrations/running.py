"""What the integrations of agent frameworks share: the running job, names of steps, and steps within steps."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from weakref import WeakKeyDictionary

from interlock.sdk import current
from interlock.sdk.context import Context
from interlock.sdk.values import Backoff

MAX_NAME_LENGTH: Final = 200
_runs: WeakKeyDictionary[Context, Counter[str]] = WeakKeyDictionary()  # by name, in a run of a job
_in_step: ContextVar[bool] = ContextVar("interlock_in_step", default=False)


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """How often a step is tried in one run, with which delays, and how long each try may take."""

    attempts: int = 1
    retry: Backoff | None = None
    timeout: float | timedelta | None = None

    @property
    def given(self) -> Mapping[str, Any]:
        """The options as arguments of `ctx.step`."""
        options = {"attempts": self.attempts, "retry": self.retry, "timeout": self.timeout}
        return {name: value for name, value in options.items() if value is not None}


def job_context() -> Context | None:
    """Return the context of the running job, or None outside of jobs and inside a step, which is saved as a whole."""
    context = current.running()
    if context is None or _in_step.get():
        return None
    found = context()
    if found._loop is not asyncio.get_running_loop():
        raise RuntimeError(
            "the agent runs on another event loop than the worker: declare the task with `async def` and await the "
            "agent in it"
        )
    return found


def number_of_run(context: Context, name: str) -> int:
    """Count a run of an agent or graph within a run of the job, from 1: the same number in every run of the job."""
    runs = _runs.setdefault(context, Counter())
    runs[name] += 1
    return runs[name]


def name_of_run(context: Context, name: str) -> str:
    """Return the prefix of the steps of a run, which tells several runs of an agent or graph in one job apart."""
    number = number_of_run(context, name)
    return name if number == 1 else f"{name}#{number}"


def report_usage(context: Context, **amounts: int) -> None:
    """Add the usage of a response, saved ones included: a later run reports all of it again."""
    context.usage(**{name: amount for name, amount in amounts.items() if amount})


async def run_step(
    context: Context, name: str, body: Callable[[], Awaitable[Any]], options: StepOptions | None = None
) -> Any:
    """Save the result of a call of the framework as a step, which a later run replays."""
    given = {} if options is None else options.given
    return await context.step(shortened(name), _operation, body, **given)


async def _operation(body: Callable[[], Awaitable[Any]]) -> Any:
    token = _in_step.set(True)
    try:
        return await body()
    finally:
        _in_step.reset(token)


def shortened(name: str) -> str:
    """Return a valid name of a step: a longer one ends with its digest."""
    visible = "".join(one if one.isprintable() else "_" for one in name)
    if len(visible) <= MAX_NAME_LENGTH and visible == name:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:32]
    return f"{visible[: MAX_NAME_LENGTH - len(digest) - 1]}-{digest}"
