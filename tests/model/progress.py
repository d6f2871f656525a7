"""Heartbeats and saved progress in the model: only from the current lease holder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from interlock.domain.job import Checkpoint, Heartbeat, HeartbeatReply
from interlock.domain.progress import Event, EventRow, Report, Step, StepRow
from tests.model.job_model import Jobs, micros


class Progress(Jobs):
    """Heartbeats, checkpoints, steps and events."""

    def __init__(self) -> None:
        super().__init__()
        self.events: dict[str, list[EventRow]] = defaultdict(list)
        self.steps: dict[str, list[StepRow]] = defaultdict(list)

    def heartbeat(self, heartbeats: Sequence[Heartbeat], now: int) -> list[HeartbeatReply | str]:
        return [self._heartbeat(heartbeat, now) for heartbeat in heartbeats]

    def _heartbeat(self, heartbeat: Heartbeat, now: int) -> HeartbeatReply | str:
        fault = self._lease_error(heartbeat)
        if fault is None and heartbeat.checkpoint is not None:
            saved = self._checkpoint(heartbeat.checkpoint, now)
            fault = saved if isinstance(saved, str) else None
        if fault is not None:
            return fault
        self._add(heartbeat.id, heartbeat.events, now)
        life = self.jobs[heartbeat.id]
        life.heartbeat_at = life.updated_at = now
        life.lease_expires_at = min(now + micros(heartbeat.lease_seconds or life.lease_seconds), life.run_ends_at())
        cancelling, paused = life.cancel_requested_at is not None, life.created.type in self.paused
        return HeartbeatReply(
            life.id, life.lease_expires_at, cancelling, life.cancel_reason, paused, messages=len(self.inbox[life.id])
        )

    def checkpoint(self, checkpoints: Sequence[Checkpoint], now: int) -> list[int | str]:
        return [self._checkpoint(checkpoint, now) for checkpoint in checkpoints]

    def _checkpoint(self, new: Checkpoint, now: int) -> int | str:
        fault = self._lease_error(new)
        if fault is not None:
            return fault
        life = self.jobs[new.id]
        old = life.checkpoint
        if old is None or new.seq > old.seq:
            life.checkpoint, life.updated_at = new, now
        elif (new.seq, new.data) != (old.seq, old.data):
            return "checkpoint_conflict"
        return new.seq

    def append_events(self, reports: Sequence[Report], now: int) -> list[tuple[int, ...] | str]:
        return [self._lease_error(report) or self._add(report.id, report.events, now) for report in reports]

    def _add(self, job_id: str, events: Sequence[Event], now: int) -> tuple[int, ...]:
        """Numbered in order; an event that was emitted before keeps its number."""
        reported = self.events[job_id]
        for event in events:
            if event.id not in {row.id for row in reported}:
                began = self.jobs[job_id].run_started_at or now
                at = now if event.at is None else min(max(event.at, began), now)
                reported.append(EventRow(job_id, len(reported) + 1, *event[:4], at, now, event.sanitized))
        return tuple(row.seq for event in events for row in reported if row.id == event.id)

    def save(self, steps: Sequence[Step], now: int) -> list[StepRow | str]:
        return [self._lease_error(step) or self._save(step, now) for step in steps]

    def _save(self, step: Step, now: int) -> StepRow:
        """The first of a name and occurrence stays."""
        kept = self.steps[step.id]
        for row in kept:
            if (row.name, row.occurrence) == (step.name, step.occurrence):
                return row
        kept.append(StepRow(step.id, len(kept) + 1, *step[3:7], step.fence, now, step.sanitized))
        return kept[-1]

    def _lease_error(self, item: Heartbeat | Checkpoint | Report | Step) -> str | None:
        life = self.jobs.get(item.id)
        if life is None:
            return "not_found"
        if life.leased_by(item.fence, item.worker):
            return None
        end = life.ends.get(item.fence)
        mine = end is not None and end.receipt is not None and end.actor == f"worker:{item.worker}"
        return "not_running" if mine else "lease_lost"
