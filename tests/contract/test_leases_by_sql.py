"""A job that was granted by direct SQL: it waits nowhere any more, and its line counts as if a claim had done it."""

from __future__ import annotations

import pytest

from interlock.domain.lifecycle import Status
from interlock.domain.registry import Agent
from tests.contract.builders import TenantQueue, complete, release
from tests.contract.connections import SqlConnection, move
from tests.support.invariants import check_postgres


@pytest.fixture
def engine() -> str:
    return "postgres"


@pytest.mark.parametrize("limit", [None, 1])
async def test_a_lease_by_direct_sql_leaves_no_ready_row(
    queue: TenantQueue, sql: SqlConnection, limit: int | None
) -> None:
    await queue.store.registry.set_agent(queue.tenant, Agent("bot", "a", limit, strict=False))
    ids = [await queue.add(agent_kind="bot", agent_id="a") for _ in range(2)]
    job = await queue.job(ids[0])
    await move(sql, job, Status.RUNNING, queue.clock.now)
    held = await queue.job(ids[0])
    await check_postgres(sql.connection, queue.tenant)  # type: ignore[attr-defined]
    assert await queue.claimed(limit=100) == ([] if limit else ids[1:])
    await queue.do(release(held))
    await check_postgres(sql.connection, queue.tenant)  # type: ignore[attr-defined]
    (again,) = await queue.claim(limit=1)
    await queue.do(complete(again))
    await check_postgres(sql.connection, queue.tenant)  # type: ignore[attr-defined]
