"""Batches with a result per item, concurrent calls, and waits split into several long polls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from msgspec import Raw

from interlock.client.http import decode, encode, errors
from interlock.client.http.transport import HttpResponse
from interlock.domain.job import Rejected
from interlock.errors import Error, Invalid, Malformed, TooLarge, Unavailable

T = TypeVar("T")

BATCH_SIZE: Final = 10
MAX_POLL_SECONDS: Final = 20.0  # shorter than what proxies let a silent connection live
SHORTEST_POLL_SECONDS: Final = 0.1


async def each(
    parts: Sequence[bytes | Rejected],
    about: Sequence[Mapping[str, object]],
    send: Callable[[bytes], Awaitable[HttpResponse]],
    value: Callable[[Raw], T],
) -> list[T | Rejected]:
    """Send items and return a result for each. An item that fails the whole call is isolated by sending halves."""
    answers: dict[int, T | Rejected] = {}
    good: list[tuple[int, bytes]] = []
    for i, part in enumerate(parts):
        if isinstance(part, Rejected):
            answers[i] = part
        else:
            good.append((i, part))

    async def ask(some: Sequence[tuple[int, bytes]]) -> None:
        try:
            answer = await send(encode.joined("items", [part for _, part in some]))
        except (Malformed, Invalid, TooLarge) as error:
            if len(some) == 1:
                answers[some[0][0]] = Rejected(error)
                return
            await ask(some[: len(some) // 2])
            await ask(some[len(some) // 2 :])
            return
        items = decode.read(answer.body, decode.ItemsShape).items
        for (i, _), item in zip(some, items, strict=True):
            problem = decode.read(item, decode.RefusedShape).error
            if problem is None:
                answers[i] = value(item)
            else:
                answers[i] = Rejected(errors.rebuilt(problem, int(problem.get("status", 0)), about[i]))

    for some in encode.gathered([part for _, part in good]):
        await ask([good[i] for i in some])
    return [answers[i] for i in range(len(parts))]


async def together(calls: Sequence[Awaitable[T]]) -> list[T | Rejected]:
    """Await all calls, a limited number at a time. Return rejections as results; raise if there is no response."""
    turns = asyncio.Semaphore(BATCH_SIZE)

    async def in_turn(call: Awaitable[T]) -> T | Rejected:
        async with turns:
            try:
                return await call
            except Unavailable:
                raise
            except Error as error:
                return Rejected(error)

    answers: list[T | Rejected] = []
    for answer in await asyncio.gather(*map(in_turn, calls), return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer
        answers.append(answer)
    return answers


async def polled(look: Callable[[float], Awaitable[T | None]], seconds: float) -> T | None:
    """Return the result if it appears within that time, by several long polls."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while True:
        began = clock()
        poll = max(min(deadline - began, MAX_POLL_SECONDS), 0.0)
        found = await look(poll)
        left = deadline - clock()
        if found is not None or left <= 0:
            return found
        if clock() - began < min(poll, SHORTEST_POLL_SECONDS):  # a server that is stopping does not wait
            await asyncio.sleep(min(left, SHORTEST_POLL_SECONDS * random.uniform(0.5, 1.0)))
