"""The waterfall of a job: its runs, their steps, and what it waited for in between, on one axis of time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple

from interlock.dashboard.markdown import headline
from interlock.domain import json_text
from interlock.domain.approval import Approval, ApprovalKind
from interlock.domain.explain import ReasonCode, Why
from interlock.domain.job import HistoryRow, Job
from interlock.domain.lifecycle import CLAIMABLE, TERMINAL, Status, Verb
from interlock.domain.progress import EventRow, Level, StepRow
from interlock.domain.timestamps import micros
from interlock.domain.usage import USAGE

AXIS: Final = 1000.0
MIN_WIDTH: Final = 4.0  # of a bar, so that a short span stays visible
MAX_TRANSITIONS: Final = 200  # the newest ones
MAX_MARKS: Final = 100  # of one run
OPEN_STEPS: Final = 30  # the steps of a job with more are folded
OWN: Final = "interlock."  # prefix of the records of the SDK: waits, which are spans, and patches
_WAITS: Final = {
    ReasonCode.WAITING_FOR_LIMIT: ("limit", "Waiting for a limit"),
    ReasonCode.BUDGET_SPENT: ("limit", "Waiting for a budget"),
    ReasonCode.AGENT_BUSY: ("limit", "Waiting for a concurrency slot"),
    ReasonCode.PAUSED: ("limit", "Type paused"),
    ReasonCode.WAITING_FOR_CHILDREN: ("children", "Waiting for children"),
}
_WAITING: Final = ("queue", "Waiting for a worker")


class Bar(NamedTuple):
    """The place of a span on the axis."""

    x: float
    width: float


class Mark(NamedTuple):
    """A warning or an error within a run."""

    x: float
    level: Level
    seq: int
    message: str


class Span(NamedTuple):
    """One bar: a run, a step, a child, or a wait by its kind, as in `_WAITS` and `_wait`."""

    kind: str
    label: str
    start: int
    end: int
    bar: Bar
    note: str = ""
    link: str = ""
    id: str = ""
    outcome: str = ""  # status after a run
    is_open: bool = False  # it lasts until now
    steps: tuple[Span, ...] = ()
    marks: tuple[Mark, ...] = ()

    @property
    def micros(self) -> int:
        return self.end - self.start


class Attempt(NamedTuple):
    """An attempt with its spans, oldest first."""

    number: int
    spans: tuple[Span, ...]

    @property
    def micros(self) -> int:
        return self.spans[-1].end - self.spans[0].start


class Waterfall(NamedTuple):
    """The attempts of a job; `hidden` earlier transitions are left out, and the axis begins after them."""

    attempts: tuple[Attempt, ...]
    total: int
    running: int
    hidden: int
    step_count: int
    children: tuple[Span, ...] = ()

    @property
    def opens_steps(self) -> bool:
        return self.step_count <= OPEN_STEPS


class _Axis:
    """Maps times to positions from 0 to 1000."""

    def __init__(self, start: int, end: int) -> None:
        self._start, self._length = start, max(end - start, 1)

    def at(self, time: int) -> float:
        return round(min(max((time - self._start) / self._length, 0.0), 1.0) * AXIS, 1)

    def bar(self, start: int, end: int) -> Bar:
        x = min(self.at(start), AXIS - MIN_WIDTH)
        return Bar(x, round(max(self.at(end) - x, MIN_WIDTH), 1))


def waterfall(
    job: Job,
    history: Sequence[HistoryRow],
    steps: Iterable[StepRow],
    events: Iterable[EventRow],
    approvals: Iterable[Approval],
    why: Why,
    now: int,
    children: Sequence[Job] = (),
) -> Waterfall:
    """Return the waterfall of a job from its records."""
    rows = [
        row for row in history if row.from_status is not row.to_status or row.verb in (Verb.EDIT, Verb.SEND_MESSAGE)
    ][-MAX_TRANSITIONS:]
    end = now if job.finished_at is None else job.finished_at
    hidden = rows[0].version - 1 if rows else 0
    axis = _Axis(rows[0].at if hidden else job.created_at, end)
    by_fence: dict[int, list[StepRow]] = {}
    for step in steps:
        if step.name != USAGE and not step.name.startswith(OWN):
            by_fence.setdefault(step.fence, []).append(step)
    marked = [event for event in events if event.level is not Level.INFO]
    asked = {one.id: one for one in approvals}
    found: list[tuple[int, Span]] = []
    wait = _Wait("queue", due=job.created_at)
    for row, following in pairwise([*rows, None]):
        if row is None or row.to_status in TERMINAL:
            continue
        until = max(end if following is None else following.at, row.at)
        facts = _facts(row)
        attempt = facts.get("attempt", row.attempt)
        if row.to_status is Status.RUNNING:
            outcome = "" if following is None else str(following.to_status)
            found.append((attempt, _run(row, until, outcome, by_fence.get(row.fence, ()), marked, axis)))
        elif row.to_status is Status.WAITING_FOR_APPROVAL:
            found.append((attempt, _approval(row, until, asked, axis, is_open=following is None)))
        elif row.to_status in CLAIMABLE:
            wait = _wait(row, facts, wait, job)
            found += ((attempt, span) for span in _spans(wait, row, until, axis, None if following else why))
    numbers = sorted({number for number, _ in found})
    return Waterfall(
        tuple(Attempt(one, tuple(span for number, span in found if number == one)) for one in numbers),
        end - job.created_at,
        sum(span.micros for _, span in found if span.kind == "run"),
        hidden,
        sum(len(span.steps) for _, span in found),
        tuple(_child(one, axis, now) for one in sorted(children, key=lambda one: one.created_at)),
    )


def _child(job: Job, axis: _Axis, now: int) -> Span:
    """Return a child from its creation to its end."""
    end = now if job.finished_at is None else job.finished_at
    return Span(
        "child", job.type, job.created_at, end, axis.bar(job.created_at, end), job.id[-8:], f"/jobs/{job.id}",
        f"bar-child-{job.id}", str(job.status), job.finished_at is None,
    )  # fmt: skip


def _run(
    row: HistoryRow, until: int, outcome: str, steps: Sequence[StepRow], events: Iterable[EventRow], axis: _Axis
) -> Span:
    """Return a run with its steps: each begins where the one before it was saved."""
    start, inside = row.at, list[Span]()
    for step in steps:
        at = min(max(step.at, start), until)
        note = f"#{step.occurrence}" if step.occurrence > 1 else ""
        bar = axis.bar(start, at)
        inside.append(Span("step", step.name, start, at, bar, note, f"#step-{step.seq}", f"bar-step-{step.seq}"))
        start = at
    marks = [
        Mark(axis.at(event.at), event.level, event.seq, event.message)
        for event in events
        if row.at <= event.at <= until
    ]
    return Span(
        "run", "Run", row.at, until, axis.bar(row.at, until), row.actor.removeprefix("worker:"),
        f"#history-{row.version}", f"bar-{row.version}", outcome, not outcome, tuple(inside), tuple(marks[-MAX_MARKS:]),
    )  # fmt: skip


def _approval(row: HistoryRow, until: int, asked: Mapping[str, Approval], axis: _Axis, *, is_open: bool) -> Span:
    found = asked.get(str(_facts(row).get("approval_id")))
    kind = "question" if found is not None and found.kind is ApprovalKind.QUESTION else "approval"
    link = "" if found is None else f"/approvals/{found.id}"
    note = "" if found is None else headline(found.prompt)
    return Span(
        kind, kind.capitalize(), row.at, until, axis.bar(row.at, until), note, link,
        f"bar-{row.version}", is_open=is_open,
    )  # fmt: skip


class _Wait(NamedTuple):
    """What a job waits for until `due`; without a time, until its next run."""

    kind: str
    label: str = ""
    note: str = ""
    due: int | None = None


def _wait(row: HistoryRow, facts: Mapping[str, Any], before: _Wait, job: Job) -> _Wait:
    """Return the wait that a row begins; an edit that does not change the time continues the one before."""
    run_at = facts.get("run_at")
    due = micros(datetime.fromisoformat(run_at)) if isinstance(run_at, str) else row.at
    match row.verb:
        case Verb.RELEASE if "awaiting_children" in facts:
            return _Wait("children", "Waiting for children", f"{facts['awaiting_children']} in all")
        case Verb.RELEASE if "awaiting_message" in facts:
            return _Wait("message", "Waiting for a message", str(facts["awaiting_message"]))
        case Verb.RELEASE:
            return _Wait("sleep", "Sleep", "" if row.reason in (None, "sleeping") else str(row.reason), due)
        case Verb.ENQUEUE if job.version == 1 or job.started_at is None or job.run_at <= job.started_at:
            return _Wait("delay", "Delayed", due=job.run_at)
        case Verb.EDIT:
            return before if run_at is None else _Wait("delay", "Delayed", due=due)
        case Verb.ENQUEUE:  # its first due time is not known any more
            return _Wait("queue", "Queued")
        case Verb.DECIDE | Verb.SEND_MESSAGE:
            return _Wait("queue", due=row.at)
    return _Wait("backoff", "Backoff", due=due)


def _spans(wait: _Wait, row: HistoryRow, until: int, axis: _Axis, why: Why | None) -> Iterable[Span]:
    """Yield the wait, then the time in which the job was due; `why` explains one that lasts until now."""
    end = until if wait.due is None else min(max(wait.due, row.at), until)
    is_open = why is not None and end == until and (wait.due is None or wait.due > until)
    if end > row.at or is_open:
        link, id = f"#history-{row.version}", f"bar-{row.version}"
        yield Span(wait.kind, wait.label, row.at, end, axis.bar(row.at, end), wait.note, link, id, is_open=is_open)
    if until > end or (why is not None and not is_open):
        kind, label = _WAITING if why is None else _WAITS.get(why.reason.clause, _WAITING)
        yield Span(kind, label, end, until, axis.bar(end, until), id=f"bar-{row.version}-due", is_open=why is not None)


def _facts(row: HistoryRow) -> dict[str, Any]:
    found = json_text.loads(row.metadata) if row.metadata else {}
    return found if isinstance(found, dict) else {}
