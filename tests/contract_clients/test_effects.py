"""Effects: the same results and errors from every client."""

from __future__ import annotations

import pytest

from interlock.domain.effect import BeginEffect, EffectState, SettleEffect
from interlock.errors import EffectConflict, NotFound
from tests.contract_clients.remote_cli import NEVER, ClientUnderTest


async def test_effects_are_begun_settled_and_read(remote: ClientUnderTest) -> None:
    job, work = await remote.running(), remote.client.work
    holder = (job.id, job.fence, job.worker or "")
    first = await work.begin_effect(BeginEffect(*holder, "charge", 1, "k"))
    assert (first.seq, first.key, first.state, first.fence) == (1, "k", EffectState.STARTED, job.fence)
    assert await work.begin_effect(BeginEffect(*holder, "charge", 1)) == first
    done = await work.settle_effect(SettleEffect(*holder, "charge", 1, EffectState.DONE, '{"n": 1.10}'))
    assert (done.state, done.result) == (EffectState.DONE, '{"n": 1.10}')
    assert await remote.client.jobs.effects(job.id) == [done]
    assert await remote.client.jobs.effects(job.id, after=1) == []
    with pytest.raises(EffectConflict) as caught:
        await work.settle_effect(SettleEffect(*holder, "charge", 1, EffectState.NOT_DONE))
    error = caught.value
    assert (error.job_id, error.effect, error.occurrence, error.state) == (job.id, "charge", 1, "done")
    with pytest.raises(NotFound) as missing:
        await work.settle_effect(SettleEffect(*holder, "other", 1, EffectState.DONE))
    assert missing.value.resource == "effect"
    with pytest.raises(NotFound):
        await remote.client.jobs.effects(NEVER)
