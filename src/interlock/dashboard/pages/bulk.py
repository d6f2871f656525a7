"""Cancel or redrive many jobs: first a page that says how many, then the deed."""

from __future__ import annotations

from interlock.dashboard.pages.jobs import filter_of, said_of
from interlock.dashboard.web import PASSING, Ask, Fields, Pages, Reply, View, go, show
from interlock.domain.operations import Action
from interlock.engine.operations import Bulk
from interlock.errors import Invalid

pages = Pages()


@pages.get("/jobs/bulk", roles=["operate"])
async def confirm(ask: Ask) -> View | Reply:
    """Say how many jobs it would be; nothing is changed by looking."""
    query = ask.query
    found = await _act(ask, query, dry_run=True)
    return show(
        "bulk.html",
        action=_action(query),
        found=found,
        ids=query.all("id"),
        everything=query.one("scope") == "filter",
        filter=query.encoded(without=("action", "id", "scope", "form_token", *PASSING)),
        fitting=said_of(query),
    )


@pages.post("/jobs/bulk", roles=["operate"])
async def carry_out(ask: Ask) -> View | Reply:
    """Do what was confirmed, to as many as one call may take."""
    done = await _act(ask, ask.form, dry_run=False)
    back = ask.form.one("filter")
    if done.more and done.done and ask.form.one("scope") == "filter":
        rest = Fields(back or "").encoded(action=_action(ask.form), scope="filter")
        return go(f"/jobs/bulk?{rest}", said="bulk_more", n=done.done)
    return go(f"/jobs?{Fields(back).encoded()}" if back else "/jobs", said="bulk", n=done.done)


async def _act(ask: Ask, wish: Fields, *, dry_run: bool) -> Bulk:
    action = _action(wish)
    bulk = ask.engine.operations.bulk
    if wish.one("scope") == "filter":
        # A confirmed form carries the filter as one field, the question as many.
        filter = filter_of(wish if dry_run else Fields(wish.one("filter") or ""))
        return await bulk(ask.who, action, filter=filter, dry_run=dry_run, reason=wish.one("reason"))
    ids = wish.all("id")
    if not ids:
        raise Invalid("no job was chosen: mark some in the list, or take all that fit the filter")
    return await bulk(ask.who, action, ids=ids, dry_run=dry_run, reason=wish.one("reason"))


def _action(wish: Fields) -> Action:
    try:
        return Action(wish.one("action") or "")
    except ValueError:
        raise Invalid("cancel or redrive", pointer="/action") from None
