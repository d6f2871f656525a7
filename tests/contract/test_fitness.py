"""Whether a database can be worked on, as a balancer asks again and again."""

from __future__ import annotations

import pytest

from interlock.storage import migrate
from tests.contract.builders import Desk


async def test_a_database_of_this_version_fits_and_is_durable(desk: Desk) -> None:
    assert await desk.store.fitness() == (None, True)


async def test_a_migration_that_is_missing_is_named_and_one_that_is_too_many_is_fine(
    desk: Desk, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = dict(migrate.ladder(f"interlock.storage.{'sqlite' if engine == 'sqlite' else 'postgres'}"))
    monkeypatch.setattr(migrate, "ladder", lambda package: known | {9999: "9999_later"})
    assert await desk.store.fitness() == ("9999_later", True)
    newest = max(known)
    monkeypatch.setattr(migrate, "ladder", lambda package: {n: name for n, name in known.items() if n != newest})
    assert await desk.store.fitness() == (None, True)
