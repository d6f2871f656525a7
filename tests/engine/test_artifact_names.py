"""A name is only a name, and a link is only kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from interlock.domain.artifact import Link
from interlock.domain.principal import Principal
from interlock.engine.engine import Engine
from interlock.errors import (
    Invalid,
)  # fmt: skip
from interlock.storage.batching import batched
from interlock.storage.object_store.filesystem import FileObjects
from interlock.storage.sqlite.store import SQLiteStore
from tests.support.artifacts import TENANT, content_of, lease, names, paths, put

PATHS = [
    "../../etc/passwd", "..%2f..%2fetc", "%252e%252e%252f", "..\\..\\windows", "/etc/passwd", "C:\\file", "...",
    "con", "NUL", "aux.txt", "a/b/c", "\uff0e\uff0e\uff0f", "\u2025", "A.TXT", "a.txt", "a:b", "~", "-rf", "$(id)", "a b", "\u00e9", "e\u0301", "🐢",
    "'; drop table artifact; --", "<script>", "x" * 200,
]  # fmt: skip


async def test_any_visible_name_is_an_ordinary_name(
    files: Engine, who: Principal, directory: FileObjects, root: Path
) -> None:
    holder = await lease(files, who)
    made = [await put(files, holder, name, name.encode()) for name in PATHS]
    assert sorted(await names(files, holder)) == sorted(PATHS)
    for name, artifact in zip(PATHS, made, strict=True):
        assert await content_of(files, holder, artifact) == name.encode()
    stored = [path.relative_to(directory.where) for path in paths(root)]
    assert len(stored) == len(PATHS)
    assert all(set(str(path)) <= set("0123456789abcdef/") and len(path.parts) == 2 for path in stored)


UNSEEN = [
    "",
    " ",
    "a\x00b",
    "a\nb",
    "a\r",
    "\x7f",
    "\u2028",
    "\ud800",
    "x" * 201,
    "x" * 4096,
    "\u202e",
    "a\u202eb",
    ".",
    "..",
]


async def test_an_invisible_name_is_rejected(files: Engine, who: Principal, root: Path) -> None:
    holder = await lease(files, who)
    for name in UNSEEN:
        with pytest.raises(Invalid):
            await put(files, holder, name)
        with pytest.raises(Invalid):
            await files.artifacts.attach(TENANT, holder, [Link(name, "https://example.org")])
        assert paths(root) == []


def test_a_name_is_kept_unchanged_or_rejected(tmp_path: Path, who: Principal) -> None:
    """Any name is returned unchanged, and nothing is written outside the directory."""

    async def opened() -> Engine:
        return Engine(
            batched(await SQLiteStore.open(str(tmp_path / "i.db"))), objects=FileObjects(tmp_path / "artifacts")
        )

    async def try_out(name: str, content: bytes) -> None:
        holder, before = await lease(engine, who), len(paths(tmp_path / "artifacts"))
        try:
            made = await put(engine, holder, name, content)
        except Invalid:
            assert await names(engine, holder) == []
            return
        assert await names(engine, holder) == [name]
        assert await content_of(engine, holder, made) == content
        assert len(paths(tmp_path / "artifacts")) == before + 1
        assert {path.name for path in paths(tmp_path) if path.parent == tmp_path} <= {"i.db", "i.db-wal", "i.db-shm"}

    with asyncio.Runner() as runner:
        engine = runner.run(opened())

        @settings(max_examples=100, deadline=None)
        @given(name=st.text(max_size=220), content=st.binary(max_size=100))
        @example(name="..", content=b"")
        @example(name="/", content=b"x")
        @example(name="a\u0301/\u200d", content=b"x")
        def check(name: str, content: bytes) -> None:
            runner.run(try_out(name, content))

        try:
            check()
        finally:
            runner.run(engine.close())


async def test_a_link_is_kept_and_never_fetched(files: Engine, who: Principal) -> None:
    holder = await lease(files, who)
    made = await files.artifacts.link(TENANT, holder, "report", "https://nobody.invalid/report#1")
    assert await files.artifacts.get(TENANT, holder.job_id, made.id) == made
    assert (made.url, made.key) == ("https://nobody.invalid/report#1", None)
    with pytest.raises(Invalid, match="is a link"):
        await files.artifacts.read(TENANT, holder.job_id, made.id)


async def test_a_link_that_is_not_a_plain_web_url_is_rejected(files: Engine, who: Principal) -> None:
    holder = await lease(files, who)
    with pytest.raises(Invalid) as caught:
        await files.artifacts.link(TENANT, holder, "report", "javascript:alert(1)")
    assert caught.value.pointer == "/url"
