"""Agents: how many of their jobs may run at once, which do now, and what waits behind them."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from interlock.dashboard.web import Ask, Pages, Reply, View, show
from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import CLAIMABLE, Location, Status
from interlock.domain.registry import Agent

pages = Pages()

AT_ONCE: Final = 25
FEW: Final = 6


class Line(NamedTuple):
    """An agent with some of what it does now and some of what waits for a place."""

    agent: Agent
    running: list[Job]
    blocked: list[Job]


@pages.get("/agents")
async def agents(ask: Ask) -> View | Reply:
    """List agents by kind and id."""
    after = (ask.query.one("kind") or "", ask.query.one("id") or "")
    found = await ask.engine.registry.agents(ask.tenant, after=after, limit=AT_ONCE + 1)
    shown = found[:AT_ONCE]
    last = shown[-1] if len(found) > AT_ONCE else None
    more = None if last is None else ask.query.encoded(kind=last.kind, id=last.id)
    return show("agents.html", lines=await asyncio.gather(*(_line(ask, agent) for agent in shown)), more=more)


async def _line(ask: Ask, agent: Agent) -> Line:
    of_agent = Filter(agent=(agent.kind, agent.id), limit=FEW)
    reads = ask.engine.reads
    running = await reads.jobs(ask.tenant, of_agent._replace(statuses=(Status.RUNNING,)))
    if agent.max_concurrency is None:
        return Line(agent, running, [])
    waiting = await reads.jobs(ask.tenant, of_agent._replace(statuses=tuple(CLAIMABLE)))
    return Line(agent, running, [job for job in waiting if job.location(ask.now) is Location.BLOCKED])
