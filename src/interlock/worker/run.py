"""One lease of a worker, from claim to finish."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from interlock.client.port import LeasedJob
from interlock.domain.job import Heartbeat, Job
from interlock.sdk.context import Context
from interlock.sdk.leases import ClaimId
from interlock.sdk.tasks import Task

_opening = threading.Lock()  # several threads of a run may ask for its context at the same time


class StopReason(IntEnum):
    """Why a run is stopped from outside; a later reason replaces an earlier one only if it ranks higher."""

    CANCELLED = 1
    TIMED_OUT = 2
    SHUTDOWN = 3
    LOST = 4


class Run:
    """A leased job of this worker."""

    __slots__ = (
        "abandoned",
        "claim",
        "context",
        "ending",
        "error",
        "handle",
        "holder",
        "job",
        "key",
        "lease",
        "open_context",
        "received",
        "seconds",
        "sending_events",
        "started_at",
        "task",
        "timer",
        "trouble",
    )  # fmt: skip

    def __init__(self, lease: LeasedJob, task: Task[..., Any], claim: ClaimId) -> None:
        self.lease = lease
        self.job: Job = lease.job
        self.key = (lease.job.id, lease.job.fence)
        self.holder = (lease.job.id, lease.job.fence, lease.job.worker or "")
        self.task = task
        self.claim = claim
        self.received = time.monotonic_ns()
        self.context: Context | None = None
        self.open_context: Callable[[Run], Context] | None = None
        self.ending: StopReason | None = None
        self.error: BaseException | None = None  # why the attempt failed
        self.handle: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.started_at: float | None = None  # by the clock of the event loop
        self.seconds: float | None = None  # duration of the run
        self.trouble: str | None = None  # why later runs cannot succeed until an operator acts
        self.sending_events = False  # a heartbeat with events of this run is in flight
        self.abandoned: asyncio.Future[Any] | None = None  # a thread that continues although its run has ended

    def needed_context(self) -> Context:
        """Return the context of the run, created when it is first needed: most runs of small tasks never use one."""
        if self.context is None:
            with _opening:
                if self.context is None:
                    assert self.open_context is not None, "the run has not started"
                    context = self.open_context(self)
                    if self.ending is not None:
                        context._stop()
                    self.context = context
        return self.context

    def heartbeat(self) -> Heartbeat:
        """Return a heartbeat with the events that the task has emitted since the last one."""
        events = self.context._take_events() if self.context is not None else ()
        used = self.context._usage_so_far() if self.context is not None else None
        return Heartbeat(*self.holder, self.task._lease_seconds, None, events, used)

    @property
    def is_leased(self) -> bool:
        """Whether the run still has its lease: a request for approval ends it before the task has cleaned up."""
        return self.context is None or not self.context._is_waiting_for_approval

    def is_at_work(self) -> bool:
        """Return whether this run is the current asyncio task, as opposed to a caller that closes its coroutine."""
        try:
            return asyncio.current_task() is self.handle
        except RuntimeError:  # no running event loop
            return False

    def stop(self, ending: StopReason) -> None:
        """Interrupt the run. A thread only gets a flag and is abandoned, except on a cancel, which waits for it."""
        if self.ending is not None and self.ending >= ending:
            return
        if ending is StopReason.LOST and self.context is not None and self.context._ends_lease:
            return
        self.ending = ending
        if self.context is not None:
            self.context._stop()
        if self.handle is not None and (self.task.is_async or ending is not StopReason.CANCELLED):
            self.handle.cancel()
