"""Random jobs and claims: the leased jobs and their order equal the rule in plain Python."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlock.domain.job import NewJob
from interlock.domain.policy import ClaimFilter, fits
from interlock.storage.contract import Store
from tests.contract.builders import OPERATOR, TenantQueue, new_job
from tests.support.stores import START, ManualClock

_numbers = itertools.count(1)
TYPES, CAPABILITIES, REPOSITORIES, KEYS = ("a", "b"), ("gpu", "net"), ("org/x", "org/y"), ("h1", "h2")


def some(names: tuple[str, ...]) -> st.SearchStrategy[frozenset[str]]:
    return st.frozensets(st.sampled_from(names))


# Times are seconds from the start; claims happen at 0, 1, 2, …
jobs = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(TYPES),
            "priority": st.sampled_from((-1, 0, 0, 1)),
            "run_at": st.integers(-2, 3),
            "deadline": st.none() | st.integers(1, 4),
            "requires": some(CAPABILITIES).map(lambda names: tuple(sorted(names))),
            "repository": st.none() | st.sampled_from(REPOSITORIES),
            "affinity_key": st.none() | st.sampled_from(KEYS),
        }
    ),
    min_size=1,
    max_size=14,
)
asks = st.lists(
    st.builds(
        ClaimFilter,
        worker=st.sampled_from(("w1", "w2")),
        types=st.none() | some(TYPES),
        repositories=st.none() | some(REPOSITORIES),
        capabilities=some(CAPABILITIES),
        affinity_keys=st.none() | some(KEYS),
        limit=st.integers(1, 6),
        lease_seconds=st.just(3600.0),
        claim_id=st.none(),
    ),
    min_size=1,
    max_size=5,
)


def rule(waiting: dict[int, NewJob], ask: ClaimFilter, paused: frozenset[str], now: int) -> list[int]:
    """The places of the jobs that a claim must be granted, best first."""
    eligible = [
        place
        for place, job in waiting.items()
        if job.run_at is not None
        and job.run_at <= now
        and (job.deadline is None or job.deadline > now)
        and job.type not in paused
        and fits(ask, type=job.type, requires=job.requires, repository=job.repository, affinity_key=job.affinity_key)
    ]
    return sorted(eligible, key=lambda place: (-waiting[place].priority, waiting[place].run_at, place))[: ask.limit]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(facts=jobs, asked=asks, paused=some(TYPES), resumed_at=st.integers(0, 4))
async def test_a_claim_leases_exactly_the_jobs_of_the_rule(
    store: Store,
    clock: ManualClock,
    facts: list[dict[str, Any]],
    asked: list[ClaimFilter],
    paused: frozenset[str],
    resumed_at: int,
) -> None:
    clock.now = START
    queue = TenantQueue(store, f"oracle-{next(_numbers)}", clock)
    rival = TenantQueue(store, f"{queue.tenant}-rival", clock)
    given_jobs = []
    for job in facts:
        deadline = None if job["deadline"] is None else queue.after(job["deadline"])
        given_jobs.append(new_job(**job | {"run_at": queue.after(job["run_at"]), "deadline": deadline}))
    await queue.add_all(given_jobs)
    await rival.add_all([new_job(type=type, priority=9) for type in TYPES])
    for type in paused:
        await store.registry.pause(queue.tenant, type, actor=OPERATOR, reason=None)
    waiting = dict(enumerate(given_jobs))
    for commit_seq, ask in enumerate(asked):
        if commit_seq == resumed_at:
            for type in paused:
                await store.registry.pause(queue.tenant, type, actor=None, reason=None)
            paused = frozenset()
        expected = rule(waiting, ask, paused, clock.now)
        leased = await store.claim(queue.tenant, ask)
        assert [job.id for job in leased] == [waiting[place].id for place in expected]
        assert all(job.worker == ask.worker and job.lease_expires_at == queue.after(3600) for job in leased)
        for place in expected:
            del waiting[place]
        clock.advance(1)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    job_blocks=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), min_size=1, max_size=12),
    limits=st.lists(st.integers(15, 90), min_size=1, max_size=4),
    urgent=st.integers(0, 6),
)
async def test_large_claims_are_in_order_for_any_distribution_over_types(
    store: Store, clock: ManualClock, job_blocks: list[tuple[int, int]], limits: list[int], urgent: int
) -> None:
    """Each job_block is a run of jobs of one type, so that the best may all be of one type, or of each about as many."""
    queue = TenantQueue(store, f"oracle-{next(_numbers)}", clock)
    types = [number for number, length in job_blocks for _ in range(length)]
    waiting = [new_job(type=f"t{number}", priority=int(number == urgent)) for number in types]
    await queue.add_all([*waiting])
    waiting.sort(key=lambda job: -job.priority)
    for limit in itertools.cycle(limits):
        leased = await queue.claimed(limit=limit)
        assert leased == [job.id for job in waiting[:limit]]
        del waiting[:limit]
        if not leased:
            break
