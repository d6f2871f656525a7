"""The actions on one job."""

from __future__ import annotations

from datetime import timedelta

from interlock import wire
from interlock.client.port import Changes
from interlock.dashboard.forms import checked_json, newlines
from interlock.dashboard.http import Fields, PageRequest, PageResponse, Pages, View, redirect
from interlock.dashboard.pages.budgets import added
from interlock.dashboard.pages.job import actions, job
from interlock.domain.lifecycle import TERMINAL
from interlock.domain.operations import START
from interlock.domain.timestamps import EPOCH
from interlock.errors import Forbidden, Invalid

pages = Pages()


@pages.post("/jobs/{job_id}/cancel", roles=["operate", "produce"], form_page=job)
async def cancel(request: PageRequest) -> View | PageResponse:
    """Cancel a job, and with `cascade` its descendants; a producer may cancel only its own jobs."""
    found = await request.client.jobs.get(wire.job_id(request.path["job_id"]))
    form = request.form
    cascade, force, reason = form.one("cascade") is not None, form.one("force") is not None, form.one("reason")
    if not actions(request, found)["cancel"] and found.status not in TERMINAL:
        raise Forbidden("missing role: operate is required")
    if cascade:
        request.who.need("operate")
        await request.client.jobs.cancel_tree(found.id, reason=reason, force=force)
    else:
        await request.client.jobs.cancel(found.id, reason=reason, force=force)
    return redirect(f"/jobs/{found.id}", notice="cancelled")


@pages.post("/jobs/{job_id}/revoke", roles=["operate"], form_page=job, field_names={"reason": "revoke_reason"})
async def revoke(request: PageRequest) -> View | PageResponse:
    """Revoke the lease of a job."""
    id = wire.job_id(request.path["job_id"])
    await request.client.jobs.revoke(id, reason=request.form.one("revoke_reason"))
    return redirect(f"/jobs/{id}", notice="revoked")


@pages.post("/jobs/{job_id}/redrive", roles=["operate"], form_page=job, field_names={"overrides": "payload"})
async def redrive(request: PageRequest) -> View | PageResponse:
    """Redrive a job, with what was edited; submitting the same form twice creates one job, by its idempotency key."""
    form = request.form
    found = await request.client.jobs.get(wire.job_id(request.path["job_id"]))
    changes = Changes()
    sent = form.raw("payload")
    if sent is not None and newlines(sent) != newlines(found.payload or ""):
        changes["payload"] = json_field(form, "payload").encode()
    if (wanted := form.integer("priority")) is not None and wanted != found.priority:
        changes["priority"] = wire.job_value("priority", wanted)
    made = await request.client.jobs.redrive(
        found.id, start_from=form.one("from") or START, idempotency_key=form.one("key"), **changes
    )
    return redirect(f"/jobs/{made.id}", notice="redriven")


@pages.post("/jobs/{job_id}/acknowledge", roles=["operate"], form_page=job)
async def acknowledge(request: PageRequest) -> View | PageResponse:
    """Acknowledge a failed or dead-letter job."""
    id = wire.job_id(request.path["job_id"])
    await request.client.jobs.acknowledge(id, comment=request.form.one("comment"))
    return redirect(f"/jobs/{id}", notice="acknowledged")


@pages.post("/jobs/{job_id}/budget/raise", roles=["operate"], form_page=job)
async def raise_budget(request: PageRequest) -> View | PageResponse:
    """Add to the budget of the tree that a job belongs to."""
    id = wire.job_id(request.path["job_id"])
    await request.client.jobs.raise_budget(id, added(request, await request.client.jobs.budget(id)))
    return redirect(f"/jobs/{id}", notice="budget_raised")


@pages.post("/jobs/{job_id}/run-now", roles=["operate"], form_page=job)
async def run_now(request: PageRequest) -> View | PageResponse:
    """Make a waiting job due now."""
    id = wire.job_id(request.path["job_id"])
    await request.client.jobs.run_now(id)
    return redirect(f"/jobs/{id}", notice="edited")


@pages.post("/jobs/{job_id}/priority", roles=["operate"], form_page=job)
async def priority(request: PageRequest) -> View | PageResponse:
    """Change the priority of a waiting job."""
    id = wire.job_id(request.path["job_id"])
    if (wanted := request.form.integer("priority")) is None:
        raise Invalid("required: enter a whole number", pointer="/priority")
    await request.client.jobs.edit(id, priority=wanted)
    return redirect(f"/jobs/{id}", notice="edited")


@pages.post("/jobs/{job_id}/postpone", roles=["operate"], form_page=job)
async def postpone(request: PageRequest) -> View | PageResponse:
    """Change the time at which a waiting job is due."""
    id = wire.job_id(request.path["job_id"])
    if (at := request.form.timestamp("run_at")) is None:
        raise Invalid("required: enter a time", pointer="/run_at")
    await request.client.jobs.edit(id, run_at=EPOCH + timedelta(microseconds=at))
    return redirect(f"/jobs/{id}", notice="edited")


@pages.post(
    "/jobs/{job_id}/messages", roles=["operate", "produce", "work"], form_page=job, field_names={"name": "message"}
)
async def send(request: PageRequest) -> View | PageResponse:
    """Send a message to a job; submitting the same form twice sends it once."""
    id, form = wire.job_id(request.path["job_id"]), request.form
    if not request.who.may("operate") and not await request.client.overview.may_send_to(id):
        raise Forbidden("missing role: operate is required")
    name = form.one("message")
    if name is None:
        raise Invalid("required: enter a name", pointer="/message")
    payload = None if form.one("payload") is None else json_field(form, "payload")
    await request.client.jobs.send(id, name, payload, id=form.one("message_id"))
    return redirect(f"/jobs/{id}", notice="sent")


@pages.post("/jobs/{job_id}/topics", roles=["produce"], form_page=job)
async def publish(request: PageRequest) -> View | PageResponse:
    """Send a message to the topic that a job waits for; submitting the same form twice sends it once."""
    id, form = wire.job_id(request.path["job_id"]), request.form
    payload = None if form.one("payload") is None else json_field(form, "payload")
    await request.client.jobs.publish(form.one("topic") or "", payload, id=form.one("message_id"))
    return redirect(f"/jobs/{id}", notice="sent")


def json_field(form: Fields, name: str) -> str:
    """Return the JSON text of a field."""
    try:
        return checked_json(form.raw(name) or "")
    except ValueError as error:
        raise Invalid(str(error), pointer=f"/{name}") from None
