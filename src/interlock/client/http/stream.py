"""Events of a job as a server streams them, resumed by the number of the last one seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Final

import httpx2

from interlock.client.http import decode, errors
from interlock.client.http.transport import Calls, HttpResponse, refusal
from interlock.domain.progress import EventRow
from interlock.errors import Unavailable
from interlock.pauses import Pauses
from interlock.wire import responses

QUIET_SECONDS: Final = 45.0  # three times the server's keep-alive interval


async def follow(calls: Calls, path: str, *, after: int, about: Mapping[str, object]) -> AsyncGenerator[EventRow, None]:
    """Yield each event once, until the stream ends; raise `Unavailable` if nothing arrives for too long."""
    clock = asyncio.get_running_loop().time
    heard, pauses, why = clock(), Pauses(), "the stream broke"
    while True:
        hint = 0.0
        try:
            async with calls.stream(path, {"last-event-id": str(after)}, quiet_seconds=QUIET_SECONDS) as opened:
                if isinstance(opened, HttpResponse):
                    error = refusal(opened, about)
                    if not errors.is_passing(opened.status):
                        raise error
                    why, hint = str(error), opened.retry_after
                else:
                    async for sent in opened:
                        heard = clock()
                        pauses.reset()
                        if sent.event == "end":
                            return
                        if sent.event != "event":
                            continue
                        row = decode.event(decode.read(sent.data.encode(), responses.Event))
                        if row.seq > after:
                            after = row.seq
                            yield row
        except httpx2.TransportError as error:
            why = f"the connection to the server broke: {str(error) or type(error).__name__}"
        if clock() - heard > calls.retry_seconds:
            raise Unavailable(why)
        await pauses.wait(hint)
