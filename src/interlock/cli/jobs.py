"""`interlock jobs`: enqueue, inspect, follow, change, cancel and redrive jobs; and `interlock prune`."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, NoReturn

import msgspec
from cyclopts import App, Parameter

from interlock import wire
from interlock.cli import ids as short
from interlock.cli import output
from interlock.cli.limits import amounts_of
from interlock.cli.runner import ANYWHERE, REFUSED, UNSUCCESSFUL, Anywhere, Limit, Yes, give_up, run, timed
from interlock.client.port import Changes, Client, Edits
from interlock.domain import json_text
from interlock.domain.budget import BudgetState
from interlock.domain.effect import Effect
from interlock.domain.explain import Why
from interlock.domain.job import Enqueued, Filter, HistoryRow, Job, Receipt
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.message import Message, Published
from interlock.domain.operations import START, Action, Bulk, Pruned
from interlock.domain.progress import EventRow, StepRow
from interlock.domain.stream import Chunk, StreamInfo
from interlock.domain.usage import summed
from interlock.errors import Invalid
from interlock.wire.budgets import job_budget_to_dict
from interlock.wire.encode import (
    chunk_to_dict,
    effect_to_dict,
    event_to_dict,
    history_to_dict,
    message_to_dict,
    step_to_dict,
)
from interlock.wire.job import job_to_dict, listed_job_to_dict

app = App(name="jobs", help="Enqueue, inspect, cancel and redrive jobs.")
EVENT_PAGE: Final = 200
MAX_EVENTS: Final = 10_000
MAX_WAIT_SECONDS: Final = 60.0
NOT_BOTH: Final = "give either IDs or filters, not both"
JobId = Annotated[str, Parameter(help="The ID, or its last 8 or more characters.")]
RunAt = Annotated[datetime | None, Parameter(help="earliest start, with an offset: 2027-01-31T12:00:00Z")]
Deadline = Annotated[datetime | None, Parameter(help="no run starts after this time")]
Delay = Annotated[float | None, Parameter(help="seconds before it may start")]
Priority = Annotated[int | None, Parameter(help="-1000 to 1000; higher runs first")]
MaxAttempts = Annotated[int | None, Parameter(help="1 to 100")]
Key = Annotated[str | None, Parameter(help="idempotency key: a repeated call returns the same job")]
Reason = Annotated[str | None, Parameter(help="reason, kept in the history")]
DryRun = Annotated[bool, Parameter(negative=(), help="show how many jobs would be affected")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Which:
    """Filter for jobs that are not given by ID; all criteria must match."""

    status: Annotated[tuple[Status, ...], Parameter(help="may be repeated")] = ()
    type: Annotated[str | None, Parameter(help="type of the jobs")] = None
    agent: Annotated[str | None, Parameter(help="agent, as KIND/ID")] = None
    worker: Annotated[str | None, Parameter(help="worker that runs them")] = None
    parent: Annotated[str | None, Parameter(help="job whose children they are")] = None
    tag: Annotated[tuple[str, ...], Parameter(help="may be repeated; all must match")] = ()
    created_after: Annotated[datetime | None, Parameter(help="time with an offset: 2027-01-31T12:00:00Z")] = None
    created_before: Annotated[datetime | None, Parameter(help="time with an offset")] = None

    async def filter(self, client: Client) -> Filter:
        parent = None if self.parent is None else await short.job(client, self.parent, "parent")
        return wire.job_filter(**asdict(self) | {"parent": parent})


ANY = Which()


@app.command
def add(
    type: str,
    payload: Annotated[str, Parameter(allow_leading_hyphen=True)] = "{}",
    *,
    priority: Priority = None,
    delay: Delay = None,
    run_at: RunAt = None,
    deadline: Deadline = None,
    timeout: Annotated[float | None, Parameter(help="maximum seconds of one run")] = None,
    max_attempts: MaxAttempts = None,
    agent: Annotated[str | None, Parameter(help="agent that the job runs for, as KIND/ID")] = None,
    key: Key = None,
    tag: Annotated[tuple[str, ...], Parameter(help="may be repeated")] = (),
    requires: Annotated[tuple[str, ...], Parameter(help="capability a worker must have; may be repeated")] = (),
    repository: Annotated[str | None, Parameter(help="only for workers that may work on this repository")] = None,
    affinity: Annotated[str | None, Parameter(help="affinity key: only for workers that ask for it")] = None,
    parent: Annotated[str | None, Parameter(help="job that it becomes a child of")] = None,
    budget: Annotated[
        tuple[str, ...], Parameter(help="amount that the job and its descendants may use, such as usd=5; repeatable")
    ] = (),
    named_budget: Annotated[tuple[str, ...], Parameter(help="budget of the tenant; may be repeated")] = (),
    limit: Annotated[
        tuple[str, ...],
        Parameter(
            help="""limit: its name, or JSON such as {"name": "x", "key": "k", "cost": {"tokens": 8}}; repeatable"""
        ),
    ] = (),
    common: Anywhere = ANYWHERE,
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
        "affinity_key": affinity, "agent": None if agent is None else wire.AgentName(*wire.agent_of(agent)),
        "budget": amounts_of(budget, "budget") or None, "budgets": list(named_budget) or None,
        "limits": [_limit_use(one) for one in limit] or None,
    }  # fmt: skip

    async def command(client: Client) -> Enqueued:
        if parent is not None:
            values["parent_id"] = await short.job(client, parent, "parent")
        request = wire.JobRequest(**{name: value for name, value in values.items() if value is not None})
        (enqueued,) = await client.jobs.enqueue([request])
        return enqueued

    _create(common, command)


def _limit_use(text: str) -> wire.LimitUse:
    if not text.startswith("{"):
        return wire.LimitUse(name=text)
    try:
        return msgspec.json.decode(text, type=wire.LimitUse)
    except msgspec.DecodeError as error:
        raise Invalid(f"--limit is {text!r}: {error}", pointer="/limits") from None


def _create(common: Anywhere, command: Callable[[Client], Awaitable[Enqueued]]) -> None:
    """Run a command that creates a job, and print the job."""

    async def with_job(client: Client) -> tuple[Job, bool]:
        enqueued = await command(client)
        return await client.jobs.get(enqueued.id), enqueued.replayed

    (job, replayed), now = timed(common, with_job)
    document = job_to_dict(job, now=now) | {"replayed": replayed}
    common.show(document, f"{job.id}{' (replayed)' if replayed else ''}")


@app.command(name="list")
def list_(
    *,
    which: Which = ANY,
    stale: Annotated[
        float | None, Parameter(help="only running jobs without a heartbeat for this many seconds")
    ] = None,
    attention: Annotated[
        bool, Parameter(help="only unacknowledged failures, and due jobs that no present worker could claim")
    ] = False,
    search: Annotated[
        str | None, Parameter(help="jobs with this ID, end of an ID, idempotency key or text in payload or error")
    ] = None,
    limit: Limit = 50,
    before: Annotated[int | None, Parameter(help="only jobs older than this seq, to page on")] = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """List jobs, newest first."""

    async def command(client: Client) -> list[Job]:
        filter = (await which.filter(client))._replace(
            stale_seconds=wire.seconds(stale, "stale", 0, wire.MAX_DELAY_SECONDS),
            before_seq=None if before is None else wire.whole(before, "before", 0, 2**63 - 1),
            limit=limit,
        )
        if attention:
            return await client.jobs.attention(
                before_seq=before, limit=limit, filter=filter._replace(before_seq=None), search=search
            )
        if search is not None:
            if before is not None:
                raise Invalid("--search cannot be combined with --before", pointer="/search")
            return await client.jobs.search(search, limit=limit, filter=filter)
        return await client.jobs.list(filter)

    jobs, now = timed(common, command)
    common.show_list(
        "jobs",
        jobs,
        lambda job: listed_job_to_dict(job, now=now),
        ("seq", "id", "type", "status", "location", "attempt", "priority", "due", "worker"),
        lambda j: (
            j.seq, j.id, j.type, j.status, j.location(now), f"{j.attempt}/{j.max_attempts}", j.priority,
            output.time(j.run_at), j.worker,
        ),
    )  # fmt: skip


class _JobParts(NamedTuple):
    job: Job
    history: list[HistoryRow]
    steps: list[StepRow]
    events: list[EventRow]


@app.command
def show(
    job_id: JobId,
    *,
    events: Annotated[int, Parameter(help="number of newest events to print; 0 = none")] = 20,
    common: Anywhere = ANYWHERE,
) -> None:
    """Show one job with its history, steps and newest events."""

    async def command(client: Client) -> _JobParts:
        wire.whole(events, "events", 0, MAX_EVENTS)
        id = await short.job(client, job_id)
        job, history, steps = await client.jobs.get(id), await client.jobs.history(id), await client.jobs.steps(id)
        return _JobParts(job, history, steps, await _newest_events(client, id, events) if events else [])

    found, now = timed(common, command)
    encoded = job_to_dict(found.job, now=now)
    if found.job.usage is None and (used := summed(found.job.id, found.steps, has_ended=True)):
        encoded["usage"] = used
    if common.json:
        output.print_json(
            encoded
            | {"history": [history_to_dict(row) for row in found.history]}
            | {"steps": [step_to_dict(row) for row in found.steps]}
            | {"events": [_own_event(row) for row in found.events]}
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


def _own_event(row: EventRow) -> dict[str, Any]:
    """Serialize an event without the ID of its job, which the caller already knows."""
    encoded = event_to_dict(row)
    del encoded["job_id"]
    return encoded


async def _newest_events(client: Client, job_id: str, limit: int) -> list[EventRow]:
    """Return the last events of a job, oldest first; they can only be read from the start."""
    newest: deque[EventRow] = deque(maxlen=limit)
    after = 0
    while page := await client.jobs.events(job_id, after=after, limit=EVENT_PAGE):
        newest.extend(page)
        after = page[-1].seq
        if len(page) < EVENT_PAGE:
            break
    return list(newest)


@app.command
def edit(
    job_id: JobId,
    *,
    priority: Priority = None,
    run_at: RunAt = None,
    deadline: Deadline = None,
    no_deadline: Annotated[bool, Parameter(negative=(), help="remove the deadline")] = False,
    max_attempts: MaxAttempts = None,
    tag: Annotated[tuple[str, ...] | None, Parameter(help="replace the tags; may be repeated")] = None,
    no_tags: Annotated[bool, Parameter(negative=(), help="remove all tags")] = False,
    common: Anywhere = ANYWHERE,
) -> None:
    """Change a queued or retrying job. Options that are not given stay as they are."""
    wanted: Edits = {
        "priority": priority, "run_at": run_at, "deadline": deadline, "max_attempts": max_attempts,
        "tags": () if no_tags else tag, "drop_deadline": no_deadline,
    }  # fmt: skip

    async def command(client: Client) -> Job:
        if tag is not None and no_tags:
            raise Invalid("--tag and --no-tags are mutually exclusive", pointer="/tags")
        if all(value is None or value is False for value in wanted.values()):
            raise Invalid("nothing to change: give --priority, --run-at, --deadline, --max-attempts or --tag")
        id = await short.job(client, job_id)
        await client.jobs.edit(id, **wanted)
        return await client.jobs.get(id)

    _print_waiting(common, *timed(common, command))


@app.command(name="run-now")
def run_now(job_id: JobId, *, common: Anywhere = ANYWHERE) -> None:
    """Make a queued or retrying job due now."""

    async def command(client: Client) -> Job:
        id = await short.job(client, job_id)
        await client.jobs.run_now(id)
        return await client.jobs.get(id)

    _print_waiting(common, *timed(common, command))


@app.command
def budget(job_id: JobId, *, common: Anywhere = ANYWHERE) -> None:
    """Print the budget of the tree that a job belongs to, and what was spent of it."""

    async def command(client: Client) -> BudgetState:
        return await client.jobs.budget(await short.job(client, job_id))

    common.show_facts(job_budget_to_dict(run(common, command)))


@app.command
def raise_budget(
    job_id: JobId,
    *,
    amount: Annotated[list[str], Parameter(negative=(), help="amount of a unit, such as usd=5; repeatable")],
    common: Anywhere = ANYWHERE,
) -> None:
    """Add to the budget of the tree that a job belongs to. Its waiting jobs continue as far as that goes."""

    async def command(client: Client) -> BudgetState:
        return await client.jobs.raise_budget(await short.job(client, job_id), amounts_of(amount, "amount"))

    found = job_budget_to_dict(run(common, command))
    common.show(found, f"{found['root_id']}: raised")


@app.command
def acknowledge(
    *ids: str,
    comment: Annotated[str | None, Parameter(help="comment, kept in the history")] = None,
    which: Which = ANY,
    dry_run: DryRun = False,
    yes: Yes = False,
    common: Anywhere = ANYWHERE,
) -> None:
    """Acknowledge failed or dead-letter jobs, so that they no longer need attention.

    Parameters
    ----------
    ids
        The jobs, by ID or its last 8 or more characters; without any, those that match the filters.
    """
    if len(ids) != 1 or dry_run:
        _many(common, Action.ACKNOWLEDGE, ids, which, dry_run=dry_run, yes=yes, reason=comment)
        return
    if which != ANY:
        _refuse(common, NOT_BOTH)

    async def command(client: Client) -> Job:
        id = await short.job(client, ids[0])
        await client.jobs.acknowledge(id, comment=comment)
        return await client.jobs.get(id)

    job, now = timed(common, command)
    line = f"{job.id}: {job.status}, acknowledged {output.time(job.acknowledged_at)} by {job.acknowledged_by}"
    common.show(job_to_dict(job, now=now), line)


def _print_waiting(common: Anywhere, job: Job, now: int) -> None:
    line = f"{job.id}: {job.status}, due {output.time(job.run_at)}, priority {job.priority}"
    common.show(job_to_dict(job, now=now), line)


@app.command
def why(job_id: str, *, common: Anywhere = ANYWHERE) -> None:
    """Explain why a job is not running."""

    async def command(client: Client) -> Why:
        return await client.jobs.why(await short.job(client, job_id))

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


@app.command
def tail(
    job_id: str | None = None,
    *,
    after: Annotated[int, Parameter(help="only events of the job after this seq")] = 0,
    common: Anywhere = ANYWHERE,
) -> None:
    """Print events as they arrive: of one job until it is terminal, or of all jobs. JSON lines with --json.

    Parameters
    ----------
    job_id
        The job, by ID or its last 8 or more characters; default: all jobs.
    """

    async def command(client: Client) -> None:
        if job_id is not None:
            async for row in client.jobs.tail(await short.job(client, job_id), after=after):
                _print(row, common, with_job=False)
            return
        async for row in client.jobs.follow():
            _print(row, common, with_job=True)

    run(common, command)


@app.command
def send(
    job_id: JobId,
    name: Annotated[str, Parameter(help="the name of the message")],
    payload: Annotated[str | None, Parameter(help="JSON")] = None,
    *,
    id: Annotated[str | None, Parameter(help="ID of the message: a repeated call sends nothing more")] = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """Send a message to a job, which can wait for it."""

    async def command(client: Client) -> tuple[str, Message]:
        to = await short.job(client, job_id)
        return to, await client.jobs.send(to, name, payload, id=id)

    to, sent = run(common, command)
    if common.json:
        output.print_json(message_to_dict(sent))
    else:
        output.print_line(f"{to}: message {sent.seq}, {sent.name}")


@app.command
def publish(
    topic: str,
    payload: Annotated[str | None, Parameter(help="JSON")] = None,
    *,
    id: Annotated[str | None, Parameter(help="ID of the message: a repeated call delivers nothing more")] = None,
    retain: Annotated[float, Parameter(help="seconds in which jobs that begin to wait get it")] = 0.0,
    common: Anywhere = ANYWHERE,
) -> None:
    """Send a message to all jobs that wait for a topic."""

    async def command(client: Client) -> Published:
        return await client.jobs.publish(topic, payload, id=id, retain_seconds=retain)

    done = run(common, command)
    if common.json:
        output.print_json({"id": done.id, "delivered": done.delivered})
    else:
        output.print_line(f"{topic}: message {done.id} delivered to {done.delivered} jobs")


@app.command
def messages(
    job_id: JobId,
    name: Annotated[str | None, Parameter(help="only messages with this name")] = None,
    *,
    after: Annotated[int, Parameter(help="only messages after this seq")] = 0,
    limit: Limit = 50,
    common: Anywhere = ANYWHERE,
) -> None:
    """List the messages to a job, oldest first."""

    async def command(client: Client) -> list[Message]:
        return await client.jobs.messages(await short.job(client, job_id), name=name, after=after, limit=limit)

    found = run(common, command)
    if common.json:
        output.print_json({"items": [message_to_dict(one) for one in found]})
    else:
        rows = [
            (one.seq, one.name or f"topic {one.topic}", one.payload or "", one.sender, output.time(one.at))
            for one in found
        ]
        output.table(("seq", "name", "payload", "from", "at"), rows)


@app.command
def effects(
    job_id: JobId,
    *,
    after: Annotated[int, Parameter(help="only effects after this seq")] = 0,
    limit: Annotated[int, Parameter(help="maximum number of effects")] = EVENT_PAGE,
    common: Anywhere = ANYWHERE,
) -> None:
    """List the effects of a job, in the order in which they began."""

    async def command(client: Client) -> list[Effect]:
        return await client.jobs.effects(await short.job(client, job_id), after=after, limit=limit)

    found = run(common, command)
    if common.json:
        output.print_json({"items": [effect_to_dict(one) for one in found]})
    else:
        rows = [
            (one.seq, one.name, one.occurrence, one.state, one.key or "", one.attempt, output.time(one.started_at))
            for one in found
        ]
        output.table(("seq", "name", "occurrence", "state", "key", "attempt", "started"), rows)


@app.command
def stream(
    job_id: JobId,
    name: Annotated[str | None, Parameter(help="the stream; default: list the streams of the job")] = None,
    *,
    after: Annotated[int, Parameter(help="only chunks after this offset")] = -1,
    follow: Annotated[bool, Parameter(negative=(), help="print new chunks until the job is terminal")] = False,
    common: Anywhere = ANYWHERE,
) -> None:
    """Print a stream of a job, or list its streams. Chunks are JSON lines with --json."""

    async def command(client: Client) -> list[StreamInfo]:
        id = await short.job(client, job_id)
        if name is None:
            return await client.jobs.streams(id)
        if follow:
            async for chunk in client.jobs.stream(id, name, after=after):
                _print_chunk(chunk, common)
            return []
        last = after
        while page := await client.jobs.chunks(id, name, after=last, limit=EVENT_PAGE):
            for chunk in page:
                _print_chunk(chunk, common)
            last = page[-1].offset
        return []

    found = run(common, command)
    if name is not None:
        return
    if common.json:
        output.print_json({"items": [one._asdict() | {"updated_at": wire.when(one.updated_at)} for one in found]})
    else:
        rows = [(one.name, one.chunks, one.bytes, output.time(one.updated_at)) for one in found]
        output.table(("name", "chunks", "bytes", "updated"), rows)


def _print_chunk(chunk: Chunk, common: Anywhere) -> None:
    """Print the bytes of a chunk as they are; on a terminal, escape control characters."""
    if common.json:
        sys.stdout.write(output.json_line(chunk_to_dict(chunk)))
    elif sys.stdout.isatty():
        lines = chunk.data.decode(errors="replace").split("\n")
        sys.stdout.write("\n".join(map(output.escape_control, lines)))
    else:
        sys.stdout.buffer.write(chunk.data)
    sys.stdout.flush()


@app.command
def wait(
    job_id: str,
    *,
    timeout: Annotated[
        float | None, Parameter(help="maximum seconds to wait; default: until the job is terminal")
    ] = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """Wait until a job is terminal and print its result. Exit code 6 if it did not succeed in time."""

    async def command(client: Client) -> Job:
        id = await short.job(client, job_id)
        left = wire.seconds(timeout, "timeout", 0, wire.MAX_DELAY_SECONDS)
        with output.progress("waited", unit="s") as report:
            waited = 0.0
            while True:
                turn = MAX_WAIT_SECONDS if left is None else min(MAX_WAIT_SECONDS, left - waited)
                job = await client.jobs.wait(id, seconds=turn)
                waited += turn
                if job.status in TERMINAL or (left is not None and waited >= left):
                    return job
                report(round(waited))

    job, now = timed(common, command)
    if common.json:
        output.print_json(job_to_dict(job, now=now))
    elif job.status is Status.SUCCEEDED:
        output.print_line(job.result if job.result is not None else "null")
    else:
        print(f"interlock: {output.escape_control(_ending(job))}", file=sys.stderr)
    if job.status is not Status.SUCCEEDED:
        sys.exit(UNSUCCESSFUL)


def _ending(job: Job) -> str:
    if job.status not in TERMINAL:
        return f"job {job.id} is not terminal yet: it is {job.status}"
    why = job.cancel_reason
    if job.error is not None:
        why = str(json_text.loads(job.error).get("message", ""))
    return f"job {job.id} is {job.status}" + (f": {why}" if why else "")


def _print(row: EventRow, common: Anywhere, *, with_job: bool) -> None:
    if common.json:
        sys.stdout.write(output.json_line(event_to_dict(row)))
    else:
        parts = [wire.when(row.at), *([row.job_id] if with_job else []), f"{row.level:<5}", row.message]
        output.print_line(" ".join([*parts, *([row.payload] if row.payload else [])]))
    sys.stdout.flush()


@app.command
def cancel(
    *ids: str,
    reason: Reason = None,
    force: Annotated[bool, Parameter(negative=(), help="revoke the lease immediately")] = False,
    cascade: Annotated[bool, Parameter(negative=(), help="also cancel all descendants")] = False,
    which: Which = ANY,
    dry_run: DryRun = False,
    yes: Yes = False,
    common: Anywhere = ANYWHERE,
) -> None:
    """Cancel jobs. A running job stops when its worker acknowledges, or immediately with --force.

    Parameters
    ----------
    ids
        The jobs, by ID or its last 8 or more characters; without any, those that match the filters.
    """
    if len(ids) != 1 or dry_run:
        if cascade:
            _refuse(common, "--cascade requires exactly one job")
        _many(common, Action.CANCEL, ids, which, dry_run=dry_run, yes=yes, reason=reason, force=force)
        return
    if which != ANY:
        _refuse(common, NOT_BOTH)

    async def command(client: Client) -> tuple[Receipt, int]:
        id = await short.job(client, ids[0])
        if not cascade:
            return await client.jobs.cancel(id, reason=reason, force=force), 0
        return await client.jobs.cancel_tree(id, reason=reason, force=force)

    receipt, below = run(common, command)
    given = "cancel requested" if receipt.status is Status.RUNNING else str(receipt.status)
    common.show(
        {"id": receipt.id, "status": receipt.status, "version": receipt.version, "descendants": below},
        f"{receipt.id}: {given}" + (f", and {below} descendants" if cascade else ""),
    )


@app.command
def revoke(job_id: str, *, reason: Reason = None, common: Anywhere = ANYWHERE) -> None:
    """End a lease now, as if it had expired: the job is retried if attempts are left."""

    async def command(client: Client) -> Receipt:
        return await client.jobs.revoke(await short.job(client, job_id), reason=reason)

    receipt = run(common, command)
    document = {"id": receipt.id, "status": receipt.status, "version": receipt.version}
    common.show(document, f"{receipt.id}: {receipt.status}")


@app.command
def redrive(
    *ids: str,
    origin: Annotated[str, Parameter(name="--from", help="start, checkpoint, or the step to continue after")] = START,
    priority: Priority = None,
    delay: Delay = None,
    run_at: RunAt = None,
    max_attempts: MaxAttempts = None,
    retag: Annotated[
        tuple[str, ...] | None, Parameter(help="tags of the new job, instead of the old ones; may be repeated")
    ] = None,
    payload: Annotated[str | None, Parameter(help="payload of the new job: JSON text, @FILE or -")] = None,
    key: Key = None,
    which: Which = ANY,
    dry_run: DryRun = False,
    yes: Yes = False,
    common: Anywhere = ANYWHERE,
) -> None:
    """Create a new job from each terminal job. In bulk, jobs that were redriven before are skipped.

    Parameters
    ----------
    ids
        The jobs, by ID or its last 8 or more characters; without any, those that match the filters. Options
        that change the new job require exactly one.
    """
    changes: Changes = {
        "priority": priority, "delay_seconds": delay, "run_at": run_at, "max_attempts": max_attempts, "tags": retag,
    }  # fmt: skip
    if len(ids) != 1 or dry_run:
        if origin != START or any(value is not None for value in (*changes.values(), key, payload)):
            _refuse(common, "--from and options that change the new job require exactly one job")
        _many(common, Action.REDRIVE, ids, which, dry_run=dry_run, yes=yes)
        return
    if which != ANY:
        _refuse(common, NOT_BOTH)

    async def command(client: Client) -> Enqueued:
        if payload is not None:
            changes["payload"] = payload_bytes(payload)
        id = await short.job(client, ids[0])
        return await client.jobs.redrive(id, start_from=origin, idempotency_key=key, **changes)

    _create(common, command)


def prune(
    *,
    days: Annotated[float, Parameter(help="delete jobs that finished more than this many days ago")],
    dry_run: DryRun = False,
    yes: Yes = False,
    common: Anywhere = ANYWHERE,
) -> None:
    """Delete terminal jobs with their history, steps, events, approvals and artifacts. This is irreversible."""

    async def command(client: Client, dry_run: bool) -> Pruned:
        deleted, after_seq = 0, 0
        with output.progress("counted" if dry_run else "deleted") as report:
            while True:
                done = await client.jobs.prune(days, limit=1000, dry_run=dry_run, after_seq=after_seq)
                cannot_go_on = dry_run and done.last_seq == after_seq  # a server always counts from the start
                deleted, after_seq = deleted + done.deleted, done.last_seq
                report(deleted)
                if not done.more or cannot_go_on:
                    return Pruned(deleted, done.more, after_seq)

    if not dry_run and not yes:
        found = run(common, lambda client: command(client, True)).deleted
        whose = "on the server" if common.server is not None else f"of tenant {common.who.tenant}"
        _confirm(common, f"delete {output.counted(found, 'job')} {whose} permanently")
    done = run(common, lambda client: command(client, dry_run))
    verb = "would be" if dry_run else "was" if done.deleted == 1 and not done.more else "were"
    common.show(
        {"deleted": 0 if dry_run else done.deleted, "matched": done.deleted, "more": done.more},
        f"{output.counted(done.deleted, 'job')}{' or more' if done.more else ''} {verb} deleted",
    )


def _many(
    common: Anywhere,
    action: Action,
    ids: tuple[str, ...],
    which: Which,
    *,
    dry_run: bool,
    yes: bool,
    **options: Any,
) -> None:
    """Apply an action to all given or matching jobs, a thousand per call, and print each that was rejected."""

    async def command(client: Client, dry_run: bool) -> Bulk:
        if (which == ANY) == (not ids):
            raise Invalid(NOT_BOTH)
        if ids:
            named = [await short.job(client, id) for id in ids]
            return await client.jobs.bulk(action, ids=named, dry_run=dry_run, **options)
        return await _all_that_fit(
            await which.filter(client), lambda f: client.jobs.bulk(action, filter=f, dry_run=dry_run, **options)
        )

    if not dry_run and not yes:
        found = run(common, lambda client: command(client, True)).matched
        _confirm(common, f"{action} {output.counted(found, 'job')}")
    results = run(common, lambda client: command(client, dry_run))
    if common.json:
        refused = [{"id": id, **wire.error_to_dict(error)} for id, error in results.refused]
        output.print_json({"matched": results.matched, "done": results.done, "more": results.more, "refused": refused})
    else:
        for _, error in results.refused:
            print(f"interlock: {output.escape_control(error)}", file=sys.stderr)
        output.print_line(
            f"{results.matched}{' or more' if results.more else ''} matched"
            if dry_run
            else f"{results.done} of {results.matched} done"
        )
    if results.refused:
        sys.exit(REFUSED)


async def _all_that_fit(filter: Filter, act: Callable[[Filter], Awaitable[Bulk]]) -> Bulk:
    """Repeat the call, each time from where the last one ended; without a position, repeat the same call."""
    total = Bulk(0, 0, False)
    with output.progress("done with") as report:
        while True:
            results = await act(filter)
            total = Bulk(
                total.matched + results.matched,
                total.done + results.done,
                results.more,
                None,
                total.refused + results.refused,
            )
            report(total.matched)
            if not results.more or (results.before_seq is None and not results.done):
                return total
            filter = filter._replace(before_seq=results.before_seq)


def _confirm(common: Anywhere, what: str) -> None:
    """Ask for confirmation; without a terminal, require --yes."""
    if not sys.stdin.isatty() or common.json:
        _refuse(common, f"this would {what}: use --yes to confirm, or --dry-run to count the jobs")
    if input(f"{what}? [y/N] ").strip().lower() not in ("y", "yes"):
        _refuse(common, "cancelled, nothing was changed")


def _refuse(common: Anywhere, why: str) -> NoReturn:
    give_up(Invalid(why), json=common.json)
