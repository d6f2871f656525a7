"""Heartbeats and checkpoints on SQLite, each written only under the current fence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from interlock.domain.job import ANY_FENCE, Checkpoint, Heartbeat, HeartbeatReply, Rejected
from interlock.domain.job_tree import has_budget
from interlock.domain.lifecycle import Status
from interlock.domain.policy import DEFAULT_LEASE_SECONDS
from interlock.domain.retry import SECOND
from interlock.errors import CheckpointConflict, Error, NotFound
from interlock.storage.parts import budgets
from interlock.storage.sql_files import load
from interlock.storage.sqlite import driver, history, progress
from interlock.storage.sqlite.connection import Connection

_SQL: Final = load("interlock.storage.sqlite", "heartbeats.sql")


def heartbeat(connection: Connection, tenant: str, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatReply | Rejected]:
    """Extend each lease that its worker still holds; save the checkpoint and events sent with it."""
    leased_rows = _leased_rows(connection, tenant, [heartbeat.id for heartbeat in heartbeats])
    now = connection.now
    answers: list[HeartbeatReply | Rejected] = []
    moves, saves, with_events = [], [], []
    for heartbeat in heartbeats:
        job = leased_rows.get(heartbeat.id)
        error = _fault(connection, tenant, job, heartbeat.id, heartbeat.fence, heartbeat.worker)
        if error is None and heartbeat.checkpoint is not None:
            error = _checkpoint_fault(job, heartbeat.checkpoint)
        if error is not None or job is None:
            answers.append(Rejected(error or NotFound(heartbeat.id)))
            continue
        expires = now + round((heartbeat.lease_seconds or job.lease_seconds or DEFAULT_LEASE_SECONDS) * SECOND)
        if job.timeout_seconds is not None:
            expires = min(expires, job.run_started_at + round(job.timeout_seconds * SECOND))
        moves.append((expires, now, now, tenant, job.seq))
        if heartbeat.checkpoint is not None and _is_newer(job, heartbeat.checkpoint):
            saves.append(heartbeat.checkpoint)
            leased_rows[heartbeat.id] = job._replace(
                checkpoint_seq=heartbeat.checkpoint.seq, checkpoint=heartbeat.checkpoint.data
            )
        if heartbeat.events:
            with_events.append(heartbeat)
        answers.append(
            HeartbeatReply(
                heartbeat.id,
                expires,
                job.cancel_requested_at is not None,
                job.cancel_reason,
                bool(job.paused),
                messages=job.messages,
            )
        )
    connection.db.executemany(_SQL["heartbeat"], moves)
    _save(connection, tenant, saves)
    if with_events:
        progress.append_events(connection, tenant, with_events)
    leases = []
    for beat, answer in zip(heartbeats, answers, strict=True):
        if isinstance(answer, HeartbeatReply) and has_budget(limits := leased_rows[beat.id].limits):
            leases.append(budgets.Lease(beat.id, leased_rows[beat.id].fence, limits or "", beat.usage))
    if leases:
        spent = driver.run(connection, tenant, lambda tx: budgets.charge(tx, leases), now)
        answers = budgets.marked(answers, spent)
    return answers


def checkpoint(connection: Connection, tenant: str, checkpoints: Sequence[Checkpoint]) -> list[int | Rejected]:
    """Save each checkpoint that is newer than the stored one."""
    leased_rows = _leased_rows(connection, tenant, [c.id for c in checkpoints])
    answers: list[int | Rejected] = []
    saves = []
    for c in checkpoints:
        job = leased_rows.get(c.id)
        error = _fault(connection, tenant, job, c.id, c.fence, c.worker) or _checkpoint_fault(job, c)
        if error is not None or job is None:
            answers.append(Rejected(error or NotFound(c.id)))
            continue
        if _is_newer(job, c):
            saves.append(c)
            leased_rows[c.id] = job._replace(checkpoint_seq=c.seq, checkpoint=c.data)
        answers.append(c.seq)
    _save(connection, tenant, saves)
    return answers


class _LeasedRow(NamedTuple):
    id: str
    seq: int
    status: str
    fence: int
    worker: str | None
    lease_seconds: float | None  # None if direct SQL leased the job without setting it
    run_started_at: int
    timeout_seconds: float | None
    cancel_requested_at: int | None
    cancel_reason: str | None
    checkpoint_seq: int | None
    checkpoint: str | None
    paused: int
    limits: str | None
    messages: int


def _leased_rows(connection: Connection, tenant: str, ids: Sequence[str]) -> dict[str, _LeasedRow]:
    rows = connection.rows(_SQL["leased"], {"tenant": tenant, "ids": json.dumps(sorted(set(ids)))})
    return {row[0]: _LeasedRow._make(row) for row in rows}


def _fault(
    connection: Connection, tenant: str, job: _LeasedRow | None, id: str, fence: int, worker: str
) -> Error | None:
    if job is None:
        return NotFound(id)
    if job.status == Status.RUNNING and fence in (job.fence, ANY_FENCE) and job.worker == worker:
        return None
    return history.why_lease_lost(connection, tenant, id, fence, worker)


def _checkpoint_fault(job: _LeasedRow | None, c: Checkpoint) -> Error | None:
    if job is None or job.checkpoint_seq is None or _is_newer(job, c):
        return None
    if c.seq == job.checkpoint_seq and c.data == job.checkpoint:
        return None
    return CheckpointConflict(c.id, c.seq, job.checkpoint_seq)


def _is_newer(job: _LeasedRow, c: Checkpoint) -> bool:
    return job.checkpoint_seq is None or c.seq > job.checkpoint_seq


def _save(connection: Connection, tenant: str, saves: Sequence[Checkpoint]) -> None:
    rows = [(tenant, c.id, c.seq, c.data, c.sanitized, connection.now) for c in saves]
    connection.db.executemany(_SQL["save_checkpoint"], rows)
