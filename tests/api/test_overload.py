"""Overload and rate limits: rejected immediately with a reason, and other callers keep their share (S19, G24, G27)."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace

import pytest

from interlock.api.admission import MAX_BUCKETS, Admission, RateLimiter
from interlock.api.options import Options
from interlock.api.problems import Refusal
from interlock.storage.contract import Store
from tests.api.rig import Api, problem, serving
from tests.support.eventually import eventually
from tests.support.stores import ManualClock


@pytest.fixture
def engine() -> str:
    """Who is let in does not depend on the engine."""
    return "sqlite"


async def test_requests_above_the_limit_are_rejected(api: Api) -> None:
    seats = [api.service.admission.enter() for _ in range(api.service.options.most_active)]
    problem(await api.get("/v1/me"), 503, "overloaded")
    assert [(await api.get(path)).status_code for path in ("/healthz", "/readyz")] == [200, 200]
    for seat in seats:
        seat.leave()
    assert (await api.get("/v1/me")).status_code == 200


async def test_every_request_releases_its_slot(api: Api) -> None:
    await asyncio.gather(*(api.get(path) for path in ["/v1/me", "/nope", "/v1/jobs/x", "/v1/claims"] * 10))
    await api.send("/v1/jobs", b"{")
    admission = api.service.admission

    async def is_empty() -> bool:
        taken = (admission.active, admission.waiting, admission.arriving, admission.body_bytes)
        return (taken, dict(admission.by_tenant)) == ((0, 0, 0, 0), {})

    await eventually(is_empty)


async def test_one_tenant_leaves_request_slots_to_the_others(store: Store, clock: ManualClock) -> None:
    async with serving(store, clock, Options(auth=True, most_active=4)) as api:
        greedy, modest = await api.as_role("read", tenant="greedy"), await api.as_role("read", tenant="modest")
        seats = [api.service.admission.enter() for _ in range(2)]
        for seat in seats:
            seat.belongs_to("greedy")
        problem(await greedy.get("/v1/me"), 503, "overloaded")
        assert (await modest.get("/v1/me")).status_code == 200


async def test_bodies_are_accepted_within_a_memory_budget(store: Store, clock: ManualClock) -> None:
    async with serving(store, clock, Options(body_budget=1000)) as api:
        problem(await api.post("/v1/jobs", {"type": "a", "payload": "x" * 2000}), 503, "overloaded")
        await api.enqueue()


async def test_a_principal_above_the_rate_limit_gets_a_retry_time(store: Store, clock: ManualClock) -> None:
    async with serving(store, clock, Options(auth=True, rate_per_second=0.001, rate_burst=3)) as api:
        eager, calm = await api.as_role("read"), await api.as_role("read")
        for _ in range(3):
            assert (await eager.get("/v1/me")).status_code == 200
        refused = await eager.get("/v1/me")
        problem(refused, 429, "rate_limited")
        assert 500 <= int(refused.headers["retry-after"]) <= 1000
        assert (await calm.get("/v1/me")).status_code == 200
        assert (await eager.get("/healthz")).status_code == 200


def test_a_bucket_refills() -> None:
    now = 0.0
    rates = RateLimiter(2.0, 2, clock=lambda: now)
    rates.take("a")
    rates.take("a")
    with pytest.raises(Refusal):
        rates.take("a")
    now = 0.5
    rates.take("a")
    with pytest.raises(Refusal):
        rates.take("a")
    now = 100.0
    rates.take("a")
    rates.take("a")
    with pytest.raises(Refusal):
        rates.take("a")


def test_the_number_of_buckets_is_bounded() -> None:
    rates = RateLimiter(1.0, 1)
    for n in range(MAX_BUCKETS + 10):
        rates.take(str(n))
    assert len(rates._buckets) == MAX_BUCKETS


def test_waiting_requests_use_no_slot_and_have_a_separate_limit() -> None:
    admission = Admission(replace(Options(), most_waiting=2))
    seats = [admission.enter() for _ in range(3)]
    for seat in seats:
        seat.belongs_to("a")
    with ExitStack() as stack:
        stack.enter_context(seats[0].parked())
        stack.enter_context(seats[1].parked())
        assert (admission.active, admission.waiting) == (1, 2)
        with pytest.raises(Refusal):
            stack.enter_context(seats[2].parked())
    assert (admission.active, admission.waiting) == (3, 0)
    for seat in seats:
        seat.leave()
    assert (admission.active, dict(admission.by_tenant)) == (0, {})
