"""Routes of admins: queue counts, task lists and cleanup."""

from __future__ import annotations

from typing import Any, Final

from interlock import wire
from interlock.api.adapter import Lenient
from interlock.api.codeq import encode
from interlock.api.codeq.auth import ADMINS, reject
from interlock.api.codeq.model import BASE, STATUSES
from interlock.api.codeq.tasks import parsed_time
from interlock.api.routes import Answer, Call, Nothing, Routes, answer
from interlock.domain.job import Filter
from interlock.domain.registry import QueueStats
from interlock.domain.retry import DAY
from interlock.engine.queries import LONGEST_PAGE
from interlock.engine.retention import LONGEST_DAYS

routes = Routes()

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
async def healthz(call: Call[None, Nothing]) -> Answer:
    """Report that the service is up."""
    return answer({"status": "ok"})


@routes.add("GET", f"{BASE}/admin/queues", roles=ADMINS, answers={200: None})
async def list_queues(call: Call[None, Nothing]) -> Answer:
    """Count the tasks of every command."""
    return answer([_queue(stats) for stats in await call.engine.reads.queues(call.who.tenant)])


@routes.add("GET", f"{BASE}/admin/queues/{{command}}", roles=ADMINS, answers={200: None})
async def get_queue(call: Call[None, Nothing]) -> Answer:
    """Count the tasks of one command in all its spellings; an unused command has none."""
    command = call.path["command"]
    every = await call.engine.reads.queues(call.who.tenant)
    counts = [_queue(stats) for stats in every if stats.type.lower() == command.lower()]
    empty = _queue(QueueStats(command))
    return answer(empty | {name: sum(one[name] for one in counts) for name in empty if name != "command"})


@routes.add("GET", f"{BASE}/admin/tasks", roles=ADMINS, query=TaskQuery, answers={200: None})
async def list_tasks(call: Call[None, TaskQuery]) -> Answer:
    """List tasks, newest first."""
    query = call.query
    if query.status is not None and query.status not in STATUSES:
        raise reject(400, "invalid status")
    statuses = () if query.status is None else STATUSES[query.status]
    limit = min(max(query.limit, 1), LONGEST_PAGE)
    found = await call.engine.reads.jobs(call.who.tenant, Filter(statuses, type=query.command, limit=limit))
    jobs = await call.engine.reads.some(call.who.tenant, [job.id for job in found])
    return answer(await encode.tasks(call, jobs))


@routes.add(
    "POST", f"{BASE}/admin/tasks/cleanup", roles=["admin"], body=CleanupRequest, body_optional=True,
    answers={200: None},
)  # fmt: skip
async def clean_up(call: Call[CleanupRequest, Nothing]) -> Answer:
    """Delete tasks that ended a day before a time, by default now, as codeQ keeps them for a day."""
    limit = call.body.limit if call.body.limit is not None and call.body.limit > 0 else 1000
    now = await call.engine.reads.now()
    before = now if not call.body.before else wire.instant(parsed_time(call.body.before, "before"), "before") or 0
    days = min(max((now - before) / DAY + KEPT_DAYS, 0), LONGEST_DAYS)  # nothing is older than that
    pruned = await call.engine.retention.prune(call.who, days, limit=min(limit, MAX_CLEANUP))
    return answer({"deleted": pruned.deleted, "before": wire.when(before), "limit": limit})


def _queue(stats: QueueStats) -> dict[str, Any]:
    return {
        "command": stats.type,
        "ready": stats.ready,
        "delayed": stats.delayed,
        "inProgress": stats.in_progress,
        "dlq": stats.dead_letter,
    }
