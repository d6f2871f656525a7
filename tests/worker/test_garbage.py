"""A worker keeps Python from examining its long-lived objects again and again, and undoes that when it stops."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from interlock.garbage import COLLECT_AFTER, rare_collections
from tests.support.apps import StoreApp


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """The tests freeze their objects; an ordinary program does not."""
    gc.unfreeze()
    yield
    gc.freeze()


def settings() -> tuple[tuple[int, int, int], bool]:
    return gc.get_threshold(), gc.get_freeze_count() > 0


async def test_a_worker_collects_garbage_rarely_while_it_runs(app: StoreApp) -> None:
    usual, seen = settings(), []

    @app.task
    async def look() -> None:
        seen.append(settings())

    await look.enqueue()
    assert await app.drain() == 1
    assert seen == [(COLLECT_AFTER, True)]
    assert settings() == usual


def test_the_last_of_several_workers_restores_the_settings() -> None:
    usual = settings()
    first, second = rare_collections(), rare_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert settings() == (COLLECT_AFTER, True)
    second.__exit__(None, None, None)
    assert settings() == usual
