"""Wakes waiting claims, also those of other processes that have the same file open.

SQLite has no LISTEN and NOTIFY. So each process that waits owns a named pipe in the directory `FILE-wake`. A process
that has committed writes the keys that others may watch (tenants) into the pipes of the others. Named pipes have no
limit on the length of their path, work on Linux and macOS, and show whether their reader is alive: opening one without
a reader fails. The sender then removes it, because its owner has crashed.

A hint only shortens a wait. Where there are no named pipes (Windows, some network disks, a directory that is read-only
or belongs to another user), a process checks every tenth of a second whether the write-ahead log has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import select
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from interlock.storage.sqlite.connection import MEMORY
from interlock.storage.wakeup import ALL_TENANTS, NextLook, Wakeup

AT_MOST_EVERY_SECONDS: Final = 0.005  # many commits in a row wake the other processes once
LOOK_AT_OTHERS_SECONDS: Final = 0.1
STOP_LOOKING_SECONDS: Final = 5.0
CHECK_PIPE_SECONDS: Final = 1.0
EVENTS: Final = "\x00events"  # the key for events of jobs; no tenant has such a name
_CAN_LISTEN: Final = hasattr(os, "mkfifo")
_ATOMIC_BYTES: Final = getattr(select, "PIPE_BUF", 512)  # a longer write could be mixed with that of another sender


class Notifier:
    """Sends and receives hints. Never part of a transaction; a lost hint only adds latency."""

    def __init__(self, path: str) -> None:
        self._signal = Wakeup()
        self._file = None if path == MEMORY else Path(path).absolute()
        self._log = Path(f"{path}-wal")
        self._pipe: _Pipe | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of the pipe and the timer
        self._check_at = 0.0
        self._unsent: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._watched_at = 0.0
        self._poll: asyncio.Task[None] | None = None

    def ring(self, key: str) -> None:
        """Wake those who watch this key: in this process at once, in others within a few milliseconds."""
        self._signal.fire(key)
        if self._file is not None:
            self._use_running_loop()
            self._unsent.add(key)
            if self._timer is None:
                self._send()

    def ring_in(self, key: str, next_look: NextLook) -> None:
        """Wake those who watch this key in this process at a time; other processes look for themselves."""
        self._signal.fire_in(key, next_look)

    def event(self, key: str) -> asyncio.Event:
        """Return an event that the next hint for the key sets, from this or another process."""
        if self._file is not None:
            self._use_running_loop()
            self._listen()
        return self._signal.event(key)

    async def close(self) -> None:
        if (poll := self._poll) is not None:
            poll.cancel()
            await asyncio.gather(poll, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
            self._send_unsent()
            self._timer = None
        self._close_pipe()

    def _use_running_loop(self) -> None:
        """Forget the pipe, the timer and the task of another event loop, which may be closed."""
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._close_pipe()
            self._loop, self._timer, self._poll, self._check_at = loop, None, None, 0.0

    def _send(self) -> None:
        """Send now, and again after a pause if more has come by then."""
        assert self._loop is not None
        self._timer = None
        if self._unsent:
            self._send_unsent()
            self._timer = self._loop.call_later(AT_MOST_EVERY_SECONDS, self._send)

    def _send_unsent(self) -> None:
        assert self._file is not None
        keys, self._unsent = self._unsent, set()
        send(self._file, keys, but_not_to=None if self._pipe is None else self._pipe.path.name)

    def _listen(self) -> None:
        """Open the pipe, or again if it was removed; poll while that fails."""
        assert self._loop is not None
        assert self._file is not None
        self._watched_at = now = self._loop.time()
        if now >= self._check_at:
            self._check_at = now + CHECK_PIPE_SECONDS
            if self._pipe is None or not self._pipe.is_in_place():
                self._close_pipe()
                with contextlib.suppress(OSError, NotImplementedError):
                    self._pipe = _Pipe(self._file, self._loop, self._receive)
        if self._pipe is None and self._poll is None:
            self._poll = self._loop.create_task(self._poll_log(_written(self._log)))

    def _receive(self, keys: Iterable[str | None]) -> None:
        for key in keys:
            self._signal.fire(key)

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    async def _poll_log(self, seen: tuple[int, int] | None) -> None:
        """Wake all after any change of the write-ahead log, while a caller waits and there is no pipe."""
        assert self._loop is not None
        try:
            while self._pipe is None and self._loop.time() - self._watched_at < STOP_LOOKING_SECONDS:
                await asyncio.sleep(LOOK_AT_OTHERS_SECONDS)
                if (written := _written(self._log)) != seen:
                    seen = written
                    self._signal.fire(ALL_TENANTS)
        finally:
            self._poll = None


class Topic:
    """One key of a notifier, with the methods of a `Wakeup`."""

    def __init__(self, notifier: Notifier, key: str) -> None:
        self._notifier, self._key = notifier, key

    def fire(self) -> None:
        self._notifier.ring(self._key)

    def event(self) -> asyncio.Event:
        return self._notifier.event(self._key)


class _Pipe:
    """The named pipe of this process, and its reader."""

    def __init__(
        self, file: Path, loop: asyncio.AbstractEventLoop, receive: Callable[[Iterable[str | None]], None]
    ) -> None:
        if not _CAN_LISTEN:
            raise NotImplementedError
        directory = _directory(file)
        with contextlib.suppress(FileExistsError):
            directory.mkdir(0o700)
            _give_to_owner(file, directory)
        if not _is_private(file, directory):
            raise PermissionError(errno.EPERM, "other users can write to this directory", str(directory))
        self.path = directory / f"{os.getpid()}-{secrets.token_hex(4)}"
        self._loop, self._hear, self._process = loop, receive, os.getpid()
        self._opened: list[int] = []
        os.mkfifo(self.path, 0o600)
        try:
            _give_to_owner(file, self.path)
            # The writing end keeps the pipe open between senders; without it the reader would see end of file for ever.
            for end in (os.O_RDONLY, os.O_WRONLY):
                self._opened.append(os.open(self.path, end | os.O_NONBLOCK))
            self._inode = os.fstat(self._opened[0]).st_ino
            loop.add_reader(self._opened[0], self._receive)
        except BaseException:
            self.close()
            raise
        send(file, (), but_not_to=self.path.name)  # removes the pipes of processes that have crashed

    def is_in_place(self) -> bool:
        """Return whether senders can still find the pipe; its directory may have been removed."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    def _receive(self) -> None:
        """Read all hints. Each was written at once, so a read never ends within one except at its own limit."""
        received = b""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._opened[0], 65_536):
                received += part
        keys = dict.fromkeys(key for hint in received.splitlines() for key in _decode(hint))
        self._hear(keys)

    def close(self) -> None:
        if self._process != os.getpid():  # a fork: the pipe belongs to the parent
            return
        if not self._loop.is_closed() and self._opened:
            self._loop.remove_reader(self._opened[0])
        for descriptor in self._opened:
            os.close(descriptor)
        self._opened.clear()
        with contextlib.suppress(OSError):
            self.path.unlink()
            self.path.parent.rmdir()  # fails while others listen


def send(file: Path, keys: Iterable[str], *, but_not_to: str | None = None) -> None:
    """Write a hint into the pipe of every listening process; remove pipes without a reader."""
    directory = _directory(file)
    try:
        names = [pipe.name for pipe in directory.iterdir()]
        if not names or names == [but_not_to] or not _is_private(file, directory):
            return
    except OSError:  # no process has ever listened, or it may not be read
        return
    hint = _encode(keys)
    for name in names:
        if name != but_not_to:
            with contextlib.suppress(OSError):  # removed meanwhile, or full: its reader has enough to wake up for
                _write(directory / name, hint)


def _write(pipe: Path, hint: bytes) -> None:
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ENXIO:  # no reader: its process has crashed
            pipe.unlink(missing_ok=True)
        raise
    try:
        if hint and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.write(descriptor, hint)
    finally:
        os.close(descriptor)


def _directory(file: Path) -> Path:
    return file.with_name(f"{file.name}-wake")


def _is_private(file: Path, directory: Path) -> bool:
    """Return whether only this user, or the owner of the file, can put pipes into the directory."""
    found = directory.lstat()
    return (
        stat.S_ISDIR(found.st_mode)
        and not stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
        and found.st_uid in (os.geteuid(), file.stat().st_uid)
    )


def _give_to_owner(file: Path, made: Path) -> None:
    """Give what root has made to the owner of the file, as SQLite does with its own files."""
    if os.geteuid() == 0 and (owner := file.stat()).st_uid != 0:
        os.chown(made, owner.st_uid, owner.st_gid)


def _encode(keys: Iterable[str]) -> bytes:
    """Encode keys as one line; an empty list if they do not fit, which stands for all. No key at all is no hint."""
    named = sorted(keys)
    if not named:
        return b""
    hint = msgspec.json.encode(named) + b"\n"
    return hint if len(hint) <= _ATOMIC_BYTES else b"[]\n"


def _decode(hint: bytes) -> list[str] | list[None]:
    try:
        return msgspec.json.decode(hint, type=list[str]) or [ALL_TENANTS]
    except msgspec.DecodeError:
        return [ALL_TENANTS]


def _written(log: Path) -> tuple[int, int] | None:
    """Return mtime and size; two writes within one tick of the file system clock may look like one."""
    try:
        found = log.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size
