"""The engine: every actor's verbs over one store."""

from __future__ import annotations

from interlock.engine.jobs import Jobs
from interlock.engine.leases import Leases
from interlock.engine.reads import Reads
from interlock.engine.upkeep import Upkeep
from interlock.storage.contract import Store
from interlock.wire import LIMITS, Limits


class Engine:
    """One store and what each actor may do with it."""

    def __init__(self, store: Store, limits: Limits = LIMITS) -> None:
        self.store = store
        self.jobs = Jobs(store, limits)
        self.leases = Leases(store, limits)
        self.reads = Reads(store)
        self.upkeep = Upkeep(store)

    async def close(self) -> None:
        await self.upkeep.stop()
        await self.store.close()
