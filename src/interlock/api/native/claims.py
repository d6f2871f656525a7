"""Claims: lease jobs, with long polling."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from interlock import wire
from interlock.api import auth
from interlock.api.long_poll import claim_with_wait
from interlock.api.routes import Nothing, Request, RequestContext, Response, RouteTable, respond
from interlock.domain import policy
from interlock.domain.approval import Approval
from interlock.domain.job import Job
from interlock.domain.policy import ClaimFilter
from interlock.domain.progress import StepRow
from interlock.wire import responses
from interlock.wire.encode import decision_to_dict, step_to_dict
from interlock.wire.job import job_fields

routes = RouteTable()


class ClaimRequest(Request, frozen=True, kw_only=True):
    """What a worker accepts; absent types mean any, absent capabilities all that the credential has.

    Without `lease_seconds` the lease is that of the job's agent, else of its type, else 60 s.
    """

    types: list[str] | None = None
    worker: str | None = None
    capabilities: list[str] | None = None
    affinity_keys: list[str] | None = None
    limit: Annotated[int, Meta(ge=1, le=wire.LIMITS.claim)] = 1
    lease_seconds: Annotated[float, Meta(ge=1, le=wire.LIMITS.lease_seconds)] | None = None
    wait_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0
    claim_id: str | None = None


@routes.add("POST", "/v1/claims", roles=["work"], body=ClaimRequest, answers={200: responses.Claimed})
async def claim(call: RequestContext[ClaimRequest, Nothing]) -> Response:
    """Lease jobs, the best first; with `wait_seconds`, wait for the first. The same `claim_id` again gets the same."""
    ask = _ask(call)
    if call.body.wait_seconds:
        jobs = await claim_with_wait(call, ask, call.body.wait_seconds)
    else:
        jobs = await call.engine.leases.claim(call.who.tenant, ask)
    return respond({"jobs": await _leased(call, jobs)})


def _ask(call: RequestContext[ClaimRequest, Nothing]) -> ClaimFilter:
    body, who = call.body, call.who
    allowed = who.policy.capabilities if who.policy is not None else frozenset()
    keys = policy.any_or(body.affinity_keys, what="affinity_keys") if body.affinity_keys is not None else frozenset()
    ask = ClaimFilter(
        worker=auth.worker_name(who, body.worker),
        types=policy.any_or(body.types, what="types"),
        capabilities=allowed
        if body.capabilities is None
        else frozenset(policy.names(body.capabilities, what="capabilities")),
        affinity_keys=keys,
        limit=body.limit,
        lease_seconds=body.lease_seconds,
        claim_id=body.claim_id,
    )
    return who.narrowed(ask)


async def _leased(call: RequestContext[ClaimRequest, Nothing], jobs: list[Job]) -> list[Any]:
    """Add to each job what its worker needs from earlier runs; a first run needs nothing."""
    past = jobs if call.body.claim_id is not None else [job for job in jobs if not job.runs_first]
    steps: dict[str, list[StepRow]] = {}
    decided: dict[str, list[Approval]] = {}
    if past:
        ids = [job.id for job in past]
        steps = dict(zip(ids, await call.engine.progress.steps_of(call.who.tenant, ids), strict=True))
        decided = await call.engine.approvals.decisions(call.who.tenant, past)
    return [
        responses.ClaimedJob(
            *job_fields(job, now=0),
            [step_to_dict(row) for row in steps.get(job.id, ())],
            decision_to_dict(decided[job.id][-1]) if job.id in decided else None,
            [decision_to_dict(one) for one in decided.get(job.id, ())],
        )
        for job in jobs
    ]
