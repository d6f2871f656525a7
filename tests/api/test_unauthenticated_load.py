"""Bodies that never end: neither unknown callers nor one tenant can use up the connections of others (G24)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from interlock.api.admission import STRANGERS, Admission
from interlock.api.options import Options
from interlock.api.problems import Refusal
from interlock.storage.contract import Store
from tests.api.rig import Api, problem, serving
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.stores import ManualClock

DECIDE = b"POST /v1/approvals/decide HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
ENQUEUE = b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture
def engine() -> str:
    """Who is let in does not depend on the engine."""
    return "sqlite"


@asynccontextmanager
async def unfinished(api: Api, head: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """A request whose body does not come to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(head + b"content-length: 900000\r\n\r\n{")
    try:
        yield reader
    finally:
        writer.close()


async def test_unauthenticated_callers_that_never_finish_leave_slots_to_authenticated_ones(
    store: Store, clock: ManualClock
) -> None:
    async with serving(store, clock, Options(auth=True, most_arriving=16)) as api, AsyncExitStack() as lines:
        known = await api.as_role("read", "produce")
        readers = [await lines.enter_async_context(unfinished(api, DECIDE)) for _ in range(6)]
        async with asyncio.timeout(RETRY_SECONDS):
            reported = await asyncio.gather(*(reader.readline() for reader in readers[2:]))
        assert {line.split()[1] for line in reported} == {b"503"}
        assert api.service.admission.by_tenant[STRANGERS, "arriving"] == 2
        await known.enqueue()


async def test_a_body_in_flight_uses_no_slot(store: Store, clock: ManualClock) -> None:
    async with serving(store, clock, Options(auth=True, most_active=2)) as api, AsyncExitStack() as lines:
        greedy, modest = await api.as_role("produce", tenant="greedy"), await api.as_role("produce", tenant="modest")
        credential = f"authorization: Bearer {greedy.token}\r\n".encode()
        admission = api.service.admission
        for begun, head in enumerate((ENQUEUE + credential, DECIDE) * 4, 1):
            await lines.enter_async_context(unfinished(api, head))

            async def is_read(begun: int = begun) -> bool:
                return (admission.arriving, admission.active) == (begun, 0)

            await eventually(is_read)
        await modest.enqueue()
        await greedy.enqueue()


def test_a_received_body_waits_for_no_slot() -> None:
    admission = Admission(Options(auth=True, most_active=3))
    late, others = admission.enter(), [admission.enter() for _ in range(3)]
    late.belongs_to("late")
    with pytest.raises(Refusal, match="at work"), late.arriving():
        assert admission.active == 3
    others.pop().leave()
    with late.arriving():
        pass
    coming = late.arriving()
    coming.__enter__()
    for seat in others:
        seat.belongs_to("late")
    with pytest.raises(Refusal, match="of this tenant"):
        coming.__exit__(None, None, None)
    for seat in (late, *others):
        seat.leave()
    assert (admission.active, admission.arriving, dict(admission.by_tenant)) == (0, 0, {})


def test_waiting_callers_can_always_send_their_finishes() -> None:
    admission = Admission(Options(auth=True, most_waiting=2))
    waits, returns = admission.enter(), admission.enter()
    waits.belongs_to("a")
    returns.belongs_to("a")
    with waits.parked(), returns.arriving():
        assert (admission.active, admission.waiting, admission.arriving) == (0, 1, 1)


def test_unauthenticated_callers_and_one_tenant_leave_slots_to_all_others() -> None:
    options = Options(auth=True)
    admission = Admission(options)
    for whole in (options.most_active, options.most_waiting, options.most_arriving, options.body_budget):
        assert admission.share(whole, STRANGERS) + admission.share(whole, "a") < 0.7 * whole


async def test_a_rejected_caller_that_keeps_sending_uses_no_slot(store: Store, clock: ManualClock) -> None:
    async with serving(store, clock, Options(auth=True, most_active=2)) as api, AsyncExitStack() as lines:
        known = await api.as_role("read")
        readers = [await lines.enter_async_context(unfinished(api, ENQUEUE)) for _ in range(2)]
        async with asyncio.timeout(RETRY_SECONDS):
            for reader in readers:
                assert b"unauthenticated" in await reader.readuntil(b"}")

        async def is_free() -> bool:
            return api.service.admission.active == 0

        await eventually(is_free)
        assert len(api.server.connections) >= 2, "they may still send"
        assert (await known.get("/v1/me")).status_code == 200


async def test_bodies_of_one_tenant_leave_memory_for_those_of_others(store: Store, clock: ManualClock) -> None:
    async with serving(store, clock, Options(auth=True, body_budget=2_000_000)) as api, AsyncExitStack() as lines:
        greedy, modest = await api.as_role("produce", tenant="greedy"), await api.as_role("produce", tenant="modest")
        credential = f"authorization: Bearer {greedy.token}\r\n".encode()
        await lines.enter_async_context(unfinished(api, ENQUEUE + credential))

        async def is_reading() -> bool:
            return api.service.admission.body_bytes == 900_000

        await eventually(is_reading)
        problem(await greedy.post("/v1/jobs", {"type": "a", "payload": "x" * 200_000}), 503, "overloaded")
        await modest.enqueue(payload="x" * 200_000)


def test_a_request_slot_is_released_once() -> None:
    admission = Admission(Options(auth=True, body_budget=1000))
    seat = admission.enter()
    seat.belongs_to("a")
    seat.hold(400)
    with pytest.raises(Refusal, match="of this tenant"):
        seat.hold(101)
    seat.leave()
    seat.leave()
    assert (admission.active, admission.body_bytes, dict(admission.by_tenant)) == (0, 0, {})


def test_bodies_of_all_tenants_together_stay_within_the_budget() -> None:
    admission = Admission(Options(auth=True, body_budget=1000))
    seats = [admission.enter() for _ in range(3)]
    for seat, tenant in zip(seats, "abc", strict=True):
        seat.belongs_to(tenant)
    seats[0].hold(400)
    seats[1].hold(400)
    with pytest.raises(Refusal, match="too many bodies are being read"):
        seats[2].hold(400)
    seats[0].leave()
    seats[2].hold(400)
    assert admission.body_bytes == 800


def test_similar_tenant_names_are_counted_separately() -> None:
    admission = Admission(Options(auth=True, most_waiting=2))
    seat, other = admission.enter(), admission.enter()
    seat.belongs_to("a")
    other.belongs_to("a waiting")
    with seat.parked(), other.parked():
        assert admission.waiting == 2
