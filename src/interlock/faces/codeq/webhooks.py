"""Webhooks in the format of codeQ: results of tasks, and notifications of ready tasks to those who subscribed."""

from __future__ import annotations

from functools import partial
from random import random
from typing import Any, Final

import msgspec

from interlock import wire
from interlock.api.adapters import Lenient
from interlock.api.routes import Nothing, RequestContext, Response, RouteTable, respond
from interlock.domain import webhook
from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ANY
from interlock.domain.retry import SECOND
from interlock.domain.webhook import QUEUE_READY, Dispatch, Mode, Subscription
from interlock.engine.webhook_messages import Message, Reads
from interlock.engine.webhooks import MAX_INTERVAL_SECONDS, MAX_LIFE_SECONDS
from interlock.errors import Invalid, NotFound
from interlock.faces.codeq import commands, model
from interlock.faces.codeq.model import BASE, NAME, reject
from interlock.wire import SubscriptionRequest

routes = RouteTable()

LIFE_SECONDS: Final = 300
MIN_INTERVAL_SECONDS: Final = 5
FANOUT: Final = "fanout"
MODES: Final = {FANOUT: Mode.BROADCAST, "group": Mode.GROUP, "hash": Mode.GROUP}
GROUP: Final = "codeq:"  # separates codeQ's groups from those of native subscriptions


class SubscribeRequest(Lenient, frozen=True, kw_only=True):
    """A webhook endpoint, its commands, its delivery mode and its minimum interval."""

    callback_url: str
    event_types: list[str] | None = None
    ttl_seconds: int | None = None
    delivery_mode: str | None = None
    group_id: str | None = None
    min_interval_seconds: int | None = None


class RenewRequest(Lenient, frozen=True, kw_only=True):
    """A subscription extension."""

    ttl_seconds: int | None = None


@routes.add("POST", f"{BASE}/workers/subscriptions", roles=["work"], body=SubscribeRequest, answers={200: None})
async def subscribe(call: RequestContext[SubscribeRequest, Nothing]) -> Response:
    """Create a subscription; the same request again extends it."""
    body = call.body
    mode = body.delivery_mode or FANOUT
    if mode not in MODES:
        raise reject(400, "invalid deliveryMode")
    if mode == "group" and not body.group_id:
        raise reject(400, "groupId is required")
    interval = MIN_INTERVAL_SECONDS if body.min_interval_seconds is None else max(body.min_interval_seconds, 0)
    request = SubscriptionRequest(
        url=body.callback_url,
        events=[QUEUE_READY],
        types=await _types(call, body.event_types),
        mode=MODES[mode],
        group_id=None if mode == FANOUT else GROUP + (body.group_id or mode),
        min_interval_seconds=min(interval, MAX_INTERVAL_SECONDS),
        expires_in_seconds=_life(body.ttl_seconds),
    )
    try:
        made = await call.engine.webhooks.call_for_work(call.who, request, NAME)
    except Invalid as error:
        raise reject(400, "invalid callback url" if error.pointer == "/url" else str(error)) from None
    return respond(_body(made))


@routes.add(
    "POST", f"{BASE}/workers/subscriptions/{{id}}/heartbeat", roles=["work"], body=RenewRequest, body_optional=True,
    answers={200: None},
)  # fmt: skip
async def renew_subscription(call: RequestContext[RenewRequest, Nothing]) -> Response:
    """Extend a subscription that has not expired."""
    seconds = _life(call.body.ttl_seconds)
    try:
        found = await call.engine.webhooks.keep_calling(call.who, call.path["id"], NAME, seconds=seconds)
    except NotFound:
        raise reject(404, "not-found") from None
    return respond(_body(found))


async def _types(call: RequestContext[Any, Any], asked: list[str] | None) -> list[str] | None:
    """The types to notify of: those of the request, which the credential must allow, or all that it allows.

    The types that differ from them only in case are looked up once: later ones need a new subscription.
    """
    if asked and ANY not in asked:
        commands.check_commands(call, asked)
    else:
        allowed = None if call.who.policy is None else call.who.policy.types
        if allowed is None:
            return None
        asked = sorted(allowed)
    await commands.refresh(call)
    return sorted(set().union(*commands.spellings(call, asked)))


def _life(seconds: int | None) -> float:
    asked = seconds if seconds is not None and seconds > 0 else LIFE_SECONDS
    return float(min(asked, MAX_LIFE_SECONDS))


def _body(subscription: Subscription) -> dict[str, str]:
    assert subscription.expires_at is not None
    return {"subscriptionId": subscription.id, "expiresAt": wire.when(subscription.expires_at)}


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
    stats = await store.registry.stats(tenant, dispatch.type)
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
        found = await store.artifacts.page(tenant, job.id, before=None, limit=model.MAX_ARTIFACTS)
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
