"""Server-sent events: ordered per job, resumed by `Last-Event-ID`, with keep-alive comments while idle."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from interlock.api.long_poll import is_admitted, waiting
from interlock.api.routes import Nothing, RequestContext, Response
from interlock.domain.progress import EventRow, FeedPosition
from interlock.errors import Error, Invalid, Unauthenticated
from interlock.wire.encode import event_to_dict

MEDIA_TYPE: Final = "text/event-stream"
KEEP_ALIVE: Final = b": still here\n\n"
_HELLO: Final = b"retry: 1000\n\n"
END: Final = b"event: end\ndata: {}\n\n"


async def of_job(call: RequestContext[None, Nothing]) -> Response:
    """Stream the events of one job; an `end` event follows the last event of a terminal job."""
    given = call.headers.get("last-event-id") or "0"
    if not re.fullmatch(r"[0-9]{1,18}", given):
        raise Invalid("Last-Event-ID is not the number of an event", pointer="/last-event-id")
    job = await call.engine.queries.job(call.who.tenant, call.job_id)
    pages = call.engine.progress.tail(call.who.tenant, job.id, after=int(given))

    async def pieces() -> AsyncIterator[bytes]:
        async for page in pages:
            yield b"".join(_event(str(row.seq), row) for row in page) or KEEP_ALIVE
        yield END

    return streamed(call, pieces(), pages)


async def of_tenant(call: RequestContext[None, Nothing]) -> Response:
    """Stream the events of all jobs of the tenant; each event ID is a signed position to resume from."""
    cursors, tenant = call.service.cursors, call.who.tenant
    given = cursors.open(tenant, "feed", call.headers.get("last-event-id"))
    progress = call.engine.progress
    start = await progress.feed_end(tenant) if given is None else FeedPosition.parse(str(given[0]))
    pages = progress.follow(tenant, start)

    async def pieces() -> AsyncIterator[bytes]:
        async for page in pages:
            yield (
                b"".join(_event(cursors.signing_key(tenant, "feed", [str(fed.position)]), fed.event) for fed in page)
                or KEEP_ALIVE
            )

    return streamed(call, pieces(), pages)


def streamed(call: RequestContext[None, Any], pieces: AsyncIterator[bytes], source: Any) -> Response:
    """Return a streaming response; closing `source` ends `pieces`."""
    return Response(
        200, media_type=MEDIA_TYPE, headers={"x-accel-buffering": "no"}, stream=_lasting(call, pieces, source)
    )


async def _lasting(call: RequestContext[None, Any], pieces: AsyncIterator[bytes], source: Any) -> AsyncIterator[bytes]:
    """Yield the pieces, with keep-alive comments between them, until the caller disconnects or the service stops."""
    next_piece: asyncio.Task[bytes] | None = None
    yield _HELLO
    try:
        async with waiting(call, is_parked=True) as enough:
            over = asyncio.create_task(enough.wait())
            try:
                while not enough.is_set():
                    next_piece = next_piece or asyncio.create_task(_next(pieces))
                    await asyncio.wait(
                        (next_piece, over),
                        timeout=call.service.options.keep_alive_seconds,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    if enough.is_set():
                        break
                    if not next_piece.done():
                        yield KEEP_ALIVE
                        continue
                    done, next_piece = next_piece, None
                    if not await is_admitted(call):
                        break
                    yield done.result()
            except (EndOfStream, Error):
                return  # the stream is complete, or the client will reconnect and resume
            finally:
                over.cancel()
                if next_piece is not None:
                    next_piece.cancel()
                    await asyncio.gather(next_piece, return_exceptions=True)
                await pieces.aclose()  # type: ignore[attr-defined]
                await source.aclose()
    except Unauthenticated:
        return  # the credential is no longer valid


async def _next(pieces: AsyncIterator[bytes]) -> bytes:
    try:
        return await anext(pieces)
    except StopAsyncIteration:
        raise EndOfStream from None


class EndOfStream(Exception):
    """The stream is complete."""


def _event(id: str, row: EventRow) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (id.encode(), b"event", msgspec.json.encode(event_to_dict(row)))
