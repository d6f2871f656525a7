"""Long polls. A waiting request counts as waiting and occupies neither a thread nor a database connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Final

from interlock.api import body
from interlock.api.problems import Refusal
from interlock.api.routes import RequestContext
from interlock.domain.decide import ReleaseJob
from interlock.domain.job import Job
from interlock.domain.policy import ClaimFilter
from interlock.engine.leases import OrderedTypes
from interlock.errors import Unauthenticated, Unavailable

LOOK_AT_CREDENTIAL_SECONDS: Final = 5.0  # while idle; the credential is also checked before every response


@asynccontextmanager
async def waiting(call: RequestContext[Any, Any], *, is_parked: bool = False) -> AsyncIterator[asyncio.Event]:
    """Yield an event that is set when waiting is pointless: the caller has disconnected or the service stops.

    It is also set when the caller's credential is no longer valid; then the call raises `Unauthenticated` instead.
    """
    enough = asyncio.Event()

    async def caller_gone() -> None:
        while (await call.receive())["type"] != "http.disconnect":
            pass
        enough.set()

    async def service_stops() -> None:
        await call.service.stopping.wait()
        enough.set()

    async def credential_ends() -> None:
        while not enough.is_set():
            await asyncio.sleep(LOOK_AT_CREDENTIAL_SECONDS)
            if not await is_admitted(call):
                enough.set()

    with nullcontext() if is_parked else call.trail.seat.parked():
        watchers = [asyncio.create_task(caller_gone()), asyncio.create_task(service_stops())]
        if call.service.local_principal is None:
            watchers.append(asyncio.create_task(credential_ends()))
        try:
            yield enough
        finally:
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
    if not await is_admitted(call):
        raise Unauthenticated


async def is_admitted(call: RequestContext[Any, Any]) -> bool:
    """Return whether the credential of a waiting call is still valid; assume so while the store is unavailable."""
    if call.service.local_principal is not None:
        return True
    try:
        await call.authenticate(call.route, call.headers)
    except Unavailable:
        return True
    except Exception:  # each protocol adapter raises its own errors
        return False
    return True


async def claim_with_wait(
    call: RequestContext[Any, Any],
    ask: ClaimFilter,
    seconds: float,
    *,
    in_order: OrderedTypes | None = None,
    max_lease: float | None = None,
) -> list[Job]:
    """Wait for jobs. Jobs leased after the caller has disconnected are released without using an attempt."""
    async with waiting(call) as enough:
        jobs: list[Job] = await call.engine.leases.claim(
            call.who.tenant, ask, wait_seconds=seconds, enough=enough, in_order=in_order, max_lease=max_lease
        )
        # A disconnected caller can get these jobs only by repeating its claim ID; one without a valid credential never
        # can.
        has_gone = enough.is_set() and not call.service.stopping.is_set() and ask.claim_id is None
        if jobs and (has_gone or not await is_admitted(call)):
            orders = [ReleaseJob(job.id, job.fence, ask.worker, reason="the caller disconnected") for job in jobs]
            await call.engine.leases.finishes(call.who.tenant, orders)
            jobs = []
    return jobs


async def whole_upload(call: RequestContext[Any, Any], limit: int) -> bytes:
    """Read the complete body of an upload; reject it as soon as it is too large."""
    body.reserve(call.headers, limit, call.trail.seat)
    return await body.joined(upload_in_time(call, body.pieces_of(call.receive)), limit)


async def upload_in_time(call: RequestContext[Any, Any], pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces of an upload; reject one below the minimum rate."""
    options = call.service.options
    clock = asyncio.get_running_loop().time
    started, size = clock(), 0
    call.trail.seat.check_arriving()
    while True:
        try:
            with call.trail.seat.aside():
                async with asyncio.timeout_at(started + options.body_seconds + size / options.slowest_upload):
                    piece = await anext(pieces)
        except StopAsyncIteration:
            if not await is_admitted(
                call
            ):  # a long upload may end after its token is revoked, and must not become visible then
                raise Unauthenticated from None
            return
        except TimeoutError:
            raise Refusal("request_timeout", "the upload is too slow", close=True) from None
        size += len(piece)
        yield piece
