"""Jobs that need attention: failures that nobody has seen, and jobs that no present worker could claim."""

from __future__ import annotations

from typing import Final

from interlock.domain.attention import Need
from interlock.domain.policy import fits
from interlock.domain.retry import SECOND
from interlock.domain.worker_presence import LATELY_SECONDS, filters_from_text
from interlock.storage.contract.attention import Place
from interlock.storage.dialect import NEWEST, Database, Steps, Transaction, names, statements
from interlock.storage.parts.registry import settle

MAX_KEYS: Final = 10_000  # eligibility keys of waiting jobs that are compared with the workers
MAX_SCANNED: Final = 10_000  # due jobs, of which the newest are listed
SQL: Final = statements("attention")


class Attention:
    """Finds jobs that need attention; see the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self, tenant: str, *, need: Need | None = None, before_seq: int | None = None, limit: int
    ) -> list[Place]:
        def body(tx: Transaction) -> Steps[list[Place]]:
            found: list[tuple[int, object]] = []
            facts = {"before": NEWEST[0] if before_seq is None else before_seq, "limit": limit}
            if need is not Need.NO_WORKER:
                found += yield from tx.rows(SQL["failures"], **facts)
            if need is not Need.FAILURE and (keys := (yield from _keys_without_worker(tx))):
                most = max(MAX_SCANNED // len(keys), limit)
                found += yield from tx.rows(SQL["newest_of_keys"], keys=keys, most=most, **facts)
            return sorted((Place(seq, str(id)) for seq, id in found), reverse=True)[:limit]

        await settle(self._database, tenant)
        return await self._database.read(tenant, body)

    async def count(self, tenant: str, *, need: Need | None = None, most: int) -> int:
        def body(tx: Transaction) -> Steps[int]:
            count = 0
            if need is not Need.NO_WORKER:
                count += len((yield from tx.rows(SQL["failures"], before=NEWEST[0], limit=most)))
            if need is not Need.FAILURE and (keys := (yield from _keys_without_worker(tx))):
                count += len((yield from tx.rows(SQL["some_of_keys"], keys=keys, limit=most)))
            return min(count, most)

        await settle(self._database, tenant)
        return await self._database.read(tenant, body)


def _keys_without_worker(tx: Transaction) -> Steps[list[int]]:
    """Return the eligibility keys of waiting jobs that match no claim filter of a present worker."""
    keys = yield from tx.rows(SQL["keys_of_waiting_jobs"], most=MAX_KEYS)
    if not keys:
        return []
    present = yield from tx.rows(SQL["present_workers"], lately=tx.now - round(LATELY_SECONDS * SECOND))
    asks = {ask for (text,) in present for ask in filters_from_text(text)}
    return [
        no
        for no, type, requires, repository, affinity_key in keys
        if not any(
            fits(ask, type=type, requires=names(requires), repository=repository, affinity_key=affinity_key)
            for ask in asks
        )
    ]
