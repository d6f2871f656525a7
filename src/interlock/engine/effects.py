"""Effects of jobs: recorded by lease holders before and after the call, read by the tenant."""

from __future__ import annotations

from typing import Final

from interlock import wire
from interlock.domain import json_text
from interlock.domain.effect import BeginEffect, Begun, Effect, EffectState, SettleEffect
from interlock.domain.progress import LARGEST_NUMBER, LARGEST_OCCURRENCE
from interlock.engine.results import answered
from interlock.errors import Invalid, NotFound
from interlock.storage.contract import Store
from interlock.wire import Limits

MAX_PAGE_SIZE: Final = 200


class Effects:
    """Effects: written under the fence of a lease, readable by the whole tenant."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits

    async def begin(self, tenant: str, order: BeginEffect) -> Begun:
        """Record that an effect begins; one that has begun or is done is returned as it is."""
        _check(order)
        checked = order._replace(
            id=wire.job_id(order.id), worker=wire.name(order.worker, "worker"), name=wire.name(order.name, "name"),
            key=None if order.key is None else wire.name(order.key, "key"),
        )  # fmt: skip
        return answered(await self._store.effects.begin(tenant, checked))

    async def settle(self, tenant: str, order: SettleEffect) -> Effect:
        """Record the outcome of an effect; the same outcome again changes nothing."""
        _check(order)
        result, sanitized = order.result, order.sanitized
        if order.state is EffectState.STARTED:
            raise Invalid("state is 'started': expected done or not_done", pointer="/state")
        if result is not None:
            result, changed = json_text.sanitize(result, what="result", limit=self._limits.step)
            sanitized = sanitized or changed
        if result == "null":
            result = None
        if result is not None and order.state is not EffectState.DONE:
            raise Invalid("an effect that is not done has no result", pointer="/result")
        checked = order._replace(
            id=wire.job_id(order.id), worker=wire.name(order.worker, "worker"), name=wire.name(order.name, "name"),
            result=result, sanitized=sanitized,
        )  # fmt: skip
        return answered(await self._store.effects.settle(tenant, checked))

    async def of_job(self, tenant: str, job_id: str, *, after: int = 0, limit: int = MAX_PAGE_SIZE) -> list[Effect]:
        """List the effects of a job with a number above `after`, in the order in which they began."""
        wire.whole(after, "after", 0, LARGEST_NUMBER)
        wire.whole(limit, "limit", 1, MAX_PAGE_SIZE)
        id = wire.job_id(job_id)
        found = await self._store.effects.of_job(tenant, id, after=after, limit=limit)
        if not found and await self._store.has_ended(tenant, id) is None:
            raise NotFound(id)
        return found


def _check(order: BeginEffect | SettleEffect) -> None:
    wire.whole(order.fence, "fence", 0, LARGEST_NUMBER)
    wire.whole(order.occurrence, "occurrence", 0, LARGEST_OCCURRENCE)
