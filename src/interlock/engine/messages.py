"""Messages to jobs: sent by producers, operators and jobs of the same tree, read by the tenant and the job itself."""

from __future__ import annotations

from typing import Final

from interlock import wire
from interlock.domain import json_text
from interlock.domain.message import (
    MAX_MESSAGE_BYTES,
    MAX_RETAIN_SECONDS,
    Message,
    Publish,
    Published,
    SendMessage,
    Sent,
)
from interlock.domain.principal import Principal
from interlock.domain.progress import LARGEST_NUMBER
from interlock.engine.results import answered
from interlock.errors import NotFound
from interlock.storage.contract import Store

MAX_PAGE_SIZE: Final = 200


class Messages:
    """The inboxes of jobs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def send(
        self, who: Principal, job_id: str, name: str, payload: str | None = None, *, id: str | None = None
    ) -> Message:
        """Send a message to a job; with the ID of an earlier message, return that one."""
        return (await self.sent(who, job_id, name, payload, id=id)).message

    async def sent(
        self, who: Principal, job_id: str, name: str, payload: str | None = None, *, id: str | None = None
    ) -> Sent:
        """Send a message, and return whether this call stored it."""
        if payload is not None:
            payload, _ = json_text.sanitize(payload, what="payload", limit=MAX_MESSAGE_BYTES)
        order = SendMessage(
            wire.job_id(job_id), wire.new_id() if id is None else wire.name(id, "id"), who.actor,
            wire.name(name, "name"), None if payload == "null" else payload,
        )  # fmt: skip
        return answered(await self._store.messages.send(who.tenant, order))

    async def of_job(
        self, tenant: str, job_id: str, *, name: str | None = None, topic: str | None = None, after: int = 0,
        limit: int = MAX_PAGE_SIZE,
    ) -> list[Message]:  # fmt: skip
        """List messages of a job with a number above `after`, in order."""
        wire.whole(after, "after", 0, LARGEST_NUMBER)
        wire.whole(limit, "limit", 1, MAX_PAGE_SIZE)
        id, wanted = wire.job_id(job_id), None if name is None else wire.name(name, "name")
        of_topic = None if topic is None else wire.name(topic, "topic")
        found = await self._store.messages.of_job(tenant, id, name=wanted, topic=of_topic, after=after, limit=limit)
        if not found and await self._store.has_ended(tenant, id) is None:
            raise NotFound(id)
        return found

    async def publish(
        self,
        who: Principal,
        topic: str,
        payload: str | None = None,
        *,
        id: str | None = None,
        retain_seconds: float = 0,
    ) -> Published:
        """Deliver a message to all jobs that wait for a topic, and to those that begin to wait within that time."""
        if payload is not None:
            payload, _ = json_text.sanitize(payload, what="payload", limit=MAX_MESSAGE_BYTES)
        wire.seconds(retain_seconds, "retain_seconds", 0, MAX_RETAIN_SECONDS)
        order = Publish(
            wire.name(topic, "topic"), wire.new_id() if id is None else wire.name(id, "id"), who.actor,
            None if payload == "null" else payload, retain_seconds,
        )  # fmt: skip
        return answered(await self._store.messages.publish(who.tenant, order))

    async def is_in_tree_of(self, who: Principal, job_id: str) -> bool:
        """Return whether the caller created a job of the tree of this job, or holds the lease of one."""
        actor = who.actor if who.may("produce") else None
        worker = who.worker if who.may("work") else None
        return await self._store.messages.has_relative(who.tenant, wire.job_id(job_id), actor=actor, worker=worker)
