"""The store interface for bearer tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from interlock.domain.job import Rejected
from interlock.domain.token import NewToken, Token, TokenUse


class TokenStore(Protocol):
    """The part of a store for bearer tokens; it only sees hashes of their secrets."""

    async def create(self, tenant: str, tokens: Sequence[NewToken]) -> list[Token | Rejected]:
        """Store new tokens; reject one whose idempotency key is in use, naming the existing token."""
        ...

    async def find(self, hash: bytes) -> TokenUse | None:
        """Return the token with this hash, of any tenant; the caller checks whether it is still valid."""
        ...

    async def page(self, tenant: str, *, before: str | None = None, limit: int = 50) -> list[Token]:
        """List tokens, newest first, starting after `before`; includes revoked and expired ones."""
        ...

    async def revoke(
        self, tenant: str, ids: Sequence[str], *, actor: str, of_workers: bool = False
    ) -> list[Token | Rejected]:
        """Revoke tokens permanently; a repeated call changes nothing and returns the same.

        With `of_workers`, treat tokens that are not worker tokens as unknown.
        """
        ...

    async def forget(self, older_than_seconds: float, limit: int) -> int:
        """Delete tokens of all tenants that were revoked or expired that long ago."""
        ...

    async def touch(self, tenant: str, ids: Sequence[str], *, older_than_seconds: float) -> int:
        """Record the use of tokens, unless it was recorded within `older_than_seconds`."""
        ...

    async def signing_key(self) -> bytes:
        """Return the 32 random bytes shared by all servers of this database; with shards, those of the first."""
        ...
