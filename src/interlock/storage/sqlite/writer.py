"""The writer thread. Operations queued during one commit share the next transaction."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import apsw

from interlock.errors import DatabasePromoted, Error, Fatal, StorageBroken, Unavailable
from interlock.storage.sqlite.connection import MEMORY, Connection, explain

T = TypeVar("T")
BATCH_SIZE: Final = 128
LOOK_FOR_FILE_SECONDS: Final = 0.25


class _Work(NamedTuple):
    verb: Callable[[Connection], Any]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]


class Writer:
    """Runs operations one after another in shared transactions and returns each result.

    A failed operation is rolled back alone. After a storage fault the writer rejects all further writes.
    """

    def __init__(self, open_connection: Callable[[], Connection], path: str) -> None:
        self._path = path
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._broken: Fatal | None = None
        self._closed = False
        self.batches = 0
        self.connection = open_connection()
        self._file_path = None if path == MEMORY else Path(path).absolute()
        self._file = _file_at(self._file_path)
        self._seen_file = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="interlock-writer", daemon=True)
        self._thread.start()

    async def run(self, verb: Callable[[Connection], T]) -> T:
        """Return the result of the operation once its transaction is on disk."""
        if self._closed:
            raise Unavailable("the store is closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._queue.put(_Work(verb, loop, answer))
        return await answer

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
            self.connection.close()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            last = False
            while len(batch) < BATCH_SIZE and not self._queue.empty():
                work = self._queue.get()
                if work is None:
                    last = True
                    break
                batch.append(work)
            self._emit(self._commit(batch))
            self._checkpoint()
            if last:
                return

    def stop(self, fault: StorageBroken) -> None:
        """Reject all further writes because of a storage fault found outside a commit."""
        self._broken = self._broken or fault

    def refuse_lost_file(self) -> None:
        """Stop if the file was deleted or replaced: further writes would be lost when this process exits."""
        if _file_at(self._file_path) != self._file:
            fault = StorageBroken(
                f"{self._path} was deleted or replaced while it was in use. Nothing more is written. "
                "Stop every process that uses it, then restore the file or a backup"
            )
            self.stop(fault)
            raise fault
        self._seen_file = time.monotonic()

    def _checkpoint(self) -> None:
        if self._broken is None:
            try:
                self.connection.checkpoint()
            except (apsw.BusyError, apsw.FullError):
                pass  # another process checkpoints, or the disk is full; the WAL keeps all data
            except apsw.Error as error:
                self._judge(error)

    def _commit(self, batch: list[_Work]) -> list[tuple[_Work, Any]]:
        if self._broken is not None:
            return [(work, self._broken) for work in batch]
        connection = self.connection
        answers: list[tuple[_Work, Any]] = []
        try:
            if time.monotonic() - self._seen_file > LOOK_FOR_FILE_SECONDS:
                self.refuse_lost_file()
            connection.begin()
            connection.refuse_if_promoted()
            connection.let_verbs_write(True)
            if len(batch) == 1:
                answers.append((batch[0], batch[0].verb(connection)))
            else:
                answers.extend((work, self._alone(work)) for work in batch)
            connection.db.execute("COMMIT")
            self.batches += 1
        except Exception as error:
            self._undo()
            meaning = self._judge(error)
            if len(batch) > 1 and self._broken is None:
                return [result for work in batch for result in self._commit([work])]
            return [(work, meaning) for work in batch]
        finally:
            connection.let_verbs_write(False)
        return answers

    def _alone(self, work: _Work) -> Any:
        """Run one operation of a batch in a savepoint; only a storage error fails the batch."""
        db = self.connection.db
        db.execute("SAVEPOINT verb")
        try:
            answer = work.verb(self.connection)
        except apsw.Error:
            raise
        except Exception as error:
            self.connection.rollbacks += 1
            db.execute("ROLLBACK TO verb")
            answer = error
        db.execute("RELEASE verb")
        return answer

    def _undo(self) -> None:
        self.connection.rollbacks += 1
        if self.connection.db.in_transaction:
            try:
                self.connection.db.execute("ROLLBACK")
            except apsw.Error as error:
                self._judge(error)

    def _judge(self, error: Exception) -> Exception:
        try:
            meaning: Error = explain(error, self._path)
        except Exception as unexpected:
            return unexpected
        if isinstance(meaning, Fatal):
            is_known = isinstance(meaning, (StorageBroken, DatabasePromoted))
            self._broken = meaning if is_known else StorageBroken(str(meaning))
        return meaning

    @staticmethod
    def _emit(answers: list[tuple[_Work, Any]]) -> None:
        """Deliver all results with one wake-up per event loop; skip cancelled callers."""

        def deliver(mine: list[tuple[_Work, Any]]) -> None:
            for work, answer in mine:
                if not work.answer.done():
                    if isinstance(answer, BaseException):
                        work.answer.set_exception(answer)
                    else:
                        work.answer.set_result(answer)

        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Work, Any]]] = {}
        for work, answer in answers:
            by_loop.setdefault(work.loop, []).append((work, answer))
        for loop, mine in by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(deliver, mine)


def _file_at(file_path: Path | None) -> tuple[int, int] | None:
    """Return device and inode of the file at this path, or None if it cannot be read."""
    if file_path is None:
        return None
    try:
        found = file_path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
