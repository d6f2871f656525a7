"""Sessions of the dashboard, and the persons who signed in."""

from __future__ import annotations

from functools import partial
from typing import Final

from interlock.domain import operator_log
from interlock.domain.retry import SECOND
from interlock.domain.session import KnownPerson, NewSession, Session, SessionUse
from interlock.storage.dialect import Database, Steps, Transaction, by_tenant, columns, reader, statements

SQL: Final = statements("sessions", columns=columns(Session, "s."))
_session: Final = reader(Session)
_person: Final = reader(KnownPerson)


class Sessions:
    """Stores the hashes of sessions; see the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, tenant: str, new: NewSession) -> Session:
        return await self._database.write(tenant, partial(_begin, new=new))

    async def find(self, hash: bytes) -> SessionUse | None:
        rows = await self._database.rows(None, SQL["with_hash"], hash=hash)
        for *row, name, email, now in rows:
            return SessionUse(_session(row), name, email, now)
        return None

    async def page(self, tenant: str, *, before: str | None = None, limit: int = 50) -> list[Session]:
        return [*map(_session, await self._database.rows(tenant, SQL["page"], before=before, limit=limit))]

    async def end(self, tenant: str, id: str, *, actor: str) -> bool:
        def body(tx: Transaction) -> Steps[bool]:
            row = yield from tx.one(SQL["end"], id=id)
            if row is not None and row[1] is not None:
                yield from tx.log(operator_log.end_session(actor, row[0]))
            return row is not None

        return await self._database.write(tenant, body)

    async def end_all(self, tenant: str, of_actor: str, *, actor: str) -> int:
        def body(tx: Transaction) -> Steps[int]:
            ended = yield from tx.run(SQL["end_all"], of_actor=of_actor)
            if ended:
                yield from tx.log(operator_log.end_session(actor, of_actor))
            return ended

        return await self._database.write(tenant, body)

    async def people(self, tenant: str, *, limit: int) -> list[KnownPerson]:
        return [*map(_person, await self._database.rows(tenant, SQL["people"], limit=limit))]

    async def forget(self, limit: int) -> int:
        gone = 0
        for tenant, ids in by_tenant(await self._database.rows(None, SQL["old"], limit=limit)).items():
            gone += await self._database.write(tenant, partial(_forget, ids=ids))
        return gone


def _forget(tx: Transaction, ids: list[str]) -> Steps[int]:
    return tx.run(SQL["forget"], ids=ids)


def _begin(tx: Transaction, new: NewSession) -> Steps[Session]:
    person = new.person
    begun = yield from tx.run(
        SQL["begin"], id=new.id, hash=new.hash, actor=new.actor, roles=new.roles,
        authenticated_at=None if person is None else person.authenticated_at,
        expires_at=tx.now + round(new.life_seconds * SECOND),
    )  # fmt: skip
    if begun and person is not None:
        yield from tx.run(SQL["know"], actor=new.actor, name=person.name, email=person.email)
        yield from tx.log(operator_log.begin_session(new))
    row = yield from tx.one(SQL["get"], id=new.id)
    return _session(row)
