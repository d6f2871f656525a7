"""Agents: how many of their jobs may run at once, which do now, and what waits behind which."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from interlock.dashboard.pages.overview import known_jobs
from interlock.dashboard.web import Ask, Pages, Reply, View, go, show
from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import CLAIMABLE, Location, Status
from interlock.domain.registry import Agent
from interlock.domain.why import Clause, Why

pages = Pages()

AT_ONCE: Final = 25
FEW: Final = 6


class Line(NamedTuple):
    """An agent with some of what it does now, some of what waits for a place, and what that waits behind."""

    agent: Agent
    running: Sequence[Job]
    blocked: Sequence[Job] = ()
    behind: Sequence[Job] = ()
    waiting: int = 0


@pages.get("/agents")
async def agents(ask: Ask) -> View | Reply:
    """List agents by kind and id."""
    after = (ask.query.one("kind") or "", ask.query.one("id") or "")
    found = await ask.engine.registry.agents(ask.tenant, after=after, limit=AT_ONCE + 1)
    shown = found[:AT_ONCE]
    last = shown[-1] if len(found) > AT_ONCE else None
    turns = ask.query.turns("kind", "id", next=None if last is None else {"kind": last.kind, "id": last.id})
    return show("agents.html", lines=await asyncio.gather(*(_line(ask, agent) for agent in shown)), turns=turns)


@pages.post("/agents/{kind}/{id}/limit", roles=["admin"])
async def limit(ask: Ask) -> View | Reply:
    """Let more of an agent's jobs run at once, or fewer; everything else that is known of it stays."""
    agent = await ask.engine.registry.agent(ask.tenant, ask.path["kind"], ask.path["id"])
    await ask.engine.registry.set_agent(
        ask.who,
        agent.kind,
        agent.id,
        max_concurrency=ask.form.whole("max_concurrency"),
        strict=ask.form.one("strict") is not None,
        defaults=_said(agent),
    )
    return go("/agents", said="limited")


async def _line(ask: Ask, agent: Agent) -> Line:
    of_agent = Filter(agent=(agent.kind, agent.id), limit=FEW)
    reads = ask.engine.reads
    running = await reads.jobs(ask.tenant, of_agent._replace(statuses=(Status.RUNNING,)))
    if agent.max_concurrency is None:
        return Line(agent, running)
    due = await reads.jobs(ask.tenant, of_agent._replace(statuses=tuple(CLAIMABLE)))
    blocked = [job for job in due if job.location(ask.now) is Location.BLOCKED]
    if not blocked:
        return Line(agent, running)
    held = _busy(await ask.engine.why.of(ask.tenant, blocked[0].id))
    behind = await known_jobs(ask, held.get("busy_with", [])[:FEW])
    return Line(agent, running, blocked, list(behind.values()), held.get("ahead", 0) + 1)


def _busy(why: Why) -> dict[str, Any]:
    """What the newest of a line waits behind, and how many are before it."""
    reasons = (why.reason, *why.also)
    return next((dict(reason.details) for reason in reasons if reason.clause is Clause.AGENT_BUSY), {})


def _said(agent: Agent) -> dict[str, Any]:
    """The defaults of an agent as they are set."""
    said = {name: value for name, value in agent.defaults._asdict().items() if value is not None}
    return said | ({"backoff": json.loads(said["backoff"])} if "backoff" in said else {})
