"""Whether a database is usable, as a load balancer polls it."""

from __future__ import annotations

import pytest

from interlock.storage import migrate
from tests.contract.builders import TenantQueue


async def test_a_database_of_this_version_is_ready_and_durable(queue: TenantQueue) -> None:
    assert await queue.store.fitness() == (None, True)


async def test_a_missing_migration_is_named_and_an_extra_one_accepted(
    queue: TenantQueue, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = dict(migrate.known_migrations(f"interlock.storage.{'sqlite' if engine == 'sqlite' else 'postgres'}"))
    monkeypatch.setattr(migrate, "known_migrations", lambda package: known | {9999: "9999_later"})
    assert await queue.store.fitness() == ("9999_later", True)
    newest = max(known)
    monkeypatch.setattr(
        migrate, "known_migrations", lambda package: {n: name for n, name in known.items() if n != newest}
    )
    assert await queue.store.fitness() == (None, True)
