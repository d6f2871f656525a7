"""Long polls: a request that waits holds a seat among those who wait, and neither a thread nor a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from interlock.api.routes import Call


@asynccontextmanager
async def patience(call: Call[Any, Any]) -> AsyncIterator[asyncio.Event]:
    """An event for whoever waits: set when the caller has gone or the service stops, so that waiting has no point."""
    enough = asyncio.Event()

    async def caller_gone() -> None:
        while (await call.receive())["type"] != "http.disconnect":
            pass
        enough.set()

    async def service_stops() -> None:
        await call.service.stopping.wait()
        enough.set()

    with call.trail.seat.parked():
        watchers = [asyncio.create_task(caller_gone()), asyncio.create_task(service_stops())]
        try:
            yield enough
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
