"""The key that all servers of one database share: random, stored there, and never changed."""

from __future__ import annotations

from pathlib import Path

from interlock.storage.contract import Store
from interlock.storage.sqlite.store import SQLiteStore


async def test_all_processes_read_the_same_key(store: Store) -> None:
    key = await store.tokens.signing_key()
    assert len(key) == 32
    assert await store.tokens.signing_key() == key


async def test_no_two_databases_have_the_same_key(store: Store, tmp_path: Path) -> None:
    for path in (":memory:", str(tmp_path / "other.db")):
        other = await SQLiteStore.open(path)
        try:
            assert await other.tokens.signing_key() != await store.tokens.signing_key()
        finally:
            await other.close()


async def test_a_file_keeps_its_key(tmp_path: Path) -> None:
    keys = []
    for _ in range(2):
        store = await SQLiteStore.open(str(tmp_path / "jobs.db"))
        keys.append(await store.tokens.signing_key())
        await store.close()
    assert keys[0] == keys[1]
