"""State shared by all requests, and the log fields of one request."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Final

from interlock.api.admission import Admission, RateLimiter, Seat
from interlock.api.cursors import Cursors
from interlock.api.headers import NO_HEADERS, Headers
from interlock.api.metrics import Metrics
from interlock.api.options import Options
from interlock.domain.principal import Principal, local
from interlock.engine.engine import Engine
from interlock.errors import Fatal, Unavailable

WRONG_LINKS_A_MINUTE: Final = 5


class Service:
    """One engine behind one set of options. It has no state that other servers need."""

    def __init__(self, engine: Engine, options: Options) -> None:
        self.engine = engine
        self.options = options
        self.admission = Admission(options)
        self.cursors = Cursors(options.cursor_key)
        self.metrics = Metrics(self.admission, engine.counts)
        self.rates = (
            None if options.rate_per_second is None else RateLimiter(options.rate_per_second, options.rate_burst)
        )
        self.wrong_links = RateLimiter(WRONG_LINKS_A_MINUTE / 60, WRONG_LINKS_A_MINUTE)  # by the caller's address
        self.local_principal: Principal | None = None if options.auth else local(options.tenant)
        self.stopping = asyncio.Event()
        self.broken: Fatal | None = None
        self._look: asyncio.Task[dict[str, object]] | None = None

    async def readiness(self) -> dict[str, object]:
        """Return the state of the database. Concurrent callers share one check, which limits the load they cause."""
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._looked())
        return await asyncio.shield(self._look)

    async def _looked(self) -> dict[str, object]:
        fitness = await self.engine.queries.fitness()
        if fitness.lacks is not None:
            old = "the schema of the database is older than this service"
            raise Unavailable(old, public=old)
        ready: dict[str, object] = {"status": "ok", "durability": "full" if fitness.durable else "relaxed"}
        if down := await self.engine.queries.unreachable():  # the tenants of all other shards are to be served
            ready |= {"status": "degraded", "unreachable": sorted(down)}
        return ready

    def give_up(self, error: Fatal) -> None:
        """Stop the server: nothing more may be written, and the process exits with this error."""
        self.broken = self.broken or error
        self.stop()

    def stop(self) -> None:
        """Answer waiting requests, end streams, and reject new requests with `stopping`."""
        self.stopping.set()


@dataclass(slots=True)
class Trail:
    """The log fields of one request: caller and route, never an address or a secret."""

    request_id: str
    method: str
    seat: Seat
    headers: Headers = NO_HEADERS
    body: bytes | None = None  # if all of it had arrived with the head
    trace_id: str | None = None
    route: str = "-"
    tenant: str | None = None
    actor: str | None = None
    status: int = 0
    code: str | None = None
    sent: int = 0
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started
