"""Faults of the disk, made where they happen: by the kernel, or in a layer below SQLite."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from pathlib import Path
from typing import Final

import apsw

# fsync and fdatasync; the kernel counts its calls differently on every kind of machine.
SYNCS: Final = {"x86_64": (74, 75), "aarch64": (82, 83)}
SECCOMP: Final = {"x86_64": 317, "aarch64": 277}

LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL_WITH = 0x7FFF0000, 0x00050000
CALL_NUMBER, FIRST_ARGUMENT = 0, 16
NO_NEW_PRIVILEGES, SET_FILTER, ALL_THREADS = 38, 1, 1


class _Step(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("steps", ctypes.POINTER(_Step)))


def fail_to_sync(path: Path) -> int:
    """From now on, until it ends, this process gets EIO for every fsync of a file it has open; how many that are.

    A filter in the kernel: SQLite sees what it would see of a dying disk, which an exception in a shim is not.
    """
    opened = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the names are what is wanted
        try:
            if os.readlink(f"/proc/self/fd/{name}") == str(path):  # noqa: PTH115
                opened.append(int(name))
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    machine = platform.machine()
    steps = [(LOAD, 0, 0, CALL_NUMBER)]
    calls = SYNCS[machine]
    steps += [(IF_EQUAL, len(calls) - i, 0, call) for i, call in enumerate(calls)]
    steps += [(RETURN, 0, 0, ALLOW), (LOAD, 0, 0, FIRST_ARGUMENT)]
    steps += [(IF_EQUAL, len(opened) - i, 0, descriptor) for i, descriptor in enumerate(opened)]
    steps += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, FAIL_WITH | errno.EIO)]
    program = _Program(len(steps), (_Step * len(steps))(*(_Step(*step) for step in steps)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.syscall(
        SECCOMP[machine], SET_FILTER, ALL_THREADS, ctypes.byref(program)
    ):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter")
    return len(opened)


class FullDisk(apsw.VFS):
    """The default file system of this process from now on; while `full`, nothing can be written to files named so."""

    def __init__(self) -> None:
        self.full: tuple[str, ...] = ()
        self.real = apsw.vfs_names()[0]
        super().__init__("full-disk", self.real, makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return _FullFile(self, name, flags)


class _FullFile(apsw.VFSFile):
    def __init__(self, disk: FullDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        self._name = str(name.filename() if isinstance(name, apsw.URIFilename) else name)
        super().__init__(disk.real, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._disk.full and self._name.endswith(self._disk.full):
            raise apsw.FullError("database or disk is full")
        super().xWrite(data, offset)


def spoil_page(path: Path, table: str) -> int:
    """Overwrite the header of a table's first page, as a bad disk or a stray write would; the number of the page."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        db.pragma("wal_checkpoint", "truncate")
        page = int(str(db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).get))
        size = int(str(db.pragma("page_size")))
    finally:
        db.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * 100)
    return page
