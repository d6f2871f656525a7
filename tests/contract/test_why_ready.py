"""Why a job does not run, held against the claim itself: exactly the jobs that are called ready are granted."""

from __future__ import annotations

import itertools
import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlock.domain.explain import ReasonCode
from interlock.domain.job import Job
from interlock.domain.policy import ClaimFilter
from interlock.domain.registry import Agent
from interlock.storage.contract import Store
from tests.contract.approvals import request_approval
from tests.contract.builders import (
    OPERATOR,
    TenantQueue,
    cancel,
    complete,
    fail,
    new_job,
    release,
)
from tests.contract.reasons import seen, why
from tests.support.stores import START, ManualClock

_numbers = itertools.count(1)

TYPES, CAPABILITIES, REPOSITORIES, KEYS, AGENTS = ("a", "b"), ("gpu", "net"), ("org/x",), ("h1",), ("p", "q")
EVERYTHING = {"types": None, "capabilities": frozenset(CAPABILITIES), "repositories": None, "affinity_keys": None}


def some(names: tuple[str, ...]) -> st.SearchStrategy[frozenset[str]]:
    return st.frozensets(st.sampled_from(names))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32),
    limits=st.fixed_dictionaries({agent: st.sampled_from((None, 1, 2)) for agent in AGENTS}),
    strict=st.booleans(),
    paused=some(TYPES),
    asked=st.builds(
        ClaimFilter,
        worker=st.just("w1"),
        types=st.none() | some(TYPES),
        repositories=st.none() | some(REPOSITORIES),
        capabilities=some(CAPABILITIES),
        affinity_keys=st.none() | some(KEYS),
        limit=st.just(100),
        lease_seconds=st.none(),
        claim_id=st.none(),
    ),
)
async def test_exactly_the_jobs_reported_as_ready_are_leased_to_the_present_worker(
    store: Store,
    clock: ManualClock,
    seed: int,
    limits: dict[str, int | None],
    strict: bool,
    paused: frozenset[str],
    asked: ClaimFilter,
) -> None:
    clock.now = START
    chance = random.Random(seed)
    queue = TenantQueue(store, f"why-{next(_numbers)}", clock)
    for agent, limit in limits.items():
        await store.registry.set_agent(queue.tenant, Agent("bot", agent, limit, strict))
    ids = await add_some(queue, chance)
    for job in await queue.claim(worker="w0", limit=chance.randrange(1, 6), lease_seconds=3600, **EVERYTHING):
        ids += await end_somehow(queue, chance, job)
    ids += await add_some(queue, chance)
    for type in paused:
        await store.registry.pause(queue.tenant, type, actor=OPERATOR, reason=None)
    clock.advance(chance.choice((0, 2, 4)))
    await seen(queue, **asked._asdict())
    reported = {id: await why(queue, id) for id in ids}
    ready = {id for id in ids if reported[id].clause is ReasonCode.READY}
    leased = set(await queue.claimed(**asked._asdict()))
    assert leased == ready, {id: reported[id].to_dict() for id in leased ^ ready}


async def add_some(queue: TenantQueue, chance: random.Random) -> list[str]:
    """Jobs with all kinds of needs. A passed deadline frees a concurrency slot, so jobs with a deadline have none."""
    made = []
    for _ in range(chance.randint(2, 6)):
        fields: dict[str, Any] = {
            "type": chance.choice(TYPES),
            "priority": chance.choice((0, 0, 1)),
            "requires": tuple(sorted(chance.sample(CAPABILITIES, chance.choice((0, 0, 1, 2))))),
            "repository": chance.choice((None, None, *REPOSITORIES)),
            "affinity_key": chance.choice((None, None, *KEYS)),
            "delay_seconds": chance.choice((0, 0, 3)),
        }
        if chance.random() < 0.6:
            fields |= {"agent_kind": "bot", "agent_id": chance.choice(AGENTS)}
        elif chance.random() < 0.3:
            fields["deadline"] = queue.after(1)
        made.append(new_job(**fields))
    return await queue.add_all(made)


async def end_somehow(queue: TenantQueue, chance: random.Random, job: Job) -> list[str]:
    """One of the ways in which a run continues or ends; the new jobs that it created."""
    match chance.randrange(7):
        case 0:
            await queue.do(complete(job))
        case 1:
            await queue.do(fail(job, retry_after_seconds=chance.choice((0.1, 3))))
        case 2:
            await queue.do(release(job, delay_seconds=chance.choice((0, 3))))
        case 3:
            await queue.do(request_approval(job))
        case 4:
            child = await queue.add(type="a", parent_id=job.id)
            await queue.do(release(job, children=(child,)))
            return [child]
        case 5:
            await queue.do(cancel(job.id))
    return []
