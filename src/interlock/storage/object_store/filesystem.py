"""Objects as files in one directory: private to their owner, synced before they are reported, symlinks not followed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from interlock.errors import StorageBroken, Unavailable

THREADS: Final = 4
PIECE: Final = 256 * 1024
KEY: Final = re.compile(r"[0-9a-f]{32}")

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_OLD: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_OURS: Final = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR)
T = TypeVar("T")


class FileObjects:
    """One file per key, spread over 256 subdirectories; the directory is created with the first object."""

    def __init__(self, root: Path) -> None:
        self.where = str(root)
        self._root = root
        self._broken: StorageBroken | None = None
        self._threads = ThreadPoolExecutor(THREADS, "interlock-artifacts")

    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> None:
        if self._broken is not None:
            raise self._broken
        draft = _Draft(self._root, key)
        try:
            await self._run(draft.create)
            waiting = bytearray()
            async for chunk in chunks:
                waiting += chunk
                if len(waiting) >= PIECE:
                    await self._run(partial(draft.write, bytes(waiting)))
                    waiting.clear()
            await self._run(partial(draft.settle, bytes(waiting)))
        except BaseException:
            await self._run(draft.discard)
            raise

    async def get(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        source = _Source(self._root, key)
        try:
            if not await self._run(source.open):
                raise FileNotFoundError(f"object {key} is not there")
            while start < end:
                piece = await self._run(partial(source.read, min(PIECE, end - start), start))
                if not piece:
                    raise FileNotFoundError(f"object {key} ends at byte {start}")
                yield piece
                start += len(piece)
        finally:
            source.close()

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            await self._run(partial(self._remove, key))

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)

    def _remove(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError), _folder(self._root, key) as folder:
            os.unlink(key[2:], dir_fd=folder)

    async def _run(self, work: Callable[[], T]) -> T:
        """Run file operations in a thread; a cancelled caller waits for it, so no file is closed during a write."""
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise
        except OSError as error:
            raise self._meaning(error) from error

    def _meaning(self, error: OSError) -> Unavailable | StorageBroken:
        if error.errno == errno.EIO:
            self._broken = StorageBroken(
                f"{self.where} cannot be written safely ({error}). No more artifacts are written; check the disk"
            )
            return self._broken
        if error.errno in _FULL:
            return Unavailable(
                f"the disk that holds {self.where} is full; nothing was kept, free some space",
                public="the disk for artifacts is full; nothing was kept, free some space",
            )
        return Unavailable(
            f"artifacts cannot be kept in {self.where}: {error}",
            public="artifacts cannot be kept now; nothing was kept",
        )


class _Draft:
    """A file being written, not visible yet."""

    def __init__(self, root: Path, key: str) -> None:
        self._root, self._key = root, key
        self._file = -1
        self._ours = False

    def create(self) -> None:
        _make(self._root)
        with _opened(self._root, key=self._key) as root, contextlib.suppress(FileExistsError):
            os.mkdir(self._key[:2], 0o700, dir_fd=root)
        with _folder(self._root, self._key) as folder:
            self._file = os.open(self._key[2:], _NEW, 0o600, dir_fd=folder)
            self._ours = True

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._file, left) :]

    def settle(self, data: bytes) -> None:
        """Write the rest and sync the file and its directories before returning."""
        self.write(data)
        os.fsync(self._file)
        self._close()
        with _opened(self._root, key=self._key) as root:
            with _folder(self._root, self._key) as folder:
                os.fsync(folder)
            os.fsync(root)

    def discard(self) -> None:
        if self._file != -1:
            self._close()
        if self._ours:
            with contextlib.suppress(OSError), _folder(self._root, self._key) as folder:
                os.unlink(self._key[2:], dir_fd=folder)

    def _close(self) -> None:
        file, self._file = self._file, -1
        os.close(file)


class _Source:
    """A file being read."""

    def __init__(self, root: Path, key: str) -> None:
        self._root, self._key = root, key
        self._file = -1

    def open(self) -> bool:
        """Open the file; return whether it exists and is a regular file of ours."""
        try:
            with _folder(self._root, self._key) as folder:
                self._file = os.open(self._key[2:], _OLD, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ENOENT, *_NOT_OURS):
                return False
            raise
        return stat.S_ISREG(os.fstat(self._file).st_mode)

    def read(self, size: int, at: int) -> bytes:
        return os.pread(self._file, size, at)

    def close(self) -> None:
        if self._file != -1:
            os.close(self._file)


def _make(root: Path) -> None:
    """Create the directory if it is missing; sync its parent, so that its entry survives a crash."""
    try:
        root.mkdir(mode=0o700)
    except FileExistsError:
        return
    parent = os.open(root.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


@contextmanager
def _opened(root: Path, *, key: str) -> Iterator[int]:
    """Open the root directory; reject it if other users can write to it."""
    if not KEY.fullmatch(key):
        raise ValueError(f"{key!r} is not a key")
    try:
        descriptor = os.open(root, _DIRECTORY)
    except OSError as error:
        if error.errno in _NOT_OURS:
            raise Unavailable(f"{root} is a link or a file: artifacts need a dedicated directory") from error
        raise
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
            raise Unavailable(f"{root} can be written by other users; chmod 700 it first")
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _folder(root: Path, key: str) -> Iterator[int]:
    """Open the subdirectory of a key."""
    with _opened(root, key=key) as top:
        descriptor = os.open(key[:2], _DIRECTORY, dir_fd=top)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
