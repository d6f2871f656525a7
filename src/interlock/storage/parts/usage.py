"""Usage totals, read from the jobs: nothing is written for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from interlock.domain.usage import USAGE
from interlock.domain.usage_totals import By, Key, Sum
from interlock.storage.dialect import Database, Steps, Transaction, statements

SQL: Final = statements("usage")
BATCH_SIZE: Final = 10_000


class UsageSums:
    """Sums the usage of jobs; see the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def sums(self, tenant: str, by: By, since: int, until: int) -> list[Sum]:
        def body(tx: Transaction) -> Steps[list[Sum]]:
            rows = yield from tx.rows(SQL[f"by_{by}"], since=since, until=until, step=USAGE)
            jobs: dict[Key, int] = {}
            usage: dict[Key, dict[str, float]] = {}
            for first, second, unit, amount in rows:
                key = (str(first or ""), str(second or ""))
                if unit is None:
                    jobs[key] = int(amount)
                else:
                    usage.setdefault(key, {})[unit] = float(amount)
            return [Sum(key, jobs[key], amounts) for key, amounts in usage.items()]

        return await self._database.read(tenant, body)

    async def ancestors(self, tenant: str, ids: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for start in range(0, len(ids), BATCH_SIZE):
            rows = await self._database.rows(tenant, SQL["ancestors"], ids=[*ids[start : start + BATCH_SIZE]])
            found |= {str(id): str(ancestor) for id, ancestor in rows}
        return found
