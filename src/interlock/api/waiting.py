"""Long polls: a request that waits holds a seat among those who wait, and neither a thread nor a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from interlock.api.problems import Refusal
from interlock.api.routes import Call
from interlock.errors import Unauthenticated, Unavailable

# What is known of a credential may be three quarters of a second old; together they stay within a second.
LOOK_AT_CREDENTIAL_SECONDS: Final = 0.2


@asynccontextmanager
async def patience(call: Call[Any, Any]) -> AsyncIterator[asyncio.Event]:
    """An event for whoever waits: set when the caller has gone or the service stops, so that waiting has no point.

    It is also set when the credential of the caller has ended; then nothing that was waited for may be answered.
    """
    enough = asyncio.Event()
    refused = False

    async def caller_gone() -> None:
        while (await call.receive())["type"] != "http.disconnect":
            pass
        enough.set()

    async def service_stops() -> None:
        await call.service.stopping.wait()
        enough.set()

    async def credential_ends() -> None:
        nonlocal refused
        while not refused:
            await asyncio.sleep(LOOK_AT_CREDENTIAL_SECONDS)
            try:
                await call.authenticate(call.route, call.headers)
            except Unavailable:
                continue  # nobody can tell just now
            except Exception:  # every face refuses in words of its own
                refused = True
        enough.set()

    with call.trail.seat.parked():
        watchers = [asyncio.create_task(caller_gone()), asyncio.create_task(service_stops())]
        if call.service.everybody is None:
            watchers.append(asyncio.create_task(credential_ends()))
        try:
            yield enough
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
    if refused:
        raise Unauthenticated


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
