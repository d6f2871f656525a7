"""SQLite connection setup, and mapping of SQLite errors to Interlock errors."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence, Sized
from functools import lru_cache, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from interlock.domain.audit import history_hash
from interlock.domain.digests import of_fields
from interlock.errors import DatabasePromoted, Error, Fatal, StorageBroken, Unavailable
from interlock.storage import broken
from interlock.storage.sqlite import digests

T = TypeVar("T")

MEMORY: Final = ":memory:"
BUSY_MILLISECONDS: Final = 60_000
ROWS_OF_AN_INSERT: Final = (50, 10)
IN_SEQS: Final = "seq IN (SELECT value FROM json_each(:seqs))"
WORTH_A_RANGE: Final = 8  # average jobs per range above which several range statements beat one list
# SQLite scans its whole page cache at the end of a transaction that rebalanced a B-tree, as most do. Keep it small.
WRITER_CACHE_KIB: Final = 8192
READER_CACHE_KIB: Final = 65_536
MAX_REMEMBERED_LEASES: Final = 20_000
PROMOTED: Final = 1  # the user_version of a file that was promoted to PostgreSQL
CHECKPOINT_PAGES: Final = 8000  # hot pages are written many times between checkpoints, but copied back once

# Older versions can lose committed pages when a WAL file is reset while another connection writes.
_SAFE: Final = 3_051_003
_ALSO_SAFE: Final = ((3_050_007, 3_051_000), (3_044_006, 3_045_000))

_FLAGS: Final = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_NOMUTEX
_BROKEN: Final = (apsw.IOError, apsw.CorruptError, apsw.NotADBError)


def wall_clock() -> int:
    """Microseconds since 1970, UTC."""
    return time.time_ns() // 1000


class Hashes(dict[int, bytes]):
    """History hashes by job seq, which an operation has computed for the triggers of `job` to write.

    Direct SQL (`strangers` is not empty) has none and reads None.
    """

    def __init__(self, strangers: Sized) -> None:
        self._strangers = strangers

    def __missing__(self, seq: int) -> None:
        if not self._strangers:
            raise LookupError(f"job {seq} is changed by an operation that has no hash for its history")


# Plain tuples take half the time of named ones to build and unpack.
# Status, attempt, fence, worker, version. Jobs leased together share one.
Lease = tuple[str, int, int, str, int]
# Job ID, seq, base eligibility key, agent number, chain head, lease.
LeasedJob = tuple[str, int, int, int | None, bytes, Lease]


class Leases:
    """The jobs that this connection leased, so that their completion does not read again what the claim wrote.

    An entry is valid while the job runs at the same version; a completion checks that, and reads missing entries.
    """

    def __init__(self) -> None:
        self._rollbacks = 0
        self._of: dict[tuple[str, str], LeasedJob] = {}

    def remember(self, tenant: str, jobs: Iterable[LeasedJob], rollbacks: int) -> None:
        """Add jobs. Forget all others after a rollback, which may have undone their leases."""
        if rollbacks != self._rollbacks or len(self._of) > MAX_REMEMBERED_LEASES:
            self._of.clear()
            self._rollbacks = rollbacks
        self._of.update(((tenant, job[0]), job) for job in jobs)

    def take(self, tenant: str, ids: Iterable[str], rollbacks: int) -> list[LeasedJob]:
        """Remove and return the jobs that are about to finish."""
        if rollbacks != self._rollbacks:
            return []
        return [job for id in ids if (job := self._of.pop((tenant, id), None)) is not None]


class Connection:
    """A connection to the file, with the SQL functions that triggers call and one timestamp per transaction."""

    def __init__(self, path: str, *, clock: Callable[[], int], readonly: bool = False) -> None:
        refuse_unsafe_sqlite(apsw.sqlite_lib_version(), apsw.SQLITE_VERSION_NUMBER)
        self.now = 0
        self._strangers = [True]  # empty while an operation runs
        self.hashes = Hashes(self._strangers)
        self.metadatas: dict[int, str | None] = {}  # metadata of the history rows with those hashes
        self.leased = Leases()
        self.rollbacks = 0  # transactions and savepoints rolled back
        self._log_pages = 0
        self._clock = clock
        try:
            # Two threads never share a connection, so NOMUTEX saves a lock per call.
            self.db = apsw.Connection(path, flags=_FLAGS, statementcachesize=256)
            self._set_up(path, readonly)
        except apsw.Error as error:
            raise explain(error, path) from error

    def _set_up(self, path: str, readonly: bool) -> None:
        db = self.db
        # Without QPSG SQLite may re-plan a cached statement when a bound value changes.
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        db.set_busy_timeout(BUSY_MILLISECONDS)
        if path != MEMORY:
            self._use_wal(path)
            db.set_wal_hook(self._note_log)  # replaces the automatic checkpoint, which hides a failed fsync
        db.pragma("synchronous", "full")
        db.pragma("foreign_keys", True)
        db.pragma("cell_size_check", True)
        db.pragma("cache_size", -(READER_CACHE_KIB if readonly else WRITER_CACHE_KIB))
        db.pragma("temp_store", 2)
        functions: list[tuple[str, Callable[..., Any], int]] = [
            # Called for every written row; Python functions would take three times as long as these C methods.
            ("only_interlock_may_change_jobs", self._strangers.__len__, 0),
            ("only_interlock_may_change_jobs", self.metadatas.get, 1),
            ("interlock_head", self.hashes.__getitem__, 1),
            ("interlock_clock", self._time, 0),
            ("interlock_history_hash", history_hash, 13),
            ("interlock_metadata_of_change", partial(digests.metadata_of_change, self), 6),
            ("digest", digests.of_text, 1),
            ("interlock_digest_fields", of_fields, -1),
            ("interlock_digest_options", digests.of_stored_options, -1),
        ]
        for name, function, arguments in functions:
            db.create_scalar_function(name, function, arguments)
        if readonly:
            db.pragma("query_only", True)

    def _use_wal(self, path: str) -> None:
        """Switch to WAL mode, and retry while busy.

        SQLite ignores the busy timeout while another process switches modes or closes the last connection.
        """
        deadline = time.monotonic() + BUSY_MILLISECONDS / 1000
        while True:
            try:
                mode = self.db.pragma("journal_mode", "wal")
            except apsw.BusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.002)
            else:
                if mode != "wal":
                    raise Fatal(f"{path} does not support a write-ahead log: move it to a local disk")
                return

    def _note_log(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def checkpoint(self) -> None:
        """Copy the WAL into the file once it is large; raise on any error."""
        if self._log_pages >= CHECKPOINT_PAGES:
            self._log_pages = 0
            self.db.wal_checkpoint()

    def _time(self) -> int:
        return self._clock() if self._strangers else self.now

    def let_verbs_write(self, allowed: bool) -> None:
        """Set whether changes come from an operation, which supplies its history hashes, or from direct SQL."""
        self._strangers[:] = [] if allowed else [True]
        self.hashes.clear()
        self.metadatas.clear()

    def begin(self) -> None:
        """Take the write lock and read the clock once for the transaction."""
        self.db.execute("BEGIN IMMEDIATE")
        self.now = self._clock()

    @property
    def is_promoted(self) -> bool:
        return int(str(self.db.pragma("user_version"))) == PROMOTED

    def refuse_if_promoted(self) -> None:
        """Raise if the file was promoted to PostgreSQL: its jobs live there."""
        if self.is_promoted:
            raise DatabasePromoted(str(self.rows("SELECT target FROM promotion")[0][0]))

    def rows(self, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        return self.db.execute(statement, values).fetchall()

    def insert(self, statement: str, shared: tuple[Any, ...], rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows with common leading values, many per statement: one statement costs as much as one row."""
        done = 0
        for many in ROWS_OF_AN_INSERT:
            while len(rows) - done >= many:
                values = (*shared, *chain.from_iterable(rows[done : done + many]))
                self.db.execute(_for_many_rows(statement, many), values)
                done += many
        if done < len(rows):
            self.db.executemany(statement, [(*shared, *row) for row in rows[done:]])

    def update(self, statement: str, facts: dict[str, Any], seqs: Sequence[int]) -> None:
        """Run an UPDATE whose WHERE clause contains `IN_SEQS`, for these seqs.

        Jobs that arrive together are usually leased and finished together, and a range needs no list.
        """
        if runs := self.ranges(seqs):
            ranges = [facts | {"first": first, "last": last} for first, last in runs]
            self.db.executemany(statement.replace(IN_SEQS, "seq BETWEEN :first AND :last"), ranges)
        else:
            self.db.execute(statement, facts | {"seqs": json.dumps(seqs)})

    def ranges(self, seqs: Sequence[int]) -> list[tuple[int, int]]:
        """Return the first and last seq of each range; empty if a list is cheaper."""
        runs = _runs(seqs)
        return runs if len(runs) == 1 or len(runs) * WORTH_A_RANGE <= len(seqs) else []

    def alone(self, part: Callable[[], T]) -> T:
        """Run part of a transaction in a savepoint, and roll back only that part if it fails."""
        self.db.execute("SAVEPOINT alone")
        try:
            answer = part()
        except Exception:
            self.rollbacks += 1
            if self.db.in_transaction:
                self.db.execute("ROLLBACK TO alone")
                self.db.execute("RELEASE alone")
            raise
        self.db.execute("RELEASE alone")
        return answer

    def read_clock(self) -> int:
        return self._clock()

    def close(self) -> None:
        self.db.close()


def _runs(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last of each run of consecutive numbers. Requires distinct numbers."""
    if not seqs:
        return []
    first, last = min(seqs), max(seqs)
    if last - first == len(seqs) - 1:
        return [(first, last)]
    gaps = [(before, after) for before, after in pairwise(sorted(seqs)) if after != before + 1]
    return list(zip([first, *(after for _, after in gaps)], [*(before for before, _ in gaps), last], strict=True))


@lru_cache(64)
def _for_many_rows(statement: str, rows: int) -> str:
    """Repeat the VALUES list of a statement. Common values are numbered parameters, so they repeat as they are."""
    return statement + f", {statement[statement.rindex('(') :]}" * (rows - 1)


def refuse_unsafe_sqlite(version: str, number: int) -> None:
    """Reject SQLite versions that have the WAL-reset corruption race."""
    if number < _SAFE and not any(low <= number < high for low, high in _ALSO_SAFE):
        raise Fatal(
            f"SQLite {version} can corrupt a WAL database that several connections use; "
            "Interlock needs 3.51.3 or newer: install a current apsw wheel"
        )


def prepare_file(path: str) -> None:
    """Create a new file with mode 600; reject an existing file that other users can write."""
    file = Path(path)
    if path == MEMORY:
        return
    if not file.parent.is_dir():
        raise Unavailable(f"the directory {file.parent} does not exist; create it first")
    if not file.exists():
        try:
            os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            raise Unavailable(f"{file} cannot be made: {error.strerror}") from None
    elif stat.S_IMODE(file.stat().st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
        raise Fatal(f"{file} can be written by other users; chmod 600 it first")


def permissions(path: str) -> str:
    """Return the combined mode of the file and its WAL as four octal digits."""
    files = [file for suffix in ("", "-wal", "-shm") if (file := Path(path + suffix)).exists()]
    mode = 0
    for file in files:
        mode |= stat.S_IMODE(file.stat().st_mode)
    return f"{mode:04o}"


def of_a_row(error: Exception) -> bool:
    """Return whether a single invalid row may have caused the error."""
    return isinstance(error, apsw.ConstraintError) or broken.unreadable(error)


def explain(error: Exception, path: str) -> Error:
    """Map a SQLite error to an Interlock error: retryable or fatal."""
    if isinstance(error, Error):
        return error
    if isinstance(error, _BROKEN):
        code = getattr(error, "extendedresult", 0)
        return StorageBroken(
            f"SQLite cannot read or write {path} safely ({error}; code {code}). Nothing more is written. "
            "Check the disk, then the file with PRAGMA integrity_check, or restore a backup"
        )
    if isinstance(error, apsw.FullError):
        return Unavailable(
            f"the disk that holds {path} is full; nothing was written, free some space",
            public="the disk of the database is full; nothing was written, free some space",
        )
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return Unavailable(
            f"another process has held {path} for more than {BUSY_MILLISECONDS // 1000} s; nothing was written",
            public="another process has held the database for too long; nothing was written, try again",
        )
    if isinstance(error, (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError)):
        return Unavailable(
            f"{path} cannot be opened for writing: {error}", public="the database cannot be opened for writing"
        )
    raise error
