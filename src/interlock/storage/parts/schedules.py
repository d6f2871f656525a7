"""Schedules: when their next tick is, and what the last one created."""

from __future__ import annotations

from typing import Final

from interlock.domain import operator_log
from interlock.domain.schedule import Fired, Schedule
from interlock.storage.contract.schedules import DueSchedule
from interlock.storage.dialect import Database, Steps, Transaction, columns, reader, statements

SQL: Final = statements("schedules", columns=columns(Schedule, "s."))
_schedule: Final = reader(Schedule)


class Schedules:
    """Stores schedules; see the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(self, tenant: str, schedule: Schedule, *, actor: str) -> Schedule:
        def body(tx: Transaction) -> Steps[Schedule]:
            values = schedule._asdict()
            for name in ("version", "last_at", "last_job_id", "last_error", "updated_at"):
                del values[name]
            yield from tx.run(SQL["set"], **values)
            yield from tx.log(operator_log.set_schedule(actor, schedule))
            kept = yield from _get(tx, schedule.name)
            assert kept is not None
            return kept

        return await self._database.write(tenant, body)

    async def get(self, tenant: str, name: str) -> Schedule | None:
        rows = await self._database.rows(tenant, SQL["get"], name=name)
        return _schedule(rows[0]) if rows else None

    async def page(self, tenant: str, *, after: str = "", limit: int = 50) -> list[Schedule]:
        return [*map(_schedule, await self._database.rows(tenant, SQL["page"], after=after, limit=limit))]

    async def delete(self, tenant: str, name: str, *, actor: str) -> bool:
        def body(tx: Transaction) -> Steps[bool]:
            gone = yield from tx.run(SQL["delete"], name=name)
            if gone:
                yield from tx.log(operator_log.delete_schedule(actor, name))
            return bool(gone)

        return await self._database.write(tenant, body)

    async def pause(self, tenant: str, name: str, *, actor: str) -> Schedule | None:
        def body(tx: Transaction) -> Steps[Schedule | None]:
            if (yield from tx.run(SQL["pause"], name=name, actor=actor)):
                yield from tx.log(operator_log.pause_schedule(actor, name))
            return (yield from _get(tx, name))

        return await self._database.write(tenant, body)

    async def resume(self, tenant: str, name: str, *, actor: str, next_at: int | None) -> Schedule | None:
        def body(tx: Transaction) -> Steps[Schedule | None]:
            if (yield from tx.run(SQL["resume"], name=name, next_at=next_at)):
                yield from tx.log(operator_log.resume_schedule(actor, name))
            return (yield from _get(tx, name))

        return await self._database.write(tenant, body)

    async def due(self, limit: int) -> list[DueSchedule]:
        return [DueSchedule(*row) for row in await self._database.rows(None, SQL["due"], limit=limit)]

    async def advance(self, tenant: str, schedule: Schedule, fired: Fired) -> bool:
        def body(tx: Transaction) -> Steps[int]:
            return tx.run(
                SQL["advance"], name=schedule.name, version=schedule.version, expected=schedule.next_at,
                tick=fired.tick, next_at=fired.next_at, job_id=fired.job_id, error=fired.error,
            )  # fmt: skip

        return bool(await self._database.write(tenant, body))

    async def log_run(self, tenant: str, name: str, *, actor: str, job_id: str) -> None:
        await self._database.write(tenant, lambda tx: tx.log(operator_log.run_schedule(actor, name, job_id)))


def _get(tx: Transaction, name: str) -> Steps[Schedule | None]:
    row = yield from tx.one(SQL["get"], name=name)
    return None if row is None else _schedule(row)
