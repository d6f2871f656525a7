"""Streams: chunks in order over all attempts, appended only under the current fence, kept as long as their job."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.job import Job, Rejected
from interlock.domain.operations import PruneCommand
from interlock.domain.stream import MAX_STREAMS, Append, Chunk, NewChunk
from interlock.errors import Error, LeaseLost, LimitReached, NotFound, StreamConflict
from interlock.storage.contract import streams_of
from tests.contract.builders import NEVER, OPERATOR, TenantQueue, complete, new_id, release
from tests.contract.connections import SqlConnection, rejection

LIMIT = 1000


def append(job: Job, offset: int, *texts: str, name: str = "tokens", **more: Any) -> Append:
    chunks = tuple(NewChunk(text.encode(), True) for text in texts)
    return Append(job.id, job.fence, job.worker or "", name, offset, chunks)._replace(**more)


async def added(queue: TenantQueue, append: Append) -> int:
    answer = await queue.store.streams.append(queue.tenant, append, limit=LIMIT)
    assert not isinstance(answer, Rejected), answer
    return answer


async def refused(queue: TenantQueue, append: Append) -> Error:
    answer = await queue.store.streams.append(queue.tenant, append, limit=LIMIT)
    assert isinstance(answer, Rejected), answer
    return answer.error


async def chunks(queue: TenantQueue, job: Job, name: str = "tokens", after: int = -1, limit: int = 100) -> list[Chunk]:
    return await queue.store.streams.chunks(queue.tenant, job.id, name, after=after, limit=limit)


async def test_chunks_are_numbered_over_all_attempts_and_name_their_lease(queue: TenantQueue) -> None:
    job = await queue.running()
    assert await added(queue, append(job, 0, "a\x00", "ß")) == 2
    await queue.do(release(job))
    again = await queue.again(job)
    assert await added(queue, append(again, 2)._replace(chunks=(NewChunk(b"\xff\x00", False),))) == 3
    found = await chunks(queue, job)
    assert [(c.offset, c.fence, c.data, c.is_text) for c in found] == [
        (0, job.fence, b"a\x00", True), (1, job.fence, "ß".encode(), True), (2, again.fence, b"\xff\x00", False),
    ]  # fmt: skip
    assert await chunks(queue, job, after=0, limit=1) == found[1:2]
    (info,) = await queue.store.streams.of_job(queue.tenant, job.id)
    assert (info.name, info.chunks, info.bytes) == ("tokens", 3, 6)


async def test_a_repeated_append_changes_nothing_and_another_content_is_a_conflict(queue: TenantQueue) -> None:
    job = await queue.running()
    assert [await added(queue, append(job, 0, "a", "b")) for _ in range(2)] == [2, 2]
    for wrong in (append(job, 0, "a", "c"), append(job, 1, "b", "c"), append(job, 3, "d")):
        error = await refused(queue, wrong)
        assert isinstance(error, StreamConflict)
        assert error.next == 2
    assert [c.data for c in await chunks(queue, job)] == [b"a", b"b"]


async def test_the_next_lease_does_not_repeat_chunks_of_the_last(queue: TenantQueue) -> None:
    job = await queue.running()
    await added(queue, append(job, 0, "a"))
    await queue.do(release(job))
    again = await queue.again(job)
    assert isinstance(await refused(queue, append(job, 1, "b")), Error)
    assert isinstance(await refused(queue, append(again, 0, "a")), StreamConflict)


@pytest.mark.parametrize("wrong", [{"fence": 2}, {"worker": "w2"}])
async def test_an_append_needs_the_lease(queue: TenantQueue, wrong: dict[str, Any]) -> None:
    job = await queue.running()
    assert isinstance(await refused(queue, append(job, 0, "a", **wrong)), LeaseLost)
    assert isinstance(await refused(queue, append(job, 0, "a", id=NEVER)), NotFound)
    assert await queue.store.streams.of_job(queue.tenant, job.id) == []


async def test_the_streams_of_a_job_have_limits_at_their_edge(queue: TenantQueue) -> None:
    job = await queue.running()
    await added(queue, append(job, 0, "x" * 600))
    await added(queue, append(job, 0, "x" * 400, name="other"))
    assert isinstance(await refused(queue, append(job, 1, "x")), LimitReached)
    job = await queue.running()
    for i in range(MAX_STREAMS):
        await added(queue, append(job, 0, "x", name=f"s{i}"))
    assert isinstance(await refused(queue, append(job, 0, "x", name="more")), LimitReached)
    assert await added(queue, append(job, 1, "x", name="s0")) == 2


async def test_an_append_wakes_readers(queue: TenantQueue) -> None:
    job = await queue.running()
    event = queue.store.watch(streams_of(queue.tenant, job.id))
    await added(queue, append(job, 0, "a"))
    assert event.is_set()


async def test_a_prune_deletes_streams_with_their_job(queue: TenantQueue) -> None:
    job = await queue.running()
    await added(queue, append(job, 0, "a"))
    await queue.do(complete(job))
    queue.clock.advance(1)
    await queue.store.prune(queue.tenant, PruneCommand(new_id(), OPERATOR, queue.clock.now, 0, 100))
    assert await chunks(queue, job) == []
    assert await queue.store.streams.of_job(queue.tenant, job.id) == []


async def test_a_chunk_never_changes_by_direct_sql(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.running()
    await added(queue, append(job, 0, "a"))
    for statement in (
        "UPDATE stream_chunk SET attempt = 9 WHERE tenant = $1 AND job_id = $2",
        "DELETE FROM stream_chunk WHERE tenant = $1 AND job_id = $2",
        "UPDATE job_stream SET chunks = 9 WHERE tenant = $1 AND job_id = $2",
        "DELETE FROM job_stream WHERE tenant = $1 AND job_id = $2",
    ):
        await rejection(sql, statement, queue.tenant, job.id)
    assert [c.data for c in await chunks(queue, job)] == [b"a"]
