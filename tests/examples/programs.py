"""Programs of the examples that run beside a test."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

BIN = Path(sys.executable).parent


@asynccontextmanager
async def running(directory: Path, variables: dict[str, str], *command: str | Path) -> AsyncIterator[None]:
    """A program that runs for as long as the block lasts."""
    with (directory / "log").open("ab") as log:
        program = await asyncio.create_subprocess_exec(*command, cwd=directory, env=variables, stdout=log, stderr=log)
    try:
        yield
    finally:
        program.terminate()
        await program.wait()
