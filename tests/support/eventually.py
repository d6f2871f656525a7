"""Waiting for a condition, never for a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

RETRY_SECONDS: Final = 240.0  # what is waited for comes in a moment, or on a busy machine in minutes


async def eventually(condition: Callable[[], Awaitable[bool]], *, within: float = RETRY_SECONDS) -> None:
    """Return as soon as the condition holds; fail if it never does."""
    async with asyncio.timeout(within):
        while not await condition():  # noqa: ASYNC110 - what is awaited has no event to offer
            await asyncio.sleep(0.005)
