"""The store interface for messages."""

from __future__ import annotations

from typing import Protocol

from interlock.domain.job import Rejected
from interlock.domain.message import Message, Publish, Published, SendMessage, Sent


class MessageStore(Protocol):
    """The part of a store for the inboxes of jobs."""

    async def send(self, tenant: str, order: SendMessage) -> Sent | Rejected:
        """Store a message, and make the job due if it waits for it; the same message again changes nothing."""
        ...

    async def of_job(
        self, tenant: str, job_id: str, *, name: str | None = None, topic: str | None = None, after: int = 0, limit: int
    ) -> list[Message]:
        """List messages with a higher number, in order."""
        ...

    async def publish(self, tenant: str, order: Publish) -> Published | Rejected:
        """Deliver a message to all jobs that wait for its topic; the same message again delivers nothing more."""
        ...

    async def has_relative(self, tenant: str, job_id: str, *, actor: str | None, worker: str | None) -> bool:
        """Return whether the tree of the job has a job that this actor created, or that this worker holds."""
        ...
