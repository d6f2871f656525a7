"""Helpers for tests of webhooks: subscriptions, and the results of deliveries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from interlock.domain.principal import Principal
from interlock.domain.webhook import CreatedSubscription, DeliveryFilter, DeliveryStatus
from interlock.domain.webhook_url import Allowance
from interlock.engine.engine import Engine
from interlock.wire import job_request, subscription_request
from tests.support.eventually import eventually

HERE = Allowance.of(["127.0.0.0/8"])
EVERYTHING = DeliveryFilter(limit=200)


async def subscribe(queue: Engine, who: Principal, there: str, /, **fields: Any) -> CreatedSubscription:
    return await queue.webhooks.subscribe(who, subscription_request({"url": there, "events": ["job.queued"], **fields}))


async def enqueue(queue: Engine, who: Principal, count: int = 1, **fields: Any) -> list[str]:
    jobs = await queue.jobs.enqueue_batch(who, [job_request({"type": "t", **fields}) for _ in range(count)])
    return [job.id for job in jobs]


async def statuses(queue: Engine, who: Principal) -> list[tuple[DeliveryStatus, int, str | None]]:
    return [(d.status, d.attempts, d.last_error) for d in await queue.webhooks.deliveries(who, EVERYTHING)]


def after(condition: Callable[[], bool]) -> Any:
    async def holds() -> bool:
        return condition()

    return eventually(holds)
