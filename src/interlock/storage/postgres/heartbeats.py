"""Signs of life and saved progress on PostgreSQL, each written only under the current fence."""

from __future__ import annotations

from collections.abc import Sequence

from interlock.domain.decide import answer_repeat
from interlock.domain.job import Beat, Checkpoint, Pulse, Refused
from interlock.errors import CheckpointConflict, Error, NotFound
from interlock.storage.batch_split import turns
from interlock.storage.postgres import events, history
from interlock.storage.postgres.connection import Conn, call


async def heartbeat(connection: Conn, tenant: str, beats: Sequence[Beat]) -> list[Pulse | Refused]:
    """Extend each lease that its worker still holds; a checkpoint that is refused refuses its whole beat."""
    answers: dict[int, Pulse | Refused] = {}
    for turn in turns(beats):
        answers |= zip(turn, await _heartbeat(connection, tenant, [beats[i] for i in turn]), strict=True)
    return [answers[i] for i in range(len(beats))]


async def _heartbeat(connection: Conn, tenant: str, beats: Sequence[Beat]) -> list[Pulse | Refused]:
    carried = [beat.checkpoint for beat in beats if beat.checkpoint is not None]
    if not carried and not any(beat.events for beat in beats):
        return await _beat(connection, tenant, beats, {})
    async with connection.transaction():
        saved = await checkpoint(connection, tenant, carried)
        faults = {c.id: a for c, a in zip(carried, saved, strict=True) if isinstance(a, Refused)}
        answers = await _beat(connection, tenant, beats, faults)
        held = [beat for beat, answer in zip(beats, answers, strict=True) if isinstance(answer, Pulse)]
        await events.write(connection, tenant, held)
        return answers


async def _beat(
    connection: Conn, tenant: str, beats: Sequence[Beat], faults: dict[str, Refused]
) -> list[Pulse | Refused]:
    good = sorted((beat for beat in beats if beat.id not in faults), key=lambda beat: beat.id)
    pulses: dict[str, Pulse] = {}
    if good:
        columns = zip(*((b.id, b.fence, b.worker, b.lease_seconds) for b in good), strict=True)
        rows = await connection.fetch(call("heartbeat", 5), tenant, *columns)
        pulses = {row[0]: Pulse(*row) for row in rows}
    faults = faults | await why_not_held(
        connection, tenant, [(b.id, b.fence, b.worker) for b in good if b.id not in pulses]
    )
    return [faults.get(beat.id) or pulses[beat.id] for beat in beats]


async def why_not_held(connection: Conn, tenant: str, grants: Sequence[tuple[str, int, str]]) -> dict[str, Refused]:
    """What to say to workers whose grants (id, fence, worker) are over, by the id of the job."""
    if not grants:
        return {}
    ids = [id for id, _, _ in grants]
    known = {row[0] for row in await connection.fetch("select id from interlock.held_checkpoints($1, $2)", tenant, ids)}
    ends = await history.grant_ends(connection, tenant, [(id, fence) for id, fence, _ in grants])
    faults = {}
    for id, fence, worker in grants:
        error = answer_repeat(ends.get((id, fence)), None, id, fence, worker) if id in known else NotFound(id)
        assert isinstance(error, Error)
        faults[id] = Refused(error)
    return faults


async def checkpoint(connection: Conn, tenant: str, checkpoints: Sequence[Checkpoint]) -> list[int | Refused]:
    """Save each checkpoint that is newer than what its job has; several of one job follow each other."""
    answers: dict[int, int | Refused] = {}
    for turn in turns(checkpoints):
        answers |= zip(turn, await _save(connection, tenant, [checkpoints[i] for i in turn]), strict=True)
    return [answers[i] for i in range(len(checkpoints))]


async def _save(connection: Conn, tenant: str, checkpoints: Sequence[Checkpoint]) -> list[int | Refused]:
    columns = zip(*((c.id, c.fence, c.worker, c.seq, c.data, c.sanitized) for c in checkpoints), strict=True)
    rows = await connection.fetch(call("save_checkpoints", 7), tenant, *columns)
    saved = {row[0] for row in rows}
    left = [c for c in checkpoints if c.id not in saved]
    if not left:
        return [c.seq for c in checkpoints]
    facts = await connection.fetch(call("held_checkpoints", 2), tenant, [c.id for c in left])
    here = {row[0]: row for row in facts}
    lost = [c for c in left if c.id not in here or (here[c.id][1], here[c.id][2]) != (c.fence, c.worker)]
    faults = await why_not_held(connection, tenant, [(c.id, c.fence, c.worker) for c in lost])
    for c in left:
        if c.id not in faults:
            _, _, _, seq, data = here[c.id]
            if (seq, data) != (c.seq, c.data):
                faults[c.id] = Refused(CheckpointConflict(c.id, c.seq, seq))
    return [faults.get(c.id) or c.seq for c in checkpoints]
