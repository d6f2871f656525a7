"""Effects: begun and settled only under the current fence, final when done, and kept as long as their job."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain import effect as effects
from interlock.domain.effect import BeginEffect, Begun, Effect, EffectState, SettleEffect
from interlock.domain.job import Job, Rejected
from interlock.domain.operations import CHECKPOINT, START, PruneCommand, Redrive
from interlock.errors import EffectConflict, Error, LeaseLost, LimitReached, NotFound, NotRunning
from tests.contract.builders import NEVER, OPERATOR, TenantQueue, complete, fail, new_id, release, save
from tests.contract.connections import SqlConnection, rejection

STARTED, DONE, NOT_DONE = EffectState


def begin(job: Job, name: str = "charge", **more: Any) -> BeginEffect:
    return BeginEffect(job.id, job.fence, job.worker or "", name, 1, "k1")._replace(**more)


def settle(job: Job, state: EffectState = DONE, result: str | None = None, **more: Any) -> SettleEffect:
    return SettleEffect(job.id, job.fence, job.worker or "", "charge", 1, state, result)._replace(**more)


async def begun(queue: TenantQueue, order: BeginEffect) -> Begun:
    answer = await queue.store.effects.begin(queue.tenant, order)
    assert isinstance(answer, Begun), answer
    return answer


async def settled(queue: TenantQueue, order: SettleEffect) -> Effect:
    answer = await queue.store.effects.settle(queue.tenant, order)
    assert isinstance(answer, Effect), answer
    return answer


async def refused(queue: TenantQueue, order: BeginEffect | SettleEffect) -> Error:
    verb = queue.store.effects.begin if isinstance(order, BeginEffect) else queue.store.effects.settle
    answer = await verb(queue.tenant, order)  # type: ignore[arg-type]
    assert isinstance(answer, Rejected), answer
    return answer.error


async def listed(queue: TenantQueue, id: str) -> list[Effect]:
    return await queue.store.effects.of_job(queue.tenant, id, limit=100)


async def test_an_effect_is_begun_once_and_later_leases_get_its_state(queue: TenantQueue) -> None:
    job = await queue.running()
    first = await begun(queue, begin(job))
    assert first.is_new
    assert first.effect == Effect(
        1, "charge", 1, "k1", STARTED, None, False, 1, job.fence, queue.clock.now, None
    )  # fmt: skip
    assert await begun(queue, begin(job, key="other")) == Begun(first.effect, False)
    await queue.do(release(job))
    again = await queue.again(job)
    assert await begun(queue, begin(again)) == Begun(first.effect, False)
    done = await settled(queue, settle(again, result='{"n": 1.10}'))
    assert done == first.effect._replace(state=DONE, result='{"n": 1.10}', fence=again.fence, ended_at=queue.clock.now)
    assert await begun(queue, begin(again)) == Begun(done, False)
    assert await listed(queue, job.id) == [done]


async def test_a_done_effect_never_changes(queue: TenantQueue) -> None:
    job = await queue.running()
    await begun(queue, begin(job))
    done = await settled(queue, settle(job, result="1"))
    queue.clock.advance(1)
    assert await settled(queue, settle(job, result="1")) == done
    for other in (settle(job, result="2"), settle(job), settle(job, NOT_DONE)):
        error = await refused(queue, other)
        assert isinstance(error, EffectConflict)
        assert error.state == DONE
    assert await listed(queue, job.id) == [done]


async def test_an_effect_that_is_not_done_begins_again(queue: TenantQueue) -> None:
    job = await queue.running()
    await begun(queue, begin(job))
    await queue.do(release(job))
    again = await queue.again(job)
    for _ in range(2):
        assert (await settled(queue, settle(again, NOT_DONE))).state is NOT_DONE
    assert isinstance(await refused(queue, settle(again)), EffectConflict)  # it has not been begun again
    started = await begun(queue, begin(again, key="k2"))
    assert (started.is_new, started.effect.key, started.effect.fence, started.effect.seq) == (
        True,
        "k2",
        again.fence,
        1,
    )
    assert not (await begun(queue, begin(again))).is_new
    assert (await settled(queue, settle(again))).state is DONE


async def test_the_history_covers_effects_by_their_steps(queue: TenantQueue) -> None:
    job = await queue.running()
    await begun(queue, begin(job))
    await settled(queue, settle(job, result='"paid"'))
    ((*steps,),) = await queue.store.steps(queue.tenant, [job.id], limit=10)
    assert [(one.name, one.occurrence, one.result, one.function) for one in steps] == [
        ("interlock.effect/charge", 1, '"k1"', "interlock.effect"), ("charge", 1, '"paid"', "interlock.effect"),
    ]  # fmt: skip
    await queue.do(complete(job))
    assert '"steps":' in ((await queue.history(job.id))[-1].metadata or "")
    await queue.verify()


@pytest.mark.parametrize("wrong", [{"fence": 2}, {"worker": "w2"}])
async def test_only_the_lease_holder_writes(queue: TenantQueue, wrong: dict[str, Any]) -> None:
    job = await queue.running()
    assert isinstance(await refused(queue, begin(job, **wrong)), LeaseLost)
    await begun(queue, begin(job))
    assert isinstance(await refused(queue, settle(job, **wrong)), LeaseLost)
    assert isinstance(await refused(queue, begin(job, id=NEVER)), NotFound)
    assert isinstance(await refused(queue, settle(job, name="other")), NotFound)
    await queue.do(release(job))
    for order in (begin(job), settle(job)):
        assert isinstance(await refused(queue, order), NotRunning)
    again = await queue.again(job)
    for order in (begin(job), settle(job)):
        assert isinstance(await refused(queue, order), Error)
    assert [one.state for one in await listed(queue, again.id)] == [STARTED]


async def test_the_effects_of_a_job_are_limited(queue: TenantQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "MAX_EFFECTS", 2)
    job = await queue.running()
    for name in ("a", "b"):
        await begun(queue, begin(job, name))
    assert isinstance(await refused(queue, begin(job, "c")), LimitReached)
    assert not (await begun(queue, begin(job, "b"))).is_new
    assert [one.name for one in await queue.store.effects.of_job(queue.tenant, job.id, after=1, limit=1)] == ["b"]


@pytest.mark.parametrize("origin", [START, CHECKPOINT])
async def test_a_redrive_copies_effects_that_are_done_or_unknown(queue: TenantQueue, origin: str) -> None:
    job = await queue.running()
    for name in ("done", "unknown", "not"):
        await begun(queue, begin(job, name))
    await settled(queue, settle(job, name="done", result="7"))
    await settled(queue, settle(job, NOT_DONE, name="not"))
    if origin == CHECKPOINT:
        await queue.checkpoint(save(job, 1))
    await queue.do(fail(job, retryable=False))
    (made,) = await queue.store.redrive(queue.tenant, [Redrive(job.id, new_id(), OPERATOR, origin=origin)])
    assert not isinstance(made, Rejected)
    copied = await listed(queue, made.id)
    assert [(one.name, one.state, one.result, one.key, one.attempt, one.fence) for one in copied] == [
        ("done", DONE, "7", "k1", 1, 0), ("unknown", STARTED, None, "k1", 1, 0),
    ]  # fmt: skip
    (again,) = await queue.claim()
    assert not (await begun(queue, begin(again, "unknown"))).is_new
    assert (await begun(queue, begin(again, "not"))).is_new
    assert (await settled(queue, settle(again, name="unknown"))).fence == again.fence
    await queue.verify()


async def test_a_prune_deletes_effects_with_their_job(queue: TenantQueue) -> None:
    job = await queue.running()
    await begun(queue, begin(job))
    await queue.do(complete(job))
    queue.clock.advance(1)
    await queue.store.prune(queue.tenant, PruneCommand(new_id(), OPERATOR, queue.clock.now, 0, 100))
    assert await listed(queue, job.id) == []


async def test_an_effect_changes_only_by_operations(queue: TenantQueue, sql: SqlConnection) -> None:
    job = await queue.running()
    await begun(queue, begin(job))
    await begun(queue, begin(job, "other"))
    done = await settled(queue, settle(job, result="1"))
    for statement in (
        "UPDATE job_effect SET state = 'started', result = NULL, ended_at = NULL WHERE tenant = $1 AND job_id = $2",
        "UPDATE job_effect SET result = '2' WHERE tenant = $1 AND job_id = $2 AND state = 'done'",
        "UPDATE job_effect SET state = 'done', ended_at = started_at WHERE tenant = $1 AND job_id = $2 AND name = 'other'",
        "DELETE FROM job_effect WHERE tenant = $1 AND job_id = $2",
        "INSERT INTO job_effect (tenant, job_id, seq, name, occurrence, state, attempt, fence, started_at, ended_at) "
        "SELECT tenant, job_id, 9, 'forged', 1, 'done', 1, fence, started_at, started_at FROM job_effect "
        "WHERE tenant = $1 AND job_id = $2 AND name = 'charge'",
    ):
        await rejection(sql, statement, queue.tenant, job.id)
    assert [one.state for one in await listed(queue, job.id)] == [DONE, STARTED]
    assert (await listed(queue, job.id))[0] == done
