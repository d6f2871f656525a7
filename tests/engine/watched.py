"""A store that is watched while it is asked about tokens, and seconds that pass when a test says so."""

from __future__ import annotations

import asyncio
from typing import Any

from interlock.domain.principal import local
from interlock.domain.token import TokenUse
from interlock.engine.tokens import (
    Tokens,
)
from interlock.errors import Unauthenticated
from interlock.storage.contract import Store
from interlock.wire import TokenRequest

ADMIN = local("acme")
READER = TokenRequest(roles=["read"])


class Ticks:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A store that counts what it is asked about tokens, and can be made to hesitate or fail."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.looks = 0
        self.notes = 0
        self.approval = asyncio.Event()
        self.approval.set()
        self.fault: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def find_token(self, hash: bytes) -> TokenUse | None:
        self.looks += 1
        await self.approval.wait()
        if self.fault is not None:
            raise self.fault
        return await self._store.find_token(hash)

    async def touch_tokens(self, tenant: str, ids: list[str], *, older_than_seconds: float) -> int:
        self.notes += 1
        return await self._store.touch_tokens(tenant, ids, older_than_seconds=older_than_seconds)


async def is_rejected(tokens: Tokens, text: str) -> bool:
    try:
        await tokens.authenticate(text)
    except Unauthenticated:
        return True
    return False
