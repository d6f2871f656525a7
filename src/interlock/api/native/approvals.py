"""Approvals: requested by jobs, decided by approvers. A GET never decides."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from interlock import wire
from interlock.api import auth
from interlock.api.native import encode
from interlock.api.native.leases import CheckpointPart, LeaseRequest, as_holder
from interlock.api.native.pagination import Page, cursor_position, page
from interlock.api.routes import ABSENT, Nothing, Request, RequestContext, Response, RouteTable, respond
from interlock.domain.approval import (
    DEFAULT_EXPIRY_SECONDS,
    Approval,
    ApprovalFilter,
    ApprovalKind,
    ApprovalStatus,
    Decision,
    OnDeny,
    RequestApproval,
)
from interlock.engine.approvals import RequestedApproval
from interlock.errors import Invalid, NotFound
from interlock.wire import responses
from interlock.wire.encode import approval_to_dict, receipt_to_dict

routes = RouteTable()


class OpenRequest(LeaseRequest, frozen=True, kw_only=True):
    """A request for an approval."""

    prompt: str
    details: msgspec.Raw = ABSENT
    risk: str | None = None
    schema: msgspec.Raw = ABSENT
    kind: ApprovalKind = ApprovalKind.APPROVAL
    required: Annotated[int, Meta(ge=1)] | None = None
    on_deny: OnDeny | None = None
    expires_in_seconds: float = DEFAULT_EXPIRY_SECONDS
    checkpoint: CheckpointPart | None = None
    name: str | None = None
    occurrence: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class DecideRequest(Request, frozen=True, kw_only=True):
    """A vote. With a digest, it is rejected if the request has changed."""

    decision: Decision
    comment: str | None = None
    data: msgspec.Raw = ABSENT
    digest: str | None = None


class DecideByToken(DecideRequest, frozen=True, kw_only=True):
    """A decision by the bearer of an approval link."""

    token: str


class ApprovalQuery(Page, frozen=True, kw_only=True):
    """Filter for a list of approvals."""

    status: ApprovalStatus | None = None
    job: str | None = None


class VoteShape(responses.Shape, frozen=True, kw_only=True):
    """The vote of one principal."""

    by: str
    decision: Decision
    comment: str | None
    at: datetime


class ApprovalShape(responses.Shape, frozen=True, kw_only=True):
    """An approval and its outcome."""

    id: str
    job_id: str
    status: ApprovalStatus
    prompt: str
    details: Any
    risk: str | None
    digest: str
    schema: Any
    required: int
    on_deny: OnDeny
    kind: ApprovalKind
    name: str | None
    occurrence: int
    votes: list[VoteShape]
    data: Any
    comment: str | None
    opened_by: str
    opened_at: datetime
    expires_at: datetime
    closed_by: str | None
    closed_at: datetime | None
    link_minted_by: str | None
    link_minted_at: datetime | None


class ApprovalPage(responses.Shape, frozen=True, kw_only=True):
    """Approvals, newest first."""

    items: list[ApprovalShape]
    next_cursor: str | None


class RequestedApprovalShape(responses.Shape, frozen=True, kw_only=True):
    """A new approval. With authentication off it contains an approval link token, shown only once."""

    approval: ApprovalShape
    receipt: responses.Receipt
    token: str | UnsetType = UNSET


class LinkShape(responses.Shape, frozen=True, kw_only=True):
    """An approval link token, shown only once."""

    token: str
    approval: ApprovalShape


@routes.add(
    "POST", "/v1/jobs/{job_id}/approvals", roles=["work"], body=OpenRequest, sanitizes=True,
    has_checkpoint=True, headers=["Interlock-Link"], answers={201: RequestedApprovalShape},
)  # fmt: skip
async def open_approval(call: RequestContext[OpenRequest, Nothing]) -> Response:
    """Request an approval. The job waits for the decision, and the lease ends."""

    async def act(job_id: str, worker: str) -> RequestedApproval:
        return await call.engine.approvals.open(call.who, _order(call, job_id, worker), link=call.headers.wants_link)

    opened = await as_holder(call, call.body, act)
    given: dict[str, Any] = {
        "approval": approval_to_dict(opened.approval),
        "receipt": receipt_to_dict(opened.receipt),
    }
    if opened.token is not None:
        given["token"] = opened.token
    return respond(given, 201)


@routes.add("GET", "/v1/approvals", roles=["read", "approve"], query=ApprovalQuery, answers={200: ApprovalPage})
async def list_approvals(call: RequestContext[None, ApprovalQuery]) -> Response:
    """List approvals, newest first."""
    at = cursor_position(call, "approvals")
    before = None if at is None else (int(at[0]), str(at[1]))
    job_id = None if call.query.job is None else wire.job_id(call.query.job, "job")
    filter = ApprovalFilter(status=call.query.status, job_id=job_id, before=before, limit=call.query.limit)
    found = await call.engine.approvals.list(call.who.tenant, filter)
    end: list[int | str] = [found[-1].opened_at, found[-1].id] if found else []
    return page(
        call,
        "approvals",
        [approval_to_dict(one) for one in found],
        more=len(found) == call.query.limit,
        end=end,
    )


@routes.add("GET", "/v1/approvals/{approval_id}", roles=["read", "approve"], answers={200: ApprovalShape})
async def get_approval(call: RequestContext[None, Nothing]) -> Response:
    """Return an approval."""
    return respond(approval_to_dict(await call.engine.approvals.get(call.who.tenant, call.path["approval_id"])))


@routes.add(
    "POST", "/v1/approvals/{approval_id}/token", roles=["approve"], body=Nothing, body_optional=True,
    answers={201: LinkShape},
)  # fmt: skip
async def create_link(call: RequestContext[Nothing, Nothing]) -> Response:
    """Create an approval link for an approver without a credential. It replaces the previous link."""
    minted = await call.engine.approvals.create_link(call.who, call.path["approval_id"])
    return respond({"token": minted.token, "approval": approval_to_dict(minted.approval)}, 201)


@routes.add(
    "POST", "/v1/approvals/{approval_id}/decide", roles=["approve"], body=DecideRequest, answers={200: ApprovalShape}
)  # fmt: skip
async def decide(call: RequestContext[DecideRequest, Nothing]) -> Response:
    """Vote on an approval. Repeating the same vote returns the same result."""
    body = call.body
    found = await call.engine.approvals.decide(
        call.who, call.path["approval_id"], body.decision, comment=body.comment, data=_json_text(body.data),
        digest=body.digest,
    )  # fmt: skip
    return respond(approval_to_dict(found))


@routes.add(
    "POST", "/v1/approvals/decide", needs_credential=False, body=DecideByToken, answers={200: ApprovalShape}
)  # fmt: skip
async def decide_by_link(call: RequestContext[DecideByToken, Nothing]) -> Response:
    """Decide an approval with its link token, without any other credential."""
    body = call.body
    who = None
    if call.headers.get("authorization") is not None:
        who = await auth.authenticate(call.service, call.headers)
    try:
        found: Approval = await call.engine.approvals.decide_by_token(
            body.token, body.decision, comment=body.comment, data=_json_text(body.data), digest=body.digest, who=who
        )
    except NotFound:
        # Throttle only invalid tokens: behind a proxy all callers share one address, and a valid token must not wait.
        call.service.wrong_links.take(call.peer)
        raise
    return respond(approval_to_dict(found))


def _order(call: RequestContext[OpenRequest, Nothing], job_id: str, worker: str) -> RequestApproval:
    body, part = call.body, call.body.checkpoint
    is_question = body.kind is ApprovalKind.QUESTION
    for member in ("required", "on_deny"):
        if is_question and getattr(body, member) is not None:
            raise Invalid(f"{member} is not valid for a question: it has one answer", pointer=f"/{member}")
    return RequestApproval(
        id=job_id,
        fence=body.fence,
        worker=worker,
        approval_id="",
        prompt=body.prompt,
        details=encode.kept(body.details),
        risk=body.risk,
        schema=_json_text(body.schema),
        required=body.required or 1,
        on_deny=OnDeny.RESUME if is_question else body.on_deny or OnDeny.FAIL,
        expires_in_seconds=body.expires_in_seconds,
        checkpoint=None if part is None else part.of(job_id, body.fence, worker, sanitized=call.sanitized),
        sanitized=call.sanitized,
        name=body.name,
        occurrence=body.occurrence,
        kind=body.kind,
    )


def _json_text(part: msgspec.Raw) -> str | None:
    """Return an optional JSON member as text; null counts as absent, as in every other optional field."""
    given = encode.kept(part)
    return None if given == "null" else given
