"""Cancel, redrive or acknowledge many jobs: a confirmation with their number, then the action on exactly those."""

from __future__ import annotations

from dataclasses import replace

from interlock.dashboard.http import TRANSIENT, Fields, PageRequest, PageResponse, Pages, View, redirect, show
from interlock.dashboard.pages.jobs import filter_from, filter_labels, list_jobs
from interlock.domain.operations import Action
from interlock.errors import Invalid

pages = Pages()


@pages.get("/jobs/bulk", roles=["operate"])
async def confirm(request: PageRequest) -> View | PageResponse:
    """Show how many jobs match; this changes nothing."""
    query, bulk = request.query, request.client.jobs.bulk
    action, everything, ids = _action(query), query.one("scope") == "filter", query.all("id")
    if not everything and not ids:
        return await list_jobs(replace(request, query=_list_query(query)), nothing_selected=True)
    if everything:
        found = await bulk(action, filter=filter_from(query), dry_run=True)
    else:
        found = await bulk(action, ids=ids, dry_run=True)
    return show(
        "bulk.html",
        action=action,
        found=found,
        everything=everything,
        filter=_list_query(query).encoded(),
        labels=filter_labels(query),
        here_query=query.here,
    )


@pages.post("/jobs/bulk", roles=["operate"], form_page=confirm)
async def apply(request: PageRequest) -> View | PageResponse:
    """Act on exactly the confirmed jobs, then return to the list.

    If more jobs match the filter, they need a new confirmation: a second click must not act on the next ones.
    """
    form = request.form
    action, filter = _action(form), form.one("filter")
    done = await request.client.jobs.bulk(action, ids=form.all("id"), reason=form.one("reason"))
    notice = f"{action}_more" if form.one("more") else str(action)
    return redirect(f"/jobs?{Fields(filter).encoded()}" if filter else "/jobs", notice=notice, n=done.done)


def _list_query(query: Fields) -> Fields:
    return Fields(query.encoded(without=("action", "id", "scope", "form_token", *TRANSIENT)))


def _action(fields: Fields) -> Action:
    try:
        return Action(fields.one("action") or "")
    except ValueError:
        raise Invalid(f"unknown action: expected one of {', '.join(Action)}", pointer="/action") from None
