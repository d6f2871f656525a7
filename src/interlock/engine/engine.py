"""The engine: every actor's verbs over one store."""

from __future__ import annotations

from interlock.engine.artifacts import Artifacts
from interlock.engine.holders import Holders
from interlock.engine.jobs import Jobs
from interlock.engine.leases import Leases
from interlock.engine.progress import Progress
from interlock.engine.reads import Reads
from interlock.engine.tokens import OWN, Tokens, Trust
from interlock.engine.upkeep import Upkeep
from interlock.engine.waits import Waits
from interlock.storage.contract import Objects, Store
from interlock.wire import LIMITS, Limits


class Engine:
    """One store and what each actor may do with it."""

    def __init__(
        self, store: Store, limits: Limits = LIMITS, *, objects: Objects | None = None, trust: Trust = OWN
    ) -> None:
        self.store = store
        self.objects = objects
        self.artifacts = Artifacts(store, objects, limits)
        self.jobs = Jobs(store, limits)
        self.leases = Leases(store, limits)
        self.progress = Progress(store, limits)
        self.reads = Reads(store)
        self.tokens = Tokens(store, trust)
        self.upkeep = Upkeep(store)
        self.waits = Waits(store)
        self.holders = Holders(store)

    async def close(self) -> None:
        await self.upkeep.stop()
        await self.tokens.close()
        await self.waits.stop()
        await self.store.close()
        if self.objects is not None:
            await self.objects.close()
