"""A job that was granted by direct SQL: it waits nowhere any more, and its line counts as if a claim had done it."""

from __future__ import annotations

import pytest

from interlock.domain.lifecycle import Status
from interlock.domain.registry import Agent
from tests.contract.builders import Desk, complete, release
from tests.contract.connections import Door, move
from tests.support.truth import check_postgres


@pytest.fixture
def engine() -> str:
    return "postgres"


@pytest.mark.parametrize("limit", [None, 1])
async def test_a_grant_by_direct_sql_leaves_nothing_in_ready(remote: Desk, adapter: Door, limit: int | None) -> None:
    await remote.store.set_agent(remote.tenant, Agent("bot", "a", limit, strict=False))
    ids = [await remote.add(agent_kind="bot", agent_id="a") for _ in range(2)]
    job = await remote.job(ids[0])
    await move(adapter, job, Status.RUNNING, remote.clock.now)
    held = await remote.job(ids[0])
    await check_postgres(adapter.connection, remote.tenant)  # type: ignore[attr-defined]
    assert await remote.claimed(limit=100) == ([] if limit else ids[1:])
    await remote.do(release(held))
    await check_postgres(adapter.connection, remote.tenant)  # type: ignore[attr-defined]
    (again,) = await remote.claim(limit=1)
    await remote.do(complete(again))
    await check_postgres(adapter.connection, remote.tenant)  # type: ignore[attr-defined]
