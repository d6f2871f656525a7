"""The page of an approval link: the token is in the URL fragment or pasted, and is only ever sent in bodies."""

from __future__ import annotations

from interlock.dashboard import forms
from interlock.dashboard.http import PageRequest, PageResponse, Pages, View, redirect, show
from interlock.dashboard.pages.approvals import approval_context, decision_from
from interlock.domain.approval import Approval, Decision
from interlock.errors import Conflict, Error, Gone, Invalid, TooLarge

pages = Pages()


@pages.get("/approve", open=True)
async def enter_token(request: PageRequest) -> View | PageResponse:
    """Ask for the token; a script takes it from the URL fragment, without scripts it is pasted."""
    return show("link.html", approval=None, decided=False)


@pages.get("/approve/decided", open=True)
async def decided(request: PageRequest) -> View | PageResponse:
    """Confirm a decision without asking for the token again."""
    return show("link.html", approval=None, decided=True)


@pages.post("/approve", roles=(), open=True, checks_secret=True)
async def approval(request: PageRequest) -> View | PageResponse:
    """Show the approval of a link; this decides nothing."""
    token = request.form.one("token") or ""
    return await _view(request, token, await request.client.approvals.of_token(token))


@pages.post("/approve/decide", roles=(), open=True, checks_secret=True)
async def decide(request: PageRequest) -> View | PageResponse:
    """Decide as the bearer of the link."""
    token, decision = request.form.one("token") or "", decision_from(request)
    found = await request.client.approvals.of_token(token)
    who = request.who if request.who.actor else None
    try:
        data = forms.data(found.schema, request.form, found.details) if decision is Decision.APPROVE else None
        comment, digest = request.form.one("comment"), request.form.one("digest")
        after = await request.client.approvals.decide_by_token(
            token, decision, comment=comment, data=data, digest=digest, who=who
        )
    except (Invalid, TooLarge, Conflict, Gone) as error:
        return await _view(request, token, await request.client.approvals.of_token(token), rejected=error)
    return redirect("/approve/decided", notice=str(after.status))


async def _view(request: PageRequest, token: str, found: Approval, *, rejected: Error | None = None) -> View:
    job = await request.client.approvals.job_of(found)
    status = 200 if rejected is None else rejected.status
    context = approval_context(found, job, request.form, rejected)
    return show("link.html", status=status, **context, token=token, decided=False)
