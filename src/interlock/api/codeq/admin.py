"""Admins: how full the queues are, which tasks there are, and cleaning up."""

from __future__ import annotations

from typing import Any

from interlock import wire
from interlock.api.codeq import encode
from interlock.api.codeq.auth import ADMINS, refused
from interlock.api.codeq.tasks import parsed_time
from interlock.api.face import Lenient
from interlock.api.routes import Answer, Call, Nothing, Routes, answer
from interlock.domain.codeq import BASE, STATUSES
from interlock.domain.job import Filter
from interlock.domain.registry import QueueStats
from interlock.domain.retry import DAY
from interlock.engine.reads import LONGEST_PAGE
from interlock.engine.retention import LONGEST_DAYS
from interlock.errors import NotFound

routes = Routes()


class TaskQuery(Lenient, frozen=True, kw_only=True):
    """Which tasks a list shows."""

    status: str | None = None
    command: str | None = None
    limit: int = 50


class Cleanup(Lenient, frozen=True, kw_only=True):
    """What may go."""

    limit: int | None = None
    before: str | None = None


@routes.add("GET", f"{BASE}/healthz", needs_credential=False, answers={200: None})
async def healthz(call: Call[None, Nothing]) -> Answer:
    """Say that the service is there."""
    return answer({"status": "ok"})


@routes.add("GET", f"{BASE}/admin/queues", roles=ADMINS, answers={200: None})
async def list_queues(call: Call[None, Nothing]) -> Answer:
    """Count the tasks of every command."""
    return answer([_queue(stats) for stats in await call.engine.reads.queues(call.who.tenant)])


@routes.add("GET", f"{BASE}/admin/queues/{{command}}", roles=ADMINS, answers={200: None})
async def get_queue(call: Call[None, Nothing]) -> Answer:
    """Count the tasks of one command; one that nobody has used has none."""
    try:
        stats = await call.engine.reads.queue(call.who.tenant, call.path["command"])
    except NotFound:
        stats = QueueStats(call.path["command"])
    return answer(_queue(stats))


@routes.add("GET", f"{BASE}/admin/tasks", roles=ADMINS, query=TaskQuery, answers={200: None})
async def list_tasks(call: Call[None, TaskQuery]) -> Answer:
    """List tasks, newest first."""
    query = call.query
    if query.status is not None and query.status not in STATUSES:
        raise refused(400, "invalid status")
    statuses = () if query.status is None else STATUSES[query.status]
    limit = min(max(query.limit, 1), LONGEST_PAGE)
    found = await call.engine.reads.jobs(call.who.tenant, Filter(statuses, type=query.command, limit=limit))
    jobs = await call.engine.reads.some(call.who.tenant, [job.id for job in found])
    return answer(await encode.tasks(call, jobs))


@routes.add(
    "POST", f"{BASE}/admin/tasks/cleanup", roles=["admin"], body=Cleanup, body_optional=True, answers={200: None}
)
async def clean_up(call: Call[Cleanup, Nothing]) -> Answer:
    """Delete tasks that ended before a time, as many as asked for."""
    limit = call.body.limit if call.body.limit is not None and call.body.limit > 0 else 1000
    now = await call.engine.reads.now()
    before = now if not call.body.before else wire.instant(parsed_time(call.body.before, "before"), "before") or 0
    before = min(before, now)
    days = min((now - before) / DAY, LONGEST_DAYS)  # nothing is older than that
    done = await call.engine.retention.prune(call.who, days, limit=limit)
    return answer({"deleted": done.deleted, "before": wire.when(before), "limit": limit})


def _queue(stats: QueueStats) -> dict[str, Any]:
    return {
        "command": stats.type,
        "ready": stats.ready,
        "delayed": stats.delayed,
        "inProgress": stats.in_progress,
        "dlq": stats.dead_letter,
    }
