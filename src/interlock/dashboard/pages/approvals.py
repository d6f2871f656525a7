"""The inbox of those who approve, and one gate with everything that its digest covers."""

from __future__ import annotations

from typing import Any, Final

from interlock import wire
from interlock.dashboard import forms
from interlock.dashboard.pages.overview import known_jobs
from interlock.dashboard.values import tree
from interlock.dashboard.ways import DECIDES
from interlock.dashboard.web import Ask, Fields, Pages, Reply, View, go, one_of, show
from interlock.domain.approval import Approval, Decision, GateFilter, GateStatus
from interlock.domain.job import Job
from interlock.errors import Invalid, NotFound

pages = Pages()

AT_ONCE: Final = 50
ALL: Final = "all"
LONGEST_DETAILS: Final = 4_000  # what is longer is looked at on the page of its gate


@pages.get("/approvals", roles=DECIDES)
async def approvals(ask: Ask) -> View | Reply:
    """List gates, by default those that wait for somebody."""
    wanted = ask.query.one("status") or GateStatus.OPEN
    status = None if wanted == ALL else one_of(GateStatus, wanted, "status")
    urgent = status is GateStatus.OPEN
    filter = GateFilter(status=status, before=_place(ask.query.one("before")), limit=AT_ONCE + 1, urgent=urgent)
    found = await ask.engine.gates.list(ask.tenant, filter)
    shown = found[:AT_ONCE]
    next = {"before": "{}.{}".format(*filter.place_of(shown[-1]))} if len(found) > AT_ONCE else None
    return show(
        "approvals.html",
        gates=shown,
        details={gate.id: tree(gate.details) for gate in shown if len(gate.details or "") <= LONGEST_DETAILS},
        jobs=await known_jobs(ask, [gate.job_id for gate in shown]),
        wanted=wanted,
        choices=[*GateStatus, ALL],
        turns=ask.query.turns("before", next=next),
    )


@pages.get("/approvals/{gate_id}", roles=DECIDES)
async def approval(ask: Ask) -> View | Reply:
    """Show a gate; looking at it decides nothing."""
    return await _shown(ask, await ask.engine.gates.get(ask.tenant, ask.path["gate_id"]))


@pages.post("/approvals/{gate_id}/decide", roles=["approve"])
async def decide(ask: Ask) -> View | Reply:
    """Vote as oneself, on exactly what was shown; then the next gate that waits comes up."""
    gate = await ask.engine.gates.get(ask.tenant, ask.path["gate_id"])
    decision = decision_of(ask)
    try:
        data = forms.data(gate.schema, ask.form, gate.details) if decision is Decision.APPROVE else None
        after = await ask.engine.gates.decide(
            ask.who, gate.id, decision, comment=ask.form.one("comment"), data=data, digest=ask.form.one("digest")
        )
    except Invalid as error:
        return await _shown(ask, gate, wrong=told(error))
    if after.status is GateStatus.OPEN:
        return go(f"/approvals/{gate.id}", said="voted")
    waiting = await _waiting(ask)
    if not waiting:
        return go("/approvals", said=str(after.status))
    return go(f"/approvals/{waiting[0].id}", said=f"{after.status}_next")


@pages.post("/approvals/{gate_id}/link", roles=["approve"])
async def mint(ask: Ask) -> View | Reply:
    """Make a link for somebody without a token of their own; it is shown in this answer and never again."""
    minted = await ask.engine.gates.mint(ask.who, ask.path["gate_id"])
    return await _shown(ask, minted.approval, link=minted.token)


async def _shown(ask: Ask, gate: Approval, *, link: str | None = None, wrong: str | None = None) -> View:
    job = await ask.engine.reads.job(ask.tenant, gate.job_id)
    waiting = [one.id for one in await _waiting(ask)]
    at = waiting.index(gate.id) if gate.id in waiting else None
    return show(
        "approval.html",
        status=200 if wrong is None else Invalid.status,
        **gate_of(gate, job, ask.form, wrong),
        data=tree(gate.data),
        link=link,
        before=waiting[at - 1] if at else None,
        after=next(iter(waiting[0 if at is None else at + 1 :]), None),
        waiting=len(waiting),
    )


def gate_of(gate: Approval, job: Job, form: Fields, wrong: str | None) -> dict[str, Any]:
    """What an approver is shown; a form that was refused comes back as it was filled in."""
    inputs = forms.inputs(gate.schema, gate.details)
    return {
        "gate": gate,
        "job": job,
        "details": tree(gate.details),
        "payload": tree(job.payload),
        "inputs": inputs if wrong is None else forms.refilled(inputs, form),
        "comment": form.one("comment") if wrong is not None else None,
        "wrong": wrong,
    }


async def _waiting(ask: Ask) -> list[Approval]:
    """The open gates that this caller has not voted on, the most urgent first."""
    found = await ask.engine.gates.list(ask.tenant, GateFilter(status=GateStatus.OPEN, limit=AT_ONCE, urgent=True))
    return [gate for gate in found if not any(vote.voter == ask.who.actor for vote in gate.votes)]


def told(error: Invalid) -> str:
    """What is wrong with a form, each fault by the name of its field."""
    named = ((fault.pointer.removeprefix("/data").lstrip("/"), fault.message) for fault in error.faults)
    return "\n".join(f"{name}: {message}" if name and name not in message else message for name, message in named)


def decision_of(ask: Ask) -> Decision:
    try:
        return Decision(ask.form.one("decision") or "")
    except ValueError:
        raise Invalid("approve or deny", pointer="/decision") from None


def _place(text: str | None) -> tuple[int, str] | None:
    at, dot, id = (text or "").partition(".")
    if text is None:
        return None
    if not dot or not at.isdecimal() or len(at) > 18:
        raise Invalid("there is no such page", pointer="/before")
    try:
        return int(at), wire.job_id(id)
    except NotFound:
        raise Invalid("there is no such page", pointer="/before") from None
