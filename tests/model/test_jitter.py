"""Delays with chance in them: within the bounds of their policy (G11), and not all the same."""

from __future__ import annotations

import pytest

from interlock.domain.decide import FailJob
from interlock.domain.job import NewJob, Receipt
from interlock.domain.policy import ClaimFilter
from interlock.domain.retry import Backoff
from interlock.storage.contract import Store
from tests.model.job_model import SECOND
from tests.model.model import Model
from tests.support.stores import ManualClock

JOBS = 40


@pytest.mark.parametrize("kind", [None, "full_jitter", "equal_jitter", "exponential", "linear", "fixed"])
async def test_delays_stay_within_their_policy_attempt_after_attempt(
    store: Store, clock: ManualClock, kind: str | None
) -> None:
    model = Model("t")
    backoff = None if kind is None else Backoff(kind, 2.0, 9.0, 3.0).to_text()
    jobs = [NewJob(f"{n:08x}-0000-7000-8000-000000000000", "x", max_attempts=5, backoff=backoff) for n in range(JOBS)]
    await store.enqueue("t", jobs)
    model.enqueue(jobs, clock.now, whole=False)
    for _ in range(4):
        lease_ref = await store.claim("t", ClaimFilter("w", limit=JOBS))
        assert len(lease_ref) == len(model.claim(ClaimFilter("w", limit=JOBS), clock.now)) == JOBS
        orders = [FailJob(job.id, job.fence, "w", '{"message":"no","kind":"X"}') for job in lease_ref]
        answers = [answer for answer in await store.carry_out("t", orders) if isinstance(answer, Receipt)]
        assert answers == model.carry_out(orders, clock.now, [answer.run_at for answer in answers])
        delays = {(answer.run_at or 0) - clock.now for answer in answers}
        assert (len(delays) > 1) == (kind in (None, "full_jitter", "equal_jitter"))
        assert min(delays) >= SECOND // 10
        clock.advance(max(delays) / SECOND)
