"""Routes of admins: queue counts, task lists and cleanup."""

from __future__ import annotations

from typing import Any, Final

from interlock import wire
from interlock.api.adapter import Lenient
from interlock.api.codeq import encode
from interlock.api.codeq.auth import ADMINS, reject
from interlock.api.codeq.model import BASE, STATUSES
from interlock.api.codeq.tasks import parsed_time
from interlock.api.routes import Nothing, RequestContext, Response, RouteTable, respond
from interlock.domain.job import Filter
from interlock.domain.registry import QueueStats
from interlock.domain.retry import DAY
from interlock.engine.queries import MAX_PAGE_SIZE
from interlock.engine.retention import MAX_DAYS

routes = RouteTable()

KEPT_DAYS: Final = 1.0
MAX_CLEANUP: Final = 1_000_000


class TaskQuery(Lenient, frozen=True, kw_only=True):
    """The filter of a task list."""

    status: str | None = None
    command: str | None = None
    limit: int = 50


class CleanupRequest(Lenient, frozen=True, kw_only=True):
    """How many tasks to delete, and the time that their retention must have ended before."""

    limit: int | None = None
    before: str | None = None


@routes.add("GET", f"{BASE}/healthz", needs_credential=False, answers={200: None})
async def healthz(call: RequestContext[None, Nothing]) -> Response:
    """Report that the service is up."""
    return respond({"status": "ok"})


@routes.add("GET", f"{BASE}/admin/queues", roles=ADMINS, answers={200: None})
async def list_queues(call: RequestContext[None, Nothing]) -> Response:
    """Count the tasks of every command."""
    return respond([_queue(stats) for stats in await call.engine.queries.queues(call.who.tenant)])


@routes.add("GET", f"{BASE}/admin/queues/{{command}}", roles=ADMINS, answers={200: None})
async def get_queue(call: RequestContext[None, Nothing]) -> Response:
    """Count the tasks of one command in all its spellings; an unused command has none."""
    command = call.path["command"]
    every = await call.engine.queries.queues(call.who.tenant)
    counts = [_queue(stats) for stats in every if stats.type.lower() == command.lower()]
    empty = _queue(QueueStats(command))
    return respond(empty | {name: sum(one[name] for one in counts) for name in empty if name != "command"})


@routes.add("GET", f"{BASE}/admin/tasks", roles=ADMINS, query=TaskQuery, answers={200: None})
async def list_tasks(call: RequestContext[None, TaskQuery]) -> Response:
    """List tasks, newest first."""
    query = call.query
    if query.status is not None and query.status not in STATUSES:
        raise reject(400, "invalid status")
    statuses = () if query.status is None else STATUSES[query.status]
    limit = min(max(query.limit, 1), MAX_PAGE_SIZE)
    found = await call.engine.queries.jobs(call.who.tenant, Filter(statuses, type=query.command, limit=limit))
    jobs = await call.engine.queries.some(call.who.tenant, [job.id for job in found])
    return respond(await encode.tasks(call, jobs))


@routes.add(
    "POST", f"{BASE}/admin/tasks/cleanup", roles=["admin"], body=CleanupRequest, body_optional=True,
    answers={200: None},
)  # fmt: skip
async def clean_up(call: RequestContext[CleanupRequest, Nothing]) -> Response:
    """Delete tasks that ended a day before a time, by default now, as codeQ keeps them for a day."""
    limit = call.body.limit if call.body.limit is not None and call.body.limit > 0 else 1000
    now = await call.engine.queries.now()
    before = now if not call.body.before else wire.instant(parsed_time(call.body.before, "before"), "before") or 0
    days = min(max((now - before) / DAY + KEPT_DAYS, 0), MAX_DAYS)  # nothing is older than that
    pruned = await call.engine.retention.prune(call.who, days, limit=min(limit, MAX_CLEANUP))
    return respond({"deleted": pruned.deleted, "before": wire.when(before), "limit": limit})


def _queue(stats: QueueStats) -> dict[str, Any]:
    return {
        "command": stats.type,
        "ready": stats.ready,
        "delayed": stats.delayed,
        "inProgress": stats.in_progress,
        "dlq": stats.dead_letter,
    }
