"""A command as a process tree with a supervisor, its output read in bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from interlock.agent_cli import supervisor

CHUNK_BYTES: Final = 64 * 1024
MAX_LINE_BYTES: Final = 4 * 1024 * 1024
TAIL_BYTES: Final = 16 * 1024
CUT: Final = b"[cut]"
PASSED_ON: Final = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR")
MARK: Final = "INTERLOCK_JOB_ID"  # the variable by which processes of a job are found
KILLS: Final = 250  # of all processes of a job that has lost its supervisor
KILL_SECONDS: Final = 0.02


class Exit(NamedTuple):
    """How a command ended: by an exit code or by a signal."""

    code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        return f"exit code {self.code}" if self.signal is None else f"signal {self.signal}"


class Idle(Exception):
    """A command has written nothing for too long."""


def base_environment() -> dict[str, str]:
    """Return the variables of the worker that its commands get: none that may hold a secret."""
    return {name: value for name in PASSED_ON if (value := os.environ.get(name)) is not None}


async def run_command(
    command: Sequence[str],
    *,
    directory: Path,
    stdin: Path,
    environment: Mapping[str, str],
    idle_seconds: float | None,
    on_line: Callable[[str], Awaitable[bool]],
) -> tuple[Exit, str]:
    """Run a command to its end and return how it ended and the tail of its standard error.

    `on_line` gets each line of standard output; if it returns True, the command is ended. A cancelled caller returns
    only when the whole process tree has ended.
    """
    ours, theirs = socket.socketpair()
    program = [sys.executable, "-I", "-S", str(Path(supervisor.__file__)), str(stdin), *command]
    try:
        process = await asyncio.create_subprocess_exec(
            *program, cwd=directory, env=dict(environment), stdin=theirs.fileno(), stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, start_new_session=True, limit=CHUNK_BYTES,
        )  # fmt: skip
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    assert process.stdout is not None
    assert process.stderr is not None
    reports, orders = await asyncio.open_connection(sock=ours)
    loop = asyncio.get_running_loop()
    heard = loop.time()

    def hear() -> None:
        nonlocal heard
        heard = loop.time()

    async def read_output() -> None:
        assert process.stdout is not None
        is_ending = False
        async for line in lines(process.stdout):
            hear()
            if not is_ending and await on_line(line):
                is_ending = True
                orders.write(b"term\n")

    reading, errors = asyncio.create_task(read_output()), asyncio.create_task(tail_of(process.stderr, hear))
    try:
        while not reading.done():
            left = None if idle_seconds is None else max(0.0, heard + idle_seconds - loop.time())
            done, _ = await asyncio.wait([reading], timeout=left)
            if not done and idle_seconds is not None and loop.time() >= heard + idle_seconds:
                raise Idle(f"the command wrote nothing for {idle_seconds:g} s")
        reading.result()
        report = (await reports.read()).decode().split()
        tail = await errors
    finally:
        await asyncio.shield(_end(process, orders, environment.get(MARK)))
        reading.cancel()
        errors.cancel()
        await asyncio.wait([reading, errors])
    match report:
        case ["exit", code]:
            return Exit(code=int(code)), tail
        case ["signal", number]:
            return Exit(signal=int(number)), tail
    return Exit(signal=int(signal.SIGKILL)), tail  # the supervisor itself was killed


async def _end(process: asyncio.subprocess.Process, orders: asyncio.StreamWriter, mark: str | None) -> None:
    """End the process tree and wait for that; without its supervisor, find its processes by their environment."""
    if process.returncode is None:
        with contextlib.suppress(ConnectionError):
            orders.write(b"term\n")
        # A full pipe must not keep the supervisor from ending.
        streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
        discarding = [asyncio.ensure_future(_discard(stream)) for stream in streams]
        await process.wait()
        await asyncio.wait(discarding)
    orders.close()
    if process.returncode != 0 and mark is not None:
        await asyncio.to_thread(end_marked, mark)


async def _discard(stream: asyncio.StreamReader) -> None:
    with contextlib.suppress(RuntimeError):  # another reader still waits; it discards too
        while await stream.read(CHUNK_BYTES):
            pass


def end_marked(job_id: str) -> None:
    """Kill processes that an earlier, killed worker of this machine has left for a job, and what they start."""
    for _ in range(KILLS):
        if not _kill_marked(f"{MARK}={job_id}".encode()):
            return
        time.sleep(KILL_SECONDS)


def _kill_marked(mark: bytes) -> int:
    killed = 0
    for entry in Path("/proc").iterdir() if sys.platform == "linux" else ():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
                killed += 1
    return killed


async def lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yield lines as text; bytes that are not UTF-8 are replaced, and the rest of a very long line is left out."""
    kept, is_cut = bytearray(), False
    while chunk := await stream.read(CHUNK_BYTES):
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            if not is_cut:
                kept += part
            yield _text(kept, is_cut or len(kept) > MAX_LINE_BYTES)
            kept.clear()
            is_cut = False
        if not is_cut:
            kept += rest
        if len(kept) > MAX_LINE_BYTES:
            is_cut = True
    if kept:
        yield _text(kept, is_cut)


def _text(line: bytearray, is_cut: bool) -> str:
    content = bytes(line[:MAX_LINE_BYTES]) + CUT if is_cut else bytes(line)
    return content.decode(errors="replace").rstrip("\r")


async def tail_of(stream: asyncio.StreamReader, hear: Callable[[], None]) -> str:
    """Read to the end and return the last bytes; call `hear` when something was read."""
    kept: deque[bytes] = deque()
    size = 0
    while chunk := await stream.read(CHUNK_BYTES):
        hear()
        kept.append(chunk)
        size += len(chunk)
        while size - len(kept[0]) >= TAIL_BYTES:
            size -= len(kept.popleft())
    return b"".join(kept)[-TAIL_BYTES:].decode(errors="replace")
