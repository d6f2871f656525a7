"""Authentication: bearer tokens, and the principal of any credential."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from interlock import wire
from interlock.domain import token as shape
from interlock.domain.principal import Principal
from interlock.domain.retry import SECOND
from interlock.domain.token import CreatedToken, NewToken, Token, TokenUse
from interlock.engine.results import answered
from interlock.engine.ttl_cache import FRESH_SECONDS, MAX_REMEMBERED, TtlCache
from interlock.errors import Error, NotFound, Unauthenticated
from interlock.storage.contract.tokens import TokenStore
from interlock.wire import TokenRequest

if TYPE_CHECKING:  # loads a cryptography library: only for those who use it
    from interlock.engine.jwt import Issuers

log = logging.getLogger(__name__)

MAX_REFUSALS_REMEMBERED: Final = 1_000
NOTE_USE_EVERY_SECONDS: Final = 60.0
MAX_PAGE_SIZE: Final = 200


class Trust(NamedTuple):
    """Accepted credentials: own tokens, and those of external issuers."""

    own: bool = True
    issuers: Issuers | None = None


OWN: Final = Trust()


class _TokenCache(NamedTuple):
    token_id: str
    principal: Principal


class _Asking(NamedTuple):
    answer: asyncio.Task[Principal | None]
    until: float


class Tokens:
    """Token management for admins, and authentication of every caller."""

    def __init__(self, store: TokenStore, trust: Trust = OWN, *, ticks: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._trust = trust
        self._ticks = ticks
        self._known: TtlCache[bytes, _TokenCache] = TtlCache(MAX_REMEMBERED)
        self._unknown: TtlCache[bytes, bool] = TtlCache(MAX_REFUSALS_REMEMBERED)
        self._asking: dict[bytes, _Asking] = {}
        self._noting: dict[str, asyncio.Task[None]] = {}

    async def create(self, who: Principal, request: TokenRequest, *, prefix: str | None = None) -> CreatedToken:
        """Create a token for the caller's tenant; its secret is only in this result."""
        who.need("admin")
        text = _spelled() if prefix is None else prefix + secrets.token_hex(24)
        (answer,) = await self._store.create(who.tenant, [_new(request, text, who.actor)])
        return CreatedToken(answered(answer), text)

    async def list(self, who: Principal, *, before: str | None = None, limit: int = 50) -> list[Token]:
        """List tokens, newest first, starting after `before`; includes revoked and expired ones."""
        who.need("admin")
        wire.whole(limit, "limit", 1, MAX_PAGE_SIZE)
        after = None if before is None else wire.job_id(before, "before")
        return await self._store.page(who.tenant, before=after, limit=limit)

    async def revoke(self, who: Principal, token_id: str, *, of_worker: bool = False) -> Token:
        """Revoke a token permanently, effective everywhere within a second; a repeated call returns the same.

        With `of_worker`, treat a token that is not a worker token as unknown.
        """
        who.need("admin")
        try:
            id = wire.job_id(token_id)
        except NotFound:
            raise NotFound(token_id, resource="token") from None
        (answer,) = await self._store.revoke(who.tenant, [id], actor=who.actor, of_workers=of_worker)
        self._known.forget(lambda known: known.token_id == id)
        return answered(answer)

    async def authenticate(self, credential: str) -> Principal:
        """Return the principal of a bearer credential; every fault raises the same error."""
        if self._trust.own and shape.is_own(credential):
            principal = await self._bearer(credential)
        elif self._trust.issuers is not None:
            principal = await self._trust.issuers.authenticate(credential)
        else:
            principal = None
        if principal is None:
            raise Unauthenticated
        return principal

    async def close(self) -> None:
        """Finish recording the last use of tokens."""
        tasks = [*self._noting.values(), *(asking.answer for asking in self._asking.values())]
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._trust.issuers is not None:
            await self._trust.issuers.close()

    async def _bearer(self, text: str) -> Principal | None:
        if len(text) != shape.LENGTH or not text.isascii():
            return None
        hash = shape.fingerprint(text)
        now = self._ticks()
        if (known := self._known.get(hash, now)) is not None:
            return known.principal
        if self._unknown.get(hash, now) or not shape.is_whole(text):
            return None
        asking = self._asking.get(hash)
        if asking is None or now >= asking.until:
            # Concurrent callers share one query and its result, but never a stale one.
            asking = _Asking(asyncio.create_task(self._ask(hash, now)), now + FRESH_SECONDS)
            self._asking[hash] = asking
            asking.answer.add_done_callback(lambda task: self._asked(hash, task))
        return await asyncio.shield(asking.answer)

    async def _ask(self, hash: bytes, now: float) -> Principal | None:
        seen = await self._store.find(hash)
        until = now + FRESH_SECONDS
        if seen is None or not seen.admits(hash):
            self._unknown.put(hash, True, until)
            return None
        token = seen.token
        principal = token.principal()
        if token.expires_at is not None:
            until = min(until, now + (token.expires_at - seen.now) / SECOND)
        self._known.put(hash, _TokenCache(token.id, principal), until)
        self._note_use(seen)
        return principal

    def _asked(self, hash: bytes, task: asyncio.Task[Principal | None]) -> None:
        if (asking := self._asking.get(hash)) is not None and asking.answer is task:
            del self._asking[hash]
        if not task.cancelled():
            task.exception()  # retrieve it: the waiters may be gone

    def _note_use(self, seen: TokenUse) -> None:
        """Record the use of a token from time to time, in the background."""
        token, now = seen.token, seen.now
        stale = token.last_used_at is None or now - token.last_used_at >= NOTE_USE_EVERY_SECONDS * SECOND
        if stale and token.id not in self._noting:
            task = self._noting[token.id] = asyncio.create_task(self._write_use(token))
            task.add_done_callback(lambda _: self._noting.pop(token.id, None))

    async def _write_use(self, token: Token) -> None:
        try:
            await self._store.touch(token.tenant, [token.id], older_than_seconds=NOTE_USE_EVERY_SECONDS)
        except Error as error:
            log.warning("the use of token %s could not be noted: %s", token.id, error)


def _spelled() -> str:
    return shape.spell(secrets.token_bytes(shape.SECRET_BYTES))


def _new(request: TokenRequest, text: str, created_by: str) -> NewToken:
    worker_id = shape.worker_id(request.worker_id)
    return NewToken(
        id=wire.new_id(),
        hash=shape.fingerprint(text),
        roles=shape.roles(request.roles, worker_id=worker_id),
        created_by=created_by,
        description=wire.reason(request.description, "description"),
        worker_id=worker_id,
        types=shape.types(request.types),
        repositories=shape.repositories(request.repositories),
        capabilities=shape.capabilities(request.capabilities),
        expires_in_seconds=wire.seconds(
            request.expires_in_seconds, "expires_in_seconds", 0.001, shape.MAX_LIFE_SECONDS
        ),
        key=None if request.key is None else wire.name(request.key, "key"),
    )
