"""A store that counts its token lookups, and a clock that a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from interlock.domain.principal import local
from interlock.domain.token import TokenUse
from interlock.engine.tokens import (
    Tokens,
)
from interlock.errors import Unauthenticated
from interlock.storage.contract.tokens import TokenStore
from interlock.wire import TokenRequest

ADMIN = local("acme")
READER = TokenRequest(roles=["read"])


class Ticks:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """Stored tokens that count what they are asked, and can be made to hesitate or fail."""

    def __init__(self, tokens: TokenStore) -> None:
        self._tokens = tokens
        self.looks = 0
        self.notes = 0
        self.approval = asyncio.Event()
        self.approval.set()
        self.fault: Exception | None = None
        self.create, self.page, self.revoke, self.forget = tokens.create, tokens.page, tokens.revoke, tokens.forget
        self.signing_key = tokens.signing_key

    async def find(self, hash: bytes) -> TokenUse | None:
        self.looks += 1
        await self.approval.wait()
        if self.fault is not None:
            raise self.fault
        return await self._tokens.find(hash)

    async def touch(self, tenant: str, ids: Sequence[str], *, older_than_seconds: float) -> int:
        self.notes += 1
        return await self._tokens.touch(tenant, ids, older_than_seconds=older_than_seconds)


async def is_rejected(tokens: Tokens, text: str) -> bool:
    try:
        await tokens.authenticate(text)
    except Unauthenticated:
        return True
    return False
