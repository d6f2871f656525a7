"""The operations that workers and the SDK use, in process or over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from interlock.domain.approval import Approval, RequestApproval
from interlock.domain.artifact import File, Holder, Link
from interlock.domain.decide import Finish
from interlock.domain.job import (
    Checkpoint,
    Enqueued,
    Filter,
    Heartbeat,
    HeartbeatReply,
    HistoryRow,
    Job,
    Receipt,
    Rejected,
)
from interlock.domain.policy import ClaimFilter
from interlock.domain.progress import EventRow, Report, Step, StepRow
from interlock.domain.registry import QueueStats
from interlock.wire import AgentName, JobRequest, error_body

__all__ = ["AgentName", "Client", "JobRequest", "LeasedJob", "error_body"]


class LeasedJob(NamedTuple):
    """A leased job with the steps and decided approvals of its earlier runs."""

    job: Job
    steps: Sequence[StepRow] = ()
    approvals: Sequence[Approval] = ()  # decided ones, oldest first


class Client(Protocol):
    """The operations of producers, observers and workers. Errors are raised; in a batch, each item has a result."""

    most_per_claim: int
    """How many jobs one claim may ask for."""

    async def enqueue(self, requests: Sequence[JobRequest], *, within: object = None) -> list[Enqueued]:
        """Add all jobs or none; with `within`, as part of the caller's own open PostgreSQL transaction."""
        ...

    async def get(self, job_id: str) -> Job: ...

    async def find(self, filter: Filter) -> list[Job]:
        """Newest first, without payloads."""
        ...

    async def wait(self, job_id: str, *, seconds: float) -> Job:
        """The job as soon as it has ended, or as it is after that time."""
        ...

    async def cancel(
        self, job_id: str, *, reason: str | None = None, force: bool = False, cascade: bool = False
    ) -> Receipt:
        """Stop a job; with `cascade` also everything below it."""
        ...

    async def redrive(self, job_id: str, *, start_from: str = "start", idempotency_key: str | None = None) -> Enqueued:
        """Do an ended job again by a new one: from the start, from its checkpoint, or after a named step."""
        ...

    async def revoke(self, job_id: str, *, reason: str | None = None) -> Receipt: ...

    async def queue(self, type: str) -> QueueStats:
        """How many jobs of a type are where."""
        ...

    async def history(self, job_id: str) -> list[HistoryRow]: ...

    async def children(self, job_id: str) -> list[Job]:
        """Oldest first, without payloads."""
        ...

    async def events(self, job_id: str, *, after: int = 0, limit: int = 200) -> list[EventRow]:
        """Oldest first, only those with a number above `after`."""
        ...

    def tail(self, job_id: str, *, after: int = 0) -> AsyncGenerator[EventRow, None]:
        """Follow the events of a job, each once, until it is terminal."""
        ...

    async def steps(self, job_id: str) -> list[StepRow]: ...

    async def claim(self, ask: ClaimFilter, *, wait_seconds: float = 0.0) -> list[LeasedJob]:
        """Lease up to ask.limit jobs, waiting that long for the first; a repeated claim_id leases nothing new."""
        ...

    async def heartbeats(self, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatReply | Rejected]: ...

    async def interrupted(self, leases: Sequence[tuple[str, int]], *, wait_seconds: float = 0.0) -> list[str]:
        """Return the IDs of those leased jobs (by ID and fence) that must stop, waiting that long for the first."""
        ...

    async def roles(self) -> frozenset[str] | None:
        """Return the roles of the credential; None if there are no limits."""
        ...

    async def finishes(self, orders: Sequence[Finish]) -> list[Receipt | Rejected]: ...

    async def checkpoint(self, checkpoint: Checkpoint) -> int: ...

    async def save_step(self, step: Step) -> StepRow:
        """The step as it is kept: the first one that was saved under its name and occurrence."""
        ...

    async def add_events(self, reports: Sequence[Report]) -> list[tuple[int, ...] | Rejected]:
        """The numbers that the events of each report have got."""
        ...

    async def request_approval(self, approval: RequestApproval) -> Receipt:
        """Request an approval, which ends the lease and suspends the job. The engine assigns the approval ID."""
        ...

    async def attach(self, holder: Holder, thing: File | Link) -> str:
        """Store a complete file or a link and return its ID; an artifact with the same name is replaced."""
        ...

    async def register_type(self, name: str, definition: Mapping[str, Any]) -> None:
        """Register the schema, requirements and defaults of a type."""
        ...

    def start_maintenance(self) -> None:
        """Do what the clock demands in the background, if no server does it for this client."""
        ...

    async def close(self) -> None: ...
