"""Artifacts, the objects that hold their bytes, and the bytes a tenant stores, always changed in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

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
from interlock.domain.retry import SECOND
from interlock.errors import Error, NotFound
from interlock.storage.dialect import NEWEST, Database, Steps, Transaction, columns, statements
from interlock.storage.parts.lease import why_lost

SQL: Final = statements("artifacts", artifact=columns(Artifact, "a.", key="a.object_key"))


class Artifacts:
    """Stores the metadata of artifacts; see the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open_uploads(
        self, tenant: str, openings: Sequence[Opening], *, quota: int | None
    ) -> list[Rejected | None]:
        def body(tx: Transaction) -> Steps[list[Rejected | None]]:
            faults = yield from _faults(tx, {opening.holder for opening in openings})
            there = yield from _named(tx, [(opening.holder.job_id, opening.name) for opening in openings])
            used = yield from _used(tx)
            answers = admit(openings, faults=faults, there=there, used=used, quota=quota)
            taken = [opening.key for opening, refused in zip(openings, answers, strict=True) if refused is None]
            yield from _leave(tx, taken, UNFINISHED_KEPT_SECONDS)
            return answers

        return await self._database.write(tenant, body)

    async def publish(
        self, tenant: str, items: Sequence[NewArtifact], *, quota: int | None, whole: bool = False
    ) -> list[Artifact | Rejected]:
        def body(tx: Transaction) -> Steps[list[Artifact | Rejected]]:
            # Lock leases, then orphans, then the tenant's total, in the same order everywhere to avoid deadlocks.
            faults = yield from _faults(tx, {new.holder for new in items})
            keys = [new.key for new in items if new.key is not None]
            safe = {key for (key,) in (yield from tx.rows(SQL["safe"], keys=keys))}
            yield from tx.run(SQL["start_usage"])
            used = yield from _used(tx)
            there = yield from _named(tx, [(new.job_id, new.name) for new in items])
            plan = arrange(
                items, faults=faults, there=there, safe=safe, used=used, quota=quota, now=tx.now, whole=whole
            )
            for new in plan.visible:
                yield from tx.run(SQL["make_room"], job_id=new.job_id, name=new.name)
                yield from tx.run(SQL["publish"], **new._asdict())
            yield from tx.run(SQL["adopt"], keys=[new.key for new in plan.visible if new.key is not None])
            yield from _leave(tx, plan.replaced, REPLACED_KEPT_SECONDS)
            yield from tx.run(SQL["abandon"], keys=plan.spare)
            yield from use_bytes(tx, plan.growth)
            return plan.answers

        return await self._database.write(tenant, body)

    async def abandon(self, tenant: str, keys: Sequence[str]) -> None:
        await self._database.write(tenant, lambda tx: tx.run(SQL["abandon"], keys=keys))

    async def get(self, tenant: str, job_id: str, artifact_id: str) -> Artifact | None:
        rows = await self._database.rows(tenant, SQL["get"], job_id=job_id, id=artifact_id)
        return Artifact._make(rows[0]) if rows else None

    async def job_of(self, tenant: str, artifact_id: str) -> str | None:
        rows = await self._database.rows(tenant, SQL["job_of"], id=artifact_id)
        return str(rows[0][0]) if rows else None

    async def page(self, tenant: str, job_id: str, *, before: tuple[int, str] | None, limit: int) -> list[Artifact]:
        at, id = before or NEWEST
        rows = await self._database.rows(tenant, SQL["page"], job_id=job_id, at=at, id=id, limit=limit)
        return [*map(Artifact._make, rows)]

    async def forget(self, tenant: str, job_ids: Sequence[str]) -> int:
        return await self._database.write(tenant, lambda tx: forget(tx, job_ids))

    async def total_bytes(self, tenant: str) -> int:
        rows = await self._database.rows(tenant, SQL["total"])
        return int(rows[0][0]) if rows else 0

    async def due_orphans(self, limit: int) -> list[Orphan]:
        return [Orphan(*row) for row in await self._database.rows(None, SQL["due"], limit=limit)]

    async def condemn_orphans(self, tenant: str, keys: Sequence[str]) -> list[str]:
        def body(tx: Transaction) -> Steps[list[str]]:
            yield from tx.run(SQL["keep_shared"], keys=keys)
            rows = yield from tx.rows(
                SQL["condemn"], keys=keys, again_at=tx.now + round(COLLECT_AGAIN_SECONDS * SECOND)
            )
            return [key for (key,) in rows]

        return await self._database.write(tenant, body)

    async def drop_orphans(self, tenant: str, keys: Sequence[str]) -> int:
        return await self._database.write(tenant, lambda tx: tx.run(SQL["drop"], keys=keys))


def forget(tx: Transaction, job_ids: Sequence[str]) -> Steps[int]:
    """Delete the artifacts of jobs, leave their objects to the collector, and return how many there were."""
    gone = yield from tx.rows(SQL["forget"], ids=job_ids)
    yield from _leave(tx, [key for key, _ in gone if key is not None], REPLACED_KEPT_SECONDS)
    yield from use_bytes(tx, -sum(size or 0 for _, size in gone))
    return len(gone)


def use_bytes(tx: Transaction, growth: int) -> Steps[int]:
    """Add to the bytes that the tenant stores."""
    return tx.run(SQL["use"], growth=growth)


def _faults(tx: Transaction, holders: set[Holder]) -> Steps[dict[Holder, Error]]:
    """Return an error for each holder without a current lease; the others keep theirs until the transaction ends."""
    rows = yield from tx.rows(SQL["lock_holders"], ids=sorted({holder.job_id for holder in holders}))
    late = sorted(holders - {Holder(*row) for row in rows})
    known = {id for (id,) in (yield from tx.rows(SQL["known"], ids=[holder.job_id for holder in late]))} if late else ()
    faults: dict[Holder, Error] = {}
    for holder in late:
        faults[holder] = (yield from why_lost(tx, *holder)) if holder.job_id in known else NotFound(holder.job_id)
    return faults


def _named(tx: Transaction, positions: Iterable[tuple[str, str]]) -> Steps[list[Artifact]]:
    distinct = sorted(set(positions))
    rows = yield from tx.rows(SQL["named"], ids=[id for id, _ in distinct], names=[name for _, name in distinct])
    return [*map(Artifact._make, rows)]


def _used(tx: Transaction) -> Steps[int]:
    """Return the bytes of the tenant. Uploads that end concurrently are counted one after another."""
    row = yield from tx.one(SQL["used"])
    return 0 if row is None else int(row[0])


def _leave(tx: Transaction, keys: Sequence[str], seconds: float) -> Steps[None]:
    """Leave objects to the collector, after some seconds."""
    if keys:
        yield from tx.run(SQL["leave"], keys=keys, collect_at=tx.now + round(seconds * SECOND))
