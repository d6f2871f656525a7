"""For the bearer of a link: the token comes in the fragment or is pasted, and travels in bodies only."""

from __future__ import annotations

from interlock.dashboard import forms
from interlock.dashboard.pages.approvals import decision_of
from interlock.dashboard.values import tree
from interlock.dashboard.web import Ask, Pages, Reply, View, go, show
from interlock.domain.approval import Decision

pages = Pages()


@pages.get("/approve", open=True)
async def ask_for_link(ask: Ask) -> View | Reply:
    """Take the token; a script moves it from the fragment into the form, without one it is pasted."""
    return show("link.html", gate=None)


@pages.post("/approve", roles=(), open=True)
async def show_gate(ask: Ask) -> View | Reply:
    """Show what the link is about; this decides nothing."""
    token = ask.form.one("token") or ""
    gate = await ask.engine.gates.of_token(token)
    job = await ask.engine.reads.job(gate.tenant, gate.job_id)
    return show(
        "link.html",
        gate=gate,
        job=job,
        token=token,
        details=tree(gate.details),
        payload=tree(job.payload),
        inputs=forms.inputs(gate.schema, gate.details),
    )


@pages.post("/approve/decide", roles=(), open=True)
async def decide(ask: Ask) -> View | Reply:
    """Decide as the bearer."""
    token, decision = ask.form.one("token") or "", decision_of(ask)
    gate = await ask.engine.gates.of_token(token)
    data = forms.data(gate.schema, ask.form) if decision is Decision.APPROVE else None
    who = ask.who if ask.who.actor else None
    after = await ask.engine.gates.decide_by_token(
        token, decision, comment=ask.form.one("comment"), data=data, digest=ask.form.one("digest"), who=who
    )
    return go("/approve", said=str(after.status))
