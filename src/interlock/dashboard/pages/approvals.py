"""The list of approvals, and one approval with everything that its digest covers."""

from __future__ import annotations

from typing import Any, Final

from interlock import wire
from interlock.dashboard import forms, markdown
from interlock.dashboard.edits import edits
from interlock.dashboard.http import Fields, PageRequest, PageResponse, Pages, View, one_of, redirect, show
from interlock.dashboard.json_tree import tree
from interlock.dashboard.navigation import APPROVAL_ROLES
from interlock.dashboard.pages.overview import known_jobs
from interlock.domain.approval import Approval, ApprovalFilter, ApprovalStatus, Decision
from interlock.domain.job import Job
from interlock.errors import Conflict, Error, FreshSignInRequired, Gone, Invalid, NotFound, TooLarge

pages = Pages()

PAGE_SIZE: Final = 50
ALL: Final = "all"
MAX_DETAILS_LENGTH: Final = 4_000  # longer details are only on the approval's own page


@pages.get("/approvals", roles=APPROVAL_ROLES)
async def approvals(request: PageRequest) -> View | PageResponse:
    """List approvals, by default the pending ones."""
    wanted = request.query.one("status") or ApprovalStatus.OPEN
    status = None if wanted == ALL else one_of(ApprovalStatus, wanted, "status")
    urgent = status is ApprovalStatus.OPEN
    position = _position(request.query.one("before"))
    filter = ApprovalFilter(status=status, before=position, limit=PAGE_SIZE + 1, urgent=urgent)
    found = await request.client.approvals.list(filter)
    listed, paging = request.query.page(found, PAGE_SIZE, before=lambda one: "{}.{}".format(*filter.cursor_of(one)))
    return show(
        "approvals.html",
        approvals=listed,
        details={one.id: tree(one.details) for one in listed if len(one.details or "") <= MAX_DETAILS_LENGTH},
        jobs=await known_jobs(request, [one.job_id for one in listed]),
        wanted=wanted,
        choices=[*ApprovalStatus, ALL],
        paging=paging,
    )


@pages.get("/approvals/{approval_id}", roles=APPROVAL_ROLES)
async def approval(request: PageRequest) -> View | PageResponse:
    """Show an approval; opening it decides nothing."""
    return await _view(request, await request.client.approvals.get(request.path["approval_id"]))


@pages.post("/approvals/{approval_id}/decide", roles=["approve"])
async def decide(request: PageRequest) -> View | PageResponse:
    """Vote on exactly what was displayed, then return to the list.

    The next approval is never opened from here: its buttons would be where the last ones were, and a second click
    would decide it unseen.
    """
    found = await request.client.approvals.get(request.path["approval_id"])
    decision = decision_from(request)
    try:
        data = forms.data(found.schema, request.form, found.details) if decision is Decision.APPROVE else None
        comment, digest = request.form.one("comment"), request.form.one("digest")
        after = await request.client.approvals.decide(found.id, decision, comment=comment, data=data, digest=digest)
    except (Invalid, TooLarge, Conflict, Gone, FreshSignInRequired) as error:
        return await _view(request, await request.client.approvals.get(found.id), rejected=error)
    return redirect("/approvals", notice="voted" if after.status is ApprovalStatus.OPEN else str(after.status))


@pages.post("/approvals/{approval_id}/link", roles=["approve"])
async def create_link(request: PageRequest) -> View | PageResponse:
    """Create a link for an approver without a token; it is displayed only in this response."""
    created = await request.client.approvals.create_link(request.path["approval_id"])
    return await _view(request, created.approval, link=created.token)


async def _view(
    request: PageRequest, found: Approval, *, link: str | None = None, rejected: Error | None = None
) -> View:
    job = await request.client.jobs.get(found.job_id)
    pending = [one.id for one in await _pending(request)]
    at = pending.index(found.id) if found.id in pending else None
    return show(
        "approval.html",
        status=200 if rejected is None else rejected.status,
        **approval_context(found, job, request.form, rejected),
        data=tree(found.data),
        edits=edits(found.details, found.data, forms.names(found.schema)),
        link=link,
        must_sign_in=await request.client.engine.approvals.needs_sign_in(request.who, found),
        has_link=not request.client.engine.approvals.steps_up(found),
        before=pending[at - 1] if at else None,
        after=next(iter(pending[0 if at is None else at + 1 :]), None),
        pending=len(pending),
        has_more_pending=len(pending) >= PAGE_SIZE,
    )


def approval_context(found: Approval, job: Job, form: Fields, rejected: Error | None) -> dict[str, Any]:
    """Return what an approver sees; a rejected form keeps its submitted values and has errors beside its fields."""
    inputs = forms.inputs(found.schema, found.details)
    by_pointer: dict[str, str] = {}
    others: list[str] = [] if rejected is None else [str(rejected)]
    if isinstance(rejected, TooLarge) and rejected.what == "comment":
        by_pointer, others = {"/comment": str(rejected)}, []
    elif isinstance(rejected, Invalid):
        by_pointer, others = forms.errors_by_pointer(inputs, rejected)
    return {
        "approval": found,
        "asked": markdown.request(found.prompt),
        "note": markdown.note(found.details),
        "job": job,
        "details": tree(found.details),
        "payload": tree(job.payload),
        "inputs": inputs if rejected is None else forms.with_submitted(inputs, form, by_pointer),
        "comment": form.one("comment") if rejected is not None else None,
        "comment_error": by_pointer.get("/comment", ""),
        "field_errors": len(by_pointer),
        "errors": others,
    }


async def _pending(request: PageRequest) -> list[Approval]:
    """Return the pending approvals without a vote of this caller, the most urgent first."""
    filter = ApprovalFilter(status=ApprovalStatus.OPEN, limit=PAGE_SIZE, urgent=True)
    found = await request.client.approvals.list(filter)
    return [one for one in found if not any(vote.voter == request.who.actor for vote in one.votes)]


def decision_from(request: PageRequest) -> Decision:
    try:
        return Decision(request.form.one("decision") or "")
    except ValueError:
        raise Invalid("unknown decision: expected approve or deny", pointer="/decision") from None


def _position(text: str | None) -> tuple[int, str] | None:
    at, dot, id = (text or "").partition(".")
    if text is None:
        return None
    if not dot or not at.isdecimal() or len(at) > 18:
        raise Invalid("no such page of the list", pointer="/before")
    try:
        return int(at), wire.job_id(id)
    except NotFound:
        raise Invalid("no such page of the list", pointer="/before") from None
