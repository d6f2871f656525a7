"""Prune on SQLite: a step deletes old terminal jobs with everything they own."""

from __future__ import annotations

import json
from typing import Final

from interlock.domain import operator_log
from interlock.domain.operations import PruneCommand, PrunedStep
from interlock.storage import history_chain
from interlock.storage.parts.artifacts import forget
from interlock.storage.sql_files import load
from interlock.storage.sqlite import driver, job_blocks, log
from interlock.storage.sqlite.connection import Connection

_SQL: Final = load("interlock.storage.sqlite", "prune.sql")
_OWNED: Final = (
    "job_checkpoint",
    "job_step",
    "job_event",
    "job_message",
    "message_wait",
    "stream_chunk",
    "job_effect",
    "job_stream",
    "run_usage",
)
# delete_job comes first: triggers reject deleting its other rows while the job exists.
_DELETES: Final = (
    *(text for name, text in _SQL.items() if name.startswith("delete_")),
    *(_SQL["owned"].replace("{table}", table) for table in _OWNED),
)


def prune(connection: Connection, tenant: str, order: PruneCommand) -> PrunedStep:
    rows = connection.rows(_SQL["next_jobs"], {"tenant": tenant, "after": order.after_seq, "step": order.step})
    cutoff = min(order.cutoff, connection.now)
    last_seq = rows[-1][0] if rows else order.after_seq
    # A job created after the cutoff cannot have finished before it, so stop once no job of this step is older.
    at_end = len(rows) < order.step or all(created_at >= cutoff for _, _, created_at, _, _ in rows)
    old = [(seq, id, hash) for seq, id, _, ended, hash in rows if ended is not None and ended < cutoff]
    if order.most is not None and len(old) > order.most:
        old, at_end = old[: order.most], False
        last_seq = old[-1][0] if old else order.after_seq
    if old and not order.dry_run:
        seqs, ids = [seq for seq, _, _ in old], [id for _, id, _ in old]
        ends = sorted((tenant, id, hash) for _, id, hash in old)
        digest = bytes.fromhex(history_chain.head(ends))
        connection.db.execute(
            _SQL["note_prune"],
            (tenant, connection.now, order.id, order.actor, cutoff, len(old), seqs[0], seqs[-1], digest),
        )
        facts = {"tenant": tenant, "seqs": json.dumps(seqs), "ids": json.dumps(ids)}
        for statement in _DELETES:
            connection.db.execute(statement, facts)
        log.append(connection, tenant, operator_log.prune(order, len(old), cutoff))
        driver.run(connection, tenant, lambda tx: forget(tx, ids), connection.now)
        job_blocks.drop_emptied(connection, tenant, seqs[0], seqs[-1])
    return PrunedStep(len(old), last_seq, at_end)
