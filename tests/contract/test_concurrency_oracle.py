"""Random lives of a few agents' jobs against a line that is worked out anew, from the rule itself, at every claim."""

from __future__ import annotations

import random
from typing import Any

import pytest

from interlock.domain.job import Job
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.registry import Agent
from tests.contract.builders import TenantQueue, cancel, complete, expire, fail, new_job, release, revoke

AGENTS = ("a", "b", "c")


def may_run(jobs: list[Job], kept: set[str], limit: int | None, strict: bool, now: int) -> set[str]:
    """Rule 5: the first n due jobs have a slot; those that stopped under a strict agent keep theirs."""
    waiting = [j for j in jobs if j.status in (Status.QUEUED, Status.RETRY) and not j.awaiting and j.run_at <= now]
    if limit is None:
        return {j.id for j in waiting}
    alive = [j for j in jobs if j.status not in TERMINAL]
    keeps = {j.id for j in alive if j.status is Status.RUNNING or (strict and j.id in kept)}
    free = max(limit - len(keeps), 0)
    line = sorted((j for j in waiting if j.id not in keeps), key=lambda j: (j.run_at, j.seq))
    return {j.id for j in waiting if j.id in keeps} | {j.id for j in line[:free]}


@pytest.mark.parametrize("seed", range(6))
async def test_exactly_the_jobs_with_a_slot_are_leased(queue: TenantQueue, seed: int) -> None:
    chance = random.Random(seed)
    limits: dict[str, tuple[int | None, bool]] = {}
    ids: list[str] = []
    held: dict[str, Job] = {}
    kept: set[str] = set()  # jobs that stopped running with a slot and have had a strict agent since

    async def configure(agent: str) -> None:
        limits[agent] = (chance.choice([None, 1, 1, 2, 3]), chance.random() < 0.5)
        await queue.store.registry.set_agent(queue.tenant, Agent("bot", agent, *limits[agent]))
        if not limits[agent][1]:
            kept.difference_update(j.id for j in await everything() if j.agent_id == agent)

    async def everything() -> list[Job]:
        return [j for j in await queue.store.get(queue.tenant, ids) if j is not None]

    def stop(job: Job) -> None:
        most, strict = limits[job.agent_id or ""]
        (kept.add if strict and most is not None else kept.discard)(job.id)

    for agent in AGENTS:
        await configure(agent)
    for _ in range(120):
        act = chance.random()
        job: Any = chance.choice(list(held.values())) if held else None
        if act < 0.25:
            fields: list[dict[str, Any]] = [
                {"agent_kind": "bot", "agent_id": chance.choice(AGENTS), "max_attempts": 3}
                for _ in range(chance.randint(1, 3))
            ]
            when: list[dict[str, Any]] = [
                chance.choice([{}, {}, {"delay_seconds": 3.0}, {"run_at": queue.after(-2)}]) for _ in fields
            ]
            ids += await queue.add_all([new_job(**f, **w) for f, w in zip(fields, when, strict=True)])
        elif act < 0.30:
            await configure(chance.choice(AGENTS))
        elif act < 0.40:
            queue.clock.advance(chance.choice([0.5, 2.0, 5.0]))
        elif act < 0.50 and ids:
            alive = [j for j in await everything() if j.status not in TERMINAL]
            if alive:
                victim = chance.choice(alive)
                await queue.do(cancel(victim.id, force=True))
                held.pop(victim.id, None)
        elif act < 0.75 and job is not None:
            del held[job.id]
            how = chance.randrange(6)
            if how == 0:
                queue.clock.advance(61)
                for late in [job, *held.values()]:
                    await queue.do(expire(late.id))
                    stop(late)
                held.clear()
            else:
                orders = (
                    complete(job),
                    fail(job),
                    fail(job, retryable=False),
                    release(job, delay_seconds=chance.choice([0, 2])),
                    revoke(job.id),
                )
                await queue.do(orders[how - 1])
                stop(job)
        else:
            jobs = await everything()
            now = queue.clock.now
            expected = set[str]()
            for agent, (limit, strict) in limits.items():
                expected |= may_run([j for j in jobs if j.agent_id == agent], kept, limit, strict, now)
            reported_blocked = {j.id for j in jobs if j.location(now) == "blocked"}
            due = {j.id for j in jobs if j.status in (Status.QUEUED, Status.RETRY) and j.run_at <= now}
            assert reported_blocked == due - expected
            take = chance.choice([1, 2, 100])
            leased = await queue.claim(limit=take, lease_seconds=60)
            best = sorted((j for j in jobs if j.id in expected), key=lambda j: (j.run_at, j.seq))
            assert [j.id for j in leased] == [j.id for j in best[:take]]
            held |= {j.id: j for j in leased}
    await drain(queue, ids)


async def drain(queue: TenantQueue, ids: list[str]) -> None:
    """After any script, all jobs can be finished: none is left behind."""
    jobs: list[Job] = []
    for _ in range(500):
        for job in await queue.claim(limit=100, lease_seconds=1):
            await queue.do(complete(job))
        jobs = [j for j in await queue.store.get(queue.tenant, ids) if j is not None]
        if all(j.status in TERMINAL for j in jobs):
            break
        queue.clock.advance(2)
    assert {j.id: j.status for j in jobs if j.status not in TERMINAL} == {}
    await queue.verify()
