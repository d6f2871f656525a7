"""Results of enqueue and reads for producers, on both engines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

from interlock import wire
from interlock.domain.decide import ReleaseJob
from interlock.domain.job import Enqueued, Filter, NewJob, Rejected
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.engine.engine import Engine
from interlock.errors import IdempotencyKeyReuse, Invalid, Malformed, NotFound, TooLarge
from interlock.storage.batching import batched
from interlock.storage.contract import NO_TERMS, Store, Terms
from interlock.wire import JobRequest, job_request
from tests.support.stores import ManualClock


async def test_an_enqueued_job_is_returned_as_sent(interlock_engine: Engine, who: Principal) -> None:
    request = job_request({"type": "research", "payload": {"topic": "tides"}, "tags": ["b", "a"], "priority": 7})
    enqueued = await interlock_engine.jobs.enqueue(who, request)
    job = await interlock_engine.queries.job("acme", enqueued.id)
    assert (job.type, job.payload, job.priority, list(job.tags)) == ("research", '{"topic":"tides"}', 7, ["a", "b"])
    assert (job.status, job.created_by, job.attempt, job.fence) == (Status.QUEUED, "user:local", 1, 0)


async def test_the_same_key_and_body_return_the_same_job(interlock_engine: Engine, who: Principal) -> None:
    request = job_request({"type": "t", "payload": {"n": 1}, "idempotency_key": "k"})
    first = await interlock_engine.jobs.enqueue(who, request)
    again = await interlock_engine.jobs.enqueue(who, request)
    assert (again.id, again.replayed, first.replayed) == (first.id, True, False)


async def test_the_same_key_with_another_body_is_rejected(interlock_engine: Engine, who: Principal) -> None:
    await interlock_engine.jobs.enqueue(who, job_request({"type": "t", "payload": 1, "idempotency_key": "k"}))
    with pytest.raises(IdempotencyKeyReuse):
        await interlock_engine.jobs.enqueue(who, job_request({"type": "t", "payload": 2, "idempotency_key": "k"}))


@pytest.mark.parametrize("blank", ["", "  ", "\u200b\n"])
async def test_a_blank_reason_is_none(interlock_engine: Engine, who: Principal, blank: str) -> None:
    engine = interlock_engine
    ids = [(await engine.jobs.enqueue(who, JobRequest(type="t"))).id for _ in range(3)]
    await engine.jobs.pause(who, "t", reason=blank)
    assert (await engine.queries.queue(who.tenant, "t")).pause_reason is None
    await engine.jobs.resume(who, "t")
    leases = await engine.leases.claim(who.tenant, ClaimFilter("w1", limit=2))
    await engine.jobs.revoke(who, leases[0].id, reason=blank)
    await engine.leases.release(who.tenant, ReleaseJob(leases[1].id, leases[1].fence, "w1", reason=blank))
    await engine.jobs.cancel(who, ids[2], reason=blank)
    assert (await engine.queries.job(who.tenant, ids[2])).cancel_reason is None
    for id in ids:
        assert [row.reason for row in await engine.queries.history(who.tenant, id)][-1] is None


async def test_a_revoke_repeated_by_the_store_ends_no_later_lease(store: Store, who: Principal) -> None:
    """The connection breaks after the commit; when the store has it again, another worker holds the job."""

    class Repeating:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def carry_out(self, tenant: str, orders: Sequence[Any]) -> Any:
            await store.carry_out(tenant, orders)
            assert len(await store.claim(tenant, ClaimFilter("second"))) == 1
            return await store.carry_out(tenant, orders)

    engine = Engine(cast(Store, Repeating()))
    added = await engine.jobs.enqueue(who, job_request({"type": "t"}))
    assert len(await store.claim("acme", ClaimFilter("first"))) == 1
    receipt = await engine.jobs.revoke(who, added.id, reason="it hangs")
    job = await engine.queries.job("acme", added.id)
    assert (job.status, job.worker, job.attempt, receipt.version) == (Status.RUNNING, "second", 2, 4)


async def test_a_batch_is_atomic_and_names_the_invalid_item(interlock_engine: Engine, who: Principal) -> None:
    good = job_request({"type": "t"})
    with pytest.raises(Invalid) as refused:
        await interlock_engine.jobs.enqueue_batch(who, [good, good, job_request({"type": "t", "priority": 5000})])
    assert refused.value.pointer == "/jobs/2/priority"
    await interlock_engine.jobs.enqueue(who, job_request({"type": "t", "payload": 1, "idempotency_key": "k"}))
    clash = job_request({"type": "t", "payload": 2, "idempotency_key": "k"})
    with pytest.raises(IdempotencyKeyReuse) as reused:
        await interlock_engine.jobs.enqueue_batch(who, [good, clash])
    assert reused.value.pointer == "/jobs/1/idempotency_key"
    assert len(await interlock_engine.queries.jobs("acme", Filter())) == 1


class CountingStore:
    """Counts the batches that reach a store."""

    def __init__(self, store: Store) -> None:
        self.store, self.batches = store, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def enqueue(
        self, tenant: str, jobs: Sequence[NewJob], *, whole: bool = False, terms: Terms = NO_TERMS
    ) -> list[Enqueued | Rejected]:
        self.batches.append(len(jobs))
        return await self.store.enqueue(tenant, jobs, whole=whole, terms=terms)


async def test_concurrent_single_enqueues_share_commits(store: Store, who: Principal) -> None:
    counting = CountingStore(store)
    engine = Engine(batched(cast(Store, counting)))
    requests = [job_request({"type": "t", "payload": n}) for n in range(64)]
    answers = await asyncio.gather(*(engine.jobs.enqueue(who, request) for request in requests))
    assert len({answer.id for answer in answers}) == 64
    assert sum(counting.batches) == 64
    assert len(counting.batches) < 8


@pytest.mark.parametrize(
    ("values", "error", "pointer"),
    [
        ({"type": ""}, Invalid, "/type"),
        ({"type": "a\x00b"}, Invalid, "/type"),
        ({"type": "x" * 201}, Invalid, "/type"),
        ({"type": "t", "priority": 1001}, Invalid, "/priority"),
        ({"type": "t", "max_attempts": 0}, Invalid, "/max_attempts"),
        ({"type": "t", "max_attempts": 101}, Invalid, "/max_attempts"),
        ({"type": "t", "delay_seconds": -1}, Invalid, "/delay_seconds"),
        ({"type": "t", "timeout_seconds": 0}, Invalid, "/timeout_seconds"),
        ({"type": "t", "backoff": {"kind": "magic"}}, Invalid, "/backoff/kind"),
        ({"type": "t", "backoff": {"speed": 1}}, Invalid, "/backoff/speed"),
        ({"type": "t", "tags": ["a", "a"]}, Invalid, "/tags"),
        ({"type": "t", "requires": [" "]}, Invalid, "/requires"),
        ({"type": "t", "parent_id": "nope"}, Invalid, "/parent_id"),
        ({"type": "t", "deadline": datetime(2001, 1, 1, tzinfo=UTC)}, Invalid, "/deadline"),
        ({"type": "t", "deadline": datetime(2090, 1, 1)}, Invalid, "/deadline"),
        ({"type": "t", "status": "running"}, Invalid, ""),
        ({"type": "t", "payload": "x" * 300_000}, TooLarge, None),
        ({"type": "t", "headers": {"a": "x" * 9000}}, TooLarge, None),
    ],
)
async def test_bad_input_is_rejected_with_a_pointer_and_nothing_is_added(
    interlock_engine: Engine, who: Principal, values: dict[str, object], error: type[Exception], pointer: str | None
) -> None:
    with pytest.raises(error) as refused:
        await interlock_engine.jobs.enqueue(who, job_request(values))
    if pointer is not None:
        assert getattr(refused.value, "pointer", None) == pointer
    assert await interlock_engine.queries.jobs("acme", Filter()) == []


async def test_run_at_and_delay_together_are_rejected(interlock_engine: Engine, who: Principal) -> None:
    values = {"type": "t", "delay_seconds": 1, "run_at": datetime(2090, 1, 1, tzinfo=UTC)}
    with pytest.raises(Invalid):
        await interlock_engine.jobs.enqueue(who, job_request(values))


async def test_payload_text_that_is_not_json_is_malformed(interlock_engine: Engine, who: Principal) -> None:
    for text in (b"{", b'{"a":1,"a":2}', b"NaN", b"[" * 70 + b"]" * 70):
        with pytest.raises(Malformed):
            await interlock_engine.jobs.enqueue(who, JobRequest(type="t", payload=msgspec.Raw(text)))


async def test_cancel_of_an_unknown_or_foreign_job_is_not_found(interlock_engine: Engine, who: Principal) -> None:
    foreign = await interlock_engine.jobs.enqueue(who._replace(tenant="other"), job_request({"type": "t"}))
    for id in (foreign.id, wire.new_id()):
        with pytest.raises(NotFound) as missing:
            await interlock_engine.jobs.cancel(who, id)
        assert str(missing.value) == f"no job {id}"


async def test_a_paused_type_is_not_leased_until_it_is_resumed(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    await interlock_engine.jobs.enqueue(who, job_request({"type": "t"}))
    await interlock_engine.jobs.pause(who, "t", reason="provider down")
    assert await interlock_engine.leases.claim("acme", ClaimFilter("w")) == []
    await interlock_engine.jobs.resume(who, "t")
    assert len(await interlock_engine.leases.claim("acme", ClaimFilter("w"))) == 1


async def test_a_repeated_enqueue_returns_its_job_though_its_deadline_has_passed(
    interlock_engine: Engine, who: Principal, clock: ManualClock
) -> None:
    deadline = datetime.fromtimestamp(clock.now // 1_000_000 + 60, UTC)
    request = job_request({"type": "t", "deadline": deadline, "idempotency_key": "k"})
    first = await interlock_engine.jobs.enqueue(who, request)
    clock.advance(61)
    for again in (
        await interlock_engine.jobs.enqueue(who, request),
        *await interlock_engine.jobs.enqueue_batch(who, [request, job_request({"type": "t"})]),
    ):
        assert again.replayed == (again.id == first.id)
    encoded = await interlock_engine.jobs.add(who, request)
    assert (encoded.job.id, encoded.replayed) == (first.id, True)
    late = msgspec.structs.replace(request, idempotency_key="another")
    with pytest.raises(Invalid) as refused:
        await interlock_engine.jobs.enqueue(who, late)
    assert refused.value.pointer == "/deadline"
    with pytest.raises(Invalid) as refused:
        await interlock_engine.jobs.enqueue_batch(who, [request, late])
    assert refused.value.pointer == "/jobs/1/deadline"
    with pytest.raises(IdempotencyKeyReuse):
        await interlock_engine.jobs.enqueue(who, msgspec.structs.replace(request, priority=1))
    assert len(await interlock_engine.queries.jobs("acme", Filter())) == 2
