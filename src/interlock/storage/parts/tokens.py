"""Bearer tokens, and the key that signs cookies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from interlock.domain import operator_log
from interlock.domain.job import Rejected
from interlock.domain.retry import SECOND
from interlock.domain.token import NewToken, Token, TokenUse
from interlock.errors import NotFound, TokenExists
from interlock.storage.dialect import Database, Row, Steps, Transaction, by_tenant, columns, reader, statements

SQL: Final = statements("tokens", columns=columns(Token, "k."))
_token: Final = reader(Token)


class Tokens:
    """Stores the hashes of tokens; see the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, tenant: str, tokens: Sequence[NewToken]) -> list[Token | Rejected]:
        def body(tx: Transaction) -> Steps[list[Token | Rejected]]:
            answers = []
            for token in tokens:
                answers.append((yield from _create(tx, token)))
            return answers

        return await self._database.write(tenant, body)

    async def find(self, hash: bytes) -> TokenUse | None:
        rows = await self._database.rows(None, SQL["with_hash"], hash=hash)
        for *row, stored, now in rows:
            return TokenUse(_token(row), stored, now)
        return None

    async def page(self, tenant: str, *, before: str | None = None, limit: int = 50) -> list[Token]:
        return [*map(_token, await self._database.rows(tenant, SQL["page"], before=before, limit=limit))]

    async def revoke(
        self, tenant: str, ids: Sequence[str], *, actor: str, of_workers: bool = False
    ) -> list[Token | Rejected]:
        def body(tx: Transaction) -> Steps[list[Token | Rejected]]:
            answers: list[Token | Rejected] = []
            for id in ids:
                if (yield from tx.run(SQL["revoke"], id=id, actor=actor, of_workers=of_workers)):
                    yield from tx.log(operator_log.revoke_token(actor, id))
                found = yield from _get(tx, id)
                known = found is not None and (found.worker_id is not None or not of_workers)
                answers.append(found if found is not None and known else Rejected(NotFound(id, resource="token")))
            return answers

        return await self._database.write(tenant, body)

    async def forget(self, older_than_seconds: float, limit: int) -> int:
        before = await self._database.now() - round(older_than_seconds * SECOND)
        old = await self._database.rows(None, SQL["old"], before=before, limit=limit)
        gone = 0
        for tenant, ids in by_tenant(old).items():
            gone += len(await self._database.write(tenant, partial(_forget, ids=ids, before=before)))
        return gone

    async def touch(self, tenant: str, ids: Sequence[str], *, older_than_seconds: float) -> int:
        def body(tx: Transaction) -> Steps[int]:
            return tx.run(SQL["touch"], ids=ids, before=tx.now - round(older_than_seconds * SECOND))

        return await self._database.write(tenant, body)

    async def signing_key(self) -> bytes:
        ((key,),) = await self._database.rows(None, SQL["signing_key"])
        return bytes(key)


def _create(tx: Transaction, token: NewToken) -> Steps[Token | Rejected]:
    life = token.expires_in_seconds
    expires_at = None if life is None else tx.now + round(life * SECOND)
    if (yield from tx.run(SQL["create"], **token._asdict(), expires_at=expires_at)):
        yield from tx.log(operator_log.create_token(token))
    if kept := (yield from _get(tx, token.id)):
        return kept
    row = yield from tx.one(SQL["with_key"], key=token.key)
    return Rejected(TokenExists(str(token.key), "" if row is None else row[0]))


def _forget(tx: Transaction, ids: Sequence[str], before: int) -> Steps[list[Row]]:
    return tx.rows(SQL["forget"], ids=ids, before=before)


def _get(tx: Transaction, id: str) -> Steps[Token | None]:
    row = yield from tx.one(SQL["get"], id=id)
    return None if row is None else _token(row)
