"""What a worker and a queue share: claims by ID, the interval of heartbeats, and how a lease is lost."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from typing import Final

from interlock.client.port import Client, LeasedJob
from interlock.domain.decide import ReleaseJob
from interlock.domain.policy import ClaimFilter
from interlock.errors import Conflict, NotFound

MAX_HEARTBEAT_SECONDS: Final = 5.0
HEARTBEATS_PER_CALL: Final = 1000
LOST: Final = (Conflict, NotFound)  # errors of a call under a lease that its holder no longer has


def heartbeat_seconds(lease_seconds: float) -> float:
    """Return the usual interval of heartbeats, so that two lost ones do not lose the lease."""
    return min(lease_seconds / 3, MAX_HEARTBEAT_SECONDS)


class Claims:
    """The claims of one claimer. If the response of a claim was lost, its jobs are found again by its ID.

    An ID is used again once all jobs of its claim are finished.
    """

    def __init__(self, ask: ClaimFilter) -> None:
        stem = secrets.token_hex(6)
        self._ask = ask
        self._new = (f"{stem}-{n}" for n in itertools.count())
        self._free: list[str] = []
        self._unsure: list[ClaimFilter] = []

    @property
    def is_unsure(self) -> bool:
        """Whether the response of a claim was lost: repeat the claim, or release its jobs."""
        return bool(self._unsure)

    async def claim(self, client: Client, limit: int, wait_seconds: float) -> tuple[Sequence[LeasedJob], ClaimId]:
        """Claim up to `limit` jobs."""
        name = self._free.pop() if self._free else next(self._new)
        return await self._send(client, self._ask._replace(limit=limit, claim_id=name), wait_seconds)

    async def repeat(self, client: Client, wait_seconds: float) -> tuple[Sequence[LeasedJob], ClaimId]:
        """Repeat a claim whose response was lost; it leases the same jobs."""
        return await self._send(client, self._unsure.pop(), wait_seconds)

    async def give_back(self, client: Client, reason: str) -> None:
        """Release the jobs of a claim whose response was lost. Repeating it without types leases nothing new."""
        ask = self._unsure.pop()
        try:
            leases = await client.work.claim(ask._replace(types=frozenset(), limit=1))
            if leases:
                jobs = [lease.job for lease in leases]
                await client.work.finishes(
                    [ReleaseJob(job.id, job.fence, job.worker or "", reason=reason) for job in jobs]
                )
        except BaseException:
            self._unsure.append(ask)
            raise
        self.free(ask.claim_id)

    def free(self, name: str | None) -> None:
        """Mark this claim ID as free."""
        self._free.append(name or "")

    async def _send(self, client: Client, ask: ClaimFilter, wait_seconds: float) -> tuple[Sequence[LeasedJob], ClaimId]:
        try:
            leases = await client.work.claim(ask, wait_seconds=wait_seconds)
        except BaseException:
            self._unsure.append(ask)
            raise
        if not leases:
            self.free(ask.claim_id)
        return leases, ClaimId(self, ask.claim_id, len(leases))


class ClaimId:
    """A claim ID and the number of its unfinished jobs."""

    __slots__ = ("_claims", "_left", "_name")

    def __init__(self, claims: Claims, name: str | None, left: int) -> None:
        self._claims = claims
        self._name = name
        self._left = left

    def settle(self) -> None:
        """Record that one of its jobs is finished; after the last one the ID is free."""
        self._left -= 1
        if not self._left:
            self._claims.free(self._name)
