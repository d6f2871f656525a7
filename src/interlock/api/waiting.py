"""Long polls: a request that waits holds a seat among those who wait, and neither a thread nor a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from interlock.api.problems import Refusal
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


async def upload_in_time(call: Call[Any, Any], pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces of an upload that keeps up a minimal rate; one that trickles is cut off."""
    options = call.service.options
    clock = asyncio.get_running_loop().time
    started, size = clock(), 0
    while True:
        try:
            async with asyncio.timeout_at(started + options.body_seconds + size / options.slowest_upload):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Refusal("request_timeout", "the upload is too slow", close=True) from None
        size += len(piece)
        yield piece
