"""Sharded approvals, progress, artifacts and tokens: on the shard of their job; tokens on that of their tenant."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from interlock.domain.approval import Approval, ApprovalFilter, CastVote, CreateApprovalLink
from interlock.domain.artifact import Artifact, NewArtifact, Opening
from interlock.domain.job import Rejected
from interlock.domain.progress import EventRow, FeedEvent, FeedPosition, Report, Step, StepRow
from interlock.domain.token import NewToken, Token, TokenUse
from interlock.errors import Invalid
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.shards.routing import Routing
from interlock.storage.shards.shard import Shard

PAGE: Final = 500


class ShardedApprovals(Routing):
    """The part of a sharded store for approvals."""

    async def decide(self, tenant: str, commands: Sequence[CastVote]) -> list[Approval | Rejected]:
        return await self._by_job(
            tenant,
            commands,
            attrgetter("id"),
            lambda store, some: store.decide(tenant, some),
            find=self._shards_of_approvals,
        )

    async def create_link(self, tenant: str, link_requests: Sequence[CreateApprovalLink]) -> list[Approval | Rejected]:
        return await self._by_job(
            tenant,
            link_requests,
            attrgetter("id"),
            lambda store, some: store.create_link(tenant, some),
            find=self._shards_of_approvals,
        )

    async def approvals(self, tenant: str, ids: Sequence[str]) -> list[Approval | None]:
        return await self._by_job(
            tenant, ids, str, lambda store, some: store.approvals(tenant, some), find=self._shards_of_approvals
        )

    async def find_approvals(self, tenant: str, filter: ApprovalFilter) -> list[Approval]:
        pages = await self._each(tenant, lambda store: store.find_approvals(tenant, filter))
        found = sorted(itertools.chain(*pages), key=filter.cursor_of, reverse=not filter.urgent)
        return found[: filter.limit]

    async def approval_of_token(self, sha256: bytes) -> tuple[str, str] | None:
        return await self._search(lambda store: store.approval_of_token(sha256), lambda found: found[0])

    async def decisions(self, tenant: str, job_ids: Sequence[str]) -> dict[str, list[Approval]]:
        found: dict[str, list[Approval]] = {}
        for some in await self._each(tenant, lambda store: store.decisions(tenant, job_ids)):
            found |= some
        return found

    async def _shards_of_approvals(self, tenant: str, ids: Sequence[str], shards: Sequence[Shard]) -> dict[str, Shard]:
        """Return the shard of each approval; unknown ones go to the current shard."""
        results = await asyncio.gather(*(shard.run(lambda store: store.approvals(tenant, ids)) for shard in shards))
        positions = dict.fromkeys(ids, shards[0])
        for shard, some in zip(shards, results, strict=True):
            positions |= {approval.id: shard for approval in some if approval is not None}
        return positions


class ShardedProgress(Routing):
    """The part of a sharded store for steps and events."""

    async def save_steps(self, tenant: str, steps: Sequence[Step]) -> list[StepRow | Rejected]:
        return await self._by_job(tenant, steps, attrgetter("id"), lambda store, some: store.save_steps(tenant, some))

    async def steps(self, tenant: str, job_ids: Sequence[str], *, after: int = 0, limit: int) -> list[list[StepRow]]:
        return await self._by_job(
            tenant, job_ids, str, lambda store, some: store.steps(tenant, some, after=after, limit=limit)
        )

    async def add_events(self, tenant: str, reports: Sequence[Report]) -> list[tuple[int, ...] | Rejected]:
        return await self._by_job(tenant, reports, attrgetter("id"), lambda store, some: store.add_events(tenant, some))

    async def events(
        self, tenant: str, job_id: str, *, after: int = 0, since: int | None = None, limit: int
    ) -> list[EventRow]:
        return await self._of_job(
            tenant, job_id, lambda store: store.events(tenant, job_id, after=after, since=since, limit=limit)
        )

    async def feed(self, tenant: str, after: FeedPosition, *, limit: int) -> list[FeedEvent]:
        return await self._routed(
            tenant, lambda shards: _only(shards).run(lambda store: store.feed(tenant, after, limit=limit))
        )

    async def feed_end(self, tenant: str) -> FeedPosition:
        return await self._routed(tenant, lambda shards: _only(shards).run(lambda store: store.feed_end(tenant)))

    async def has_ended(self, tenant: str, job_id: str) -> bool | None:
        return await self._of_job(tenant, job_id, lambda store: store.has_ended(tenant, job_id))


class ShardedArtifacts(Routing):
    """The part of a sharded store for artifact metadata."""

    async def open_uploads(
        self, tenant: str, openings: Sequence[Opening], *, quota: int | None
    ) -> list[Rejected | None]:
        return await self._by_job(
            tenant,
            openings,
            lambda opening: opening.holder.job_id,
            lambda store, some: store.open_uploads(tenant, some, quota=quota),
        )

    async def show_artifacts(
        self, tenant: str, items: Sequence[NewArtifact], *, quota: int | None, whole: bool = False
    ) -> list[Artifact | Rejected]:
        return await self._by_job(
            tenant,
            items,
            attrgetter("job_id"),
            lambda store, some: store.show_artifacts(tenant, some, quota=quota, whole=whole),
        )

    async def abandon_objects(self, tenant: str, keys: Sequence[str]) -> None:
        await self._each(tenant, lambda store: store.abandon_objects(tenant, keys))

    async def artifact(self, tenant: str, job_id: str, artifact_id: str) -> Artifact | None:
        return await self._of_job(tenant, job_id, lambda store: store.artifact(tenant, job_id, artifact_id))

    async def artifact_home(self, tenant: str, artifact_id: str) -> str | None:
        homes = await self._each(tenant, lambda store: store.artifact_home(tenant, artifact_id))
        return next((home for home in homes if home is not None), None)

    async def artifacts(
        self, tenant: str, job_id: str, *, before: tuple[int, str] | None, limit: int
    ) -> list[Artifact]:
        return await self._of_job(
            tenant, job_id, lambda store: store.artifacts(tenant, job_id, before=before, limit=limit)
        )

    async def forget_artifacts(self, tenant: str, job_ids: Sequence[str]) -> int:
        return sum(await self._each(tenant, lambda store: store.forget_artifacts(tenant, job_ids)))

    async def artifact_bytes(self, tenant: str) -> int:
        return sum(await self._each(tenant, lambda store: store.artifact_bytes(tenant)))

    async def condemn_orphans(self, tenant: str, keys: Sequence[str]) -> list[str]:
        return list(itertools.chain(*await self._each(tenant, lambda store: store.condemn_orphans(tenant, keys))))

    async def drop_orphans(self, tenant: str, keys: Sequence[str]) -> int:
        return sum(await self._each(tenant, lambda store: store.drop_orphans(tenant, keys)))


class ShardedTokens(Routing):
    """The part of a sharded store for tokens: new ones go to the shard for new jobs of the tenant."""

    async def create_tokens(self, tenant: str, tokens: Sequence[NewToken]) -> list[Token | Rejected]:
        return await self._home(tenant, lambda store: store.create_tokens(tenant, tokens))

    async def find_token(self, hash: bytes) -> TokenUse | None:
        return await self._search(lambda store: store.find_token(hash), lambda seen: seen.token.tenant)

    async def tokens(self, tenant: str, *, before: str | None = None, limit: int = 50) -> list[Token]:
        async def go(shards: list[Shard]) -> list[Token]:
            if len(shards) == 1:
                return await shards[0].run(lambda store: store.tokens(tenant, before=before, limit=limit))
            lists = await asyncio.gather(*(shard.run(lambda store: _every_token(store, tenant)) for shard in shards))
            every = sorted(itertools.chain(*lists), key=attrgetter("created_at", "id"), reverse=True)
            ids = [token.id for token in every]
            first = 0 if before is None else ids.index(before) + 1 if before in ids else len(ids)
            return every[first : first + limit]

        return await self._routed(tenant, go)

    async def revoke_tokens(
        self, tenant: str, ids: Sequence[str], *, actor: str, of_workers: bool = False
    ) -> list[Token | Rejected]:
        results = await self._each(
            tenant, lambda store: store.revoke_tokens(tenant, ids, actor=actor, of_workers=of_workers)
        )
        return [next((a for a in some if isinstance(a, Token)), some[0]) for some in zip(*results, strict=True)]

    async def touch_tokens(self, tenant: str, ids: Sequence[str], *, older_than_seconds: float) -> int:
        return sum(
            await self._each(
                tenant, lambda store: store.touch_tokens(tenant, ids, older_than_seconds=older_than_seconds)
            )
        )


async def _every_token(store: PostgresStore, tenant: str) -> list[Token]:
    """Read all tokens: only a token's own shard can resume a list after it, so pages of two shards cannot be merged."""
    found: list[Token] = []
    while page := await store.tokens(tenant, before=found[-1].id if found else None, limit=PAGE):
        found += page
    return found


def _only(shards: Sequence[Shard]) -> Shard:
    if len(shards) > 1:
        raise Invalid(
            "the jobs of this tenant are on several shards, which have no common order; read each job's events"
        )
    return shards[0]
