"""Agents: their concurrency limits, running jobs, and jobs that wait for a slot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from interlock.dashboard.http import PageRequest, PageResponse, Pages, View, redirect, show
from interlock.dashboard.pages.overview import known_jobs
from interlock.domain.explain import ReasonCode, Why
from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import CLAIMABLE, Location, Status
from interlock.domain.registry import Agent

pages = Pages()

PAGE_SIZE: Final = 25
PREVIEW_SIZE: Final = 6


class AgentRow(NamedTuple):
    """An agent with some of its running and blocked jobs, and the jobs that hold its slots."""

    agent: Agent
    running: Sequence[Job]
    blocked: Sequence[Job] = ()
    blocked_by: Sequence[Job] = ()
    waiting: int = 0


@pages.get("/agents")
async def agents(request: PageRequest) -> View | PageResponse:
    """List agents by kind and id."""
    after = (request.query.one("kind") or "", request.query.one("id") or "")
    found = await request.client.agents.list(after=after, limit=PAGE_SIZE + 1)
    listed, paging = request.query.page(found, PAGE_SIZE, kind=lambda one: one.kind, id=lambda one: one.id)
    rows = await asyncio.gather(*(_row(request, agent) for agent in listed))
    return show("agents.html", rows=rows, paging=paging, here_query=request.query.here)


@pages.post("/agents/{kind}/{id}/limit", roles=["admin"], form_page=agents)
async def limit(request: PageRequest) -> View | PageResponse:
    """Set the concurrency limit of an agent; its other settings stay."""
    agent = await request.client.agents.get(request.path["kind"], request.path["id"])
    await request.client.agents.set(
        agent.kind,
        agent.id,
        max_concurrency=request.form.integer("max_concurrency"),
        strict=request.form.one("strict") is not None,
        defaults=_defaults(agent),
    )
    here = request.query.here
    return redirect(f"/agents?{here}" if here else "/agents", notice="limited")


async def _row(request: PageRequest, agent: Agent) -> AgentRow:
    of_agent = Filter(agent=(agent.kind, agent.id), limit=PREVIEW_SIZE)
    jobs = request.client.jobs
    running = await jobs.list(of_agent._replace(statuses=(Status.RUNNING,)))
    if agent.max_concurrency is None:
        return AgentRow(agent, running)
    due = await jobs.list(of_agent._replace(statuses=tuple(CLAIMABLE)))
    blocked = [job for job in due if job.location(request.now) is Location.BLOCKED]
    if not blocked:
        return AgentRow(agent, running)
    busy = _busy(await request.client.jobs.why(blocked[0].id))
    blocked_by = await known_jobs(request, busy.get("busy_with", [])[:PREVIEW_SIZE])
    return AgentRow(agent, running, blocked, list(blocked_by.values()), busy.get("ahead", 0) + 1)


def _busy(why: Why) -> dict[str, Any]:
    """Return which jobs hold the slots, and how many jobs are ahead of the newest blocked one."""
    reasons = (why.reason, *why.also)
    return next((dict(reason.details) for reason in reasons if reason.clause is ReasonCode.AGENT_BUSY), {})


def _defaults(agent: Agent) -> dict[str, Any]:
    """Return the defaults of an agent as a request has them."""
    found = {name: value for name, value in agent.defaults._asdict().items() if value is not None}
    return found | ({"backoff": json.loads(found["backoff"])} if "backoff" in found else {})
