"""Heartbeats and checkpoints on PostgreSQL, each written only under the current fence."""

from __future__ import annotations

from collections.abc import Sequence

from interlock.domain.job import Checkpoint, Heartbeat, HeartbeatReply, Rejected
from interlock.domain.job_tree import has_budget
from interlock.errors import CheckpointConflict
from interlock.storage.batch_split import split_by_job
from interlock.storage.parts import budgets
from interlock.storage.postgres import driver, history, progress
from interlock.storage.postgres.connection import Conn, call


async def heartbeat(connection: Conn, tenant: str, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatReply | Rejected]:
    """Extend each lease that its worker still holds. A rejected checkpoint rejects its whole heartbeat."""
    answers: dict[int, HeartbeatReply | Rejected] = {}
    for batch in split_by_job(heartbeats):
        answers |= zip(batch, await _heartbeat(connection, tenant, [heartbeats[i] for i in batch]), strict=True)
    return [answers[i] for i in range(len(heartbeats))]


async def _heartbeat(connection: Conn, tenant: str, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatReply | Rejected]:
    carried = [heartbeat.checkpoint for heartbeat in heartbeats if heartbeat.checkpoint is not None]
    if not carried and not any(heartbeat.events or heartbeat.usage for heartbeat in heartbeats):
        return await _heartbeat_one(connection, tenant, heartbeats, {})
    async with connection.transaction():
        saved = await checkpoint(connection, tenant, carried)
        faults = {c.id: a for c, a in zip(carried, saved, strict=True) if isinstance(a, Rejected)}
        answers = await _heartbeat_one(connection, tenant, heartbeats, faults)
        leased = [
            heartbeat
            for heartbeat, answer in zip(heartbeats, answers, strict=True)
            if isinstance(answer, HeartbeatReply)
        ]
        await progress.append_events(connection, tenant, leased)
        return answers


async def _heartbeat_one(
    connection: Conn, tenant: str, heartbeats: Sequence[Heartbeat], faults: dict[str, Rejected]
) -> list[HeartbeatReply | Rejected]:
    good = sorted(
        (heartbeat for heartbeat in heartbeats if heartbeat.id not in faults), key=lambda heartbeat: heartbeat.id
    )
    replies: dict[str, HeartbeatReply] = {}
    usages = {one.id: one.usage for one in good}
    if good:
        columns = zip(*((b.id, b.fence, b.worker, b.lease_seconds) for b in good), strict=True)
        rows = await connection.fetch(call("heartbeat", 5), tenant, *columns)
        leases = []
        for id, expires_at, cancelled, reason, paused, limits, fence, messages in rows:
            replies[id] = HeartbeatReply(id, expires_at, cancelled, reason, paused, messages=messages)
            if has_budget(limits):
                leases.append(budgets.Lease(id, fence, limits, usages.get(id)))
        if leases:
            async with connection.transaction():
                spent = await driver.run(connection, tenant, lambda tx: budgets.charge(tx, leases))
            replies |= {id: replies[id]._replace(budget_exceeded=True) for id in spent}
    faults = faults | await history.why_lease_lost(
        connection, tenant, [(b.id, b.fence, b.worker) for b in good if b.id not in replies]
    )
    return [faults.get(heartbeat.id) or replies[heartbeat.id] for heartbeat in heartbeats]


async def checkpoint(connection: Conn, tenant: str, checkpoints: Sequence[Checkpoint]) -> list[int | Rejected]:
    """Save each checkpoint that is newer than the stored one; several of one job apply in order."""
    answers: dict[int, int | Rejected] = {}
    for batch in split_by_job(checkpoints):
        answers |= zip(batch, await _save(connection, tenant, [checkpoints[i] for i in batch]), strict=True)
    return [answers[i] for i in range(len(checkpoints))]


async def _save(connection: Conn, tenant: str, checkpoints: Sequence[Checkpoint]) -> list[int | Rejected]:
    columns = zip(*((c.id, c.fence, c.worker, c.seq, c.data, c.sanitized) for c in checkpoints), strict=True)
    rows = await connection.fetch(call("save_checkpoints", 7), tenant, *columns)
    saved = {row[0] for row in rows}
    left = [c for c in checkpoints if c.id not in saved]
    if not left:
        return [c.seq for c in checkpoints]
    facts = await connection.fetch(call("leased_checkpoints", 2), tenant, [c.id for c in left])
    here = {row[0]: row for row in facts}
    lost = [c for c in left if c.id not in here or (here[c.id][1], here[c.id][2]) != (c.fence, c.worker)]
    faults = await history.why_lease_lost(connection, tenant, [(c.id, c.fence, c.worker) for c in lost])
    for c in left:
        if c.id not in faults:
            _, _, _, seq, data = here[c.id]
            if (seq, data) != (c.seq, c.data):
                faults[c.id] = Rejected(CheckpointConflict(c.id, c.seq, seq))
    return [faults.get(c.id) or c.seq for c in checkpoints]
