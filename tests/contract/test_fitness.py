"""Whether a database can be worked on, as a balancer asks again and again."""

from __future__ import annotations

import pytest

from interlock.storage import migrate
from tests.contract.builders import Desk


async def test_a_database_of_this_version_fits_and_is_durable(remote: Desk) -> None:
    assert await remote.store.fitness() == (None, True)


async def test_a_migration_that_is_missing_is_named_and_one_that_is_too_many_is_fine(
    remote: Desk, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = dict(migrate.known_migrations(f"interlock.storage.{'sqlite' if engine == 'sqlite' else 'postgres'}"))
    monkeypatch.setattr(migrate, "known_migrations", lambda package: known | {9999: "9999_later"})
    assert await remote.store.fitness() == ("9999_later", True)
    newest = max(known)
    monkeypatch.setattr(
        migrate, "known_migrations", lambda package: {n: name for n, name in known.items() if n != newest}
    )
    assert await remote.store.fitness() == (None, True)
