"""A batch of any size, and of any jobs among others, is written atomically and changes no other job."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.decide import CompleteJob
from interlock.domain.job import Filter, Receipt
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter
from interlock.domain.registry import Agent
from interlock.storage.contract import Store
from tests.contract.builders import FIXED, TenantQueue, complete, fail, new_job, release

# What a job may have that most jobs lack.
EXTRAS: dict[str, dict[str, Any]] = {
    "tags": {"tags": ("a", "b")},
    "headers": {"headers": '{"x":"y"}'},
    "traceparent": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
    "requested by": {"requested_by": "somebody"},
    "key": {"idempotency_key": "k", "body_sha256": b"s" * 32},
    "backoff": {"backoff": FIXED},
    "expiry delay": {"expiry_delay_seconds": 5.0},
    "webhook": {"webhook": "https://example.com/hook"},
    "timeout": {"timeout_seconds": 20.0},
    "deadline": {"deadline": 1 << 52},
    "attempts": {"max_attempts": 7},
    "agent": {"agent_kind": "crew", "agent_id": "one"},
    "repository": {"repository": "acme/site"},
    "affinity key": {"affinity_key": "mine"},
    "requires": {"requires": ("gpu",)},
    "priority": {"priority": 3},
    "less priority": {"priority": -3},
}
SIZES = (1, 9, 10, 11, 49, 50, 51, 64, 173)


@pytest.mark.parametrize("size", SIZES)
async def test_a_batch_of_any_size_is_enqueued_leased_and_completed(store: Store, tenant: str, size: int) -> None:
    bystander = new_job(type="other")
    jobs = [new_job(payload=f'{{"n":{n}}}', tags=(f"t{n}",)) for n in range(size)]
    await store.enqueue(tenant, [bystander])
    reported = await store.enqueue(tenant, jobs)
    assert [answer.id for answer in reported] == [job.id for job in jobs]  # type: ignore[union-attr]
    leased = await store.claim(tenant, ClaimFilter("w1", types=frozenset({"work"}), limit=size))
    assert [(job.id, job.payload, *job.tags) for job in leased] == [(job.id, job.payload, *job.tags) for job in jobs]
    receipts = await store.carry_out(tenant, [CompleteJob(job.id, job.fence, "w1", result="7") for job in leased])
    assert [(r.id, r.status, r.version) for r in receipts if isinstance(r, Receipt)] == [
        (job.id, Status.SUCCEEDED, 3) for job in jobs
    ]
    (untouched,) = await store.get(tenant, [bystander.id])
    assert untouched is not None
    assert untouched.version == 1
    verdict = await store.audit.verify(tenant)
    assert (verdict.jobs, verdict.rows, verdict.first_bad) == (size + 1, 3 * size + 1, None)


@pytest.mark.parametrize("every", [1, 2, 3, 20])
async def test_jobs_scattered_among_others_are_leased_and_completed_alone(
    store: Store, tenant: str, every: int
) -> None:
    jobs = [new_job(type="mine" if n % every == 0 else "other") for n in range(60)]
    await store.enqueue(tenant, jobs)
    mine = [job.id for job in jobs if job.type == "mine"]
    leased = await store.claim(tenant, ClaimFilter("w1", types=frozenset({"mine"}), limit=100))
    assert [job.id for job in leased] == mine
    running = await store.find(tenant, Filter(statuses=(Status.RUNNING,), limit=200))
    assert {job.id for job in running} == {*mine}
    await store.carry_out(tenant, [CompleteJob(job.id, job.fence, "w1") for job in reversed(leased)])
    ended = await store.find(tenant, Filter(statuses=(Status.SUCCEEDED,), limit=200))
    assert {job.id for job in ended} == {*mine}
    assert (await store.audit.verify(tenant)).first_bad is None


async def test_freed_slots_of_many_agents_are_assigned_in_one_batch(store: Store, tenant: str) -> None:
    limits = {f"a{n}": 1 + n % 3 for n in range(12)}
    for name, limit in limits.items():
        await store.registry.set_agent(tenant, Agent("crew", name, max_concurrency=limit))
    jobs = [new_job(agent_kind="crew", agent_id=name) for _ in range(4) for name in limits]
    await store.enqueue(tenant, jobs)
    done: list[str] = []
    while leased := await store.claim(tenant, ClaimFilter("w1", limit=100)):
        ran = [str(job.agent_id) for job in leased]
        assert {name: ran.count(name) for name in limits} == {
            name: min(limit, 4 - sum(1 for id in done if id == name)) for name, limit in limits.items()
        }
        await store.carry_out(tenant, [CompleteJob(job.id, job.fence, "w1") for job in leased])
        done += ran
    assert len(done) == len(jobs)


async def test_jobs_of_all_kinds_are_leased_together_in_order_and_returned_as_stored(queue: TenantQueue) -> None:
    plain: list[dict[str, Any]] = [{}, {}, {}]
    jobs = [new_job(**fields) for extra in EXTRAS.values() for fields in (extra, *plain)]
    ids = await queue.add_all(jobs)
    everything = {"limit": 200, "affinity_keys": None, "capabilities": frozenset({"gpu"}), "lease_seconds": 30.0}
    leased = await queue.claim(**everything)
    assert [job.id for job in leased] == [job.id for job in sorted(jobs, key=lambda job: -job.priority)]
    assert leased == await queue.store.get(queue.tenant, [job.id for job in leased])
    assert {job.id: job.type for job in leased} == dict.fromkeys(ids, "work")
    ends = {job.timeout_seconds: job.lease_expires_at for job in leased}
    assert ends == {None: queue.after(30), 20.0: queue.after(20)}

    queue.clock.advance(1)
    back = leased[::5]
    turned = [release(job) if n % 2 else fail(job, retry_after_seconds=0.1) for n, job in enumerate(back)]
    await queue.store.carry_out(queue.tenant, turned)
    queue.clock.advance(1)
    fresh = await queue.add_all([new_job() for _ in range(20)])
    again = await queue.claim(**everything)
    assert {job.id for job in again} == {*fresh, *(job.id for job in back)}
    assert again == await queue.store.get(queue.tenant, [job.id for job in again])

    last = {job.id: job for job in (*leased, *again)}.values()
    receipts = await queue.store.carry_out(queue.tenant, [complete(job) for job in last])
    assert [receipt.status for receipt in receipts if isinstance(receipt, Receipt)] == [Status.SUCCEEDED] * len(last)
    assert (await queue.store.audit.verify(queue.tenant)).first_bad is None
