"""Reading artifacts, and the deletion of bytes without an artifact."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from interlock.domain.artifact import REPLACED_KEPT_SECONDS, UNFINISHED_KEPT_SECONDS
from interlock.domain.principal import Principal
from interlock.engine import upload
from interlock.engine.engine import Engine
from interlock.errors import (
    ArtifactLost,
    Unavailable,
    Unsatisfiable,
)  # fmt: skip
from tests.support.artifacts import TENANT, content_of, lease, names, paths, put
from tests.support.eventually import eventually
from tests.support.stores import ManualClock


async def test_one_byte_range_is_read(files: Engine, who: Principal) -> None:
    holder, content = await lease(files, who), bytes(range(256)) * 4096
    made = await put(files, holder, content=content)
    first, last = upload.PIECE - 3, 2 * upload.PIECE + 5
    assert await content_of(files, holder, made, f"bytes={first}-{last}") == content[first : last + 1]
    assert await content_of(files, holder, made, "bytes=-7") == content[-7:]
    download = await files.artifacts.read(TENANT, holder.job_id, made.id, wanted="bytes=10-19")
    assert (download.start, download.end, download.partial) == (10, 20, True)
    await download.chunks.aclose()
    with pytest.raises(Unsatisfiable) as caught:
        await content_of(files, holder, made, f"bytes={len(content)}-")
    assert caught.value.size == len(content)
    with pytest.raises(Unsatisfiable, match="one range"):
        await content_of(files, holder, made, "bytes=0-1,3-4")


def spoil_missing(path: Path) -> None:
    path.unlink()


def spoil_folder(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()


def spoil_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def spoil_altered(path: Path) -> None:
    path.write_bytes(b"C" + path.read_bytes()[1:])


def spoil_link(path: Path) -> None:
    elsewhere = path.parent.parent.parent / "secret"
    elsewhere.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(elsewhere)


def spoil_linked_folder(path: Path) -> None:
    elsewhere = path.parent.parent.parent / "elsewhere"
    path.parent.rename(elsewhere)
    path.parent.symlink_to(elsewhere)


def spoil_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "spoil",
    [spoil_missing, spoil_folder, spoil_short, spoil_altered, spoil_link, spoil_linked_folder, spoil_pipe],
)
async def test_damaged_bytes_are_never_returned_as_valid(
    files: Engine, who: Principal, root: Path, spoil: Callable[[Path], None]
) -> None:
    holder = await lease(files, who)
    made = await put(files, holder)
    spoil(paths(root)[0])
    with pytest.raises(ArtifactLost):
        await content_of(files, holder, made)


async def test_the_last_piece_of_a_damaged_file_is_withheld(files: Engine, who: Principal, root: Path) -> None:
    holder = await lease(files, who)
    made = await put(files, holder, content=bytes(3 * upload.PIECE))
    spoil_altered(paths(root)[0])
    download = await files.artifacts.read(TENANT, holder.job_id, made.id)
    assert len(await anext(download.chunks)) + len(await anext(download.chunks)) == 2 * upload.PIECE
    with pytest.raises(ArtifactLost, match="not those that were stored"):
        await anext(download.chunks)


async def test_a_download_in_progress_survives_a_replacement(files: Engine, who: Principal) -> None:
    holder = await lease(files, who)
    old = bytes(4 * upload.PIECE)
    made = await put(files, holder, content=old)
    download = await files.artifacts.read(TENANT, holder.job_id, made.id)
    first = await anext(download.chunks)
    await put(files, holder, content=b"new")
    await files.artifacts.collect_orphans()
    assert first + b"".join([chunk async for chunk in download.chunks]) == old


def open_files() -> list[str]:
    """What this process has open."""
    opened = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this very listing
            opened.append(str(entry.readlink()))
    return opened


async def test_a_download_closed_early_leaves_no_file_open(files: Engine, who: Principal, root: Path) -> None:
    holder = await lease(files, who)
    made = await put(files, holder, content=bytes(4 * upload.PIECE))
    for _ in range(5):
        download = await files.artifacts.read(TENANT, holder.job_id, made.id)
        await anext(download.chunks)
        await download.chunks.aclose()
    assert [path for path in open_files() if path.startswith(str(root))] == []


async def test_replaced_bytes_are_collected_when_due(
    files: Engine, who: Principal, root: Path, clock: ManualClock
) -> None:
    holder = await lease(files, who)
    await put(files, holder, content=b"old")
    made = await put(files, holder, content=b"new")
    assert await files.artifacts.collect_orphans() == 0
    clock.advance(REPLACED_KEPT_SECONDS)
    assert [await files.artifacts.collect_orphans() for _ in range(2)] == [1, 0]
    assert len(paths(root)) == 1
    assert await content_of(files, holder, made) == b"new"


async def test_concurrent_collections_delete_each_key_once_and_nothing_visible(
    files: Engine, who: Principal, root: Path, clock: ManualClock
) -> None:
    holder = await lease(files, who)
    for n in range(10):
        await put(files, holder, f"{n}", b"old")
        await put(files, holder, f"{n}", b"new")
    clock.advance(REPLACED_KEPT_SECONDS)
    assert sum(await asyncio.gather(*(files.artifacts.collect_orphans() for _ in range(8)))) == 10
    assert len(paths(root)) == 10
    for artifact in await files.artifacts.list(TENANT, holder.job_id):
        assert await content_of(files, holder, artifact) == b"new"


async def test_collecting_is_bounded(files: Engine, who: Principal, clock: ManualClock) -> None:
    holder = await lease(files, who)
    for n in range(5):
        await put(files, holder, content=f"{n}".encode())
    clock.advance(REPLACED_KEPT_SECONDS)
    assert [await files.artifacts.collect_orphans(3) for _ in range(3)] == [3, 1, 0]


async def test_an_upload_slower_than_its_time_is_rejected_and_not_published(
    files: Engine, who: Principal, clock: ManualClock
) -> None:
    holder = await lease(files, who)

    async def slow() -> AsyncIterator[bytes]:
        yield b"some"
        clock.advance(UNFINISHED_KEPT_SECONDS)
        assert await files.artifacts.collect_orphans() == 1
        yield b"more"

    with pytest.raises(Unavailable, match="upload them again"):
        await files.artifacts.put(TENANT, holder, "a", slow())
    assert await names(files, holder) == []


async def test_bytes_that_cannot_be_deleted_are_retried_later(
    files: Engine, who: Principal, root: Path, clock: ManualClock
) -> None:
    holder = await lease(files, who)
    await put(files, holder, content=b"old")
    (old,) = paths(root)
    await put(files, holder, content=b"new")
    old.unlink()
    old.mkdir()  # unlink rejects a directory, even for root
    clock.advance(REPLACED_KEPT_SECONDS)
    assert await files.artifacts.collect_orphans() == 0
    assert await files.artifacts.collect_orphans() == 0
    old.rmdir()
    clock.advance(300)
    assert await files.artifacts.collect_orphans() == 1


async def test_maintenance_collects_in_the_background(
    files: Engine, who: Principal, root: Path, clock: ManualClock
) -> None:
    holder = await lease(files, who)
    await put(files, holder, content=b"old")
    await put(files, holder, content=b"new")
    clock.advance(REPLACED_KEPT_SECONDS)
    files.maintenance.start()

    async def one_left() -> bool:
        return len(paths(root)) == 1

    try:
        await eventually(one_left)
    finally:
        await files.maintenance.stop()
        await files.artifacts.stop()


async def test_a_download_cancelled_while_it_begins_leaves_no_file_open(
    files: Engine, who: Principal, root: Path
) -> None:
    holder = await lease(files, who)
    made = await put(files, holder, content=bytes(4 * upload.PIECE))
    begun = [asyncio.create_task(files.artifacts.read(TENANT, holder.job_id, made.id)) for _ in range(50)]
    for commit_seq, task in enumerate(begun):
        for _ in range(commit_seq % 12):
            await asyncio.sleep(0)
        task.cancel()
    for answer in await asyncio.gather(*begun, return_exceptions=True):
        if not isinstance(answer, BaseException):
            await answer.chunks.aclose()
    assert [path for path in open_files() if path.startswith(str(root))] == []
