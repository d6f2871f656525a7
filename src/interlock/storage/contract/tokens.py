"""What every engine offers for bearer tokens: a part of the contract of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from interlock.domain.job import Rejected
from interlock.domain.token import NewToken, Token, TokenUse


class TokenStore(Protocol):
    """The part of a store that keeps bearer tokens, of whose text it only ever sees the hash."""

    async def create_tokens(self, tenant: str, tokens: Sequence[NewToken]) -> list[Token | Rejected]:
        """Keep new tokens; one whose key is taken is refused, and names the token that has it."""
        ...

    async def find_token(self, hash: bytes) -> TokenUse | None:
        """The token kept under a hash, whoever's it is; whether it still lets anybody in is for the caller to see."""
        ...

    async def tokens(self, tenant: str, *, before: str | None = None, limit: int = 50) -> list[Token]:
        """Newest first, from the one after `before` on, revoked and expired ones among them."""
        ...

    async def revoke_tokens(
        self, tenant: str, ids: Sequence[str], *, actor: str, of_workers: bool = False
    ) -> list[Token | Rejected]:
        """End tokens for good; a second time changes nothing and answers the same.

        With `of_workers` those of others are as good as unknown.
        """
        ...

    async def forget_tokens(self, older_than_seconds: float, limit: int) -> int:
        """Delete tokens, whoever's they are, that were revoked or expired that long ago."""
        ...

    async def touch_tokens(self, tenant: str, ids: Sequence[str], *, older_than_seconds: float) -> int:
        """Note that tokens were used, save where that was noted within these seconds."""
        ...

    async def signing_key(self) -> bytes:
        """The 32 random bytes that all servers of this database share; of several shards those of the first."""
        ...
