"""Where bytes are kept: a directory, a bucket (of an emulator, moto), memory."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import pytest
from moto.server import ThreadedMotoServer

from interlock import config
from interlock.assemble import open_engine, open_objects
from interlock.domain.artifact import REPLACED_KEPT_SECONDS
from interlock.domain.decide import CompleteJob
from interlock.domain.principal import Principal
from interlock.engine.engine import Engine
from interlock.errors import (
    ArtifactLost,
    Error,
    Invalid,
    StorageBroken,
    TooLarge,
    Unavailable,
)  # fmt: skip
from interlock.storage.batching import batched
from interlock.storage.contract import Objects, Store
from interlock.storage.object_store.filesystem import FileObjects
from interlock.storage.object_store.s3 import S3Objects
from interlock.storage.sqlite.store import SQLiteStore
from tests.support.artifacts import LIMITS, TENANT, content_of, lease, names, paths, put, stream
from tests.support.stores import ManualClock

LARGE = bytes(range(256)) * 4096 * 12  # 12 MiB: several parts of a multipart upload


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def make(directory: Path, mode: int) -> None:
    """With any umask."""
    directory.mkdir()
    directory.chmod(mode)


def is_there(path: Path) -> bool:
    return path.exists()


def link(path: Path, target: Path) -> None:
    path.symlink_to(target)


async def test_files_are_private_for_any_umask(files: Engine, who: Principal, root: Path) -> None:
    holder, before = await lease(files, who), os.umask(0)
    try:
        await put(files, holder)
    finally:
        os.umask(before)
    (file,) = paths(root)
    assert [mode(path) for path in (root, file.parent, file)] == [0o700, 0o700, 0o600]


async def test_the_directory_is_created_when_needed_and_not_before(files: Engine, who: Principal, root: Path) -> None:
    await files.artifacts.collect_orphans()
    assert not is_there(root)
    await put(files, await lease(files, who))
    assert len(paths(root)) == 1


async def test_a_directory_writable_by_others_is_rejected(files: Engine, who: Principal, root: Path) -> None:
    make(root, 0o777)
    with pytest.raises(Unavailable, match="other users"):
        await put(files, await lease(files, who))


async def test_a_symlink_in_place_of_the_directory_is_rejected(
    files: Engine, who: Principal, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    link(root, tmp_path / "elsewhere")
    with pytest.raises(Unavailable, match="is a link"):
        await put(files, await lease(files, who))
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_a_symlink_in_place_of_a_subdirectory_is_not_followed(
    directory: FileObjects, root: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / "secret").write_bytes(b"secret")
    make(root, 0o700)
    link(root / "00", elsewhere)
    with pytest.raises(Unavailable):
        await directory.put("00" + "f" * 30, stream(b"x"))
    assert [path.name for path in elsewhere.iterdir()] == ["secret"]


async def test_a_key_is_never_a_path(directory: FileObjects) -> None:
    for key in ("../x", "00/../../x", "", "g" * 32, "0" * 31, "0" * 33, "0" * 32 + "\n"):
        with pytest.raises(ValueError, match="is not a key"):
            await directory.put(key, stream(b"x"))


async def test_a_directory_that_cannot_be_created_makes_uploads_wait(
    store: Store, who: Principal, tmp_path: Path
) -> None:
    objects = FileObjects(tmp_path / "nowhere" / "artifacts")
    engine = Engine(batched(store), objects=objects)
    holder = await lease(engine, who)
    with pytest.raises(Unavailable, match="artifacts cannot be kept in"):
        await put(engine, holder)
    make(tmp_path / "nowhere", 0o700)
    assert await content_of(engine, holder, await put(engine, holder)) == b"content"
    await objects.close()


async def test_file_and_directories_are_synced_before_the_artifact_is_published(
    files: Engine, who: Principal, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, synced = await lease(files, who), list[Path]()

    def note(descriptor: int, fsync: Callable[[int], None] = os.fsync) -> None:
        fsync(descriptor)
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", note)
    published_after = []
    show = files.store.artifacts.publish

    async def encoded(*arguments: Any, **options: Any) -> Any:
        published_after.extend(synced)
        return await show(*arguments, **options)

    monkeypatch.setattr(files.store.artifacts, "publish", encoded)
    await put(files, holder)
    (file,) = paths(root)
    assert published_after == [root.parent, file, file.parent, root]


async def test_after_a_failed_fsync_nothing_is_written_and_existing_files_are_readable(
    files: Engine, who: Principal, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = await lease(files, who)
    made = await put(files, holder)

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as dying:
        dying.setattr(os, "fsync", fail)
        with pytest.raises(StorageBroken):
            await put(files, holder, "b")
    with pytest.raises(StorageBroken, match="check the disk"):
        await put(files, holder, "c")
    assert await names(files, holder) == ["a.bin"]
    assert len(paths(root)) == 1
    assert await content_of(files, holder, made) == b"content"


async def test_a_disk_that_fills_up_during_an_upload_rejects_only_the_upload(
    files: Engine, who: Principal, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = await lease(files, who)

    def full(descriptor: int, data: memoryview, write: Callable[[int, memoryview], int] = os.write) -> int:
        if len(data) <= 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:-100])

    with monkeypatch.context() as filling:
        filling.setattr(os, "write", full)
        with pytest.raises(Unavailable, match="is full; nothing was kept"):
            await put(files, holder, content=bytes(100_000))
    assert (await names(files, holder), paths(root)) == ([], [])
    assert await content_of(files, holder, await put(files, holder)) == b"content"


async def test_an_object_is_written_once(directory: FileObjects) -> None:
    await directory.put("0" * 32, stream(b"first"))
    with pytest.raises(Unavailable):
        await directory.put("0" * 32, stream(b"second"))
    assert b"".join([piece async for piece in directory.get("0" * 32, 0, 5)]) == b"first"


@pytest.fixture(scope="module")
def emulator() -> Iterator[str]:
    """The address of an emulator of S3; not the real thing, but the same protocol."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(emulator: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client that looks at an empty bucket from outside."""
    for name, value in {
        "AWS_ENDPOINT_URL": emulator, "AWS_ALLOW_HTTP": "true", "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=emulator)
    client.create_bucket(Bucket="bucket")
    for thing in client.list_objects_v2(Bucket="bucket").get("Contents", []):
        client.delete_object(Bucket="bucket", Key=thing["Key"])
    return client


def stored(s3: Any) -> list[str]:
    return [thing["Key"] for thing in s3.list_objects_v2(Bucket="bucket").get("Contents", [])]


@asynccontextmanager
async def engine_over(objects: Objects, path: Path, clock: ManualClock) -> AsyncIterator[Engine]:
    engine = Engine(batched(await SQLiteStore.open(str(path / "i.db"), clock=clock)), LIMITS, objects=objects)
    try:
        yield engine
    finally:
        await engine.close()


@pytest.mark.parametrize("content", [b"", b"small", LARGE], ids=["empty", "small", "several parts"])
async def test_a_bucket_stores_complete_files_under_opaque_keys(
    s3: Any, tmp_path: Path, clock: ManualClock, who: Principal, content: bytes
) -> None:
    async with engine_over(open_objects("s3://bucket/some/prefix", "sqlite:///x"), tmp_path, clock) as engine:
        holder = await lease(engine, who)
        made = await put(engine, holder, "../../name", content)
        assert await content_of(engine, holder, made) == content
        assert await content_of(engine, holder, made, "bytes=1-3") == (content[1:4] or content) if content else True
        assert stored(s3) == [f"some/prefix/{made.key}"]
        await put(engine, holder, "../../name", b"other")
        clock.advance(REPLACED_KEPT_SECONDS)
        assert [await engine.artifacts.collect_orphans() for _ in range(2)] == [1, 0]
        assert len(stored(s3)) == 1
        assert s3.list_multipart_uploads(Bucket="bucket").get("Uploads", []) == []


async def test_an_interrupted_upload_to_a_bucket_leaves_nothing(
    s3: Any, tmp_path: Path, clock: ManualClock, who: Principal
) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield LARGE
        raise ConnectionResetError("the worker disconnected")

    async with engine_over(S3Objects.s3("s3://bucket/p"), tmp_path, clock) as engine:
        holder = await lease(engine, who)
        with pytest.raises(ConnectionResetError):
            await engine.artifacts.put(TENANT, holder, "a", broken())
        assert (await names(engine, holder), stored(s3)) == ([], [])
        assert s3.list_multipart_uploads(Bucket="bucket").get("Uploads", []) == []
        with pytest.raises(TooLarge):
            await put(engine, holder, content=LARGE * 2)
        assert stored(s3) == []


async def test_an_object_missing_from_a_bucket_is_reported_as_lost(
    s3: Any, tmp_path: Path, clock: ManualClock, who: Principal
) -> None:
    async with engine_over(S3Objects.s3("s3://bucket"), tmp_path, clock) as engine:
        holder = await lease(engine, who)
        made = await put(engine, holder)
        s3.delete_object(Bucket="bucket", Key=made.key)
        with pytest.raises(ArtifactLost):
            await content_of(engine, holder, made)


async def test_a_missing_bucket_is_unavailable_and_does_not_affect_the_job(
    s3: Any, tmp_path: Path, clock: ManualClock, who: Principal
) -> None:
    async with engine_over(S3Objects.s3("s3://nobodys-bucket/p"), tmp_path, clock) as engine:
        holder = await lease(engine, who)
        with pytest.raises(Error) as caught:
            await put(engine, holder)
        assert caught.value.code == "unavailable"
        assert await names(engine, holder) == []
        await engine.leases.complete(TENANT, CompleteJob(*holder))


async def test_with_a_database_in_memory_artifacts_are_in_memory_too(who: Principal, clock: ManualClock) -> None:
    objects = open_objects(None, "sqlite:///:memory:")
    engine = Engine(batched(await SQLiteStore.open(":memory:", clock=clock)), LIMITS, objects=objects)
    try:
        holder = await lease(engine, who)
        made = await put(engine, holder, content=LARGE)
        assert await content_of(engine, holder, made) == LARGE
        await put(engine, holder, content=b"new")
        clock.advance(REPLACED_KEPT_SECONDS)
        assert await engine.artifacts.collect_orphans() == 1
    finally:
        await engine.close()


@pytest.mark.parametrize(
    ("place", "database", "where"),
    [
        (None, "sqlite:///data/i.db", "data/interlock-artifacts"),
        (None, "postgresql://host/name", "interlock-artifacts"),
        ("files", "sqlite:///data/i.db", "files"),
    ],
)
async def test_the_default_directory_is_beside_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str | None, database: str, where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    objects = open_objects(place, database)
    assert objects.where == str(tmp_path / where)
    await objects.close()


@pytest.mark.parametrize("place", ["gs://bucket", "http://host/x", "file:///tmp/x"])
def test_any_other_kind_of_location_is_rejected(place: str) -> None:
    with pytest.raises(Invalid, match="directory or under s3://"):
        open_objects(place, "sqlite:///i.db")


async def test_the_limits_of_artifacts_can_be_set(tmp_path: Path, who: Principal) -> None:
    given = {"INTERLOCK_ARTIFACT_BYTES": "100", "INTERLOCK_ARTIFACT_QUOTA_BYTES": "150"}
    settings = config.load({}, environ=given, directory=tmp_path)
    async with open_engine(
        f"sqlite:///{tmp_path}/i.db",
        artifact_bytes=settings.artifact_bytes,
        artifact_quota_bytes=settings.artifact_quota_bytes,
    ) as engine:
        holder = await lease(engine, who)
        await put(engine, holder, "a", bytes(100))
        with pytest.raises(TooLarge, match="the limit is 100"):
            await put(engine, holder, "b", bytes(101))
        with pytest.raises(TooLarge, match="the limit is 150"):
            await put(engine, holder, "b", bytes(51))


@pytest.mark.parametrize("value", ["many", "-1", "1.5", "nan", "inf", "1e30"])
def test_an_invalid_size_is_rejected(tmp_path: Path, value: str) -> None:
    with pytest.raises(Invalid, match="artifact_bytes must be"):
        config.load({}, environ={"INTERLOCK_ARTIFACT_BYTES": value}, directory=tmp_path)
