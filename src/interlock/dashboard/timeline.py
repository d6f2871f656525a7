"""The timeline of a job: its newest transitions, steps, events and approvals in one order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from interlock.dashboard.json_tree import tree
from interlock.dashboard.waterfall import OWN
from interlock.domain import json_text
from interlock.domain.approval import Approval
from interlock.domain.job import HistoryRow
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.progress import EventRow, StepRow
from interlock.domain.retry import SECOND

MAX_ENTRIES: Final = 150
_ORDER: Final = {"history": 0, "step": 1, "event": 2, "approval": 3}


class TimelineEntry(NamedTuple):
    """One entry of the timeline; `row` is the record behind it."""

    at: int
    kind: str
    row: HistoryRow | StepRow | EventRow | Approval
    details: Any = None

    @property
    def anchor(self) -> str:
        """The fragment of the entry."""
        match self.row:
            case HistoryRow():
                return f"history-{self.row.version}"
            case Approval():
                return f"approval-{self.row.id}"
        return f"{self.kind}-{self.row.seq}"


def timeline(
    history: Sequence[HistoryRow], steps: Iterable[StepRow], events: Iterable[EventRow], approvals: Iterable[Approval]
) -> list[TimelineEntry]:
    """Return the newest records of a job, oldest first; an approval is listed when it was requested."""
    entries = [
        *(TimelineEntry(row.at, "history", row) for row in history if row.verb is not Verb.REQUEST_APPROVAL),
        *(TimelineEntry(step.at, "step", step) for step in steps if not step.name.startswith(OWN)),
        *(TimelineEntry(event.at, "event", event) for event in events),
        *(TimelineEntry(one.opened_at, "approval", one) for one in approvals),
    ]
    newest = sorted(entries, key=lambda entry: (entry.at, _ORDER[entry.kind]))[-MAX_ENTRIES:]
    return [entry._replace(details=_details(entry)) for entry in newest]


def run_durations(history: Sequence[HistoryRow]) -> dict[int, float]:
    """Return the seconds that each run took, by the version of the history row that ended it."""
    durations, started = {}, None
    for row in history:
        if row.to_status is Status.RUNNING and row.from_status is not Status.RUNNING:
            started = row.at
        elif row.from_status is Status.RUNNING and row.to_status is not Status.RUNNING and started is not None:
            durations[row.version] = (row.at - started) / SECOND
    return durations


def details(row: HistoryRow) -> dict[str, str]:
    """Return the message and kind of the error that a history row reports."""
    metadata = json_text.loads(row.metadata) if row.metadata else None
    error = metadata.get("error") if isinstance(metadata, dict) else None
    if not isinstance(error, dict):
        return {}
    return {name: error[name] for name in ("message", "kind") if isinstance(error.get(name), str) and error[name]}


def _details(entry: TimelineEntry) -> Any:
    match entry.row:
        case HistoryRow():
            return details(entry.row)
        case StepRow():
            return tree(entry.row.result)
        case EventRow():
            return tree(entry.row.payload)
    return None
