"""Downloads: a slow reader waits, and nothing is read for a client that has disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from interlock.api.options import Options
from interlock.domain.artifact import File, Holder
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.storage.contract import Store
from interlock.storage.object_store.filesystem import FileObjects
from interlock.wire import JobRequest
from tests.api.rig import Api, problem, serving
from tests.support.eventually import eventually
from tests.support.stores import ManualClock

SIZE = 32 * 1024 * 1024  # more than the buffers of a connection hold


class Watched(FileObjects):
    """A directory that counts the bytes read and the files being read."""

    read = 0
    reading = 0

    async def get(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        self.reading += 1
        pieces = super().get(key, start, end)
        try:
            async for piece in pieces:
                self.read += len(piece)
                yield piece
        finally:
            await pieces.aclose()
            self.reading -= 1


@pytest.fixture
def engine() -> str:
    """Downloads do not depend on the engine."""
    return "sqlite"


@pytest.fixture
def objects(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "artifacts")


@pytest.fixture
async def api(store: Store, clock: ManualClock, objects: Watched) -> AsyncIterator[Api]:
    async with serving(store, clock, Options(most_waiting=1), objects=objects) as served:
        yield served


async def large_file(api: Api) -> str:
    """The path of a file that no buffer holds."""
    who = local(api.tenant)
    await api.engine.jobs.enqueue(who, JobRequest(type="work"))
    (job,) = await api.engine.leases.claim(api.tenant, ClaimFilter("w"))
    holder = Holder(job.id, job.fence, "w")
    (made,) = await api.engine.artifacts.attach(api.tenant, holder, [File("large", bytes(SIZE))])
    return f"/v1/jobs/{job.id}/artifacts/{made.id}"


@asynccontextmanager
async def slow_reader(api: Api, path: str) -> AsyncIterator[asyncio.StreamReader]:
    """A client that requests a file and reads only the head of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        yield reader
    finally:
        writer.transport.abort()


async def test_a_slow_reader_counts_as_waiting_and_holds_no_request_slot(api: Api, objects: Watched) -> None:
    path, admission = await large_file(api), api.service.admission
    async with slow_reader(api, path):
        assert (admission.active, admission.waiting) == (0, 1)
        problem(await api.get(path), 503, "overloaded")  # one more than may wait
        assert objects.reading == 1
        assert (await api.get("/v1/jobs")).status_code == 200
    await eventually(lambda: _is(objects.reading == 0))
    assert (admission.active, admission.waiting) == (0, 0)
    assert (await api.get(path)).content == bytes(SIZE)


async def test_nothing_more_is_read_for_a_disconnected_caller(api: Api, objects: Watched) -> None:
    path = await large_file(api)
    async with slow_reader(api, path):
        pass
    await eventually(lambda: _is(objects.reading == 0))
    assert objects.read < SIZE
    assert api.service.admission.waiting == 0


async def test_a_head_request_reads_no_more_than_needed_and_leaves_nothing_open(api: Api, objects: Watched) -> None:
    path = await large_file(api)
    answer = await api.call("HEAD", path)
    assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, str(SIZE), b"")
    assert (objects.reading, objects.read < SIZE) == (0, True)


async def _is(value: bool) -> bool:
    return value
