"""What a delivery says, to which address, and what a reply to it means: in the dialect that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import random
from typing import Any, NamedTuple

import msgspec

from interlock import wire
from interlock.domain import codeq, webhook
from interlock.domain.dialect import Dialect, spoken
from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from interlock.domain.retry import SECOND
from interlock.domain.webhook import Dispatch, Outcome, Reply
from interlock.storage.contract import Store


class Message(NamedTuple):
    """One delivery as it is sent."""

    headers: dict[str, str]
    content: bytes
    outcome: Callable[[Reply], Outcome]


class Messages:
    """Words what the outbox holds; without a secret of its own codeQ's dialect is signed by the receiver's."""

    def __init__(self, store: Store, *, codeq_secret: str | None = None) -> None:
        self._store = store
        self._codeq_secret = codeq_secret

    async def of(self, tenant: str, dispatch: Dispatch, now: float) -> Message:
        """The message for a delivery that is sent now, in seconds since 1970."""
        dialect, _ = spoken(dispatch.url)
        if dialect is Dialect.CODEQ:
            return await self._codeq(tenant, dispatch, now)
        content = webhook.body(dispatch, wire.when(dispatch.at))
        headers = webhook.headers(dispatch.secrets, dispatch.id, int(now), content)
        return Message(headers, content, lambda reply: webhook.outcome(dispatch.attempts, reply, random()))

    async def _codeq(self, tenant: str, dispatch: Dispatch, now: float) -> Message:
        (job,) = await self._store.get(tenant, [dispatch.job_id])
        if dispatch.event == webhook.QUEUE_READY:
            body = await self._available(tenant, dispatch, now)
            outcome = partial(webhook.outcome, dispatch.attempts, chance=random())
        else:
            body = await self._result(tenant, dispatch, job)
            outcome = partial(codeq.result_outcome, dispatch.attempts)
        content = msgspec.json.encode(body)
        headers = codeq.headers(self._codeq_secret or dispatch.secrets[0], int(now), content)
        if job is not None and job.traceparent is not None:
            headers["traceparent"] = job.traceparent
        return Message(headers, content, outcome)

    async def _available(self, tenant: str, dispatch: Dispatch, now: float) -> dict[str, Any]:
        """A hint that there is work; how much there is, and when that was, are of this try."""
        stats = await self._store.stats(tenant, dispatch.type)
        return {
            "eventType": dispatch.type,
            "available": True,
            "queueDepth": stats[0].ready if stats else 0,
            "claimUrl": codeq.CLAIM_PATH,
            "sentAt": wire.when(int(now * SECOND)),
            "notificationId": f"ntf-{dispatch.id}",
        }

    async def _result(self, tenant: str, dispatch: Dispatch, job: Job | None) -> dict[str, Any]:
        """The end of a task; of one that was pruned meanwhile only that and how it ended is left to tell."""
        if job is None:
            end = codeq.Record(codeq.status_of(Status(dispatch.status)), None, None, [])
        else:
            found = await self._store.artifacts(tenant, job.id, before=None, limit=codeq.MOST_ARTIFACTS)
            end = codeq.record(job, found)
        return {
            "taskId": dispatch.job_id,
            "eventType": dispatch.type,
            "status": end.status,
            "result": None if end.result is None else msgspec.Raw(end.result.encode()),
            "error": end.error or "",
            "artifacts": list(end.artifacts),
            "completedAt": wire.when(dispatch.at),
        }
