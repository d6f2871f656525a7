"""Claim IDs: a claim whose response was lost is repeated with its ID, and free IDs are reused."""

from __future__ import annotations

import itertools
import secrets


class ClaimIds:
    """Claim IDs of one claimer; an ID is reused once all jobs of its claim are finished."""

    def __init__(self) -> None:
        stem = secrets.token_hex(6)
        self._new = (f"{stem}-{n}" for n in itertools.count())
        self._free: list[str] = []

    def name(self) -> str:
        """Return a claim ID without leased jobs."""
        return self._free.pop() if self._free else next(self._new)

    def leased(self, name: str | None, count: int) -> ClaimId:
        """Record how many jobs the claim with this ID returned."""
        claim = ClaimId(self, name or "", count)
        if not count:
            self.free(claim.name)
        return claim

    def free(self, name: str | None) -> None:
        """Mark this claim ID as free."""
        self._free.append(name or "")


class ClaimId:
    """A claim ID and the number of its unfinished jobs."""

    __slots__ = ("_claims", "left", "name")

    def __init__(self, claims: ClaimIds, name: str, left: int) -> None:
        self._claims = claims
        self.name = name
        self.left = left

    def settle(self) -> None:
        """Record that one of its jobs is finished; after the last one the ID is free."""
        self.left -= 1
        if not self.left:
            self._claims.free(self.name)
