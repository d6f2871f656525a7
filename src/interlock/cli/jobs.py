"""`interlock jobs`: add, list, show, why, edit, run-now."""

from __future__ import annotations

import sys
from collections import deque
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from cyclopts import App, Parameter

from interlock import wire
from interlock.cli import ids, output
from interlock.cli.runner import Anywhere, run
from interlock.domain.explain import Why
from interlock.domain.job import Filter, HistoryRow, Job
from interlock.domain.lifecycle import Status
from interlock.domain.principal import Principal
from interlock.domain.progress import EventRow, StepRow
from interlock.domain.usage import summed
from interlock.engine.engine import Engine
from interlock.errors import Invalid
from interlock.wire.job import job_to_dict, listed_job_to_dict

app = App(name="jobs", help="Enqueue, inspect, cancel and redrive jobs.")
NOTHING = Anywhere()
EVENT_PAGE: Final = 200
MAX_EVENTS: Final = 10_000


@app.command
def add(
    type: str,
    payload: Annotated[str, Parameter(allow_leading_hyphen=True)] = "{}",
    *,
    priority: int | None = None,
    delay: Annotated[float | None, Parameter(help="seconds before it may start")] = None,
    run_at: Annotated[datetime | None, Parameter(help="earliest start, with an offset: 2027-01-31T12:00:00Z")] = None,
    deadline: Annotated[datetime | None, Parameter(help="no run starts after this time")] = None,
    timeout: Annotated[float | None, Parameter(help="maximum seconds of one run")] = None,
    max_attempts: int | None = None,
    agent: Annotated[str | None, Parameter(help="agent that the job runs for, as KIND/ID")] = None,
    key: Annotated[str | None, Parameter(help="idempotency key: a repeated call returns the same job")] = None,
    tag: Annotated[tuple[str, ...], Parameter(help="may be repeated")] = (),
    requires: Annotated[tuple[str, ...], Parameter(help="capability a worker must have; may be repeated")] = (),
    repository: str | None = None,
    affinity: str | None = None,
    parent: str | None = None,
    common: Anywhere = NOTHING,
) -> None:
    """Enqueue one job.

    Parameters
    ----------
    type
        The type, which names the task that runs the job.
    payload
        JSON text, @FILE, or - for standard input. Stored byte for byte.
    """
    values: dict[str, Any] = {
        "type": type, "payload": msgspec.Raw(payload_bytes(payload)), "priority": priority, "delay_seconds": delay,
        "run_at": run_at, "deadline": deadline, "timeout_seconds": timeout, "max_attempts": max_attempts,
        "idempotency_key": key, "tags": list(tag), "requires": list(requires), "repository": repository,
        "affinity_key": affinity, "agent": None if agent is None else agent_name(agent),
    }  # fmt: skip

    async def command(engine: Engine, who: Principal) -> tuple[Job, bool, int]:
        if parent is not None:
            values["parent_id"] = await ids.job(engine, who, parent, "parent")
        request = wire.JobRequest(**{name: value for name, value in values.items() if value is not None})
        enqueued = await engine.jobs.enqueue(who, request)
        return await engine.queries.job(who.tenant, enqueued.id), enqueued.replayed, await engine.queries.now()

    job, replayed, now = run(common, command)
    if common.json:
        output.print_json(job_to_dict(job, now=now) | {"replayed": replayed})
    else:
        output.print_line(f"{job.id}{' (replayed)' if replayed else ''}")


def agent_name(text: str) -> wire.AgentName:
    kind, slash, id = text.partition("/")
    if not slash:
        raise Invalid("agent is not KIND/ID: write it like planner/7", pointer="/agent")
    return wire.AgentName(kind, id)


@app.command(name="list")
def list_(
    *,
    status: Annotated[tuple[Status, ...], Parameter(help="may be repeated")] = (),
    type: str | None = None,
    worker: str | None = None,
    parent: str | None = None,
    tag: Annotated[tuple[str, ...], Parameter(help="may be repeated; all must match")] = (),
    agent: Annotated[str | None, Parameter(help="only jobs of this agent, as KIND/ID")] = None,
    stale: Annotated[
        float | None, Parameter(help="only running jobs without a heartbeat for this many seconds")
    ] = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    limit: Annotated[int, Parameter(help="1 to 200")] = 50,
    before: Annotated[int | None, Parameter(help="only jobs older than this seq, to page on")] = None,
    common: Anywhere = NOTHING,
) -> None:
    """List jobs, newest first."""

    async def command(engine: Engine, who: Principal) -> tuple[list[Job], int]:
        filter = Filter(
            statuses=status,
            type=type,
            worker=worker,
            parent_id=None if parent is None else await ids.job(engine, who, parent, "parent"),
            tags=tag,
            agent=None if agent is None else (agent_name(agent).kind, agent_name(agent).id),
            stale_seconds=wire.seconds(stale, "stale", 0, wire.MAX_DELAY_SECONDS),
            created_after=wire.instant(created_after, "created_after"),
            created_before=wire.instant(created_before, "created_before"),
            before_seq=None if before is None else wire.whole(before, "before", 0, 2**63 - 1),
            limit=limit,
        )
        return await engine.queries.jobs(who.tenant, filter), await engine.queries.now()

    jobs, now = run(common, command)
    if common.json:
        output.print_json({"items": [listed_job_to_dict(job, now=now) for job in jobs]})
    elif not jobs:
        output.print_line("no jobs")
    else:
        columns = ("seq", "id", "type", "status", "location", "attempt", "priority", "due", "worker")
        output.table(
            columns,
            (
                (j.seq, j.id, j.type, j.status, j.location(now), f"{j.attempt}/{j.max_attempts}", j.priority,
                 wire.when(j.run_at)[:19] + "Z", j.worker)
                for j in jobs
            ),
        )  # fmt: skip


class _JobParts(NamedTuple):
    job: Job
    history: list[HistoryRow]
    steps: list[StepRow]
    events: list[EventRow]
    now: int


@app.command
def show(
    job_id: str,
    *,
    events: Annotated[int, Parameter(help="number of newest events to print; 0 = none")] = 20,
    common: Anywhere = NOTHING,
) -> None:
    """Show one job with its history, steps and newest events.

    Parameters
    ----------
    job_id
        The ID, or its last 8 or more characters.
    """

    async def command(engine: Engine, who: Principal) -> _JobParts:
        wire.whole(events, "events", 0, MAX_EVENTS)
        id = await ids.job(engine, who, job_id)
        job = await engine.queries.job(who.tenant, id)
        (steps,) = await engine.progress.steps_of(who.tenant, [id])
        newest = await _newest_events(engine, who.tenant, id, events) if events else []
        return _JobParts(job, await engine.queries.history(who.tenant, id), steps, newest, await engine.queries.now())

    found = run(common, command)
    encoded = job_to_dict(found.job, now=found.now)
    if found.job.usage is None and (used := summed(found.job.id, found.steps, has_ended=True)):
        encoded["usage"] = used
    if common.json:
        output.print_json(
            encoded
            | {"history": [wire.history_to_dict(row) for row in found.history]}
            | {"steps": [_with_json(row, "result") for row in found.steps]}
            | {"events": [_with_json(row, "payload") for row in found.events]}
        )
        return
    output.facts(encoded)
    output.print_line("")
    output.table(
        ("version", "at", "from", "to", "by", "attempt", "fence", "reason"),
        (
            (r.version, wire.when(r.at), r.from_status, r.to_status, r.actor, r.attempt, r.fence, r.reason)
            for r in found.history
        ),
    )
    if found.steps:
        output.print_line("")
        output.table(
            ("step", "occurrence", "at", "result"),
            ((r.name, r.occurrence, wire.when(r.at), output.shortened(r.result)) for r in found.steps),
        )
    if found.events:
        output.print_line("")
        output.table(
            ("event", "at", "level", "message", "payload"),
            ((r.seq, wire.when(r.at), r.level, r.message, output.shortened(r.payload)) for r in found.events),
        )


async def _newest_events(engine: Engine, tenant: str, job_id: str, limit: int) -> list[EventRow]:
    """The last events of a job, oldest first; they can only be read from the start."""
    newest: deque[EventRow] = deque(maxlen=limit)
    after = 0
    while page := await engine.progress.events(tenant, job_id, after=after, limit=EVENT_PAGE):
        newest.extend(page)
        after = page[-1].seq
        if len(page) < EVENT_PAGE:
            break
    return list(newest)


def _with_json(row: StepRow | EventRow, member: str) -> dict[str, Any]:
    """A row for programs: times as text, one member as the JSON it is."""
    values = row._asdict()
    text = values[member]
    times = {name: wire.when(values[name]) for name in values.keys() & {"at", "received_at"}}
    del values["job_id"]
    return values | times | {member: None if text is None else msgspec.Raw(text.encode())}


@app.command
def edit(
    job_id: str,
    *,
    priority: int | None = None,
    run_at: Annotated[datetime | None, Parameter(help="earliest start, with an offset: 2027-01-31T12:00:00Z")] = None,
    deadline: Annotated[datetime | None, Parameter(help="no run starts after this time")] = None,
    no_deadline: Annotated[bool, Parameter(negative=(), help="remove the deadline")] = False,
    max_attempts: int | None = None,
    tag: Annotated[tuple[str, ...] | None, Parameter(help="replace the tags; may be repeated")] = None,
    no_tags: Annotated[bool, Parameter(negative=(), help="remove all tags")] = False,
    common: Anywhere = NOTHING,
) -> None:
    """Change a queued or retrying job. Options that are not given stay as they are.

    Parameters
    ----------
    job_id
        The ID, or its last 8 or more characters.
    """
    wanted: dict[str, Any] = {
        "priority": priority, "run_at": run_at, "deadline": deadline, "max_attempts": max_attempts,
        "tags": () if no_tags else tag,
    }  # fmt: skip

    async def command(engine: Engine, who: Principal) -> tuple[Job, int]:
        if tag is not None and no_tags:
            raise Invalid("--tag and --no-tags are mutually exclusive", pointer="/tags")
        if not no_deadline and all(value is None for value in wanted.values()):
            raise Invalid("nothing to change: give --priority, --run-at, --deadline, --max-attempts or --tag")
        id = await ids.job(engine, who, job_id)
        await engine.jobs.edit(who, id, drop_deadline=no_deadline, **wanted)
        return await engine.queries.job(who.tenant, id), await engine.queries.now()

    _print_waiting(common, *run(common, command))


@app.command(name="run-now")
def run_now(job_id: str, *, common: Anywhere = NOTHING) -> None:
    """Make a queued or retrying job due now.

    Parameters
    ----------
    job_id
        The ID, or its last 8 or more characters.
    """

    async def command(engine: Engine, who: Principal) -> tuple[Job, int]:
        id = await ids.job(engine, who, job_id)
        await engine.jobs.run_now(who, id)
        return await engine.queries.job(who.tenant, id), await engine.queries.now()

    _print_waiting(common, *run(common, command))


def _print_waiting(common: Anywhere, job: Job, now: int) -> None:
    if common.json:
        output.print_json(job_to_dict(job, now=now))
    else:
        output.print_line(f"{job.id}: {job.status}, due {wire.when(job.run_at)[:19]}Z, priority {job.priority}")


@app.command
def why(job_id: str, *, common: Anywhere = NOTHING) -> None:
    """Explain why a job is not running."""

    async def command(engine: Engine, who: Principal) -> Why:
        return await engine.why.of(who.tenant, await ids.job(engine, who, job_id))

    explanation = run(common, command)
    if common.json:
        output.print_json(explanation.to_dict())
        return
    output.print_line(f"{explanation.clause}: {explanation.reason.message}")
    for reason in explanation.also:
        output.print_line(f"also {reason.clause}: {reason.message}")


def payload_bytes(given: str) -> bytes:
    if given == "-":
        return sys.stdin.buffer.read()
    if given.startswith("@"):
        try:
            return Path(given[1:]).read_bytes()
        except OSError as error:
            raise Invalid(f"cannot read the payload file: {error}", pointer="/payload") from error
    return given.encode("utf-8", "surrogateescape")
