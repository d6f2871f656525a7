"""Bearer tokens on SQLite."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from interlock.domain import operator_log
from interlock.domain.job import Rejected
from interlock.domain.retry import SECOND
from interlock.domain.token import NewToken, Token, TokenUse
from interlock.errors import NotFound, TokenExists
from interlock.storage.sql_files import load
from interlock.storage.sqlite import log
from interlock.storage.sqlite.connection import Connection

T = TypeVar("T")
_COLUMNS: Final = ", ".join(Token._fields)
_SQL: Final = {
    name: statement.replace("{columns}", _COLUMNS)
    for name, statement in load("interlock.storage.sqlite", "tokens.sql").items()
}
_LISTS: Final = tuple(map(Token._fields.index, ("roles", "types", "repositories", "capabilities")))


class SQLiteTokens(ABC):
    """Token methods of the SQLite store."""

    @abstractmethod
    async def _write(self, verb: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    async def _read(self, query: Callable[[Connection], T]) -> T: ...

    async def create_tokens(self, tenant: str, tokens: Sequence[NewToken]) -> list[Token | Rejected]:
        return await self._write(lambda c: [_create(c, tenant, token) for token in tokens])

    async def find_token(self, hash: bytes) -> TokenUse | None:
        return await self._read(lambda c: _find(c, hash))

    async def tokens(self, tenant: str, *, before: str | None = None, limit: int = 50) -> list[Token]:
        return await self._read(lambda c: _page(c, tenant, before, limit))

    async def revoke_tokens(
        self, tenant: str, ids: Sequence[str], *, actor: str, of_workers: bool = False
    ) -> list[Token | Rejected]:
        return await self._write(lambda c: [_revoke(c, tenant, id, actor, of_workers) for id in ids])

    async def forget_tokens(self, older_than_seconds: float, limit: int) -> int:
        return await self._write(lambda c: _forget(c, round(older_than_seconds * SECOND), limit))

    async def touch_tokens(self, tenant: str, ids: Sequence[str], *, older_than_seconds: float) -> int:
        return await self._write(lambda c: _touch(c, tenant, ids, round(older_than_seconds * SECOND)))


def _create(connection: Connection, tenant: str, token: NewToken) -> Token | Rejected:
    now = connection.now
    life = token.expires_in_seconds
    connection.db.execute(
        _SQL["create"],
        {
            "tenant": tenant,
            "now": now,
            "expires_at": None if life is None else now + round(life * SECOND),
            **token._asdict(),
            **{name: _text(getattr(token, name)) for name in ("roles", "types", "repositories", "capabilities")},
        },
    )
    if kept := _get(connection, tenant, token.id):
        log.append(connection, tenant, operator_log.create_token(token))
        return kept
    ((id,),) = connection.rows(_SQL["with_key"], {"tenant": tenant, "key": token.key})
    return Rejected(TokenExists(str(token.key), id))


def _find(connection: Connection, hash: bytes) -> TokenUse | None:
    for row in connection.rows(_SQL["with_hash"], {"hash": hash}):
        return TokenUse(_to_token(row[:-1]), row[-1], connection.read_clock())
    return None


def _page(connection: Connection, tenant: str, before: str | None, limit: int) -> list[Token]:
    rows = connection.rows(_SQL["list"], {"tenant": tenant, "before": before, "limit": limit})
    return [_to_token(row) for row in rows]


def _revoke(connection: Connection, tenant: str, id: str, actor: str, of_workers: bool) -> Token | Rejected:
    found = _get(connection, tenant, id)
    if found is None or (of_workers and found.worker_id is None):
        return Rejected(NotFound(id, what="token"))
    connection.db.execute(_SQL["revoke"], {"tenant": tenant, "id": id, "now": connection.now, "actor": actor})
    if found.revoked_at is None:
        log.append(connection, tenant, operator_log.revoke_token(actor, id))
    return _get(connection, tenant, id) or found


def _forget(connection: Connection, older_than: int, limit: int) -> int:
    connection.db.execute(_SQL["forget"], {"before": connection.now - older_than, "limit": limit})
    return int(connection.db.changes())


def _touch(connection: Connection, tenant: str, ids: Sequence[str], older_than: int) -> int:
    touched = 0
    for id in ids:
        values = {"tenant": tenant, "id": id, "now": connection.now, "before": connection.now - older_than}
        connection.db.execute(_SQL["touch"], values)
        touched += connection.db.changes()
    return touched


def _get(connection: Connection, tenant: str, id: str) -> Token | None:
    return next((_to_token(row) for row in connection.rows(_SQL["get"], {"tenant": tenant, "id": id})), None)


def _text(names: tuple[str, ...] | None) -> str | None:
    return None if names is None else json.dumps(names, separators=(",", ":"))


def _to_token(row: Sequence[Any]) -> Token:
    values = list(row)
    for i in _LISTS:
        if values[i] is not None:
            values[i] = tuple(json.loads(values[i]))
    return Token._make(values)
