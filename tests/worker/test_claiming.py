"""How many jobs a worker asks for at a time, and for how long."""

from __future__ import annotations

import re
from typing import Any

import pytest

import interlock
from interlock.client.local import LocalClient
from interlock.client.port import LeasedJob
from interlock.domain.policy import ClaimFilter
from interlock.worker.loop import Worker
from tests.support.apps import StoreApp


@pytest.fixture
async def claims(app: StoreApp, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What the app's client was asked for, and how many jobs were granted, claim by claim."""
    work, seen = (await app._client()).work, list[tuple[int, int]]()
    claim = work.claim

    async def noted(ask: ClaimFilter, *, wait_seconds: float = 0.0) -> list[LeasedJob]:
        leased = await claim(ask, wait_seconds=wait_seconds)
        seen.append((ask.limit, len(leased)))
        return leased

    monkeypatch.setattr(work, "claim", noted)
    return seen


async def test_a_worker_claims_a_hundred_jobs_over_http_and_more_on_a_local_store(
    app: StoreApp, claims: list[tuple[int, int]]
) -> None:
    @app.task
    async def noop() -> None:
        pass

    await noop.enqueue_many([{}] * 150)
    assert await app.drain(concurrency=200) == 150
    beside_its_store = isinstance(await app._client(), LocalClient)
    assert claims[0] == ((200, 150) if beside_its_store else (100, 100))


async def test_a_worker_never_claims_more_than_its_free_slots(app: StoreApp, claims: list[tuple[int, int]]) -> None:
    @app.task
    async def noop() -> None:
        pass

    await noop.enqueue_many([{}] * 30)
    assert await app.drain(concurrency=4, prefetch=3) == 30
    assert claims[0] == (7, 7)
    assert max(limit for limit, _ in claims) == 7


async def test_a_worker_claims_again_when_half_of_its_reserve_is_used_not_for_every_job(
    app: StoreApp, claims: list[tuple[int, int]]
) -> None:
    @app.task
    async def noop() -> None:
        pass

    await noop.enqueue_many([{}] * 60)
    assert await app.drain(concurrency=1, prefetch=8) == 60
    assert min(limit for limit, leased in claims if leased) >= 4


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"concurrency": 0}, "concurrency is 0: expected at least 1"),
        ({"prefetch": -1}, "prefetch is -1: expected at least 0"),
        ({"lease": 0.5}, "lease is 0.5: expected at least 1"),
        ({"lease": float("nan")}, "lease is nan: expected at least 1"),
        ({"shutdown_grace": -1.0}, "shutdown_grace is -1.0: expected at least 0"),
        ({"lease": 3.0, "heartbeat_interval": 2.0}, "less than half of the lease of 3.0 s"),
    ],
)
def test_a_worker_with_invalid_options_is_rejected_before_it_starts(options: dict[str, Any], expected: str) -> None:
    app = interlock.App("sqlite:///:memory:")

    @app.task
    async def noop() -> None:
        pass

    with pytest.raises(ValueError, match=re.escape(expected)):
        Worker(app, **options)
