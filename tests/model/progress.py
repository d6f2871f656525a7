"""Signs of life and saved progress in the model: only from the current holder."""

from __future__ import annotations

from collections.abc import Sequence

from interlock.domain.job import Beat, Checkpoint, Pulse
from tests.model.life import Jobs, micros


class Progress(Jobs):
    """Heartbeats and checkpoints."""

    def heartbeat(self, beats: Sequence[Beat], now: int) -> list[Pulse | str]:
        return [self._heartbeat(beat, now) for beat in beats]

    def _heartbeat(self, beat: Beat, now: int) -> Pulse | str:
        fault = self._not_held(beat)
        if fault is None and beat.checkpoint is not None:
            saved = self._checkpoint(beat.checkpoint, now)
            fault = saved if isinstance(saved, str) else None
        if fault is not None:
            return fault
        life = self.jobs[beat.id]
        life.heartbeat_at = life.updated_at = now
        life.lease_expires_at = min(now + micros(beat.lease_seconds or life.lease_seconds), life.run_ends_at())
        cancelling, paused = life.cancel_requested_at is not None, life.born.type in self.paused
        return Pulse(life.id, life.lease_expires_at, cancelling, life.cancel_reason, paused)

    def checkpoint(self, checkpoints: Sequence[Checkpoint], now: int) -> list[int | str]:
        return [self._checkpoint(checkpoint, now) for checkpoint in checkpoints]

    def _checkpoint(self, new: Checkpoint, now: int) -> int | str:
        fault = self._not_held(new)
        if fault is not None:
            return fault
        life = self.jobs[new.id]
        old = life.checkpoint
        if old is None or new.seq > old.seq:
            life.checkpoint, life.updated_at = new, now
        elif (new.seq, new.data) != (old.seq, old.data):
            return "checkpoint_conflict"
        return new.seq

    def _not_held(self, item: Beat | Checkpoint) -> str | None:
        life = self.jobs.get(item.id)
        if life is None:
            return "not_found"
        if life.held_by(item.fence, item.worker):
            return None
        end = life.ends.get(item.fence)
        mine = end is not None and end.receipt is not None and end.actor == f"worker:{item.worker}"
        return "not_running" if mine else "lease_lost"
