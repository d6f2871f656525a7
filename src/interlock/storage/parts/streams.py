"""Streams of jobs: chunks in order, written only under the current fence."""

from __future__ import annotations

from typing import Final

from interlock.domain.job import Rejected
from interlock.domain.stream import Append, Chunk, StreamInfo, admit
from interlock.errors import Error
from interlock.storage.contract.streams import streams_of
from interlock.storage.dialect import Database, Steps, Transaction, reader, statements
from interlock.storage.parts.lease import hold

SQL: Final = statements("streams")
_chunk: Final = reader(Chunk)


class Streams:
    """Stores streams; see the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, tenant: str, append: Append, *, limit: int) -> int | Rejected:
        job_id, fence, worker, name, offset, chunks = append

        def body(tx: Transaction) -> Steps[int | Rejected]:
            try:
                attempt = yield from hold(tx, job_id, fence, worker)
                streams = [StreamInfo(*row) for row in (yield from tx.rows(SQL["list"], job_id=job_id))]
                stored = yield from tx.rows(
                    SQL["chunks"], job_id=job_id, name=name, after=offset - 1, limit=len(chunks)
                )  # fmt: skip
                is_new = admit(append, streams, [*map(_chunk, stored)], limit=limit)
            except Error as error:
                return Rejected(error)
            if is_new:
                yield from tx.run(
                    SQL["append"], job_id=job_id, name=name, first=offset, attempt=attempt, fence=fence,
                    data=[chunk.data.hex() for chunk in chunks], texts=[chunk.is_text for chunk in chunks],
                )  # fmt: skip
                size = sum(len(chunk.data) for chunk in chunks)
                yield from tx.run(SQL["grow"], job_id=job_id, name=name, chunks=len(chunks), bytes=size)
            return offset + len(chunks)

        done = await self._database.write(tenant, body, guarded=True)
        if not isinstance(done, Rejected):
            self._database.wake(streams_of(tenant, job_id))
        return done

    async def of_job(self, tenant: str, job_id: str) -> list[StreamInfo]:
        return [StreamInfo(*row) for row in await self._database.rows(tenant, SQL["list"], job_id=job_id)]

    async def chunks(self, tenant: str, job_id: str, name: str, *, after: int = -1, limit: int) -> list[Chunk]:
        rows = await self._database.rows(tenant, SQL["chunks"], job_id=job_id, name=name, after=after, limit=limit)
        return [*map(_chunk, rows)]
