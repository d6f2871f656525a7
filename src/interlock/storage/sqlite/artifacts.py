"""Artifacts, orphaned objects and bytes per tenant on SQLite, always updated in one transaction."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

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
from interlock.domain.decide import result_of_repeat
from interlock.domain.job import Rejected
from interlock.domain.retry import SECOND
from interlock.errors import Error, NotFound
from interlock.storage.sql_files import load
from interlock.storage.sqlite import history
from interlock.storage.sqlite.connection import Connection

_COLUMNS: Final = (
    "a.job_id, a.fence, a.worker, a.id, a.name, a.size, a.sha256, a.content_type, a.object_key, a.url, a.created_at"
)
_SQL: Final = {
    name: text.replace("{artifact}", _COLUMNS)
    for name, text in load("interlock.storage.sqlite", "artifacts.sql").items()
}
_NEWEST: Final = (1 << 62, "")
T = TypeVar("T")


class SQLiteArtifacts(ABC):
    """Artifact methods of the SQLite store; the object store holds the bytes."""

    async def open_uploads(
        self, tenant: str, openings: Sequence[Opening], *, quota: int | None
    ) -> list[Rejected | None]:
        return await self._write(lambda c: _open(c, tenant, openings, quota))

    async def show_artifacts(
        self, tenant: str, items: Sequence[NewArtifact], *, quota: int | None, whole: bool = False
    ) -> list[Artifact | Rejected]:
        return await self._write(lambda c: _show(c, tenant, items, quota, whole))

    async def abandon_objects(self, tenant: str, keys: Sequence[str]) -> None:
        await self._write(lambda c: _abandon(c, tenant, keys))

    async def artifact(self, tenant: str, job_id: str, artifact_id: str) -> Artifact | None:
        facts = {"tenant": tenant, "job_id": job_id, "id": artifact_id}
        return await self._read(lambda c: next(map(Artifact._make, c.rows(_SQL["one"], facts)), None))

    async def artifact_home(self, tenant: str, artifact_id: str) -> str | None:
        facts = {"tenant": tenant, "id": artifact_id}
        return await self._read(lambda c: next((str(job_id) for (job_id,) in c.rows(_SQL["home"], facts)), None))

    async def artifacts(
        self, tenant: str, job_id: str, *, before: tuple[int, str] | None, limit: int
    ) -> list[Artifact]:
        before_at, before_id = before or _NEWEST
        facts = {"tenant": tenant, "job_id": job_id, "before_at": before_at, "before_id": before_id, "limit": limit}
        return await self._read(lambda c: [*map(Artifact._make, c.rows(_SQL["newest"], facts))])

    async def forget_artifacts(self, tenant: str, job_ids: Sequence[str]) -> int:
        return await self._write(lambda c: forget(c, tenant, job_ids))

    async def artifact_bytes(self, tenant: str) -> int:
        return await self._read(lambda c: _used(c, tenant))

    async def due_orphans(self, limit: int) -> list[Orphan]:
        return await self._read(
            lambda c: [*map(Orphan._make, c.rows(_SQL["due"], {"now": c.read_clock(), "limit": limit}))]
        )

    async def condemn_orphans(self, tenant: str, keys: Sequence[str]) -> list[str]:
        def write(c: Connection) -> list[str]:
            again_at = c.now + round(COLLECT_AGAIN_SECONDS * SECOND)
            facts = {"tenant": tenant, "keys": json.dumps(keys), "now": c.now, "again_at": again_at}
            return [key for (key,) in c.rows(_SQL["condemn"], facts)]

        return await self._write(write)

    async def drop_orphans(self, tenant: str, keys: Sequence[str]) -> int:
        facts = {"tenant": tenant, "keys": json.dumps(keys)}
        return await self._write(lambda c: len(c.rows(_SQL["drop"], facts)))

    @abstractmethod
    async def _write(self, verb: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    async def _read(self, query: Callable[[Connection], T]) -> T: ...


def _open(c: Connection, tenant: str, openings: Sequence[Opening], quota: int | None) -> list[Rejected | None]:
    faults = _faults(c, tenant, {opening.holder for opening in openings})
    there = _named(c, tenant, [(opening.holder.job_id, opening.name) for opening in openings])
    answers = admit(openings, faults=faults, there=there, used=_used(c, tenant), quota=quota)
    collect_at = c.now + round(UNFINISHED_KEPT_SECONDS * SECOND)
    taken = [opening.key for opening, refused in zip(openings, answers, strict=True) if refused is None]
    c.db.executemany(_SQL["orphan"], [(tenant, key, collect_at) for key in taken])
    return answers


def _show(
    c: Connection, tenant: str, items: Sequence[NewArtifact], quota: int | None, whole: bool
) -> list[Artifact | Rejected]:
    keys = json.dumps([new.key for new in items if new.key is not None])
    plan = arrange(
        items,
        faults=_faults(c, tenant, {new.holder for new in items}),
        there=_named(c, tenant, [(new.job_id, new.name) for new in items]),
        safe={key for (key,) in c.rows(_SQL["safe"], {"tenant": tenant, "keys": keys})},
        used=_used(c, tenant),
        quota=quota,
        now=c.now,
        whole=whole,
    )
    c.db.executemany(_SQL["make_room"], [(tenant, new.job_id, new.name) for new in plan.visible])
    c.db.executemany(_SQL["show"], [(tenant, *new) for new in plan.visible])
    c.db.executemany(_SQL["adopted"], [(tenant, new.key) for new in plan.visible if new.key is not None])
    _orphan(c, tenant, plan.replaced)
    _abandon(c, tenant, plan.spare)
    _use(c, tenant, plan.growth)
    return plan.answers


def forget(c: Connection, tenant: str, job_ids: Sequence[str]) -> int:
    """Delete the artifacts of jobs, mark their objects as orphans, and return how many artifacts were deleted."""
    gone = c.rows(_SQL["forget"], {"tenant": tenant, "job_ids": json.dumps(job_ids)})
    _orphan(c, tenant, [key for key, _ in gone if key is not None])
    _use(c, tenant, -sum(size or 0 for _, size in gone))
    return len(gone)


def _faults(c: Connection, tenant: str, holders: set[Holder]) -> dict[Holder, Error]:
    """Return an error for each holder that does not hold the lease of its job."""
    rows = c.rows(_SQL["holders"], {"tenant": tenant, "ids": json.dumps(sorted({h.job_id for h in holders}))})
    here = {id: Holder(id, fence, worker) for id, fence, worker in rows}  # a job that does not run has no worker
    faults: dict[Holder, Error] = {}
    for holder in holders:
        if holder.job_id not in here:
            faults[holder] = NotFound(holder.job_id)
        elif here[holder.job_id] != holder:
            why = result_of_repeat(history.lease_end(c, tenant, holder.job_id, holder.fence), None, *holder)
            assert isinstance(why, Error)
            faults[holder] = why
    return faults


def _named(c: Connection, tenant: str, positions: Sequence[tuple[str, str]]) -> list[Artifact]:
    rows = c.rows(_SQL["named"], {"tenant": tenant, "ordinals": json.dumps(sorted(set(positions)))})
    return [*map(Artifact._make, rows)]


def _used(c: Connection, tenant: str) -> int:
    return int(c.rows(_SQL["used"], {"tenant": tenant})[0][0])


def _use(c: Connection, tenant: str, growth: int) -> None:
    if growth:
        c.db.execute(_SQL["use"], {"tenant": tenant, "growth": growth})


def _orphan(c: Connection, tenant: str, keys: Sequence[str]) -> None:
    collect_at = c.now + round(REPLACED_KEPT_SECONDS * SECOND)
    c.db.executemany(_SQL["orphan"], [(tenant, key, collect_at) for key in keys])


def _abandon(c: Connection, tenant: str, keys: Sequence[str]) -> None:
    c.db.executemany(_SQL["abandoned"], [(c.now, tenant, key) for key in keys])
