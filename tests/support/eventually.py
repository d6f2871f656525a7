"""Waiting for a condition, never for a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def eventually(condition: Callable[[], Awaitable[bool]], *, within: float = 120.0) -> None:
    """Return as soon as the condition holds; fail if it never does."""
    async with asyncio.timeout(within):
        while not await condition():  # noqa: ASYNC110 - what is awaited has no event to offer
            await asyncio.sleep(0.005)
