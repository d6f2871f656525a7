"""Signs of life and saved progress on SQLite, each written only under the current fence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from interlock.domain.decide import answer_repeat
from interlock.domain.job import ANY_FENCE, Beat, Checkpoint, Pulse, Refused
from interlock.domain.lifecycle import Status
from interlock.domain.policy import DEFAULT_LEASE_SECONDS
from interlock.domain.retry import SECOND
from interlock.errors import CheckpointConflict, Error, NotFound
from interlock.storage.sql_files import load
from interlock.storage.sqlite import events, history
from interlock.storage.sqlite.connection import Connection

_SQL: Final = load("interlock.storage.sqlite", "heartbeats.sql")


def heartbeat(connection: Connection, tenant: str, beats: Sequence[Beat]) -> list[Pulse | Refused]:
    """Extend each lease that its worker still holds, and save what came along."""
    held = _held(connection, tenant, [beat.id for beat in beats])
    now = connection.now
    answers: list[Pulse | Refused] = []
    moves, saves, told = [], [], []
    for beat in beats:
        job = held.get(beat.id)
        error = _fault(connection, tenant, job, beat.id, beat.fence, beat.worker)
        if error is None and beat.checkpoint is not None:
            error = _checkpoint_fault(job, beat.checkpoint)
        if error is not None or job is None:
            answers.append(Refused(error or NotFound(beat.id)))
            continue
        expires = now + round((beat.lease_seconds or job.lease_seconds or DEFAULT_LEASE_SECONDS) * SECOND)
        if job.timeout_seconds is not None:
            expires = min(expires, job.run_started_at + round(job.timeout_seconds * SECOND))
        moves.append((expires, now, now, tenant, job.seq))
        if beat.checkpoint is not None and _is_newer(job, beat.checkpoint):
            saves.append(beat.checkpoint)
            held[beat.id] = job._replace(checkpoint_seq=beat.checkpoint.seq, checkpoint=beat.checkpoint.data)
        if beat.events:
            told.append(beat)
        answers.append(
            Pulse(beat.id, expires, job.cancel_requested_at is not None, job.cancel_reason, bool(job.paused))
        )
    connection.db.executemany(_SQL["beat"], moves)
    _save(connection, tenant, saves)
    if told:
        events.write(connection, tenant, told)
    return answers


def checkpoint(connection: Connection, tenant: str, checkpoints: Sequence[Checkpoint]) -> list[int | Refused]:
    """Save each checkpoint that is newer than what its job has."""
    held = _held(connection, tenant, [c.id for c in checkpoints])
    answers: list[int | Refused] = []
    saves = []
    for c in checkpoints:
        job = held.get(c.id)
        error = _fault(connection, tenant, job, c.id, c.fence, c.worker) or _checkpoint_fault(job, c)
        if error is not None or job is None:
            answers.append(Refused(error or NotFound(c.id)))
            continue
        if _is_newer(job, c):
            saves.append(c)
            held[c.id] = job._replace(checkpoint_seq=c.seq, checkpoint=c.data)
        answers.append(c.seq)
    _save(connection, tenant, saves)
    return answers


class _Held(NamedTuple):
    id: str
    seq: int
    status: str
    fence: int
    worker: str | None
    lease_seconds: float | None  # none where a job was granted by direct SQL that did not say
    run_started_at: int
    timeout_seconds: float | None
    cancel_requested_at: int | None
    cancel_reason: str | None
    checkpoint_seq: int | None
    checkpoint: str | None
    paused: int


def _held(connection: Connection, tenant: str, ids: Sequence[str]) -> dict[str, _Held]:
    rows = connection.rows(_SQL["held"], {"tenant": tenant, "ids": json.dumps(sorted(set(ids)))})
    return {row[0]: _Held._make(row) for row in rows}


def _fault(connection: Connection, tenant: str, job: _Held | None, id: str, fence: int, worker: str) -> Error | None:
    if job is None:
        return NotFound(id)
    if job.status == Status.RUNNING and fence in (job.fence, ANY_FENCE) and job.worker == worker:
        return None
    answer = answer_repeat(history.grant_end(connection, tenant, id, fence), None, id, fence, worker)
    assert isinstance(answer, Error)
    return answer


def _checkpoint_fault(job: _Held | None, c: Checkpoint) -> Error | None:
    if job is None or job.checkpoint_seq is None or _is_newer(job, c):
        return None
    if c.seq == job.checkpoint_seq and c.data == job.checkpoint:
        return None
    return CheckpointConflict(c.id, c.seq, job.checkpoint_seq)


def _is_newer(job: _Held, c: Checkpoint) -> bool:
    return job.checkpoint_seq is None or c.seq > job.checkpoint_seq


def _save(connection: Connection, tenant: str, saves: Sequence[Checkpoint]) -> None:
    rows = [(tenant, c.id, c.seq, c.data, c.sanitized, connection.now) for c in saves]
    connection.db.executemany(_SQL["save_checkpoint"], rows)
