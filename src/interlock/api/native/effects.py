"""Effects of a job: the lease holder records the intent before a call, and the outcome after it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from interlock.api import auth
from interlock.api.native.encode import kept
from interlock.api.native.leases import LeaseRequest, as_holder
from interlock.api.native.pagination import Page, cursor_position, page
from interlock.api.routes import ABSENT, Nothing, RequestContext, Response, RouteTable, respond
from interlock.domain.effect import BeginEffect, Begun, Effect, EffectState, SettleEffect
from interlock.wire import responses
from interlock.wire.encode import effect_to_dict

routes = RouteTable()

Occurrence = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class BeginRequest(LeaseRequest, frozen=True, kw_only=True):
    """The intent to call a function; `key` is the idempotency key for the external system."""

    name: str
    occurrence: Occurrence
    key: str | None = None


class SettleRequest(LeaseRequest, frozen=True, kw_only=True):
    """The outcome of an effect: `done` with a result, or `not_done`."""

    name: str
    occurrence: Occurrence
    state: EffectState
    result: msgspec.Raw = ABSENT


@routes.add(
    "POST", "/v1/jobs/{job_id}/effects", roles=["work"], body=BeginRequest,
    answers={201: responses.Effect, 200: responses.Effect},
)  # fmt: skip
async def begin_effect(call: RequestContext[BeginRequest, Nothing]) -> Response:
    """Record that an effect begins. A known one is returned with its state, unless it is `not_done`."""
    body = call.body

    async def act(job_id: str, worker: str) -> Begun:
        order = BeginEffect(job_id, body.fence, worker, body.name, body.occurrence, body.key)
        return await call.engine.effects.begin(call.who.tenant, order)

    begun = await as_holder(call, body, act)
    return respond(effect_to_dict(begun.effect), 201 if begun.is_new else 200)


@routes.add(
    "PUT", "/v1/jobs/{job_id}/effects", roles=["work"], body=SettleRequest, sanitizes=True,
    answers={200: responses.Effect},
)  # fmt: skip
async def settle_effect(call: RequestContext[SettleRequest, Nothing]) -> Response:
    """Record the outcome of an effect. The same outcome again is accepted; an effect that is done never changes."""
    body = call.body

    async def act(job_id: str, worker: str) -> Effect:
        order = SettleEffect(
            job_id, body.fence, worker, body.name, body.occurrence, body.state, kept(body.result), call.sanitized
        )
        return await call.engine.effects.settle(call.who.tenant, order)

    return respond(effect_to_dict(await as_holder(call, body, act)))


@routes.add(
    "GET", "/v1/jobs/{job_id}/effects", roles=["read"], on_condition=["work"], query=Page,
    answers={200: responses.EffectPage},
)  # fmt: skip
async def list_effects(call: RequestContext[None, Page]) -> Response:
    """List the effects of a job, in the order in which they first began."""
    job = await auth.readable(call)
    scope = f"effects {job.id}"
    at = cursor_position(call, scope)
    after = 0 if at is None else int(at[0])
    found = await call.engine.effects.of_job(call.who.tenant, job.id, after=after, limit=call.query.limit)
    return page(
        call, scope, [effect_to_dict(one) for one in found], more=len(found) == call.query.limit,
        end=[found[-1].seq if found else after],
    )  # fmt: skip
