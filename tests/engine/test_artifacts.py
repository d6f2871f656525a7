"""What workers add to their jobs, on both engines: whole or not at all, within limits, under the fence."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from interlock.domain.artifact import File, Link
from interlock.domain.decide import CompleteJob
from interlock.domain.principal import Principal
from interlock.engine import upload as uploads
from interlock.engine.engine import Engine
from interlock.errors import (
    ArtifactsNotConfigured,
    Invalid,
    LeaseLost,
    NotFound,
    NotRunning,
    TooLarge,
    Unavailable,
)  # fmt: skip
from interlock.storage.batching import batched
from interlock.storage.contract import Store
from interlock.storage.object_store.filesystem import FileObjects
from interlock.wire import Limits
from tests.support.artifacts import TENANT, content_of, lease, names, paths, put, stream


@pytest.mark.parametrize("size", [0, 1, uploads.PIECE - 1, uploads.PIECE, uploads.PIECE + 1, 3 * uploads.PIECE + 7])
async def test_an_upload_is_returned_with_its_size_and_hash(files: Engine, who: Principal, size: int) -> None:
    holder, content = await lease(files, who), os.urandom(size)
    made = await put(files, holder, content=content, size=size, sha256=hashlib.sha256(content).hexdigest())
    assert (made.size, made.sha256) == (size, hashlib.sha256(content).digest())
    assert await content_of(files, holder, made) == content


async def test_small_chunks_add_up(files: Engine, who: Principal) -> None:
    holder = await lease(files, who)
    made = await files.artifacts.put(TENANT, holder, "a", stream(*[b"x", b"", b"yz"] * 1000))
    assert await content_of(files, holder, made) == b"xyz" * 1000


async def test_nothing_is_visible_while_an_upload_is_in_progress(files: Engine, who: Principal) -> None:
    holder, approval = await lease(files, who), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"first"
        await approval.wait()
        yield b"last"

    upload = asyncio.create_task(files.artifacts.put(TENANT, holder, "a", slow()))
    await asyncio.sleep(0)
    assert await names(files, holder) == []
    approval.set()
    made = await upload
    assert await content_of(files, holder, made) == b"firstlast"


async def test_an_interrupted_upload_leaves_nothing(files: Engine, who: Principal, root: Path) -> None:
    holder = await lease(files, who)

    async def broken() -> AsyncIterator[bytes]:
        yield bytes(uploads.PIECE)
        raise ConnectionResetError("the worker disconnected")

    with pytest.raises(ConnectionResetError):
        await files.artifacts.put(TENANT, holder, "a", broken())
    assert await names(files, holder) == []
    assert paths(root) == []
    assert await files.artifacts.collect_orphans() == 1


async def test_a_cancelled_upload_leaves_nothing(files: Engine, who: Principal, root: Path) -> None:
    holder, begun = await lease(files, who), asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield bytes(uploads.PIECE)
        begun.set()
        await asyncio.Event().wait()

    upload = asyncio.create_task(files.artifacts.put(TENANT, holder, "a", endless()))
    await begun.wait()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert await names(files, holder) == []
    assert paths(root) == []
    assert await files.artifacts.collect_orphans() == 1


async def test_a_stalled_upload_is_aborted(
    files: Engine, who: Principal, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "STALLED_SECONDS", 0.01)
    holder = await lease(files, who)

    async def stalled() -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.Event().wait()

    with pytest.raises(Unavailable, match="stalled"):
        await files.artifacts.put(TENANT, holder, "a", stalled())
    assert (await names(files, holder), paths(root)) == ([], [])


async def test_a_trickling_upload_is_aborted_too(
    files: Engine, who: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "UPLOAD_SECONDS", 0.05)
    holder = await lease(files, who)

    async def dripping() -> AsyncIterator[bytes]:
        while True:
            yield b"a"
            await asyncio.sleep(0.001)

    with pytest.raises(Unavailable, match="takes too long"):
        await files.artifacts.put(TENANT, holder, "a", dripping())


async def test_a_stalled_upload_delays_no_other(files: Engine, who: Principal) -> None:
    holder, approval = await lease(files, who), asyncio.Event()

    async def stalled() -> AsyncIterator[bytes]:
        yield b"a"
        await approval.wait()

    waiting = [asyncio.create_task(files.artifacts.put(TENANT, holder, f"slow {n}", stalled())) for n in range(20)]
    made = await put(files, holder, "fast")
    assert await content_of(files, holder, made) == b"content"
    approval.set()
    assert len(await asyncio.gather(*waiting)) == 20


async def test_a_file_of_the_maximum_size_is_accepted_and_one_byte_more_is_not(
    store: Store, who: Principal, directory: FileObjects
) -> None:
    engine = Engine(batched(store), Limits(artifact=1000), objects=directory)
    holder = await lease(engine, who)
    assert (await put(engine, holder, content=bytes(1000))).size == 1000
    with pytest.raises(TooLarge):
        await put(engine, holder, "b", bytes(1001))
    with pytest.raises(TooLarge):
        await engine.artifacts.attach(TENANT, holder, [File("c", bytes(1001))])
    assert await names(engine, holder) == ["a.bin"]


async def test_a_file_that_is_too_large_is_rejected_as_soon_as_that_is_known(
    store: Store, who: Principal, directory: FileObjects
) -> None:
    engine = Engine(batched(store), Limits(artifact=100), objects=directory)
    holder, taken = await lease(engine, who), 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 10
            yield bytes(10)

    with pytest.raises(TooLarge):
        await engine.artifacts.put(TENANT, holder, "a", counted())
    assert taken == 110
    with pytest.raises(TooLarge):
        await engine.artifacts.put(TENANT, holder, "a", counted(), size=101)
    assert taken == 110


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"size": 6}, "/size"),
        ({"size": 8}, "/size"),
        ({"size": -1}, "/size"),
        ({"sha256": "0" * 64}, "/sha256"),
        ({"sha256": "00"}, "/sha256"),
        ({"sha256": "no hash"}, "/sha256"),
        ({"content_type": "text"}, "/content_type"),
    ],
)
async def test_a_wrong_announced_size_or_hash_is_rejected(
    files: Engine, who: Principal, root: Path, fields: dict[str, Any], pointer: str
) -> None:
    holder = await lease(files, who)
    with pytest.raises(Invalid) as caught:
        await put(files, holder, **fields)
    assert caught.value.pointer == pointer
    assert await names(files, holder) == []
    assert paths(root) == []


async def test_reordered_chunks_do_not_match_the_announced_hash(files: Engine, who: Principal) -> None:
    holder, hash = await lease(files, who), hashlib.sha256(b"onetwo").hexdigest()
    with pytest.raises(Invalid):
        await files.artifacts.put(TENANT, holder, "a", stream(b"two", b"one"), size=6, sha256=hash)


async def test_concurrent_uploads_together_stay_within_the_quota(
    store: Store, who: Principal, directory: FileObjects, root: Path
) -> None:
    engine = Engine(batched(store), Limits(artifacts_of_tenant=50), objects=directory)
    holder = await lease(engine, who)
    answers = await asyncio.gather(*(put(engine, holder, f"{n}", bytes(10)) for n in range(12)), return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["Artifact"] * 5 + ["TooLarge"] * 7
    assert await store.artifacts.total_bytes(TENANT) == 50
    await engine.artifacts.collect_orphans()
    assert sum(path.stat().st_size for path in paths(root)) == 50


async def test_a_stale_worker_adds_nothing_and_its_bytes_are_collected(
    files: Engine, who: Principal, root: Path
) -> None:
    holder = await lease(files, who)

    async def revoked_meanwhile() -> AsyncIterator[bytes]:
        yield b"some"
        await files.jobs.revoke(who, holder.job_id)
        yield b"more"

    with pytest.raises(LeaseLost):
        await files.artifacts.put(TENANT, holder, "a", revoked_meanwhile())
    with pytest.raises(LeaseLost):
        await put(files, holder)
    with pytest.raises(LeaseLost):
        await files.artifacts.link(TENANT, holder, "a", "https://example.org")
    assert await names(files, holder) == []
    assert await files.artifacts.collect_orphans() == 1
    assert paths(root) == []


async def test_no_file_is_added_after_the_finish(files: Engine, who: Principal) -> None:
    holder = await lease(files, who)
    made = await put(files, holder)
    await files.leases.complete(TENANT, CompleteJob(*holder))
    with pytest.raises(NotRunning):
        await put(files, holder, "late")
    assert await content_of(files, holder, made) == b"content"


async def test_a_foreign_artifact_is_treated_like_an_unknown_one(files: Engine, who: Principal) -> None:
    holder = await lease(files, who)
    made = await put(files, holder)
    for job_id, id in [(holder.job_id, made.id), (holder.job_id, "nonsense"), (made.id, made.id)]:
        with pytest.raises(NotFound, match=f"no artifact {id}"):
            await files.artifacts.read("rival", job_id, id)
    with pytest.raises(NotFound, match=f"no job {holder.job_id}"):
        await files.artifacts.list("rival", holder.job_id)
    with pytest.raises(NotFound, match="no job"):
        await files.artifacts.put("rival", holder, "b", stream(b"x"))


@pytest.mark.parametrize("fence", [-1, 2**63, 10**30])
async def test_an_invalid_fence_is_rejected(files: Engine, who: Principal, fence: int) -> None:
    holder = await lease(files, who)
    with pytest.raises(Invalid):
        await put(files, holder._replace(fence=fence))


async def test_without_an_object_store_only_links_are_accepted(store: Store, who: Principal) -> None:
    engine = Engine(batched(store))
    holder = await lease(engine, who)
    with pytest.raises(ArtifactsNotConfigured, match="artifact storage is not configured"):
        await put(engine, holder)
    assert (await engine.artifacts.link(TENANT, holder, "a", "https://example.org")).url == "https://example.org"
    assert await engine.artifacts.collect_orphans() == 0


async def test_several_small_files_and_links_are_added_together(files: Engine, who: Principal) -> None:
    holder = await lease(files, who)
    things: list[File | Link] = [File("a", b"one", "text/plain"), Link("b", "https://example.org"), File("c", b"")]
    made = await files.artifacts.attach(TENANT, holder, things)
    assert [artifact.name for artifact in made] == ["a", "b", "c"]
    assert [artifact.content_type for artifact in made] == ["text/plain", None, "application/octet-stream"]
    assert await content_of(files, holder, made[0]) == b"one"
    assert await content_of(files, holder, made[2]) == b""
    assert await files.artifacts.attach(TENANT, holder, things) == made


async def test_of_several_files_that_exceed_the_quota_none_is_added(
    store: Store, who: Principal, directory: FileObjects, root: Path
) -> None:
    engine = Engine(batched(store), Limits(artifacts_of_tenant=10), objects=directory)
    holder = await lease(engine, who)
    with pytest.raises(TooLarge):
        await engine.artifacts.attach(
            TENANT, holder, [File("a", bytes(6)), File("b", bytes(6)), Link("c", "https://a.example")]
        )
    assert await names(engine, holder) == []
    await engine.artifacts.collect_orphans()
    assert paths(root) == []


async def test_duplicate_names_and_too_many_files_are_rejected(files: Engine, who: Principal) -> None:
    holder = await lease(files, who)
    with pytest.raises(Invalid, match="same name"):
        await files.artifacts.attach(TENANT, holder, [File("a", b"1"), Link("a", "https://example.org")])
    with pytest.raises(Invalid, match="the limit per call"):
        await files.artifacts.attach(TENANT, holder, [File(str(n), b"") for n in range(101)])
    assert await files.artifacts.attach(TENANT, holder, []) == []
