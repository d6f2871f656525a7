"""One job: its timeline, its values, its files, and what can be done about it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from interlock import wire
from interlock.dashboard.tail import reached, tail
from interlock.dashboard.values import tree
from interlock.dashboard.web import Ask, Pages, Reply, View, download, go, show
from interlock.domain import text
from interlock.domain.approval import Approval, GateFilter
from interlock.domain.job import Filter, HistoryRow, Job
from interlock.domain.lifecycle import CLAIMABLE, TERMINAL, Status, Verb
from interlock.domain.operations import CHECKPOINT, START
from interlock.domain.progress import EventRow, StepRow
from interlock.domain.retry import SECOND
from interlock.domain.usage import USAGE, summed
from interlock.engine.progress import LONGEST_PAGE
from interlock.errors import Forbidden, NotFound

pages = Pages()

VALUES: Final = ("error", "result", "payload", "checkpoint", "usage", "headers")
MOST_CHILDREN: Final = 50
_ORDER: Final = {"history": 0, "step": 1, "event": 2, "gate": 3}


class Moment(NamedTuple):
    """One entry of the timeline; `what` is the row it stands for."""

    at: int
    kind: str
    what: HistoryRow | StepRow | EventRow | Approval
    details: Any = None


@pages.get("/jobs/{job_id}")
async def job(ask: Ask) -> View | Reply:
    """Show a job."""
    id, tenant, engine = wire.job_id(ask.path["job_id"]), ask.tenant, ask.engine
    found = await engine.reads.job(tenant, id)
    after = ask.query.whole("events_after") or 0
    why, children = await asyncio.gather(
        engine.why.of(tenant, id), engine.reads.jobs(tenant, Filter(parent_id=id, limit=MOST_CHILDREN))
    )
    history, steps, events, gates, artifacts = await asyncio.gather(
        engine.reads.history(tenant, id),
        engine.progress.steps(tenant, id),
        engine.progress.events(tenant, id, after=max(after, 0)),
        engine.gates.list(tenant, GateFilter(job_id=id, limit=LONGEST_PAGE)),
        engine.artifacts.list(tenant, id, limit=LONGEST_PAGE),
    )
    log = await tail(engine.progress, tenant, id, events if not after else await engine.progress.events(tenant, id))
    values = [(name, tree(_text(name, found, steps))) for name in VALUES]
    return show(
        "job.html",
        job=found,
        location=found.location(ask.now),
        why=why,
        log=log,
        reached=None if found.status in TERMINAL else reached(log),
        timeline=_timeline(history, steps, events, gates),
        ran=_ran(history),
        later_events=events[-1].seq if len(events) == LONGEST_PAGE else None,
        values=[(name, value) for name, value in values if value is not None],
        artifacts=artifacts,
        children=children,
        steps=list(dict.fromkeys(step.name for step in steps if step.name != USAGE)),
        open_gate=next((gate for gate in gates if gate.id == found.gate_id), None),
        can=_can(ask, found),
    )


@pages.get("/jobs/{job_id}/values/{name}")
async def value(ask: Ask) -> View | Reply:
    """Hand out one value as the exact text that is kept."""
    found = await ask.engine.reads.job(ask.tenant, wire.job_id(ask.path["job_id"]))
    name = ask.path["name"]
    steps = await ask.engine.progress.steps(ask.tenant, found.id) if name == "usage" else ()
    text = _text(name, found, steps) if name in VALUES else None
    if text is None:
        raise NotFound(name, what="value")
    return download(f"{found.id}-{name}.json", body=text.encode())


@pages.get("/jobs/{job_id}/artifacts/{artifact_id}")
async def artifact(ask: Ask) -> View | Reply:
    """Hand out a file, which a browser keeps and never shows."""
    got = await ask.engine.artifacts.read(ask.tenant, ask.path["job_id"], ask.path["artifact_id"])
    return download(got.artifact.name, stream=got.chunks)


@pages.post("/jobs/{job_id}/cancel", roles=["operate", "produce"])
async def cancel(ask: Ask) -> View | Reply:
    """Stop a job, and with `cascade` all below it; a producer only what it has made."""
    found = await ask.engine.reads.job(ask.tenant, wire.job_id(ask.path["job_id"]))
    cascade, force, reason = ask.form.one("cascade") is not None, ask.form.one("force") is not None, ask.form
    if not _can(ask, found)["cancel"] and found.status not in TERMINAL:
        raise Forbidden("this needs the role operate")
    if cascade:
        ask.who.need("operate")
        await ask.engine.operations.cancel_tree(ask.who, found.id, reason=reason.one("reason"), force=force)
    else:
        await ask.engine.jobs.cancel(ask.who, found.id, reason=reason.one("reason"), force=force)
    return go(f"/jobs/{found.id}", said="cancelled")


@pages.post("/jobs/{job_id}/revoke", roles=["operate"])
async def revoke(ask: Ask) -> View | Reply:
    """End the lease of a job now."""
    id = wire.job_id(ask.path["job_id"])
    await ask.engine.jobs.revoke(ask.who, id, reason=ask.form.one("reason"))
    return go(f"/jobs/{id}", said="revoked")


@pages.post("/jobs/{job_id}/redrive", roles=["operate"])
async def redrive(ask: Ask) -> View | Reply:
    """Do an ended job again, from where the form says; the form's key makes a second press the same job."""
    made = await ask.engine.operations.redrive(
        ask.who, ask.path["job_id"], origin=ask.form.one("from") or START, key=ask.form.one("key")
    )
    return go(f"/jobs/{made.id}", said="redriven")


@pages.post("/jobs/{job_id}/priority", roles=["operate"])
async def priority(ask: Ask) -> View | Reply:
    """Let a waiting job go before others, or after them."""
    id = wire.job_id(ask.path["job_id"])
    await ask.engine.jobs.edit(ask.who, id, priority=ask.form.whole("priority"))
    return go(f"/jobs/{id}", said="edited")


def _text(name: str, job: Job, steps: Iterable[StepRow]) -> str | None:
    """A value as it is kept; what attempts without a result have used up is kept among their steps."""
    text: str | None = getattr(job, name)
    if name == "usage" and text is None and (used := summed(job.id, steps, has_ended=True)):
        return json.dumps(used)
    return text


def _can(ask: Ask, job: Job) -> dict[str, Any]:
    """What this caller can do about this job as it is now."""
    operates = ask.who.may("operate")
    made_it = ask.who.may("produce") and job.created_by == ask.who.actor
    live = job.status not in TERMINAL
    return {
        "cancel": live and (operates or made_it),
        "cascade": operates,
        "revoke": operates and job.status is Status.RUNNING,
        "redrive": operates and not live,
        "edit": operates and job.status in CLAIMABLE,
        "origins": [START, *([CHECKPOINT] if job.checkpoint is not None else [])],
        "redrive_key": wire.new_id(),
    }


def _timeline(
    history: Sequence[HistoryRow], steps: Iterable[StepRow], events: Iterable[EventRow], gates: Iterable[Approval]
) -> list[Moment]:
    """Everything that happened, oldest first; a gate stands where it was opened, its decision is a row of history."""
    moments = [
        *(Moment(row.at, "history", row, _facts(row)) for row in history if row.verb is not Verb.OPEN_GATE),
        *(Moment(step.at, "step", step, tree(step.result)) for step in steps),
        *(Moment(event.at, "event", event, tree(event.payload)) for event in events),
        *(Moment(gate.opened_at, "gate", gate) for gate in gates),
    ]
    return sorted(moments, key=lambda moment: (moment.at, _ORDER[moment.kind]))


def _ran(history: Sequence[HistoryRow]) -> dict[int, float]:
    """For how many seconds a run had gone on when it ended, by the version of the row that tells of its end."""
    ran, began = {}, 0
    for row in history:
        if row.to_status is Status.RUNNING and row.from_status is not Status.RUNNING:
            began = row.at
        elif row.from_status is Status.RUNNING and row.to_status is not Status.RUNNING:
            ran[row.version] = (row.at - began) / SECOND
    return ran


def _facts(row: HistoryRow) -> dict[str, Any]:
    """What a row of history tells beside its move: an error's message and kind, or other facts in short."""
    facts = text.loads(row.metadata) if row.metadata else {}
    if not isinstance(facts, dict):
        return {}
    error = facts.pop("error", None)
    said = {name: value for name, value in facts.items() if isinstance(value, (str, int, float)) and name != "gate_id"}
    if isinstance(error, dict):
        said |= {name: error[name] for name in ("message", "kind") if error.get(name)}
    return said
