"""One job: its waterfall, values, streams, messages, artifacts and timeline."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from interlock import wire
from interlock.dashboard.family import family
from interlock.dashboard.http import PageRequest, PageResponse, Pages, View, download, show
from interlock.dashboard.json_tree import Tree, tree
from interlock.dashboard.newest import MAX_PAGE_SIZE, latest_progress, newest
from interlock.dashboard.pages.budgets import units
from interlock.dashboard.render import quantity
from interlock.dashboard.timeline import run_durations, timeline
from interlock.dashboard.waterfall import waterfall
from interlock.domain import json_text
from interlock.domain.approval import ApprovalFilter
from interlock.domain.budget import PREFIX, TREE, BudgetState
from interlock.domain.job import Job
from interlock.domain.lifecycle import CLAIMABLE, TERMINAL, UNRESOLVED, Status
from interlock.domain.limits import demands_of
from interlock.domain.operations import CHECKPOINT, START
from interlock.domain.progress import StepRow
from interlock.domain.stream import Chunk, StreamInfo
from interlock.domain.usage import USAGE, summed
from interlock.errors import NotFound

pages = Pages()

VALUES: Final = ("result", "payload", "checkpoint", "usage", "headers")
MAX_STREAMS: Final = 5
MAX_MESSAGES: Final = 20
MAX_EFFECTS: Final = 20
MAX_TRANSITIONS: Final = 500  # the newest, for the waterfall
LAST_CHUNKS: Final = 50  # of each stream on the page of its job
MAX_STREAM_TEXT: Final = 8_000  # characters
MAX_EDITED_PAYLOAD: Final = 256 * 1024


class Failure(NamedTuple):
    """An error as reported: its message and kind, and the other details."""

    message: str
    kind: str
    details: Tree | None
    size: int


class StreamText(NamedTuple):
    """Consecutive text of one lease."""

    attempt: int
    text: str


class StreamTail(NamedTuple):
    """The end of a stream."""

    info: StreamInfo
    parts: Sequence[StreamText]
    is_cut: bool


@pages.get("/jobs/{job_id}")
async def job(request: PageRequest) -> View | PageResponse:
    """Show a job."""
    id, client = wire.job_id(request.path["job_id"]), request.client
    found = await client.jobs.get(id)
    why, around, may_send = await asyncio.gather(
        client.jobs.why(id), family(request, found), client.overview.may_send_to(id)
    )
    messages, streams, effects, budget = await asyncio.gather(
        client.jobs.messages(id), client.jobs.streams(id), client.jobs.effects(id, limit=MAX_PAGE_SIZE),
        _tree_budget(request, found),
    )  # fmt: skip
    history, steps, events, approvals, artifacts = await asyncio.gather(
        client.overview.history(id, after=max(found.version - MAX_TRANSITIONS, 0)),
        client.jobs.steps(id, limit=MAX_PAGE_SIZE),
        client.jobs.events(id),
        client.approvals.list(ApprovalFilter(job_id=id, limit=MAX_PAGE_SIZE)),
        client.artifacts.list(id, limit=MAX_PAGE_SIZE),
    )
    log = await newest(_reads(client.jobs.events, id), events)
    steps = list(await newest(_reads(client.jobs.steps, id), steps, MAX_PAGE_SIZE))
    last_messages = await newest(_reads(client.jobs.messages, id), messages, MAX_MESSAGES)
    tails = await asyncio.gather(*(_tail(request, id, one) for one in streams[:MAX_STREAMS]))
    values = [(name, tree(_text(name, found, steps))) for name in VALUES]
    entries = timeline(history, steps, log, approvals)
    return show(
        "job.html",
        job=found,
        location=found.location(request.now),
        why=why,
        log=log,
        progress=None if found.status in TERMINAL else latest_progress(log),
        waterfall=waterfall(found, history, steps, log, approvals, why, request.now, around.children),
        timeline=entries,
        anchors={entry.anchor for entry in entries},
        durations=run_durations(history),
        failure=_failure(found),
        values=[(name, value) for name, value in values if value is not None],
        artifacts=artifacts,
        effects=await newest(_reads(client.jobs.effects, id), effects, MAX_EFFECTS),
        max_effects=MAX_EFFECTS,
        limits=_limits(found),
        budget_units=[] if budget is None else units(budget),
        family=around,
        has_more_children=any(node.is_here and node.has_more for node in around.tree),
        messages=[(one, tree(one.payload)) for one in last_messages],
        max_messages=MAX_MESSAGES,
        streams=tails,
        more_streams=streams[MAX_STREAMS:],
        steps=list(dict.fromkeys(step.name for step in steps if step.name != USAGE)),
        pending_approval=next((one for one in approvals if one.id == found.approval_id), None),
        can=actions(request, found, may_send=may_send),
    )


@pages.get("/jobs/{job_id}/streams/{name}")
async def stream(request: PageRequest) -> View | PageResponse:
    """Show a stream of a job from a chunk on."""
    found = await request.client.jobs.get(wire.job_id(request.path["job_id"]))
    name, after = request.path["name"], request.query.integer("after")
    chunks = await request.client.jobs.chunks(found.id, name, after=max(-1 if after is None else after, -1))
    next = {"after": chunks[-1].offset} if len(chunks) == MAX_PAGE_SIZE else None
    return show(
        "stream.html",
        job=found,
        name=name,
        parts_of_stream=_texts(chunks),
        paging=request.query.paging("after", next=next),
    )


@pages.get("/jobs/{job_id}/values/{name}")
async def value(request: PageRequest) -> View | PageResponse:
    """Download one value as its exact stored text."""
    found = await request.client.jobs.get(wire.job_id(request.path["job_id"]))
    name = request.path["name"]
    steps = await request.client.jobs.steps(found.id, limit=MAX_PAGE_SIZE) if name == "usage" else ()
    text = _text(name, found, steps) if name in (*VALUES, "error") else None
    if text is None:
        raise NotFound(name, resource="value")
    return download(f"{found.id}-{name}.json", body=text.encode())


@pages.get("/jobs/{job_id}/artifacts/{artifact_id}")
async def artifact(request: PageRequest) -> View | PageResponse:
    """Download an artifact."""
    got = await request.client.artifacts.read(request.path["job_id"], request.path["artifact_id"])
    return download(got.artifact.name, stream=got.chunks)


class NamedLimit(NamedTuple):
    """A limit or budget that a job names, with the path of its page."""

    name: str
    key: str
    cost: str
    path: str


def _limits(job: Job) -> list[NamedLimit]:
    """Return the limits and budgets that a job names; trees with a budget have a part of their own."""
    found = []
    for one in () if job.limits is None else demands_of(job.limits):
        if one.name.startswith(TREE):
            continue
        cost = ", ".join(f"{unit} {quantity(amount)}" for unit, amount in one.cost.items())
        place, name = (
            ("budgets", one.name.removeprefix(PREFIX)) if one.name.startswith(PREFIX) else ("limits", one.name)
        )
        found.append(NamedLimit(name, one.key, cost, f"/{place}/{quote(name, safe='')}"))
    return found


async def _tree_budget(request: PageRequest, job: Job) -> BudgetState | None:
    if job.limits is None or TREE not in job.limits:
        return None
    try:
        return await request.client.jobs.budget(job.id)
    except NotFound:  # the tree was pruned
        return None


def _text(name: str, job: Job, steps: Iterable[StepRow]) -> str | None:
    """Return a stored value; usage of a job without a result is summed from its steps."""
    value: str | None = getattr(job, name)
    if name == "usage" and value is None and (used := summed(job.id, steps, has_ended=True)):
        return json.dumps(used)
    return value


def _topic(job: Job) -> str | None:
    """Return the topic for which a job waits."""
    topic: str | None = json.loads(job.awaiting_message).get("topic") if job.awaiting_message else None
    return topic


def actions(request: PageRequest, job: Job, *, may_send: bool = False) -> dict[str, Any]:
    """Return the actions that this caller may take on this job now."""
    operates = request.who.may("operate")
    is_creator = request.who.may("produce") and job.created_by == request.who.actor
    live = job.status not in TERMINAL
    return {
        "cancel": live and (operates or is_creator),
        "cascade": operates,
        "revoke": operates and job.status is Status.RUNNING,
        "redrive": operates and not live,
        "edits_payload": len(job.payload or "") <= MAX_EDITED_PAYLOAD,
        "edit": operates and job.status in CLAIMABLE,
        "run_now": operates and job.status in CLAIMABLE and job.run_at > request.now,
        "acknowledge": operates and job.status in UNRESOLVED and job.acknowledged_at is None,
        "raise": operates,
        "send": live and (operates or may_send),
        "topic": _topic(job) if request.who.may("produce") else None,
        "message_id": wire.new_id(),
        "origins": [START, *([CHECKPOINT] if job.checkpoint is not None else [])],
        "redrive_key": wire.new_id(),
    }


async def _tail(request: PageRequest, job_id: str, info: StreamInfo) -> StreamTail:
    """Return the end of a stream."""
    first = max(info.chunks - LAST_CHUNKS, 0)
    parts, room = list[StreamText](), MAX_STREAM_TEXT
    for part in reversed(_texts(await request.client.jobs.chunks(job_id, info.name, after=first - 1))):
        if room <= 0:
            first = 1
            break
        parts.append(StreamText(part.attempt, part.text[-room:]))
        first, room = first or int(len(part.text) > room), room - len(part.text)
    return StreamTail(info, parts[::-1], is_cut=first > 0)


def _texts(chunks: Iterable[Chunk]) -> list[StreamText]:
    """Return the text of chunks, by the lease that wrote it; other bytes are only counted."""
    return [
        StreamText(
            attempt,
            "".join(
                one.data.decode(errors="replace") if one.is_text else f"[{len(one.data)} bytes]\n" for one in written
            ),
        )
        for (attempt, _), written in groupby(chunks, key=lambda one: (one.attempt, one.fence))
    ]


def _reads(list: Any, job_id: str) -> Any:
    """Return a function that lists records of a job above a number."""

    async def read(after: int, limit: int) -> Any:
        return await list(job_id, after=after, limit=limit)

    return read


def _failure(job: Job) -> Failure | None:
    """Return the error of a job: the message is set in a monospace font, whatever it contains."""
    if job.error is None:
        return None
    size, error = len(job.error.encode()), json_text.loads(job.error)
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return Failure(job.error, "", None, size)
    details = error.get("details")
    return Failure(
        error["message"], str(error.get("kind") or ""), None if details is None else tree(json.dumps(details)), size
    )
