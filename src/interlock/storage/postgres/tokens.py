"""Bearer tokens on PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from interlock.domain import operator_log
from interlock.domain.job import Rejected
from interlock.domain.retry import SECOND
from interlock.domain.token import NewToken, Token, TokenUse
from interlock.errors import NotFound, TokenExists
from interlock.storage.postgres import log
from interlock.storage.postgres.column_arrays import array_literal
from interlock.storage.postgres.connection import Conn, call

T = TypeVar("T")
_FIND: Final = "select k.*, interlock.clock() as now from interlock.find_token($1) k"
_LISTS: Final = frozenset({"roles", "types", "repositories", "capabilities"})


class PostgresTokens(ABC):
    """The token methods of the PostgreSQL store."""

    @abstractmethod
    async def _run(self, verb: Callable[[Conn], Awaitable[T]], *, repeatable: bool = True) -> T: ...

    async def create_tokens(self, tenant: str, tokens: Sequence[NewToken]) -> list[Token | Rejected]:
        return await self._run(lambda c: _create(c, tenant, tokens)) if tokens else []

    async def find_token(self, hash: bytes) -> TokenUse | None:
        return await self._run(lambda c: _find(c, hash))

    async def tokens(self, tenant: str, *, before: str | None = None, limit: int = 50) -> list[Token]:
        return await self._run(lambda c: _page(c, tenant, before, limit))

    async def revoke_tokens(
        self, tenant: str, ids: Sequence[str], *, actor: str, of_workers: bool = False
    ) -> list[Token | Rejected]:
        return await self._run(lambda c: _revoke(c, tenant, ids, actor, of_workers))

    async def forget_tokens(self, older_than_seconds: float, limit: int) -> int:
        return await self._run(lambda c: _forget(c, round(older_than_seconds * SECOND), limit))

    async def touch_tokens(self, tenant: str, ids: Sequence[str], *, older_than_seconds: float) -> int:
        return await self._run(lambda c: _touch(c, tenant, ids, round(older_than_seconds * SECOND)))


async def _create(connection: Conn, tenant: str, tokens: Sequence[NewToken]) -> list[Token | Rejected]:
    columns = zip(
        *(
            (t.id, t.hash, t.created_by, t.description, _text(t.roles), t.worker_id, _text(t.types),
             _text(t.repositories), _text(t.capabilities), t.expires_in_seconds, t.key)
            for t in tokens
        ),
        strict=True,
    )  # fmt: skip
    async with connection.transaction():
        kept = [_to_token(row) for row in await connection.fetch(call("create_tokens", 12), tenant, *columns)]
        by_id = {token.id: token for token in kept}
        for token in tokens:
            if token.id in by_id:
                await log.append(connection, tenant, operator_log.create_token(token))
    by_key = {token.key: token.id for token in kept}
    return [by_id.get(t.id) or Rejected(TokenExists(str(t.key), by_key[t.key])) for t in tokens]


async def _find(connection: Conn, hash: bytes) -> TokenUse | None:
    row = await connection.fetchrow(_FIND, hash)
    return None if row is None else TokenUse(_to_token(row), row["hash"], row["now"])


async def _page(connection: Conn, tenant: str, before: str | None, limit: int) -> list[Token]:
    rows = await connection.fetch(call("list_tokens", 3), tenant, before, limit)
    return sorted(map(_to_token, rows), key=lambda token: (token.created_at, token.id), reverse=True)


async def _revoke(
    connection: Conn, tenant: str, ids: Sequence[str], actor: str, of_workers: bool
) -> list[Token | Rejected]:
    async with connection.transaction():
        now = await connection.fetchval("select interlock.clock()")
        rows = await connection.fetch(call("revoke_tokens", 4), tenant, list(ids), actor, of_workers)
        known = {token.id: token for token in map(_to_token, rows)}
        for id in ids:
            if id in known and (known[id].revoked_at, known[id].revoked_by) == (now, actor):
                await log.append(connection, tenant, operator_log.revoke_token(actor, id))
    return [known.get(id) or Rejected(NotFound(id, what="token")) for id in ids]


async def _forget(connection: Conn, older_than: int, limit: int) -> int:
    before = await connection.fetchval("select interlock.clock()") - older_than
    by_tenant: dict[str, list[str]] = defaultdict(list)
    for tenant, id in await connection.fetch(call("old_tokens", 2), before, limit):
        by_tenant[tenant].append(id)
    gone = 0
    for tenant, ids in by_tenant.items():
        gone += await connection.fetchval("select interlock.forget_tokens($1, $2, $3)", tenant, ids, before)
    return gone


async def _touch(connection: Conn, tenant: str, ids: Sequence[str], older_than: int) -> int:
    return int(await connection.fetchval("select interlock.touch_tokens($1, $2, $3)", tenant, list(ids), older_than))


def _text(names: tuple[str, ...] | None) -> str | None:
    return None if names is None else array_literal(names)


def _to_token(row: Any) -> Token:
    return Token._make(
        tuple(row[field]) if field in _LISTS and row[field] is not None else row[field] for field in Token._fields
    )
