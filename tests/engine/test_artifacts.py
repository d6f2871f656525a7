"""Files from a worker's hands to a reader's, on both engines and over a directory, a bucket of an emulator, and memory."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from moto.server import ThreadedMotoServer

from interlock.assemble import open_objects
from interlock.domain.artifact import REPLACED_KEPT_SECONDS, UNFINISHED_KEPT_SECONDS, Artifact, File, Holder, Link
from interlock.domain.decide import Complete
from interlock.domain.policy import ClaimAsk
from interlock.domain.principal import Principal
from interlock.engine import intake
from interlock.engine.engine import Engine
from interlock.errors import (
    ArtifactLost,
    Error,
    Fatal,
    Invalid,
    LeaseLost,
    NotFound,
    NotRunning,
    TooLarge,
    Unavailable,
    Unsatisfiable,
)  # fmt: skip
from interlock.storage.contract import Objects, Store
from interlock.storage.merged import merged
from interlock.storage.objects.bucket import Bucket
from interlock.storage.objects.directory import Directory
from interlock.storage.sqlite.store import SQLiteStore
from interlock.wire import Limits, job_request
from tests.support.stores import ManualClock

TENANT = "acme"
LIMITS = Limits(artifact=20 * 1024 * 1024)
LARGE = bytes(range(256)) * 4096 * 12  # 12 MiB: several parts of a multipart upload


@pytest.fixture
async def directory(tmp_path: Path) -> AsyncIterator[Directory]:
    objects = Directory(tmp_path / "artifacts")
    yield objects
    await objects.close()


@pytest.fixture
def files(store: Store, directory: Directory) -> Engine:
    """An engine on each kind of store, with artifacts in a directory; both are closed by their own fixtures."""
    return Engine(merged(store), LIMITS, objects=directory)


async def grant(engine: Engine, who: Principal) -> Holder:
    await engine.jobs.enqueue(who, job_request({"type": "t"}))
    (job,) = await engine.leases.claim(TENANT, ClaimAsk("w", lease_seconds=3600))
    return Holder(job.id, job.fence, "w")


async def stream(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def put(
    engine: Engine, holder: Holder, name: str = "a.bin", content: bytes = b"content", **fields: Any
) -> Artifact:
    return await engine.artifacts.put(TENANT, holder, name, stream(content), **fields)


async def content_of(engine: Engine, holder: Holder, artifact: Artifact, wanted: str | None = None) -> bytes:
    download = await engine.artifacts.read(TENANT, holder.job_id, artifact.id, wanted=wanted)
    return b"".join([chunk async for chunk in download.chunks])


async def names(engine: Engine, holder: Holder) -> list[str]:
    return [artifact.name for artifact in await engine.artifacts.list(TENANT, holder.job_id)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of the artifacts, looked at from outside."""
    return tmp_path / "artifacts"


def paths(root: Path) -> list[Path]:
    """Every file below a directory."""
    return sorted(path for path in root.rglob("*") if not path.is_dir())


# ---------------------------------------------------------------- whole or invisible


@pytest.mark.parametrize("size", [0, 1, intake.PIECE - 1, intake.PIECE, intake.PIECE + 1, 3 * intake.PIECE + 7])
async def test_what_goes_in_comes_out_with_its_size_and_hash(files: Engine, who: Principal, size: int) -> None:
    holder, content = await grant(files, who), os.urandom(size)
    made = await put(files, holder, content=content, size=size, sha256=hashlib.sha256(content).hexdigest())
    assert (made.size, made.sha256) == (size, hashlib.sha256(content).digest())
    assert await content_of(files, holder, made) == content


async def test_small_chunks_add_up(files: Engine, who: Principal) -> None:
    holder = await grant(files, who)
    made = await files.artifacts.put(TENANT, holder, "a", stream(*[b"x", b"", b"yz"] * 1000))
    assert await content_of(files, holder, made) == b"xyz" * 1000


async def test_nothing_is_seen_while_an_upload_is_under_way(files: Engine, who: Principal) -> None:
    holder, gate = await grant(files, who), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"first"
        await gate.wait()
        yield b"last"

    upload = asyncio.create_task(files.artifacts.put(TENANT, holder, "a", slow()))
    await asyncio.sleep(0)
    assert await names(files, holder) == []
    gate.set()
    made = await upload
    assert await content_of(files, holder, made) == b"firstlast"


async def test_an_upload_that_breaks_off_leaves_nothing_behind(
    files: Engine, who: Principal, directory: Directory
) -> None:
    holder = await grant(files, who)

    async def broken() -> AsyncIterator[bytes]:
        yield bytes(intake.PIECE)
        raise ConnectionResetError("the worker went away")

    with pytest.raises(ConnectionResetError):
        await files.artifacts.put(TENANT, holder, "a", broken())
    assert await names(files, holder) == []
    assert paths(root) == []
    assert await files.artifacts.collect_orphans() == 1


async def test_a_cancelled_upload_leaves_nothing_behind(files: Engine, who: Principal, directory: Directory) -> None:
    holder, begun = await grant(files, who), asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield bytes(intake.PIECE)
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


async def test_an_upload_that_stalls_is_given_up(
    files: Engine, who: Principal, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "STALLED_SECONDS", 0.01)
    holder = await grant(files, who)

    async def stalled() -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.Event().wait()

    with pytest.raises(Unavailable, match="stalled"):
        await files.artifacts.put(TENANT, holder, "a", stalled())
    assert (await names(files, holder), paths(root)) == ([], [])


async def test_an_upload_that_drips_is_given_up_too(
    files: Engine, who: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "UPLOAD_SECONDS", 0.05)
    holder = await grant(files, who)

    async def dripping() -> AsyncIterator[bytes]:
        while True:
            yield b"a"
            await asyncio.sleep(0.001)

    with pytest.raises(Unavailable, match="takes too long"):
        await files.artifacts.put(TENANT, holder, "a", dripping())


async def test_a_stalled_upload_holds_up_nobody_else(files: Engine, who: Principal) -> None:
    holder, gate = await grant(files, who), asyncio.Event()

    async def stalled() -> AsyncIterator[bytes]:
        yield b"a"
        await gate.wait()

    waiting = [asyncio.create_task(files.artifacts.put(TENANT, holder, f"slow {n}", stalled())) for n in range(20)]
    made = await put(files, holder, "fast")
    assert await content_of(files, holder, made) == b"content"
    gate.set()
    assert len(await asyncio.gather(*waiting)) == 20


# ---------------------------------------------------------------- limits and announcements


async def test_a_file_of_the_largest_size_is_taken_and_one_byte_more_is_not(
    store: Store, who: Principal, directory: Directory
) -> None:
    engine = Engine(merged(store), Limits(artifact=1000), objects=directory)
    holder = await grant(engine, who)
    assert (await put(engine, holder, content=bytes(1000))).size == 1000
    with pytest.raises(TooLarge):
        await put(engine, holder, "b", bytes(1001))
    with pytest.raises(TooLarge):
        await engine.artifacts.attach(TENANT, holder, [File("c", bytes(1001))])
    assert await names(engine, holder) == ["a.bin"]


async def test_a_file_that_is_too_large_is_refused_as_soon_as_that_is_known(
    store: Store, who: Principal, directory: Directory
) -> None:
    engine = Engine(merged(store), Limits(artifact=100), objects=directory)
    holder, taken = await grant(engine, who), 0

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
        ({"content_type": "text/plain\r\nSet-Cookie: a=b"}, "/content_type"),
        ({"content_type": ""}, "/content_type"),
    ],
)
async def test_what_was_announced_and_is_not_true_is_refused(
    files: Engine, who: Principal, directory: Directory, fields: dict[str, Any], pointer: str
) -> None:
    holder = await grant(files, who)
    with pytest.raises(Invalid) as caught:
        await put(files, holder, **fields)
    assert caught.value.pointer == pointer
    assert await names(files, holder) == []
    assert paths(root) == []


async def test_chunks_in_another_order_do_not_pass_for_the_file_that_was_announced(
    files: Engine, who: Principal
) -> None:
    holder, hash = await grant(files, who), hashlib.sha256(b"onetwo").hexdigest()
    with pytest.raises(Invalid):
        await files.artifacts.put(TENANT, holder, "a", stream(b"two", b"one"), size=6, sha256=hash)


async def test_concurrent_uploads_together_stay_within_the_quota(
    store: Store, who: Principal, directory: Directory
) -> None:
    engine = Engine(merged(store), Limits(artifacts_of_tenant=50), objects=directory)
    holder = await grant(engine, who)
    answers = await asyncio.gather(*(put(engine, holder, f"{n}", bytes(10)) for n in range(12)), return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["Artifact"] * 5 + ["TooLarge"] * 7
    assert await store.artifact_bytes(TENANT) == 50
    await engine.artifacts.collect_orphans()
    assert sum(path.stat().st_size for path in paths(root)) == 50


# ---------------------------------------------------------------- who may


async def test_a_stale_worker_adds_nothing_and_its_bytes_are_collected(
    files: Engine, who: Principal, directory: Directory
) -> None:
    holder = await grant(files, who)

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
    holder = await grant(files, who)
    made = await put(files, holder)
    await files.leases.complete(TENANT, Complete(*holder))
    with pytest.raises(NotRunning):
        await put(files, holder, "late")
    assert await content_of(files, holder, made) == b"content"


async def test_a_foreign_artifact_is_answered_like_an_unknown_one(files: Engine, who: Principal) -> None:
    holder = await grant(files, who)
    made = await put(files, holder)
    for job_id, id in [(holder.job_id, made.id), (holder.job_id, "nonsense"), (made.id, made.id)]:
        with pytest.raises(NotFound, match=f"no artifact {id}"):
            await files.artifacts.read("rival", job_id, id)
    with pytest.raises(NotFound, match=f"no job {holder.job_id}"):
        await files.artifacts.list("rival", holder.job_id)
    with pytest.raises(NotFound, match="no job"):
        await files.artifacts.put("rival", holder, "b", stream(b"x"))


@pytest.mark.parametrize("fence", [-1, 2**63, 10**30])
async def test_a_fence_that_cannot_be_one_is_refused(files: Engine, who: Principal, fence: int) -> None:
    holder = await grant(files, who)
    with pytest.raises(Invalid):
        await put(files, holder._replace(fence=fence))


async def test_without_a_place_for_bytes_only_links_are_taken(store: Store, who: Principal) -> None:
    engine = Engine(merged(store))
    holder = await grant(engine, who)
    with pytest.raises(Unavailable, match="no place for artifacts"):
        await put(engine, holder)
    assert (await engine.artifacts.link(TENANT, holder, "a", "https://example.org")).url == "https://example.org"
    assert await engine.artifacts.collect_orphans() == 0


# ---------------------------------------------------------------- names and links

PATHS = [
    "../../etc/passwd", "..%2f..%2fetc", "%252e%252e%252f", "..\\..\\windows", "/etc/passwd", "C:\\file", ".", "..", "...",
    "con", "NUL", "aux.txt", "a/b/c", "\uff0e\uff0e\uff0f", "\u2025", "A.TXT", "a.txt", "a:b", "~", "-rf", "$(id)", "a b", "é", "é", "🐢",
    "'; drop table artifact; --", "<script>", "x" * 200,
]  # fmt: skip


async def test_any_visible_name_is_only_a_name(files: Engine, who: Principal, directory: Directory) -> None:
    holder = await grant(files, who)
    made = [await put(files, holder, name, name.encode()) for name in PATHS]
    assert sorted(await names(files, holder)) == sorted(PATHS)
    for name, artifact in zip(PATHS, made, strict=True):
        assert await content_of(files, holder, artifact) == name.encode()
    stored = [path.relative_to(directory.where) for path in paths(root)]
    assert len(stored) == len(PATHS)
    assert all(set(str(path)) <= set("0123456789abcdef/") and len(path.parts) == 2 for path in stored)


@pytest.mark.parametrize(
    "name", ["", " ", "a\x00b", "a\nb", "a\r", "\x7f", "\u2028", "\ud800", "x" * 201, "x" * 4096, "\u202e"]
)
async def test_a_name_nobody_can_see_is_refused(files: Engine, who: Principal, directory: Directory, name: str) -> None:
    holder = await grant(files, who)
    with pytest.raises(Invalid):
        await put(files, holder, name)
    with pytest.raises(Invalid):
        await files.artifacts.attach(TENANT, holder, [Link(name, "https://example.org")])
    assert paths(root) == []


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(max_size=220), content=st.binary(max_size=100))
@example(name="..", content=b"")
@example(name="/", content=b"x")
@example(name="a\u0301/\u200d", content=b"x")
def test_a_name_is_kept_as_it_is_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes
) -> None:
    """Whatever the name, it comes back unchanged and nothing is written outside the directory."""

    async def check() -> None:
        home = tmp_path_factory.mktemp("names")
        store, objects = await SQLiteStore.open(str(home / "i.db")), Directory(home / "artifacts")
        engine = Engine(merged(store), objects=objects)
        try:
            holder = await grant(engine, Principal(TENANT, "user:ada", frozenset()))
            try:
                made = await put(engine, holder, name, content)
            except Invalid:
                assert await names(engine, holder) == []
                return
            assert await names(engine, holder) == [name]
            assert await content_of(engine, holder, made) == content
            assert {path.name for path in home.iterdir()} <= {"i.db", "i.db-wal", "i.db-shm", "artifacts"}
            assert len(paths(home / "artifacts")) == 1
        finally:
            await engine.close()

    asyncio.run(check())


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org",
        "http://example.org:8080/a?b=c#d",
        "https://[2001:db8::1]/x",
        "https://xn--bcher-kva.example/%C3%A9",
    ],
)
async def test_a_link_is_kept_as_it_is(files: Engine, who: Principal, url: str) -> None:
    holder = await grant(files, who)
    made = await files.artifacts.link(TENANT, holder, "report", url)
    assert await files.artifacts.get(TENANT, holder.job_id, made.id) == made
    assert (made.url, made.key) == (url, None)
    with pytest.raises(Invalid, match="is a link"):
        await files.artifacts.read(TENANT, holder.job_id, made.id)


@pytest.mark.parametrize(
    "url",
    [
        "", "example.org", "//example.org", "ftp://example.org", "javascript:alert(1)", "file:///etc/passwd", "data:text/html,x",
        "https://", "https:///path", "http://a b", "https://example.org/\n", " https://example.org", "https://user:pw@example.org",
        "https://example.org\\@evil.example", "https://exa\tmple.org", "https://example.org:99999", "https://example.org:0",
        "https://[::1", "https://bücher.example", "https://example.org/" + "a" * 2048, 'https://example.org/"onclick="x',
        "JAVASCRIPT:alert(1)", "https://example.org/<script>",
    ],
)  # fmt: skip
async def test_a_link_that_is_no_plain_web_address_is_refused(files: Engine, who: Principal, url: str) -> None:
    holder = await grant(files, who)
    with pytest.raises(Invalid) as caught:
        await files.artifacts.link(TENANT, holder, "report", url)
    assert caught.value.pointer == "/url"


# ---------------------------------------------------------------- several at once


async def test_several_small_files_and_links_are_added_together(files: Engine, who: Principal) -> None:
    holder = await grant(files, who)
    things: list[File | Link] = [File("a", b"one", "text/plain"), Link("b", "https://example.org"), File("c", b"")]
    made = await files.artifacts.attach(TENANT, holder, things)
    assert [artifact.name for artifact in made] == ["a", "b", "c"]
    assert [artifact.content_type for artifact in made] == ["text/plain", None, "application/octet-stream"]
    assert await content_of(files, holder, made[0]) == b"one"
    assert await content_of(files, holder, made[2]) == b""
    assert await files.artifacts.attach(TENANT, holder, things) == made


async def test_of_several_that_do_not_fit_none_is_added(store: Store, who: Principal, directory: Directory) -> None:
    engine = Engine(merged(store), Limits(artifacts_of_tenant=10), objects=directory)
    holder = await grant(engine, who)
    with pytest.raises(TooLarge):
        await engine.artifacts.attach(
            TENANT, holder, [File("a", bytes(6)), File("b", bytes(6)), Link("c", "https://a.example")]
        )
    assert await names(engine, holder) == []
    await engine.artifacts.collect_orphans()
    assert paths(root) == []


async def test_two_of_one_name_and_too_many_at_once_are_refused(files: Engine, who: Principal) -> None:
    holder = await grant(files, who)
    with pytest.raises(Invalid, match="same name"):
        await files.artifacts.attach(TENANT, holder, [File("a", b"1"), Link("a", "https://example.org")])
    with pytest.raises(Invalid, match="at most"):
        await files.artifacts.attach(TENANT, holder, [File(str(n), b"") for n in range(101)])
    assert await files.artifacts.attach(TENANT, holder, []) == []


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, b"0123456789"),
        ("bytes=0-", b"0123456789"),
        ("bytes=2-4", b"234"),
        ("bytes=9-9", b"9"),
        ("bytes=5-1000", b"56789"),
        ("bytes=-3", b"789"),
        ("bytes=-1000", b"0123456789"),
        ("bytes=0-1,3-4", b"0123456789"),
        ("bytes=4-2", b"0123456789"),
        ("bytes=-", b"0123456789"),
        ("lines=1-2", b"0123456789"),
        ("bytes=" + "9" * 5000 + "-", b"0123456789"),
        ("nonsense", b"0123456789"),
    ],
)
async def test_one_range_of_bytes_is_read_and_anything_else_means_the_whole(
    files: Engine, who: Principal, wanted: str | None, expected: bytes
) -> None:
    holder = await grant(files, who)
    made = await put(files, holder, content=b"0123456789")
    assert await content_of(files, holder, made, wanted) == expected


@pytest.mark.parametrize(
    ("content", "wanted"), [(b"0123456789", "bytes=10-"), (b"0123456789", "bytes=-0"), (b"", "bytes=0-")]
)
async def test_a_range_after_the_end_is_refused(files: Engine, who: Principal, content: bytes, wanted: str) -> None:
    holder = await grant(files, who)
    made = await put(files, holder, content=content)
    with pytest.raises(Unsatisfiable) as caught:
        await content_of(files, holder, made, wanted)
    assert caught.value.size == len(content)


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
async def test_bytes_that_are_not_what_was_stored_are_never_handed_out_as_if_they_were(
    files: Engine, who: Principal, directory: Directory, spoil: Callable[[Path], None]
) -> None:
    holder = await grant(files, who)
    made = await put(files, holder)
    spoil(paths(root)[0])
    with pytest.raises(ArtifactLost):
        await content_of(files, holder, made)


async def test_of_a_damaged_file_the_last_piece_is_held_back(
    files: Engine, who: Principal, directory: Directory
) -> None:
    holder = await grant(files, who)
    made = await put(files, holder, content=bytes(3 * intake.PIECE))
    spoil_altered(paths(root)[0])
    download = await files.artifacts.read(TENANT, holder.job_id, made.id)
    assert len(await anext(download.chunks)) + len(await anext(download.chunks)) == 2 * intake.PIECE
    with pytest.raises(ArtifactLost, match="not those that were stored"):
        await anext(download.chunks)


async def test_a_download_under_way_survives_a_replacement(files: Engine, who: Principal) -> None:
    holder = await grant(files, who)
    old = bytes(4 * intake.PIECE)
    made = await put(files, holder, content=old)
    download = await files.artifacts.read(TENANT, holder.job_id, made.id)
    first = await anext(download.chunks)
    await put(files, holder, content=b"new")
    await files.artifacts.collect_orphans()
    assert first + b"".join([chunk async for chunk in download.chunks]) == old


async def test_a_download_that_is_closed_early_leaves_no_file_open(files: Engine, who: Principal) -> None:
    holder = await grant(files, who)
    made = await put(files, holder, content=bytes(4 * intake.PIECE))
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only their number counts
    for _ in range(5):
        download = await files.artifacts.read(TENANT, holder.job_id, made.id)
        await anext(download.chunks)
        await download.chunks.aclose()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


# ---------------------------------------------------------------- collecting


async def test_replaced_bytes_are_collected_when_their_time_has_come(
    files: Engine, who: Principal, directory: Directory, clock: ManualClock
) -> None:
    holder = await grant(files, who)
    await put(files, holder, content=b"old")
    made = await put(files, holder, content=b"new")
    assert await files.artifacts.collect_orphans() == 0
    clock.advance(REPLACED_KEPT_SECONDS)
    assert [await files.artifacts.collect_orphans() for _ in range(2)] == [1, 0]
    assert len(paths(root)) == 1
    assert await content_of(files, holder, made) == b"new"


async def test_collecting_at_the_same_time_deletes_each_once_and_nothing_that_is_seen(
    files: Engine, who: Principal, directory: Directory, clock: ManualClock
) -> None:
    holder = await grant(files, who)
    for n in range(10):
        await put(files, holder, f"{n}", b"old")
        await put(files, holder, f"{n}", b"new")
    clock.advance(REPLACED_KEPT_SECONDS)
    assert sum(await asyncio.gather(*(files.artifacts.collect_orphans() for _ in range(8)))) == 10
    assert len(paths(root)) == 10
    for artifact in await files.artifacts.list(TENANT, holder.job_id):
        assert await content_of(files, holder, artifact) == b"new"


async def test_collecting_is_bounded(files: Engine, who: Principal, clock: ManualClock) -> None:
    holder = await grant(files, who)
    for n in range(5):
        await put(files, holder, content=f"{n}".encode())
    clock.advance(REPLACED_KEPT_SECONDS)
    assert [await files.artifacts.collect_orphans(3) for _ in range(3)] == [3, 1, 0]


async def test_an_upload_slower_than_its_time_is_refused_and_not_shown_without_its_bytes(
    files: Engine, who: Principal, clock: ManualClock
) -> None:
    holder = await grant(files, who)

    async def slow() -> AsyncIterator[bytes]:
        yield b"some"
        clock.advance(UNFINISHED_KEPT_SECONDS)
        assert await files.artifacts.collect_orphans() == 1
        yield b"more"

    with pytest.raises(Unavailable, match="upload them again"):
        await files.artifacts.put(TENANT, holder, "a", slow())
    assert await names(files, holder) == []


async def test_bytes_that_cannot_be_deleted_are_tried_again_later(
    files: Engine, who: Principal, directory: Directory, clock: ManualClock
) -> None:
    holder = await grant(files, who)
    await put(files, holder, content=b"old")
    (old,) = paths(root)
    await put(files, holder, content=b"new")
    old.unlink()
    old.mkdir()  # unlink refuses a directory, whoever asks
    clock.advance(REPLACED_KEPT_SECONDS)
    assert await files.artifacts.collect_orphans() == 0
    assert await files.artifacts.collect_orphans() == 0
    old.rmdir()
    clock.advance(300)
    assert await files.artifacts.collect_orphans() == 1


# ---------------------------------------------------------------- the directory


async def test_files_are_for_their_owner_only_whatever_the_umask(
    files: Engine, who: Principal, directory: Directory
) -> None:
    holder, before = await grant(files, who), os.umask(0)
    try:
        await put(files, holder)
    finally:
        os.umask(before)
    modes = {path.relative_to(root): stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}
    assert set(modes.values()) == {0o700, 0o600}
    assert all(mode == (0o700 if len(path.parts) < 2 else 0o600) for path, mode in modes.items())


async def test_the_directory_is_made_when_it_is_needed_and_not_before(
    files: Engine, who: Principal, directory: Directory
) -> None:
    await files.artifacts.collect_orphans()
    assert not root.exists()
    await put(files, await grant(files, who))
    assert root.is_dir()


async def test_a_directory_that_others_may_write_to_is_refused(
    files: Engine, who: Principal, directory: Directory
) -> None:
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(Fatal, match="other users"):
        await put(files, await grant(files, who))


async def test_a_link_in_place_of_the_directory_is_refused(
    files: Engine, who: Principal, directory: Directory, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    root.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Fatal, match="is a link"):
        await put(files, await grant(files, who))
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_a_link_in_place_of_a_subdirectory_is_not_followed(directory: Directory, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / "secret").write_bytes(b"secret")
    root.mkdir(mode=0o700)
    (root / "00").symlink_to(elsewhere)
    with pytest.raises(Unavailable):
        await directory.put("00" + "f" * 30, stream(b"x"))
    assert [path.name for path in elsewhere.iterdir()] == ["secret"]


async def test_a_key_is_never_a_path(directory: Directory) -> None:
    for key in ("../x", "00/../../x", "", "g" * 32, "0" * 31, "0" * 33, "0" * 32 + "\n"):
        with pytest.raises(ValueError, match="is not a key"):
            await directory.put(key, stream(b"x"))


async def test_an_object_is_written_once(directory: Directory) -> None:
    await directory.put("0" * 32, stream(b"first"))
    with pytest.raises(Unavailable):
        await directory.put("0" * 32, stream(b"second"))
    assert b"".join([piece async for piece in directory.get("0" * 32, 0, 5)]) == b"first"


# ---------------------------------------------------------------- a bucket


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
    engine = Engine(merged(await SQLiteStore.open(str(path / "i.db"), clock=clock)), LIMITS, objects=objects)
    try:
        yield engine
    finally:
        await engine.close()


@pytest.mark.parametrize("content", [b"", b"small", LARGE], ids=["empty", "small", "several parts"])
async def test_a_bucket_keeps_files_whole_under_keys_that_say_nothing(
    s3: Any, tmp_path: Path, clock: ManualClock, who: Principal, content: bytes
) -> None:
    async with engine_over(open_objects("s3://bucket/some/prefix", "sqlite:///x"), tmp_path, clock) as engine:
        holder = await grant(engine, who)
        made = await put(engine, holder, "../../name", content)
        assert await content_of(engine, holder, made) == content
        assert await content_of(engine, holder, made, "bytes=1-3") == (content[1:4] or content) if content else True
        assert stored(s3) == [f"some/prefix/{made.key}"]
        await put(engine, holder, "../../name", b"other")
        clock.advance(REPLACED_KEPT_SECONDS)
        assert [await engine.artifacts.collect_orphans() for _ in range(2)] == [1, 0]
        assert len(stored(s3)) == 1
        assert s3.list_multipart_uploads(Bucket="bucket").get("Uploads", []) == []


async def test_a_large_upload_to_a_bucket_that_breaks_off_leaves_nothing_behind(
    s3: Any, tmp_path: Path, clock: ManualClock, who: Principal
) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield LARGE
        raise ConnectionResetError("the worker went away")

    async with engine_over(Bucket.s3("s3://bucket/p"), tmp_path, clock) as engine:
        holder = await grant(engine, who)
        with pytest.raises(ConnectionResetError):
            await engine.artifacts.put(TENANT, holder, "a", broken())
        assert (await names(engine, holder), stored(s3)) == ([], [])
        assert s3.list_multipart_uploads(Bucket="bucket").get("Uploads", []) == []
        with pytest.raises(TooLarge):
            await put(engine, holder, content=LARGE * 2)
        assert stored(s3) == []


async def test_an_object_that_is_gone_from_a_bucket_is_lost_and_said_to_be(
    s3: Any, tmp_path: Path, clock: ManualClock, who: Principal
) -> None:
    async with engine_over(Bucket.s3("s3://bucket"), tmp_path, clock) as engine:
        holder = await grant(engine, who)
        made = await put(engine, holder)
        s3.delete_object(Bucket="bucket", Key=made.key)
        with pytest.raises(ArtifactLost):
            await content_of(engine, holder, made)


async def test_a_bucket_that_is_not_there_is_unavailable_and_leaves_the_job_alone(
    s3: Any, tmp_path: Path, clock: ManualClock, who: Principal
) -> None:
    async with engine_over(Bucket.s3("s3://nobodys-bucket/p"), tmp_path, clock) as engine:
        holder = await grant(engine, who)
        with pytest.raises(Error) as caught:
            await put(engine, holder)
        assert caught.value.code == "unavailable"
        assert await names(engine, holder) == []
        await engine.leases.complete(TENANT, Complete(*holder))


async def test_with_a_database_in_memory_artifacts_are_in_memory_too(who: Principal, clock: ManualClock) -> None:
    objects = open_objects(None, "sqlite:///:memory:")
    engine = Engine(merged(await SQLiteStore.open(":memory:", clock=clock)), LIMITS, objects=objects)
    try:
        holder = await grant(engine, who)
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
async def test_a_directory_is_beside_the_database_unless_said_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str | None, database: str, where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    objects = open_objects(place, database)
    assert objects.where == str(tmp_path / where)
    await objects.close()


@pytest.mark.parametrize("place", ["gs://bucket", "http://host/x", "file:///tmp/x"])
def test_any_other_kind_of_place_is_refused(place: str) -> None:
    with pytest.raises(Invalid, match="directory or under s3://"):
        open_objects(place, "sqlite:///i.db")
