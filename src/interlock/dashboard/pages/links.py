"""For the bearer of a link: the token comes in the fragment or is pasted, and travels in bodies only."""

from __future__ import annotations

from interlock.dashboard import forms
from interlock.dashboard.pages.approvals import decision_of, gate_of, told
from interlock.dashboard.web import Ask, Pages, Reply, View, go, show
from interlock.domain.approval import Approval, Decision
from interlock.errors import Invalid

pages = Pages()


@pages.get("/approve", open=True)
async def ask_for_link(ask: Ask) -> View | Reply:
    """Take the token; a script moves it from the fragment into the form, without one it is pasted."""
    return show("link.html", gate=None)


@pages.post("/approve", roles=(), open=True, takes_a_secret=True)
async def show_gate(ask: Ask) -> View | Reply:
    """Show what the link is about; this decides nothing."""
    token = ask.form.one("token") or ""
    return await _shown(ask, token, await ask.engine.gates.of_token(token))


@pages.post("/approve/decide", roles=(), open=True, takes_a_secret=True)
async def decide(ask: Ask) -> View | Reply:
    """Decide as the bearer."""
    token, decision = ask.form.one("token") or "", decision_of(ask)
    gate = await ask.engine.gates.of_token(token)
    who = ask.who if ask.who.actor else None
    try:
        data = forms.data(gate.schema, ask.form, gate.details) if decision is Decision.APPROVE else None
        after = await ask.engine.gates.decide_by_token(
            token, decision, comment=ask.form.one("comment"), data=data, digest=ask.form.one("digest"), who=who
        )
    except Invalid as error:
        return await _shown(ask, token, gate, wrong=told(error))
    return go("/approve", said=str(after.status))


async def _shown(ask: Ask, token: str, gate: Approval, *, wrong: str | None = None) -> View:
    job = await ask.engine.reads.job(gate.tenant, gate.job_id)
    status = 200 if wrong is None else Invalid.status
    return show("link.html", status=status, **gate_of(gate, job, ask.form, wrong), token=token)
