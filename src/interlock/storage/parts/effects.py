"""Effects of jobs, written only under the current fence.

The intent and the result are also saved as steps: later runs have them with the lease, and history covers them.
"""

from __future__ import annotations

import json
from typing import Final

from interlock.domain.effect import (
    INTENT,
    RECORDED,
    BeginEffect,
    Begun,
    Effect,
    EffectState,
    SettleEffect,
    begin,
    settle,
)
from interlock.domain.job import Rejected
from interlock.errors import Error, NotFound
from interlock.storage.dialect import Database, Steps, Transaction, columns, reader, statements
from interlock.storage.parts.lease import hold

SQL: Final = statements("effects", effect=columns(Effect, "e."))
_effect: Final = reader(Effect)


class Effects:
    """Stores effects; see the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, tenant: str, order: BeginEffect) -> Begun | Rejected:
        def body(tx: Transaction) -> Steps[Begun | Rejected]:
            try:
                attempt = yield from hold(tx, order.id, order.fence, order.worker)
                known = yield from _known(tx, order)
                last = yield from tx.one(SQL["last"], job_id=order.id)
                begun = begin(order, known, last[0] if last else 0, attempt, tx.now)
            except Error as error:
                return Rejected(error)
            if begun.is_new:
                one = begun.effect
                facts = {"job_id": order.id, "name": one.name, "occurrence": one.occurrence, "key": one.key}
                facts |= {"attempt": attempt, "fence": order.fence}
                if known is None:
                    yield from tx.run(SQL["add"], seq=one.seq, **facts)
                    yield from _save_step(tx, order, INTENT + one.name, json.dumps(one.key), sanitized=False)
                else:
                    yield from tx.run(SQL["begin_again"], **facts)
            return begun

        return await self._database.write(tenant, body, guarded=True)

    async def settle(self, tenant: str, order: SettleEffect) -> Effect | Rejected:
        def body(tx: Transaction) -> Steps[Effect | Rejected]:
            try:
                yield from hold(tx, order.id, order.fence, order.worker)
                known = yield from _known(tx, order)
                if known is None:
                    raise NotFound(order.name, resource="effect")
                changed = settle(order, known, tx.now)
            except Error as error:
                return Rejected(error)
            if changed is None:
                return known
            yield from tx.run(
                SQL["settle"], job_id=order.id, name=order.name, occurrence=order.occurrence, state=order.state,
                result=order.result, sanitized=order.sanitized, fence=order.fence,
            )  # fmt: skip
            if order.state is EffectState.DONE:
                yield from _save_step(tx, order, order.name, order.result or "null", sanitized=order.sanitized)
            return changed

        return await self._database.write(tenant, body, guarded=True)

    async def of_job(self, tenant: str, job_id: str, *, after: int = 0, limit: int) -> list[Effect]:
        rows = await self._database.rows(tenant, SQL["list"], job_id=job_id, after=after, limit=limit)
        return [*map(_effect, rows)]


def _known(tx: Transaction, order: BeginEffect | SettleEffect) -> Steps[Effect | None]:
    row = yield from tx.one(SQL["get"], job_id=order.id, name=order.name, occurrence=order.occurrence)
    return None if row is None else _effect(row)


def _save_step(
    tx: Transaction, order: BeginEffect | SettleEffect, name: str, result: str, *, sanitized: bool
) -> Steps[None]:
    """Save a step, unless one of this name and occurrence exists."""
    at = {"job_id": order.id, "name": name, "occurrence": order.occurrence}
    if (yield from tx.one(SQL["step"], **at)) is None:
        last = yield from tx.one(SQL["last_step"], job_id=order.id)
        yield from tx.run(
            SQL["add_step"], **at, seq=1 + (last[0] if last else 0), result=result, function=RECORDED,
            fence=order.fence, sanitized=sanitized,
        )  # fmt: skip
