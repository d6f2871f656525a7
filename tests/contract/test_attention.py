"""What needs attention: failures that nobody has seen, and due jobs that no present worker could claim."""

from __future__ import annotations

import pytest

from interlock.domain.attention import Need
from interlock.domain.job import Enqueued
from interlock.domain.lifecycle import Status
from interlock.domain.operations import Redrive
from interlock.storage.parts import attention
from tests.contract.builders import OPERATOR, TenantQueue, acknowledge, new_id
from tests.contract.connections import SqlConnection, job_in
from tests.contract.reasons import seen


async def needing(
    queue: TenantQueue, *, need: Need | None = None, before_seq: int | None = None, limit: int = 10
) -> list[str]:
    found = await queue.store.attention.page(queue.tenant, need=need, before_seq=before_seq, limit=limit)
    return [place.id for place in found]


async def test_failures_need_attention_until_they_are_acknowledged(queue: TenantQueue, sql: SqlConnection) -> None:
    await seen(queue)
    failed, dead = await job_in(queue, sql, Status.FAILED), await job_in(queue, sql, Status.DEAD_LETTER)
    for status in (Status.SUCCEEDED, Status.CANCELLED, Status.RUNNING):
        await job_in(queue, sql, status)
    await seen(queue)
    assert await needing(queue) == [dead.id, failed.id]
    assert await needing(queue, limit=1) == [dead.id]
    assert await needing(queue, before_seq=dead.seq) == [failed.id]
    assert await queue.store.attention.count(queue.tenant, most=10) == 2
    assert await queue.store.attention.count(queue.tenant, most=1) == 1
    await queue.do(acknowledge(dead.id))
    assert await needing(queue) == [failed.id]


async def test_a_due_job_needs_attention_while_no_present_worker_could_claim_it(queue: TenantQueue) -> None:
    plain = await queue.add(type="mail")
    bound = await queue.add(type="mail", requires=("gpu",))
    await queue.add(type="mail", delay_seconds=1000.0)
    assert await needing(queue) == [bound, plain]
    await seen(queue, types=frozenset({"mail"}))
    assert await needing(queue) == [bound]
    await seen(queue, worker="w2", types=frozenset({"other"}), capabilities=frozenset({"gpu"}))
    assert await needing(queue) == [bound]
    await seen(queue, worker="w3", capabilities=frozenset({"gpu"}))
    assert await needing(queue) == []
    queue.clock.advance(61)
    assert await needing(queue) == [bound, plain]
    assert await queue.store.attention.count(queue.tenant, most=10) == 2


async def test_the_last_due_jobs_of_a_large_queue_are_listed_on_pages(
    queue: TenantQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "MAX_SCANNED", 4)
    ids = []
    for n in range(6):
        ids.append(await queue.add(type=("mail", "report")[n % 2]))
        queue.clock.advance(1)
    await queue.add(type="mail", delay_seconds=1000.0)
    seqs = {id: (await queue.job(id)).seq for id in ids}
    found, before = list[str](), None
    while part := await needing(queue, before_seq=before, limit=2):
        found += part
        before = seqs[part[-1]]
    assert found == ids[::-1]


async def test_each_need_is_listed_by_itself(queue: TenantQueue, sql: SqlConnection) -> None:
    failed = await job_in(queue, sql, Status.FAILED)
    waiting = await queue.add(type="mail")
    assert await needing(queue) == [waiting, failed.id]
    for need, job_id in ((Need.FAILURE, failed.id), (Need.NO_WORKER, waiting)):
        assert await needing(queue, need=need) == [job_id]
        assert await queue.store.attention.count(queue.tenant, need=need, most=10) == 1


async def test_a_redriven_job_needs_no_attention(queue: TenantQueue, sql: SqlConnection) -> None:
    failed = await job_in(queue, sql, Status.FAILED)
    (made,) = await queue.store.redrive(queue.tenant, [Redrive(failed.id, new_id(), OPERATOR)])
    assert isinstance(made, Enqueued)
    assert await needing(queue, need=Need.FAILURE) == []


async def test_jobs_of_a_paused_type_need_no_worker(queue: TenantQueue) -> None:
    waiting = await queue.add(type="mail")
    assert await needing(queue) == [waiting]
    await queue.store.registry.pause(queue.tenant, "mail", actor=OPERATOR, reason=None)
    assert await needing(queue) == []
