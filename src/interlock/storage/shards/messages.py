"""Sharded messages: each on the shard of its job."""

from __future__ import annotations

from interlock.domain.job import Rejected
from interlock.domain.message import Message, Publish, Published, SendMessage, Sent
from interlock.storage.shards.routing import Routing


class ShardedMessages:
    """Routes the calls of messages."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    async def send(self, tenant: str, order: SendMessage) -> Sent | Rejected:
        return await self._routing.of_job(tenant, order.id, lambda store: store.messages.send(tenant, order))

    async def of_job(
        self, tenant: str, job_id: str, *, name: str | None = None, topic: str | None = None, after: int = 0, limit: int
    ) -> list[Message]:
        return await self._routing.of_job(
            tenant,
            job_id,
            lambda store: store.messages.of_job(tenant, job_id, name=name, topic=topic, after=after, limit=limit),
        )

    async def publish(self, tenant: str, order: Publish) -> Published | Rejected:
        answers = await self._routing.each(tenant, lambda store: store.messages.publish(tenant, order))
        done = [one for one in answers if isinstance(one, Published)]
        if len(done) < len(answers):
            return next(one for one in answers if isinstance(one, Rejected))
        return Published(order.message_id, sum(one.delivered for one in done), any(one.is_new for one in done))

    async def has_relative(self, tenant: str, job_id: str, *, actor: str | None, worker: str | None) -> bool:
        return await self._routing.of_job(
            tenant, job_id, lambda store: store.messages.has_relative(tenant, job_id, actor=actor, worker=worker)
        )
