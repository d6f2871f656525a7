"""Limits of jobs whose agent has concurrency slots: a job that waits for a limit keeps its slot only if the agent is strict."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.explain import ReasonCode, explain
from interlock.domain.job import Job
from tests.contract.builders import OPERATOR, TenantQueue, complete
from tests.contract.concurrency import BOT, limit
from tests.contract.test_limits import add, claim, ids, set_limit, uses

FULL = uses(("llm", None, {}))
OTHER: dict[str, Any] = {"type": "other"}


async def fill(queue: TenantQueue, **fields: object) -> Job:
    """Run a job that takes the only place of the limit."""
    await add(queue, 1, **fields)
    (job,) = await claim(queue)
    return job


async def test_a_job_that_waits_for_a_limit_passes_its_slot_on_and_gets_one_again(queue: TenantQueue) -> None:
    await limit(queue, 1, strict=False)
    await set_limit(queue, concurrency=1)
    holder = await fill(queue)
    (waiting,) = await add(queue, 1, **BOT)
    (free,) = await add(queue, 1, limits=None, **BOT)
    (running,) = await claim(queue)
    assert running.id == free
    assert await ids(queue) == []
    await queue.do(complete(holder))
    assert await ids(queue) == []  # the slot is in use
    await queue.do(complete(running))
    assert await ids(queue) == [waiting]
    await queue.verify()


async def test_a_job_that_a_claim_leases_passes_its_slot_to_no_other(queue: TenantQueue) -> None:
    """It takes the last place of its limit, so another job with this limit would have to wait."""
    await limit(queue, 1, strict=False)
    await set_limit(queue, concurrency=1)
    (first,) = await add(queue, 1, **BOT)
    await add(queue, 1, limits=None, **BOT)
    assert await ids(queue) == [first]
    await queue.verify()
    assert await queue.store.faults(queue.tenant, 10) == []


async def test_a_strict_agent_keeps_the_slot_of_a_job_that_waits_for_a_limit(queue: TenantQueue) -> None:
    await limit(queue, 1, strict=True)
    await set_limit(queue, concurrency=1)
    holder = await fill(queue)
    (waiting,) = await add(queue, 1, **BOT)
    await add(queue, 1, limits=None, **BOT)
    assert await ids(queue) == []
    await queue.do(complete(holder))
    assert await ids(queue) == [waiting]


@pytest.mark.parametrize("types", [None, frozenset({"other"})])
async def test_workers_of_another_type_get_the_slot_too(queue: TenantQueue, types: frozenset[str] | None) -> None:
    await limit(queue, 1, strict=False)
    await set_limit(queue, concurrency=5)
    until = queue.after(60)
    await queue.store.limits.hold(queue.tenant, "llm", key="", until=until, actor=OPERATOR, reason=None)
    (waiting,) = await add(queue, 1, **BOT)
    (free,) = await add(queue, 1, limits=None, **BOT, **OTHER)
    (running,) = await claim(queue, types=types)
    assert running.id == free
    queue.clock.advance(61)
    await queue.do(complete(running))
    assert await ids(queue) == [waiting]


async def test_a_slot_is_not_passed_to_a_job_that_the_claim_cannot_lease(queue: TenantQueue) -> None:
    await limit(queue, 1, strict=False)
    await set_limit(queue, concurrency=1)
    holder = await fill(queue)
    (waiting,) = await add(queue, 1, **BOT)
    await add(queue, 1, limits=None, **BOT, **OTHER)
    assert await ids(queue, types=frozenset({"work"})) == []
    await queue.do(complete(holder))
    assert await ids(queue, types=frozenset({"work"})) == [waiting]


async def test_a_deep_line_that_waits_for_a_limit_hides_no_job_behind_it(queue: TenantQueue) -> None:
    await limit(queue, 2, strict=False)
    await set_limit(queue, concurrency=1)
    holder = await fill(queue)
    waiting = await add(queue, 300, **BOT)
    free = await add(queue, 3, limits=None, **BOT)
    running = await claim(queue)
    assert [job.id for job in running] == free[:2]
    await queue.do(complete(running[0]))
    assert await ids(queue) == free[2:]
    await queue.do(complete(holder))
    await queue.do(complete(running[1]))
    assert await ids(queue) == waiting[:1]
    await queue.verify()


async def test_a_parked_job_passes_its_slot_on(queue: TenantQueue) -> None:
    await limit(queue, 1, strict=False)
    await set_limit(queue, concurrency=1, keyed=True)
    holder = await fill(queue, limits=uses(("llm", "a", {})))
    (parked,) = await add(queue, 1, limits=uses(("llm", "a", {})), **BOT)
    (free,) = await add(queue, 1, limits=uses(("llm", "b", {})), **BOT)
    (running,) = await claim(queue)
    assert running.id == free
    (other,) = await add(queue, 1, limits=uses(("llm", "a", {})))  # of no agent, behind the parked one
    await queue.do(complete(holder))
    (second,) = await claim(queue)
    assert second.id == other  # the job without a slot does not keep the place of its key
    await queue.do(complete(running))
    assert await ids(queue) == []
    await queue.do(complete(second))
    assert await ids(queue) == [parked]
    await queue.verify()


async def test_why_names_the_limit_of_a_job_that_passed_its_slot_on(queue: TenantQueue) -> None:
    await limit(queue, 1, strict=False)
    await set_limit(queue, concurrency=1)
    await fill(queue)
    (waiting,) = await add(queue, 1, **BOT)
    await add(queue, 1, limits=None, **BOT)
    await claim(queue)
    snapshot = await queue.store.workers.job_snapshot(queue.tenant, waiting)
    assert snapshot is not None
    why = explain(snapshot)
    assert {why.clause, *(reason.clause for reason in why.also)} >= {
        ReasonCode.AGENT_BUSY,
        ReasonCode.WAITING_FOR_LIMIT,
    }
