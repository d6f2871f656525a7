"""For every composition of batches, each job has its own valid chain, row by row."""

from __future__ import annotations

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlock.domain.decide import Command
from interlock.domain.job import Receipt
from interlock.storage.contract import Store
from tests.contract.builders import TenantQueue, ask, complete, new_job, release
from tests.support.stores import ManualClock

_numbers = itertools.count(1)
workers = st.sampled_from(("w1", "w2", "größe 🐢"))


# Who claims, in one call: one after the other, or the first of them for all. Of what is held then, every so manieth job is handed
# back, and all others are completed, in one call.
turns = st.tuples(st.lists(workers, min_size=1, max_size=30), st.booleans(), st.integers(1, 4))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    creators=st.lists(st.sampled_from(("user:a", "user:b")), min_size=1, max_size=30),
    rounds=st.lists(turns, min_size=1, max_size=4),
)
async def test_chains_of_jobs_that_change_together_are_valid(
    store: Store, clock: ManualClock, creators: list[str], rounds: list[tuple[list[str], bool, int]]
) -> None:
    queue = TenantQueue(store, f"chains-{next(_numbers)}", clock)
    await queue.add_all([new_job(created_by=creator) for creator in creators])
    rows = len(creators)
    held = []
    for claimants, as_one, back in rounds:
        wanted = ask(worker=claimants[0], limit=len(claimants))
        held += await store.claim(queue.tenant, wanted, claimants=() if as_one else claimants)
        clock.advance(1)
        orders: list[Command] = [release(job) if i % back == 0 else complete(job) for i, job in enumerate(held)]
        answers = await store.carry_out(queue.tenant, orders)
        assert all(isinstance(answer, Receipt) for answer in answers)
        rows += 2 * len(held)
        held = await queue.claim(worker="between", limit=3)  # so that workers and fences differ in the next call
        clock.advance(1)
    assert await store.audit.verify(queue.tenant) == (len(creators), rows + len(held), None)
