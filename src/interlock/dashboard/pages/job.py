"""One job: its timeline, values, artifacts and actions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from interlock import wire
from interlock.dashboard.http import PageRequest, PageResponse, Pages, View, download, redirect, show
from interlock.dashboard.json_tree import tree
from interlock.dashboard.latest_events import MAX_PAGE_SIZE, latest_events, latest_progress
from interlock.domain import json_text
from interlock.domain.approval import Approval, ApprovalFilter
from interlock.domain.job import Filter, HistoryRow, Job
from interlock.domain.lifecycle import CLAIMABLE, TERMINAL, Status, Verb
from interlock.domain.operations import CHECKPOINT, START
from interlock.domain.progress import EventRow, StepRow
from interlock.domain.retry import SECOND
from interlock.domain.usage import USAGE, summed
from interlock.errors import Forbidden, Invalid, NotFound

pages = Pages()

VALUES: Final = ("error", "result", "payload", "checkpoint", "usage", "headers")
MAX_CHILDREN: Final = 50
_ORDER: Final = {"history": 0, "step": 1, "event": 2, "approval": 3}


class TimelineEntry(NamedTuple):
    """One entry of the timeline; `row` is the record behind it."""

    at: int
    kind: str
    row: HistoryRow | StepRow | EventRow | Approval
    details: Any = None


@pages.get("/jobs/{job_id}")
async def job(request: PageRequest) -> View | PageResponse:
    """Show a job."""
    id, client = wire.job_id(request.path["job_id"]), request.client
    found = await client.jobs.get(id)
    after = request.query.integer("events_after") or 0
    why, children = await asyncio.gather(
        client.jobs.why(id), client.jobs.list(Filter(parent_id=id, limit=MAX_CHILDREN))
    )
    history, steps, events, approvals, artifacts = await asyncio.gather(
        client.jobs.history(id),
        client.jobs.steps(id, limit=MAX_PAGE_SIZE),
        client.jobs.events(id, after=max(after, 0)),
        client.approvals.list(ApprovalFilter(job_id=id, limit=MAX_PAGE_SIZE)),
        client.artifacts.list(id, limit=MAX_PAGE_SIZE),
    )
    log = await latest_events(client.jobs, id, events if not after else await client.jobs.events(id))
    values = [(name, tree(_text(name, found, steps))) for name in VALUES]
    return show(
        "job.html",
        job=found,
        location=found.location(request.now),
        why=why,
        log=log,
        progress=None if found.status in TERMINAL else latest_progress(log),
        timeline=_timeline(history, steps, events, approvals),
        durations=_run_durations(history),
        later_events=events[-1].seq if len(events) == MAX_PAGE_SIZE else None,
        values=[(name, value) for name, value in values if value is not None],
        artifacts=artifacts,
        children=children,
        steps=list(dict.fromkeys(step.name for step in steps if step.name != USAGE)),
        pending_approval=next((one for one in approvals if one.id == found.approval_id), None),
        can=_actions(request, found),
    )


@pages.get("/jobs/{job_id}/values/{name}")
async def value(request: PageRequest) -> View | PageResponse:
    """Download one value as its exact stored text."""
    found = await request.client.jobs.get(wire.job_id(request.path["job_id"]))
    name = request.path["name"]
    steps = await request.client.jobs.steps(found.id, limit=MAX_PAGE_SIZE) if name == "usage" else ()
    json_text = _text(name, found, steps) if name in VALUES else None
    if json_text is None:
        raise NotFound(name, resource="value")
    return download(f"{found.id}-{name}.json", body=json_text.encode())


@pages.get("/jobs/{job_id}/artifacts/{artifact_id}")
async def artifact(request: PageRequest) -> View | PageResponse:
    """Download an artifact."""
    got = await request.client.artifacts.read(request.path["job_id"], request.path["artifact_id"])
    return download(got.artifact.name, stream=got.chunks)


@pages.post("/jobs/{job_id}/cancel", roles=["operate", "produce"], form_page=job)
async def cancel(request: PageRequest) -> View | PageResponse:
    """Cancel a job, and with `cascade` its descendants; a producer may cancel only its own jobs."""
    found = await request.client.jobs.get(wire.job_id(request.path["job_id"]))
    form = request.form
    cascade, force, reason = form.one("cascade") is not None, form.one("force") is not None, form.one("reason")
    if not _actions(request, found)["cancel"] and found.status not in TERMINAL:
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


@pages.post("/jobs/{job_id}/redrive", roles=["operate"], form_page=job)
async def redrive(request: PageRequest) -> View | PageResponse:
    """Redrive a job; submitting the same form twice creates one job, by its idempotency key."""
    made = await request.client.jobs.redrive(
        request.path["job_id"],
        start_from=request.form.one("from") or START,
        idempotency_key=request.form.one("key"),
    )
    return redirect(f"/jobs/{made.id}", notice="redriven")


@pages.post("/jobs/{job_id}/priority", roles=["operate"], form_page=job)
async def priority(request: PageRequest) -> View | PageResponse:
    """Change the priority of a waiting job."""
    id = wire.job_id(request.path["job_id"])
    if (wanted := request.form.integer("priority")) is None:
        raise Invalid("required: enter a whole number", pointer="/priority")
    await request.client.jobs.edit(id, priority=wanted)
    return redirect(f"/jobs/{id}", notice="edited")


def _text(name: str, job: Job, steps: Iterable[StepRow]) -> str | None:
    """Return a stored value; usage of a job without a result is summed from its steps."""
    value: str | None = getattr(job, name)
    if name == "usage" and value is None and (used := summed(job.id, steps, has_ended=True)):
        return json.dumps(used)
    return value


def _actions(request: PageRequest, job: Job) -> dict[str, Any]:
    """Return the actions that this caller may take on this job now."""
    operates = request.who.may("operate")
    is_creator = request.who.may("produce") and job.created_by == request.who.actor
    live = job.status not in TERMINAL
    return {
        "cancel": live and (operates or is_creator),
        "cascade": operates,
        "revoke": operates and job.status is Status.RUNNING,
        "redrive": operates and not live,
        "edit": operates and job.status in CLAIMABLE,
        "origins": [START, *([CHECKPOINT] if job.checkpoint is not None else [])],
        "redrive_key": wire.new_id(),
    }


def _timeline(
    history: Sequence[HistoryRow], steps: Iterable[StepRow], events: Iterable[EventRow], approvals: Iterable[Approval]
) -> list[TimelineEntry]:
    """Return all records of a job, oldest first; an approval is listed when it was requested."""
    entries = [
        *(
            TimelineEntry(row.at, "history", row, _details(row))
            for row in history
            if row.verb is not Verb.REQUEST_APPROVAL
        ),
        *(TimelineEntry(step.at, "step", step, tree(step.result)) for step in steps),
        *(TimelineEntry(event.at, "event", event, tree(event.payload)) for event in events),
        *(TimelineEntry(one.opened_at, "approval", one) for one in approvals),
    ]
    return sorted(entries, key=lambda entry: (entry.at, _ORDER[entry.kind]))


def _run_durations(history: Sequence[HistoryRow]) -> dict[int, float]:
    """Return the seconds that each run took, by the version of the history row that ended it."""
    durations, started = {}, 0
    for row in history:
        if row.to_status is Status.RUNNING and row.from_status is not Status.RUNNING:
            started = row.at
        elif row.from_status is Status.RUNNING and row.to_status is not Status.RUNNING:
            durations[row.version] = (row.at - started) / SECOND
    return durations


def _details(row: HistoryRow) -> dict[str, Any]:
    """Return the short metadata of a history row; of an error its message and kind."""
    metadata = json_text.loads(row.metadata) if row.metadata else {}
    if not isinstance(metadata, dict):
        return {}
    error = metadata.pop("error", None)
    found = {
        name: value
        for name, value in metadata.items()
        if isinstance(value, (str, int, float)) and name != "approval_id"
    }
    if isinstance(error, dict):
        found |= {name: error[name] for name in ("message", "kind") if error.get(name)}
    return found
