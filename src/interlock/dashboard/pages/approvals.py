"""The inbox of those who approve, and one gate with everything that its digest covers."""

from __future__ import annotations

from typing import Final

from interlock import wire
from interlock.dashboard import forms
from interlock.dashboard.pages.overview import known_jobs
from interlock.dashboard.values import tree
from interlock.dashboard.web import Ask, Pages, Reply, View, go, show
from interlock.domain.approval import Decision, GateFilter, GateStatus
from interlock.errors import Invalid, NotFound

pages = Pages()

AT_ONCE: Final = 50
ALL: Final = "all"


@pages.get("/approvals")
async def approvals(ask: Ask) -> View | Reply:
    """List gates, by default those that wait for somebody."""
    wanted = ask.query.one("status") or GateStatus.OPEN
    if wanted != ALL and wanted not in tuple(GateStatus):
        raise Invalid("there is no such status", pointer="/status")
    status = None if wanted == ALL else GateStatus(wanted)
    filter = GateFilter(status=status, before=_place(ask.query.one("before")), limit=AT_ONCE + 1)
    found = await ask.engine.gates.list(ask.tenant, filter)
    shown = found[:AT_ONCE]
    last = f"{shown[-1].opened_at}.{shown[-1].id}" if len(found) > AT_ONCE else None
    return show(
        "approvals.html",
        gates=sorted(shown, key=lambda gate: gate.expires_at) if status is GateStatus.OPEN else shown,
        jobs=await known_jobs(ask, [gate.job_id for gate in shown]),
        wanted=wanted,
        choices=[*GateStatus, ALL],
        older=None if last is None else ask.query.encoded(without=("said", "n"), before=last),
    )


@pages.get("/approvals/{gate_id}")
async def approval(ask: Ask) -> View | Reply:
    """Show a gate; looking at it decides nothing."""
    gate = await ask.engine.gates.get(ask.tenant, ask.path["gate_id"])
    job = await ask.engine.reads.job(ask.tenant, gate.job_id)
    return show(
        "approval.html",
        gate=gate,
        job=job,
        details=tree(gate.details),
        payload=tree(job.payload),
        data=tree(gate.data),
        inputs=forms.inputs(gate.schema, gate.details),
        link=None,
    )


@pages.post("/approvals/{gate_id}/decide", roles=["approve"])
async def decide(ask: Ask) -> View | Reply:
    """Vote as oneself, on exactly what was shown."""
    gate = await ask.engine.gates.get(ask.tenant, ask.path["gate_id"])
    decision = decision_of(ask)
    data = forms.data(gate.schema, ask.form) if decision is Decision.APPROVE else None
    after = await ask.engine.gates.decide(
        ask.who, gate.id, decision, comment=ask.form.one("comment"), data=data, digest=ask.form.one("digest")
    )
    return go(f"/approvals/{gate.id}", said="voted" if after.status is GateStatus.OPEN else str(after.status))


@pages.post("/approvals/{gate_id}/link", roles=["approve"])
async def mint(ask: Ask) -> View | Reply:
    """Make a link for somebody without a token of their own; it is shown in this answer and never again."""
    minted = await ask.engine.gates.mint(ask.who, ask.path["gate_id"])
    gate = minted.approval
    job = await ask.engine.reads.job(ask.tenant, gate.job_id)
    return show(
        "approval.html",
        gate=gate,
        job=job,
        details=tree(gate.details),
        payload=tree(job.payload),
        data=tree(gate.data),
        inputs=forms.inputs(gate.schema, gate.details),
        link=minted.token,
    )


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
