"""Artifacts, orphaned objects and the stored bytes of a tenant on PostgreSQL, always in one transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from interlock.domain.artifact import (
    COLLECT_AGAIN_SECONDS,
    REPLACED_KEPT_SECONDS,
    UNFINISHED_KEPT_SECONDS,
    Artifact,
    Holder,
    NewArtifact,
    Opening,
    Orphan,
    admit,
    arrange,
)  # fmt: skip
from interlock.domain.job import Rejected
from interlock.errors import Error
from interlock.storage.postgres.connection import Conn, call
from interlock.storage.postgres.heartbeats import why_lease_lost

_COLUMNS: Final = "job_id, fence, worker, id, name, size, sha256, content_type, object_key, url, created_at"
T = TypeVar("T")


class PostgresArtifacts(ABC):
    """The artifact methods of the store; the bytes are stored elsewhere."""

    async def open_uploads(
        self, tenant: str, openings: Sequence[Opening], *, quota: int | None
    ) -> list[Rejected | None]:
        return await self._run(lambda c: _open(c, tenant, openings, quota))

    async def show_artifacts(
        self, tenant: str, items: Sequence[NewArtifact], *, quota: int | None, whole: bool = False
    ) -> list[Artifact | Rejected]:
        return await self._run(lambda c: _show(c, tenant, items, quota, whole))

    async def abandon_objects(self, tenant: str, keys: Sequence[str]) -> None:
        await self._fetch(call("abandon_objects", 2), tenant, list(keys))

    async def artifact(self, tenant: str, job_id: str, artifact_id: str) -> Artifact | None:
        rows = await self._fetch(_select("artifact_by_id", 3), tenant, job_id, artifact_id)
        return Artifact(*rows[0]) if rows else None

    async def artifact_home(self, tenant: str, artifact_id: str) -> str | None:
        ((home,),) = await self._fetch(call("artifact_home", 2), tenant, artifact_id)
        return None if home is None else str(home)

    async def artifacts(
        self, tenant: str, job_id: str, *, before: tuple[int, str] | None, limit: int
    ) -> list[Artifact]:
        rows = await self._fetch(_select("artifacts", 5), tenant, job_id, *(before or (None, None)), limit)
        return sorted((Artifact(*row) for row in rows), key=lambda a: (a.created_at, a.id), reverse=True)

    async def forget_artifacts(self, tenant: str, job_ids: Sequence[str]) -> int:
        ((gone,),) = await self._fetch(call("forget_artifacts", 3), tenant, list(job_ids), REPLACED_KEPT_SECONDS)
        return int(gone)

    async def artifact_bytes(self, tenant: str) -> int:
        ((used,),) = await self._fetch(call("artifact_bytes", 2), tenant, False)
        return int(used)

    async def due_orphans(self, limit: int) -> list[Orphan]:
        rows = await self._fetch("select tenant, object_key from interlock.due_orphans(interlock.clock(), $1)", limit)
        return [Orphan(*row) for row in rows]

    async def condemn_orphans(self, tenant: str, keys: Sequence[str]) -> list[str]:
        rows = await self._fetch(call("condemn_objects", 3), tenant, list(keys), COLLECT_AGAIN_SECONDS)
        return [key for (key,) in rows]

    async def drop_orphans(self, tenant: str, keys: Sequence[str]) -> int:
        ((gone,),) = await self._fetch(call("drop_objects", 2), tenant, list(keys))
        return int(gone)

    @abstractmethod
    async def _fetch(self, statement: str, *values: Any) -> list[Any]: ...

    @abstractmethod
    async def _run(self, verb: Callable[[Conn], Awaitable[T]], *, repeatable: bool = True) -> T: ...


def _select(function: str, arguments: int) -> str:
    return call(function, arguments).replace("*", _COLUMNS, 1)


async def _open(c: Conn, tenant: str, openings: Sequence[Opening], quota: int | None) -> list[Rejected | None]:
    async with c.transaction():
        faults = await _faults(c, tenant, {opening.holder for opening in openings})
        used = await c.fetchval(call("artifact_bytes", 2), tenant, False)
        there = await _named(c, tenant, [(opening.holder.job_id, opening.name) for opening in openings])
        answers = admit(openings, faults=faults, there=there, used=used, quota=quota)
        taken = [opening.key for opening, refused in zip(openings, answers, strict=True) if refused is None]
        await c.execute(call("open_objects", 3), tenant, taken, UNFINISHED_KEPT_SECONDS)
        return answers


async def _show(
    c: Conn, tenant: str, items: Sequence[NewArtifact], quota: int | None, whole: bool
) -> list[Artifact | Rejected]:
    async with c.transaction():
        # Lock leases, then orphans, then the tenant's total, in the same order everywhere to avoid deadlocks.
        faults = await _faults(c, tenant, {new.holder for new in items})
        keys = [new.key for new in items if new.key is not None]
        safe = {row[0] for row in await c.fetch(call("safe_objects", 2), tenant, keys)}
        used = await c.fetchval(call("artifact_bytes", 2), tenant, True)
        there = await _named(c, tenant, [(new.job_id, new.name) for new in items])
        plan = arrange(
            items,
            faults=faults,
            there=there,
            safe=safe,
            used=used,
            quota=quota,
            now=await c.fetchval("select interlock.clock()"),
            whole=whole,
        )
        columns = [list(column) for column in zip(*(new[:10] for new in plan.visible), strict=True)] or [[]] * 10
        await c.execute(
            call("show_artifacts", 15), tenant, *columns, plan.spare, plan.replaced, REPLACED_KEPT_SECONDS, plan.growth
        )
        return plan.answers


async def _named(c: Conn, tenant: str, positions: Sequence[tuple[str, str]]) -> list[Artifact]:
    columns = [job_id for job_id, _ in positions], [name for _, name in positions]
    return [Artifact(*row) for row in await c.fetch(_select("artifacts_named", 3), tenant, *columns)]


async def _faults(c: Conn, tenant: str, holders: set[Holder]) -> dict[Holder, Error]:
    """Return an error for each holder without a current lease; the others keep theirs until the transaction ends."""
    rows = await c.fetch(call("artifact_holders", 2), tenant, sorted({holder.job_id for holder in holders}))
    late = holders - {Holder(*row) for row in rows}
    return {holder: (await why_lease_lost(c, tenant, [holder]))[holder.job_id].error for holder in late}
