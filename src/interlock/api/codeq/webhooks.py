"""Webhooks in the format of codeQ: results of tasks, and notifications of ready tasks."""

from __future__ import annotations

from functools import partial
from random import random
from typing import Any

import msgspec

from interlock import wire
from interlock.api.codeq import model
from interlock.domain import webhook
from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from interlock.domain.retry import SECOND
from interlock.domain.webhook import Dispatch
from interlock.engine.webhook_messages import Message, Reads


class CodeqFormat:
    """Messages signed by one secret for all receivers, else by that of the receiver."""

    def __init__(self, secret: str | None = None) -> None:
        self._secret = secret

    async def message(self, store: Reads, tenant: str, dispatch: Dispatch, now: float) -> Message:
        (job,) = await store.get(tenant, [dispatch.job_id])
        if dispatch.event == webhook.QUEUE_READY:
            body = await _available(store, tenant, dispatch, now)
            outcome = partial(webhook.outcome, dispatch.attempts, chance=random())
        else:
            body = await _result(store, tenant, dispatch, job)
            outcome = partial(model.result_outcome, dispatch.attempts)
        content = msgspec.json.encode(body)
        headers = model.headers(self._secret or dispatch.secrets[0], int(now), content)
        if job is not None and job.traceparent is not None:
            headers["traceparent"] = job.traceparent
        return Message(headers, content, outcome)


async def _available(store: Reads, tenant: str, dispatch: Dispatch, now: float) -> dict[str, Any]:
    """A notification of ready tasks; their number and the time are of this attempt."""
    stats = await store.stats(tenant, dispatch.type)
    return {
        "eventType": dispatch.type,
        "available": True,
        "queueDepth": stats[0].ready if stats else 0,
        "claimUrl": model.CLAIM_PATH,
        "sentAt": wire.when(int(now * SECOND)),
        "notificationId": f"ntf-{dispatch.id}",
    }


async def _result(store: Reads, tenant: str, dispatch: Dispatch, job: Job | None) -> dict[str, Any]:
    """The outcome of a task; of a pruned one only the status is left."""
    if job is None:
        end = model.Record(model.status_of(Status(dispatch.status)), None, None, [])
    else:
        found = await store.artifacts(tenant, job.id, before=None, limit=model.MAX_ARTIFACTS)
        end = model.record(job, found)
    return {
        "taskId": dispatch.job_id,
        "eventType": dispatch.type,
        "status": end.status,
        "result": None if end.result is None else msgspec.Raw(end.result.encode()),
        "error": end.error or "",
        "artifacts": list(end.artifacts),
        "completedAt": wire.when(dispatch.at),
    }
